// y = x W^T + bias with W packed, x and y in bfloat16, for more rows of x than a few; for GPUs of
// compute capability 9.0.
//
// A block has 128 rows of W and BATCH rows of x. One warp asks the copy engine for tiles of both,
// STAGES ahead. The other warps decode W into the registers from which the tensor cores take their
// first operand; the second, x, those read from shared memory themselves.
//
// The columns are cut into SPLIT parts, one per block. If CLUSTERED, the blocks of a product are a
// cluster, and each finishes its share of the rows of x with what the others send. Otherwise they
// leave their sums in memory, and the last to finish adds them up. The order is always the same.
//
// Compiled at run time, once per set of: FORMAT, GROUP (values per scale), BATCH, STEP (columns of a
// stage, 64 or 128), STAGES, SPLIT, CLUSTERED. `wgmma` for that BATCH is put in front.

constexpr int ROWS = 128, WARPS = ROWS / 16, WORKERS = WARPS * 32;
constexpr int SPAN = 128, STAGES_PER_SPAN = SPAN / STEP, HALVES = STEP / 64;
constexpr int BITS = FORMAT == MXINT4 || FORMAT == MXFP4 ? 4 : 8, ROW_BYTES = STEP * BITS / 8;
constexpr int W_BYTES = ROWS * ROW_BYTES, X_HALF = BATCH * 128, STAGE = W_BYTES + HALVES * X_HALF;
constexpr int SCALES = SPAN / GROUP;
// The sums of 256 rows of x need the registers of a whole group of four warps that only waits.
constexpr bool MOVES_REGISTERS = BATCH > 128;
constexpr int THREADS = WORKERS + (MOVES_REGISTERS ? 128 : 32);
constexpr int IN_FLIGHT = 2;  // products that the tensor cores may lag behind the decoding

// -- waiting and loading ----------------------------------------------------------------------

// One of the workers says that it is done with a stage. Without a branch: with one, the compiler
// no longer sees that products and decoding may overlap, and makes them wait for each other.
__device__ __forceinline__ void release(u32 barrier, bool does) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(
          barrier),
      "r"((int)does)
      : "memory");
}

// The scale bytes of a row for SPAN columns.
__device__ __forceinline__ u64 load_scales(const u8* from) {
  if (SCALES == 8) return __ldg((const u64*)from);
  if (SCALES == 4) return __ldg((const u32*)from);
  if (SCALES == 2) return __ldg((const u16*)from);
  return __ldg(from);
}

// Shared memory of x as the tensor cores want it: 128 bytes (64 columns) a row, the 16-byte units
// of row n in the order u ^ n % 8.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// -- the product ------------------------------------------------------------------------------

#if CLUSTERED
#define CLUSTER __cluster_dims__(1, SPLIT, 1)
#else
#define CLUSTER
#endif
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    packed_linear(const __grid_constant__ TensorMap w_map, const __grid_constant__ TensorMap x_map,
                  const u8* __restrict__ scales, const u16* __restrict__ bias, u16* __restrict__ y,
                  float* __restrict__ parts, int* __restrict__ tickets, int batch, int rows,
                  int columns) {
  extern __shared__ __align__(1024) u8 memory[];
  u64 *full = (u64*)(memory + STAGES * STAGE), *empty = full + STAGES;
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  int row = blockIdx.x * ROWS, first = blockIdx.z * BATCH;
  int spans = columns / SPAN, per_block = (spans + SPLIT - 1) / SPLIT;
  int begin = min(spans, (int)blockIdx.y * per_block);
  int steps = min(spans, begin + per_block) - begin;

  if (thread == 0) {
    for (int s = 0; s < STAGES; s++) {
      make_barrier(shared_address(&full[s]), 1);
      make_barrier(shared_address(&empty[s]), WARPS);
    }
    show_barriers();
  }
  __syncthreads();
  wait_for_kernel_before();
  let_next_start();

  if (warp >= WARPS) {
    if (MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    for (int step = 0; thread == WORKERS && step < steps * STAGES_PER_SPAN; step++) {
      int stage = step % STAGES, column = begin * SPAN + step * STEP;
      u32 ready = shared_address(&full[stage]), to = shared_address(memory + stage * STAGE);
      wait(shared_address(&empty[stage]), step / STAGES % 2 ^ 1);
      expect(ready, STAGE);
      load_tile(to, &w_map, column * BITS / 8, row, ready);
#pragma unroll
      for (int half = 0; half < HALVES; half++)
        load_tile(to + W_BYTES + half * X_HALF, &x_map, column + half * 64, first, ready);
    }
    __syncwarp();
#if CLUSTERED
    cluster_sync();
    cluster_sync();
#endif
    return;
  }

  if (MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  int g = lane / 4, t = lane % 4, mine = warp * 16 + g;  // and mine + 8
  int turn = g * ROW_BYTES / 128 % (ROW_BYTES / 16);  // how the copy engine permutes a row's units
  int groups = columns / GROUP, last = max(begin + steps - 1, 0);
  const u8* scales_of[2];
  u64 next[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    scales_of[h] = scales + (long long)min(row + mine + h * 8, rows - 1) * groups;
    next[h] = load_scales(scales_of[h] + min(begin, last) * SCALES);
  }
  float sums[BATCH / 2];
#pragma unroll
  for (int i = 0; i < BATCH / 2; i++) sums[i] = 0.0f;
  u32 a[4][4], raw[2][4][4];  // of 64 columns each: by 16 columns, by register of the operand
  for (int step = 0; step < steps; step++) {
    u64 now[2] = {next[0], next[1]};
#pragma unroll
    for (int h = 0; h < 2; h++)
      next[h] = load_scales(scales_of[h] + min(begin + step + 1, last) * SCALES);
#pragma unroll
    for (int half = 0; half < 2; half++) {  // 64 columns each
      int number = step * STAGES_PER_SPAN + half * STAGES_PER_SPAN / 2, stage = number % STAGES;
      const u8* w = memory + stage * STAGE + mine * ROW_BYTES;
      u64 b = descriptor(shared_address(memory + stage * STAGE + W_BYTES)) +
              (u64)(half % HALVES * (X_HALF >> 4));
      auto read = [&](int h) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
          if (BITS == 8) {
            int s = i / 4, q = i % 4;
            raw[h][s][q] = *(const u16*)(w + t * 2 + q % 2 * 8 * ROW_BYTES +
                                         ((h % HALVES * 4 + s ^ turn) << 4) + q / 2 * 8);
          } else if (i < 4) {  // a word for each pair, of which a thread takes one byte
            uint4 v = *(const uint4*)(w + i % 2 * 8 * ROW_BYTES +
                                      ((h % HALVES * 2 + i / 2 ^ turn) << 4));
            raw[h][i / 2 * 2][i % 2] = v.x, raw[h][i / 2 * 2][i % 2 + 2] = v.y;
            raw[h][i / 2 * 2 + 1][i % 2] = v.z, raw[h][i / 2 * 2 + 1][i % 2 + 2] = v.w;
          }
        }
      };
      if (half == 0 || STAGES_PER_SPAN == 2) {
        wait(shared_address(&full[stage]), number / STAGES % 2);
        read(half);
      }
      if (half == 0 && STAGES_PER_SPAN == 1) read(1);
#pragma unroll
      for (int s = 0; s < 4; s++) {
        int group = (half * 4 + s) * 16 / GROUP;
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(IN_FLIGHT) : "memory");
        if (s == IN_FLIGHT && (half == 0 || STAGES_PER_SPAN == 2))  // the stage before is read
          release(shared_address(&empty[(number + STAGES - 1) % STAGES]), number > 0 && lane == 0);
        u32 scale[2] = {scale8((u32)(now[0] >> group * 8) & 255),
                        scale8((u32)(now[1] >> group * 8) & 255)};
#pragma unroll
        for (int q = 0; q < 4; q++)
          a[s][q] = BITS == 8 ? decode_low(raw[half][s][q], scale[q % 2])
                              : decode_byte(raw[half][s][q], t, scale[q % 2]);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        wgmma(sums, a[s], b + 2 * s);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      }
    }
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < BATCH / 2; i++) asm volatile("" : "+f"(sums[i])::"memory");

  // -- the parts, added up: of the sums this thread finishes MINE, for COUNT rows of x ----------
  constexpr int MINE = BATCH / 2 / (CLUSTERED ? SPLIT : 1), COUNT = 2 * MINE;
  int begins = first;
#if CLUSTERED
  int rank = blockIdx.y;
  begins += rank * COUNT;
  cluster_sync();  // all blocks are done with what their stages hold
  float* inbox = (float*)memory + thread;  // what block p sends begins at p * MINE * WORKERS
#pragma unroll
  for (int p = 0; p < SPLIT; p++) {
    u32 outbox = in_block(shared_address(inbox + rank * MINE * WORKERS), p);
#pragma unroll
    for (int i = 0; i < MINE; i++)
      if (p != rank)
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(outbox + i * WORKERS * 4),
                     "f"(sums[p * MINE + i])
                     : "memory");
  }
  cluster_sync();
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < SPLIT; p++) {
      float own = sums[p * MINE + i];
      total += p == rank ? own : inbox[(p * MINE + i) * WORKERS];
    }
    sums[i] = total;  // what is read after this has a larger index
  }
#elif SPLIT > 1
  int tile = blockIdx.z * gridDim.x + blockIdx.x;
  float* of_tile = parts + (long long)tile * SPLIT * MINE * WORKERS + thread;
#pragma unroll
  for (int i = 0; i < MINE; i++)
    __stcg(of_tile + ((long long)blockIdx.y * MINE + i) * WORKERS, sums[i]);
  __threadfence();
  asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory");
  int* drawn = (int*)memory;
  if (thread == 0) *drawn = atomicAdd(tickets + tile, 1);
  asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory");
  if (*drawn != SPLIT - 1) return;
  __threadfence();
  if (thread == 0) tickets[tile] = 0;
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < SPLIT; p++)
      total += p == blockIdx.y ? sums[i] : __ldcg(of_tile + ((long long)p * MINE + i) * WORKERS);
    sums[i] = total;
    if (i % 16 == 15) asm volatile("" ::: "memory");  // else all are loaded at once, and spilt
  }
#endif

  // -- stored: turned in shared memory, so that a row of y is written 16 bytes at a time ---------
  constexpr int PITCH = ROWS * 2 + 16, UNITS = ROWS / 8;
  float bias_of[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = row + mine + h * 8;
    bias_of[h] = bias && r < rows ? from_bf16(bias[r]) : 0.0f;
  }
  asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory");  // all are done with what is there
  u32 to = shared_address(memory + (lane / 16 * 8 + lane % 8) * PITCH +
                          (warp * 16 + lane / 8 % 2 * 8) * 2);
#pragma unroll
  for (int j = 0; j < MINE / 4; j += 2) {
    u32 packed[4];
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const float* pair = sums + (j + q / 2) * 4 + q % 2 * 2;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
          : "=r"(packed[q])
          : "f"(pair[1] + bias_of[q % 2]), "f"(pair[0] + bias_of[q % 2]));
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     to + j * 8 * PITCH),
                 "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
                 : "memory");
  }
  asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory");
#pragma unroll 4
  for (int i = thread; i < COUNT * UNITS; i += WORKERS) {
    int n = i / UNITS, r = row + i % UNITS * 8;
    if (begins + n >= batch || r >= rows) continue;
    const u8* from = memory + n * PITCH + i % UNITS * 16;
    u16* out = y + (long long)(begins + n) * rows + r;
    if (rows % 8 == 0)
      *(uint4*)out = *(const uint4*)from;
    else
      for (int k = 0; k < 8 && r + k < rows; k++) out[k] = ((const u16*)from)[k];
  }
}
