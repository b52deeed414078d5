// The root-mean-square norm of rows, or of sums of rows, rounded to blocks that share an exponent:
// what lies between two products of a decoder, in one pass over memory. Elements and blocks are
// those of `kernels.cu`, whose text stands before this one.
//
// Compiled at run time, once per set of what `kernels.cu` asks for, and: THREADS (of a row),
// PER_THREAD (vectors that each of them has at most), HAS_RESIDUAL (whether there is a sum).

namespace mase {

FUNCTION float sum_of_lanes(float mine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
  return mine;
}

FUNCTION float sum_of_threads(float mine) {
  __shared__ float sums[32];
  const u32 lane = threadIdx.x % 32;
  mine = sum_of_lanes(mine);
  if (lane == 0) sums[threadIdx.x / 32] = mine;
  __syncthreads();
  return sum_of_lanes(lane < THREADS / 32 ? sums[lane] : 0.0f);
}

// Every step is rounded to the type of the elements, as torch rounds it.
FUNCTION Vector sum(Vector a, const Vector& b) {
#pragma unroll
  for (int i = 0; i < VECTOR; ++i)
    a.elements[i] = STORED::write(STORED::read(a.elements[i]) + STORED::read(b.elements[i]));
  return a;
}

FUNCTION Vector scaled(Vector a, float scale, const Vector& weight) {
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) {
    const Bits normed = STORED::write(STORED::read(a.elements[i]) * scale);
    a.elements[i] = STORED::write(STORED::read(weight.elements[i]) * STORED::read(normed));
  }
  return a;
}

FUNCTION float squares_of(const Vector& v) {
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) {
    const float x = STORED::read(v.elements[i]);
    total += x * x;
  }
  return total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rounded_norm(const Bits* __restrict__ x, const Bits* __restrict__ residual,
                 const Bits* __restrict__ weight, Bits* __restrict__ total, Bits* __restrict__ y,
                 i64 columns, float eps, Parameters parameters) {
  const i64 row = blockIdx.x * columns;
  Vector kept[PER_THREAD];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const i64 column = (i * THREADS + static_cast<i64>(threadIdx.x)) * VECTOR;
    if (column >= columns) break;
    kept[i] = load(x + row + column);
#if HAS_RESIDUAL
    kept[i] = sum(kept[i], load(residual + row + column));
    *reinterpret_cast<Vector*>(total + row + column) = kept[i];
#endif
    squares += squares_of(kept[i]);
  }
  const float scale = rsqrtf(sum_of_threads(squares) / static_cast<float>(columns) + eps);
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const i64 column = (i * THREADS + static_cast<i64>(threadIdx.x)) * VECTOR;
    if (column >= columns) break;
    const Vector normed = scaled(kept[i], scale, load(weight + column));
    store_mapped(y + row + column, normed,
                 Rule(parameters, largest_of_lanes(largest_of(normed))));
  }
}

}  // namespace mase
