// y = x W^T + bias with W in MXINT8 or MXFP8, x and y in bfloat16, for up to 32 rows of x, where reading W is
// the work; for GPUs with clusters (compute capability 9.0).
//
// W goes from memory straight into the registers that are the operand of the tensor cores, and is
// decoded there. The columns of W are cut into SPLIT parts, one per block of a cluster; the parts
// are added through the cluster's shared memory, always in the same order.
//
// Compiled at run time, once per set of: FORMAT, GROUP (values per scale), BATCH (rows of x, a multiple of
// 8), TILES (16 rows of W each, per block), WARPS and SPLIT.

// What a thread holds of a chunk of 64 columns: 16 bytes each of rows g and g + 8 of every tile of
// 16 rows, their scales, and 16 columns of rows g of x. The order of columns within the 64 is the
// thread's own: a product does not mind, as long as W and x agree.
struct Weights {
  uint4 codes[TILES][2];
  u8 scales[TILES][2];
};
struct Values {
  uint4 x[BATCH / 8][2];
};

// A block: 16 * TILES rows of W, all rows of x; the warps take chunks of 64 columns in turn, the
// next one on its way while one is multiplied.
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS)
    packed_linear(const u16* __restrict__ x, const u8* __restrict__ codes,
                  const u8* __restrict__ scales, const u16* __restrict__ bias, u16* __restrict__ y,
                  int batch, int rows, int columns) {
  constexpr int ROWS_W = 16 * TILES;
  extern __shared__ __align__(16) u8 shared[];
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  int row = blockIdx.x * ROWS_W, groups = (columns + GROUP - 1) / GROUP;
  int chunks = columns / 64, per_block = (chunks + SPLIT - 1) / SPLIT;
  int end = min(chunks, ((int)blockIdx.y + 1) * per_block), chunk = blockIdx.y * per_block + warp;

  const u8 *code_row[TILES][2], *scale_row[TILES][2];
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      long long r = min(row + i * 16 + h * 8 + g, rows - 1);  // beyond the last: not stored
      code_row[i][h] = codes + r * columns + t * 16, scale_row[i][h] = scales + r * groups;
    }
  wait_for_kernel_before();
  let_next_start();

  float sums[TILES][BATCH / 8][4] = {};
  auto load = [&](Weights& c, int column) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        c.codes[i][h] = stream(code_row[i][h] + column);
        c.scales[i][h] = scale_row[i][h][(column + t * 16) / GROUP];
      }
  };
  auto load_x = [&](Values& v, int column) {
#pragma unroll
    for (int j = 0; j < BATCH / 8; j++) {
      int n = j * 8 + g;
      const uint4* from = (const uint4*)(x + (long long)n * columns + column + t * 16);
      v.x[j][0] = n < batch ? from[0] : make_uint4(0, 0, 0, 0);
      v.x[j][1] = n < batch ? from[1] : make_uint4(0, 0, 0, 0);
    }
  };
  auto multiply = [&](const Weights& c, const Values& v) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      const u32 *above = (const u32*)&c.codes[i][0], *below = (const u32*)&c.codes[i][1];
      u32 s0 = scale8(c.scales[i][0]), s1 = scale8(c.scales[i][1]);
#pragma unroll
      for (int s = 0; s < 4; s++) {
        u32 a[4] = {decode_low(above[s], s0), decode_low(below[s], s1), decode_high(above[s], s0),
                    decode_high(below[s], s1)};
#pragma unroll
        for (int j = 0; j < BATCH / 8; j++) {
          const u32* xs = (const u32*)v.x[j];
          mma(sums[i][j], a, xs[2 * s], xs[2 * s + 1]);
        }
      }
    }
  };
  Weights ring[2];
  Values now, next;
  if (chunk < end) load(ring[0], chunk * 64), load_x(now, chunk * 64);
  while (chunk < end) {
#pragma unroll
    for (int turn = 0; turn < 2; turn++) {
      // The compiler keeps this order of loads only if x is not part of the ring, and with it the
      // kernel takes an eighth less time: x and the scales are near, W is far.
      if (chunk + WARPS < end) load(ring[1 - turn], (chunk + WARPS) * 64);
      if (chunk + WARPS < end) load_x(next, (chunk + WARPS) * 64);
      multiply(ring[turn], now);
      now = next;
      chunk += WARPS;
      if (chunk >= end) break;
    }
  }

  finish(shared, sums, bias, y, batch, row, rows);
}
