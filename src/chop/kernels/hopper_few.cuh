// What the kernels for few rows of x share: loading, the tensor cores, adding up, storing.
//
// A block has 16 * TILES rows of W and all rows of x; its warps take turns along the columns, of
// which it has one part of SPLIT. The parts are added through the cluster's shared memory, always
// in the same order.

constexpr int THREADS = WARPS * 32;
#if SPLIT > 1
#define CLUSTER __cluster_dims__(1, SPLIT, 1)
#else
#define CLUSTER
#endif

// -- the product ------------------------------------------------------------------------------

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 stream(const u8* pointer) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

// -- storing ----------------------------------------------------------------------------------

__device__ __forceinline__ u16 to_bf16(float value) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// The float4 at `address` of the shared memory of the cluster's block `rank`.
__device__ __forceinline__ float4 remote(u32 address, u32 rank) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(in_block(address, rank))
               : "memory");
  return v;
}

// Four values of y for rows `row` ... `row` + 3 of W and row n of x.
__device__ __forceinline__ void store4(float4 sum, const u16* bias, u16* y, int n, int row, int rows) {
  float values[4] = {sum.x, sum.y, sum.z, sum.w};
  u16 out[4];
#pragma unroll
  for (int j = 0; j < 4; j++)
    out[j] = to_bf16(values[j] + (bias && row + j < rows ? from_bf16(bias[row + j]) : 0.0f));
  u16* to = y + (long long)n * rows + row;
  if (row + 3 < rows && rows % 4 == 0) {
    *(uint2*)to = make_uint2(out[0] | (u32)out[1] << 16, out[2] | (u32)out[3] << 16);
  } else {
    for (int j = 0; j < 4; j++)
      if (row + j < rows) to[j] = out[j];
  }
}

// The float4 at `address` of all blocks of the cluster, added up.
__device__ __forceinline__ float4 add_parts(u32 address) {
  float4 sum = remote(address, 0);
#pragma unroll
  for (u32 rank = 1; rank < SPLIT; rank++) {
    float4 more = remote(address, rank);
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  return sum;
}

// The sums of this thread, added to those of all warps and of all blocks of the cluster, and stored
// for rows `row` and on of W.
__device__ __forceinline__ void finish(u8* shared, const float (*sums)[BATCH / 8][4],
                                       const u16* bias, u16* y, int batch, int row, int rows) {
  constexpr int ROWS_W = 16 * TILES, PITCH = ROWS_W + 4, QUADS = ROWS_W / 4;
  auto parts = (float(*)[BATCH][PITCH])shared;  // one part for each warp
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int j = 0; j < BATCH / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        parts[warp][j * 8 + t * 2 + e % 2][i * 16 + e / 2 * 8 + g] = sums[i][j][e];
  __syncthreads();
  for (int i = thread; i < batch * QUADS; i += THREADS) {
    int n = i / QUADS, r = i % QUADS * 4;
    float4 sum = *(float4*)&parts[0][n][r];
#pragma unroll
    for (int w = 1; w < WARPS; w++) {
      float4 more = *(float4*)&parts[w][n][r];
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    if (SPLIT > 1)
      *(float4*)&parts[0][n][r] = sum;
    else
      store4(sum, bias, y, n, row + r, rows);
  }
#if SPLIT > 1
  cluster_sync();
  for (int i = blockIdx.y * THREADS + thread; i < batch * QUADS; i += SPLIT * THREADS) {
    int n = i / QUADS, r = i % QUADS * 4;
    store4(add_parts(shared_address(&parts[0][n][r])), bias, y, n, row + r, rows);
  }
  cluster_sync();  // no block leaves while its shared memory is read
#endif
}
