// The values of the number formats on GPUs, in one pass over memory. The formats themselves are in
// `exact.h`, whose text stands before this one.
//
// Compiled at run time, once per set of: FORMAT (of `exact.h`), ROUNDING, STORED (how elements lie
// in memory), VECTOR (elements that a thread takes at once; more than 1 where they are aligned),
// LANES (threads for a block of the format; 0 where elements stand alone), IS_WHOLE (blocks have
// a vector for each of their threads, no more and no less, and rows are made of such blocks),
// HAS_RANGE (elements alone: also write which of them are not in a range, for the gradient), and
// TENSORS (of a launch; 1 unless given).

#ifndef TENSORS
#define TENSORS 1
#endif

namespace mase {

struct Float32 {
  using Bits = u32;
  FUNCTION static float read(u32 bits) { return float_of(bits); }
  FUNCTION static u32 write(float x) { return bits_of(x); }
};

struct Bfloat16 {
  using Bits = unsigned short;
  FUNCTION static float read(Bits bits) { return float_of(static_cast<u32>(bits) << 16); }
  FUNCTION static Bits write(float x) {  // to nearest even; a NaN stays one
#if __CUDA_ARCH__ >= 800
    Bits rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
    return rounded;
#else
    const u32 bits = bits_of(x);
    const bool is_nan = (bits & MAGNITUDE) > INFINITE;
    return static_cast<Bits>((is_nan ? bits | 1u << 22 : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
  }
};

struct Float16 {
  using Bits = unsigned short;
  FUNCTION static float read(Bits bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
  FUNCTION static Bits write(float x) {
    Bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
  }
};

using Bits = STORED::Bits;
struct __align__(sizeof(Bits) * VECTOR) Vector { Bits elements[VECTOR]; };

FUNCTION Vector load(const Bits* from) { return *reinterpret_cast<const Vector*>(from); }

template <class F>
FUNCTION void store_mapped(Bits* to, Vector v, F f) {
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) v.elements[i] = STORED::write(f(STORED::read(v.elements[i])));
  *reinterpret_cast<Vector*>(to) = v;
}

struct Parameters { float values[8]; };

// One of the tensors of a launch; its threads start with the CUDA block number `first`. Elements
// alone have one row. `outside` is null without a range.
struct Tensor {
  const Bits* x;
  Bits* y;
  bool* outside;
  i64 first, rows, columns, block, across;
  Parameters parameters;
  float low, high;
};

struct Tensors { Tensor all[TENSORS]; };

// The tensor of this thread.
FUNCTION const Tensor& own(const Tensors& tensors) {
  int i = TENSORS - 1;
  while (i > 0 && blockIdx.x < tensors.all[i].first) --i;
  return tensors.all[i];
}

// The number of this thread among those of its tensor.
FUNCTION i64 own_thread(const Tensor& it) {
  return (blockIdx.x - it.first) * blockDim.x + threadIdx.x;
}

#if LANES == 0

#if HAS_RANGE

struct __align__(VECTOR) Flags { bool elements[VECTOR]; };

extern "C" __global__ void quantize(const __grid_constant__ Tensors tensors) {
  const Tensor& it = own(tensors);
  const FORMAT<ROUNDING> format(it.parameters.values);
  const float low = it.low, high = it.high;
  const auto is_outside = [low, high](float value) { return !(value >= low && value <= high); };
  const i64 first = own_thread(it) * VECTOR, n = it.columns;
  if (first + VECTOR <= n) {
    const Vector v = load(it.x + first);
    Flags flags;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) flags.elements[i] = is_outside(STORED::read(v.elements[i]));
    *reinterpret_cast<Flags*>(it.outside + first) = flags;
    return store_mapped(it.y + first, v, format);
  }
  for (i64 i = first; i < n; ++i) {
    const float value = STORED::read(it.x[i]);
    it.outside[i] = is_outside(value);
    it.y[i] = STORED::write(format(value));
  }
}

// The gradients `x` where the flags say that the value was in the range, else 0.
extern "C" __global__ void clear_outside(const __grid_constant__ Tensors tensors) {
  const Tensor& it = own(tensors);
  const i64 first = own_thread(it) * VECTOR, n = it.columns;
  if (first + VECTOR <= n) {
    Vector v = load(it.x + first);
    const Flags flags = *reinterpret_cast<const Flags*>(it.outside + first);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i)
      if (flags.elements[i]) v.elements[i] = 0;
    *reinterpret_cast<Vector*>(it.y + first) = v;
    return;
  }
  for (i64 i = first; i < n; ++i) it.y[i] = it.outside[i] ? Bits(0) : it.x[i];
}

#else

extern "C" __global__ void quantize(const __grid_constant__ Tensors tensors) {
  const Tensor& it = own(tensors);
  const FORMAT<ROUNDING> format(it.parameters.values);
  const i64 first = own_thread(it) * VECTOR, n = it.columns;
  if (first + VECTOR <= n) return store_mapped(it.y + first, load(it.x + first), format);
  for (i64 i = first; i < n; ++i) it.y[i] = STORED::write(format(STORED::read(it.x[i])));
}

#endif

#else

FUNCTION i32 largest_of(const Vector& v) {
  i32 largest = 0;
#pragma unroll
  for (int i = 0; i < VECTOR; ++i)
    largest = max(largest, magnitude_of(STORED::read(v.elements[i])));
  return largest;
}

// The largest of the LANES threads that share a block.
FUNCTION i32 largest_of_lanes(i32 mine) {
  const u32 lane = threadIdx.x % 32, all = LANES == 32 ? ~0u : (1u << LANES % 32) - 1;
  const u32 together = all << lane / LANES * LANES;
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
    mine = max(mine, __shfl_xor_sync(together, mine, step));
  return mine;
}

// The rule of a block, given its largest magnitude; what is not finite makes all of it NaN.
struct Rule {
  decltype(FORMAT<ROUNDING>(static_cast<float*>(nullptr)).rule(0)) finite;
  bool is_finite;
  FUNCTION Rule(const Parameters& parameters, i32 largest)
      : finite(FORMAT<ROUNDING>(parameters.values).rule(static_cast<u32>(largest))),
        is_finite(largest < static_cast<i32>(INFINITE)) {}
  FUNCTION float operator()(float x) const { return is_finite ? finite(x) : float_of(QUIET_NAN); }
};

// Blocks never cross a row; `across` of them are in one, the last of which may be shorter. Where
// VECTOR is more than 1, it divides all lengths.
extern "C" __global__ void quantize(const __grid_constant__ Tensors tensors) {
  const Tensor& it = own(tensors);
  const i64 thread = own_thread(it);
  const i64 index = thread / LANES;
  if (index >= it.rows * it.across) return;
#if IS_WHOLE
  const Vector v = load(it.x + thread * VECTOR);
  store_mapped(it.y + thread * VECTOR, v, Rule(it.parameters, largest_of_lanes(largest_of(v))));
#else
  const i64 row = index / it.across, column = (index - row * it.across) * it.block;
  const i64 length = min(it.block, it.columns - column), first = threadIdx.x % LANES * VECTOR;
  const Bits* x = it.x + row * it.columns + column;
  Bits* y = it.y + row * it.columns + column;
  i32 largest = 0;
  for (i64 i = first; i < length; i += LANES * VECTOR)
    largest = max(largest, largest_of(load(x + i)));
  const Rule rule(it.parameters, largest_of_lanes(largest));
  for (i64 i = first; i < length; i += LANES * VECTOR) store_mapped(y + i, load(x + i), rule);
#endif
}

#endif

// The gradient where low <= x <= high, else 0. (Were it named `mask`, the run-time compilers 12.9 to
// 13.4 would crash on it for GPUs before compute capability 9.0.)
extern "C" __global__ void mask_gradient(const float* __restrict__ gradient,
                                         const float* __restrict__ x, float* __restrict__ out,
                                         i64 n, float low, float high) {
  const i64 i = blockIdx.x * static_cast<i64>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = x[i] >= low && x[i] <= high ? gradient[i] : 0.0f;
}

}  // namespace mase
