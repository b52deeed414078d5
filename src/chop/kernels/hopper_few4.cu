// y = x W^T + bias with W in a format of 4 bits, x and y in bfloat16, for up to 32 rows of x, where
// reading W is the work; for GPUs of compute capability 9.0.
//
// The columns come in chunks, which the warps take in turn. The copy engine brings W and x of a
// chunk into one of SLOTS slots; the warp that has emptied a slot asks for the next chunk to fill
// it. W is decoded into the registers that are the operand of the tensor cores. A word is eight
// columns, of which a register holds j and j + 4 in its halves: x is put into that order on its way.
//
// Compiled at run time, once per set of: FORMAT, GROUP (values per scale), BATCH (rows of x, a
// multiple of 8), TILES (16 rows of W each, per block), WARPS, SPLIT, SLOTS (a multiple of WARPS),
// EAGER (whether a chunk goes to registers as a whole, so that its slot is filled again the sooner)
// and BLOCKS (of this or of the next kernel that a multiprocessor shall have room for).

constexpr int CHUNK = 128, ROWS_W = 16 * TILES;
constexpr int W_BYTES = ROWS_W * CHUNK / 2, X_HALF = BATCH * 128, SLOT = W_BYTES + 2 * X_HALF;
constexpr int BARRIERS = 2048;  // bytes in front of the slots

// -- decoding ---------------------------------------------------------------------------------

// Scales are put into the weights in one step where that is exact: up to this one.
constexpr u32 LARGEST_EASY = FORMAT == MXINT4 ? 249 : 128;

// A scale byte as the decoding below wants it.
template <bool EASY>
__device__ __forceinline__ u32 prepared(u32 byte) {
  if (!EASY) return scale2(byte);
  if (FORMAT == MXINT4) return byte * 0x00800080 + 0x02880288;  // 34 times the scale
  return byte * 0x00800080 + 0x3f003f00;                        // 2^126 times the scale
}

// Eight codes as the pairs (0, 4), (1, 5), (2, 6), (3, 7) of values times their scale.
template <bool EASY>
__device__ __forceinline__ void decode8(u32* pairs, u32 word, u32 scale) {
#pragma unroll
  for (int p = 0; p < 4; p++) {
    if (FORMAT == MXINT4) {
      u32 pair = word >> p * 4;
      pairs[p] = EASY ? sub2(masked_xor(pair, 0x000f000f, scale), scale) : quarters(pair, scale);
    } else {
      u32 pair = e2m1(word >> p / 2 * 8 & (p % 2 ? 0x00f000f0 : 0x000f000f), p % 2 ? 0x0104 : 0x1040);
      pairs[p] = EASY ? mul2(pair, scale) : mul2(mul2(pair, 0x7e807e80), scale);
    }
  }
}

// -- what a block has in shared memory --------------------------------------------------------

constexpr int PANEL = 32;  // scales of a row that lie together

// Where scale `k` of row `r` of a panel lies: so that eight rows reach all banks.
__device__ __forceinline__ int scale_place(int r, int k) { return r * PANEL + (k ^ (r / 4 % 2 << 4)); }

// The part of a product that a block has: rows of W from `row` on, chunks `begin` to `end`.
struct Part {
  const TensorMap *w_map, *x_map, *scale_map;
  u64 *full, *empty, *known;  // barriers for each slot, and for each panel of scales
  u8 *slots, *scales;
  int row, begin, end;

  __device__ __forceinline__ int first_panel() const { return begin * CHUNK / GROUP / PANEL; }
  __device__ __forceinline__ int panels() const {
    return (end * CHUNK / GROUP + PANEL - 1) / PANEL - first_panel();
  }

  // By one thread: chunk `chunk` into its slot.
  __device__ __forceinline__ void ask(int chunk) const {
    if (chunk >= end) return;
    int slot = (chunk - begin) % SLOTS;
    u32 to = shared_address(slots + slot * SLOT), ready = shared_address(full + slot);
    expect(ready, SLOT);
    load_tile(to, w_map, chunk * (CHUNK / 2), row, ready);
    load_tile(to + W_BYTES, x_map, chunk * CHUNK, 0, ready);
    load_tile(to + W_BYTES + X_HALF, x_map, chunk * CHUNK + 64, 0, ready);
  }

  // By a warp that has read what it needs of chunk `chunk`: its slot is filled again. The barrier
  // orders that after the reads, which may otherwise be under way still when new data arrives.
  __device__ __forceinline__ void release(int chunk, int lane) const {
    __syncwarp();
    if (lane != 0 || chunk + SLOTS >= end) return;
    u32 done = shared_address(empty + (chunk - begin) % SLOTS);
    arrive(done);
    wait(done, (chunk - begin) / SLOTS % 2);
    ask(chunk + SLOTS);
  }

  // By one thread.
  __device__ __forceinline__ void ask_scales(int panel) const {
    u32 ready = shared_address(known + panel);
    expect(ready, ROWS_W * PANEL);
    load_tile(shared_address(scales + panel * ROWS_W * PANEL), scale_map,
              (first_panel() + panel) * PANEL, row, ready);
  }

  // By all threads, where the copy engine cannot.
  __device__ __forceinline__ void put_scales(const u8* of_w, int rows, int groups) const {
    int width = panels() * PANEL, from = first_panel() * PANEL;
    for (int i = threadIdx.x; i < ROWS_W * width; i += THREADS) {
      int r = i / width, k = i % width;
      bool has = row + r < rows && from + k < groups;
      scales[k / PANEL * ROWS_W * PANEL + scale_place(r, k % PANEL)] =
          has ? __ldg(of_w + (long long)(row + r) * groups + from + k) : 0;
    }
    __syncthreads();
  }
};

// Eight columns in the order 0, 4, 1, 5, 2, 6, 3, 7.
__device__ __forceinline__ uint4 reordered(uint4 v) {
  return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                    __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
}

// -- the product ------------------------------------------------------------------------------

// The products of this warp's chunks, added to `sums`; the largest scale.
template <bool EASY>
__device__ __forceinline__ u32 multiply(float (*sums)[BATCH / 8][4], const Part& part) {
  constexpr int SCALES = GROUP == 16 ? 2 : 1;  // of the 32 columns that a thread has of a chunk
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u32 largest = 0;
#pragma unroll 1
  for (int chunk = part.begin + warp; chunk < part.end; chunk += WARPS) {
    int number = chunk - part.begin, index = number % SLOTS;
    int group = chunk * CHUNK / GROUP, panel = group / PANEL - part.first_panel();
    const u8* slot = part.slots + index * SLOT;
    const u8* x = slot + W_BYTES + t / 2 * X_HALF + g * 128;
    const u8* codes = slot + g * 64 + ((t ^ g / 2 % 4) << 4);
    const u8* of_rows =
        part.scales + panel * ROWS_W * PANEL + scale_place(g, group % PANEL + t * 32 / GROUP);
    wait(shared_address(part.known + panel), 0);
    u32 scales[TILES][2][SCALES];
#pragma unroll
    for (int i = 0; i < TILES * 2 * SCALES; i++) {
      u32 byte = of_rows[i / SCALES * 8 * PANEL + i % SCALES];
      largest = max(largest, byte);
      scales[i / SCALES / 2][i / SCALES % 2][i % SCALES] = prepared<EASY>(byte);
    }
    wait(shared_address(part.full + index), number / SLOTS % 2);
    uint4 words[TILES][2], values[4][BATCH / 8];
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) words[i / 2][i % 2] = *(const uint4*)(codes + i * 8 * 64);
#pragma unroll
    for (int w = 0; w < 4; w++)
#pragma unroll
      for (int j = 0; j < BATCH / 8; j++)
        values[w][j] = *(const uint4*)(x + j * 1024 + ((t % 2 * 4 + w ^ g) << 4));
    if (EAGER) part.release(chunk, lane);
#pragma unroll
    for (int w = 0; w < 4; w++) {
#pragma unroll
      for (int j = 0; j < BATCH / 8; j++) values[w][j] = reordered(values[w][j]);
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        u32 above[4], below[4];
        decode8<EASY>(above, ((const u32*)&words[i][0])[w], scales[i][0][w / 2 % SCALES]);
        decode8<EASY>(below, ((const u32*)&words[i][1])[w], scales[i][1][w / 2 % SCALES]);
#pragma unroll
        for (int p = 0; p < 4; p += 2) {
          u32 a[4] = {above[p], below[p], above[p + 1], below[p + 1]};
#pragma unroll
          for (int j = 0; j < BATCH / 8; j++) {
            const u32* with = (const u32*)&values[w][j];
            mma(sums[i][j], a, with[p], with[p + 1]);
          }
        }
      }
    }
    if (!EAGER) part.release(chunk, lane);
  }
  return largest;
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, BLOCKS)
    packed_linear(const __grid_constant__ TensorMap w_map, const __grid_constant__ TensorMap x_map,
                  const __grid_constant__ TensorMap scale_map, const u8* __restrict__ scales,
                  const u16* __restrict__ bias, u16* __restrict__ y, int batch, int rows,
                  int columns) {
  extern __shared__ __align__(1024) u8 memory[];
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  int chunks = (columns + CHUNK - 1) / CHUNK, per_block = (chunks + SPLIT - 1) / SPLIT;
  int begin = min(chunks, (int)blockIdx.y * per_block), end = min(chunks, begin + per_block);
  int groups = (columns + GROUP - 1) / GROUP;
  u8* slots = memory + BARRIERS;
  u64* barriers = (u64*)memory;
  Part part = {&w_map, &x_map, &scale_map, barriers, barriers + SLOTS, barriers + 2 * SLOTS, slots,
               slots + SLOTS * SLOT, (int)blockIdx.x * ROWS_W, begin, end};
  int panels = part.panels();
  bool is_copied = groups % PANEL == 0;
  auto make_barriers = [&](int count) {
    for (int i = thread; i < count; i += THREADS) make_barrier(shared_address(barriers + i), 1);
    show_barriers();
    __syncthreads();
  };
  make_barriers(2 * SLOTS + panels);
  if (thread == 0) prefetch(&w_map), prefetch(&x_map), prefetch(&scale_map);
  wait_for_kernel_before();
  let_next_start();

  auto ask_first = [&] {
    for (int chunk = begin + warp; lane == 0 && chunk < begin + SLOTS; chunk += WARPS)
      part.ask(chunk);
  };
  if (is_copied && lane == 0)
    for (int panel = warp; panel < panels; panel += WARPS) part.ask_scales(panel);
  ask_first();
  if (!is_copied) part.put_scales(scales, rows, groups);
  if (!is_copied && thread == 0)
    for (int s = 0; s < panels; s++) arrive(shared_address(part.known + s));

  float sums[TILES][BATCH / 8][4] = {};
  u32 largest = multiply<true>(sums, part);
  if (__syncthreads_or(largest > LARGEST_EASY)) {  // again, with a multiplication for the scales
    make_barriers(2 * SLOTS);
    ask_first();
#pragma unroll
    for (int i = 0; i < TILES * (BATCH / 8) * 4; i++) (&sums[0][0][0])[i] = 0.0f;
    multiply<false>(sums, part);
    __syncthreads();
  }
  finish(slots, sums, bias, y, batch, part.row, rows);
}
