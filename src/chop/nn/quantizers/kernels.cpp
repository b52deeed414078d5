// The values of the number formats in one pass over memory, bit-equal to the PyTorch definitions.
//
// Each kernel is a table row at the end of this file. All arithmetic is exact: products with powers
// of two, rounding to integers, comparisons. Loops are plain so that the compiler vectorises them.

#include <cstdint>
#include <cstring>

namespace {

using i32 = std::int32_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;

enum Rounding { NEAREST_EVEN, NEAREST_AWAY, FLOOR, TOWARD_ZERO };

constexpr i32 FRACTION = 23;
constexpr i32 BIAS = 127;
constexpr i32 FINEST = -149;       // every float is a multiple of 2**FINEST
constexpr i32 OF_ZERO = -151;      // the exponent that stands for zero
constexpr u32 MAGNITUDE = 0x7fffffffu;
constexpr u32 INFINITE = 0x7f800000u;
constexpr u32 QUIET_NAN = 0x7fc00000u;
constexpr u32 FRACTION_MASK = 0x007fffffu;

inline u32 bits_of(float x) {
  u32 b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

inline float float_of(u32 b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

inline i32 max(i32 a, i32 b) { return a > b ? a : b; }
inline i32 min(i32 a, i32 b) { return a < b ? a : b; }
inline i32 clamp(i32 a, i32 low, i32 high) { return min(max(a, low), high); }

// 2**e for the exponent of a normal number.
inline float power(i32 e) { return float_of(static_cast<u32>(e + BIAS) << FRACTION); }

// 2**e as a product of two powers, for exponents that no normal number has.
struct Power {
  float first, second;
  explicit Power(i32 e) : first(power(e >> 1)), second(power(e - (e >> 1))) {}
  float times(float x) const { return x * first * second; }
};

template <int R>
inline float round_whole(float x) {
  if (R == NEAREST_EVEN) return __builtin_rintf(x);
  if (R == FLOOR) return __builtin_floorf(x);
  float whole = __builtin_truncf(x);
  if (R == TOWARD_ZERO) return whole;
  return whole + __builtin_copysignf(__builtin_fabsf(x - whole) >= 0.5f ? 1.0f : 0.0f, x);
}

// `scaled`, which is x over the unit, as an integer. A tiny negative x may have underflowed.
template <int R>
inline float round_scaled(float scaled, float x) {
  float whole = round_whole<R>(scaled);
  return R == FLOOR && scaled == 0.0f && x < 0.0f ? -1.0f : whole;
}

inline float clamp(float y, float limit) {  // NaN stays
  y = y < -limit ? -limit : y;
  return y > limit ? limit : y;
}

// floor(log2) of a finite magnitude given by its bits, subnormals included.
inline i32 exact_exponent(u32 magnitude) {
  if (magnitude == 0) return OF_ZERO;
  if (magnitude > FRACTION_MASK) return static_cast<i32>(magnitude >> FRACTION) - BIAS;
  return FINEST + 31 - __builtin_clz(magnitude);
}

// Whether the mantissa of a magnitude, as a fraction in 2**-23, is at least `threshold`.
inline bool mantissa_reaches(u32 magnitude, i32 threshold) {
  if (magnitude == 0) return false;
  i32 shift = magnitude > FRACTION_MASK ? 0 : __builtin_clz(magnitude) - 8;
  return static_cast<i32>((magnitude << shift) & FRACTION_MASK) >= threshold;
}

// --- elements that stand alone --------------------------------------------------------------

template <int R>
struct Fixed {  // parameters: exponent of the unit, lowest value, highest value
  float up, down, low, high;
  explicit Fixed(const double* p)
      : up(power(-static_cast<i32>(p[0]))), down(power(static_cast<i32>(p[0]))),
        low(static_cast<float>(p[1])), high(static_cast<float>(p[2])) {}
  float operator()(float x) const {
    float y = round_scaled<R>(x * up, x) * down;
    y = y < low ? low : y;
    y = y > high ? high : y;
    return y + 0.0f;  // two's complement has one zero
  }
};

// Round to `mantissa` bits after the leading one, fewer below 2**lowest. Exponents above `highest`
// overflow anyway.
template <int R>
inline float round_float(float x, i32 mantissa, i32 lowest, i32 highest) {
  i32 e = static_cast<i32>((bits_of(x) & MAGNITUDE) >> FRACTION) - BIAS;
  i32 unit = clamp(e, lowest, highest) - mantissa;
  return round_scaled<R>(x * power(-unit), x) * power(unit);
}

// The same where a unit or its inverse may be no normal number.
template <int R>
inline float round_wide_float(float x, i32 mantissa, i32 lowest) {
  i32 e = static_cast<i32>((bits_of(x) & MAGNITUDE) >> FRACTION) - BIAS;
  i32 unit = max(max(e, lowest) - mantissa, FINEST);
  return Power(unit).times(round_scaled<R>(Power(-unit).times(x), x));
}

template <int R, bool WIDE>
struct Float {  // parameters: mantissa bits, lowest and highest exponent, largest value, beyond it
  i32 mantissa, lowest, highest;
  float limit, beyond;
  explicit Float(const double* p)
      : mantissa(static_cast<i32>(p[0])), lowest(static_cast<i32>(p[1])),
        highest(static_cast<i32>(p[2])), limit(static_cast<float>(p[3])),
        beyond(static_cast<float>(p[4])) {}
  float operator()(float x) const {
    float y = WIDE ? round_wide_float<R>(x, mantissa, lowest)
                   : round_float<R>(x, mantissa, lowest, highest);
    return __builtin_fabsf(y) > limit ? __builtin_copysignf(beyond, y) : y;
  }
};

// How a magnitude becomes a power of two: what to add to its bits so that they carry into the
// exponent, for positive and negative values.
struct LogCarry {
  u32 positive, negative;
  bool has_zero;
  explicit LogCarry(const double* p)
      : positive(static_cast<u32>(p[0])), negative(static_cast<u32>(p[1])), has_zero(p[2] != 0) {}
};

inline float round_log(float x, LogCarry carry, i32 low, i32 high) {
  u32 bits = bits_of(x), magnitude = bits & MAGNITUDE;
  u32 added = bits == magnitude ? carry.positive : carry.negative;
  i32 e = clamp(static_cast<i32>((magnitude + added) >> FRACTION) - BIAS, low, high);
  u32 sign = magnitude == 0 ? 0 : bits & ~MAGNITUDE;
  float y = float_of(static_cast<u32>(e + BIAS) << FRACTION | sign);
  y = carry.has_zero && e == low ? 0.0f : y;
  return magnitude > INFINITE ? x : y;
}

struct Log {  // parameters: LogCarry, lowest and highest exponent
  LogCarry carry;
  i32 low, high;
  explicit Log(const double* p)
      : carry(p), low(static_cast<i32>(p[3])), high(static_cast<i32>(p[4])) {}
  float operator()(float x) const { return round_log(x, carry, low, high); }
};

// --- blocks ---------------------------------------------------------------------------------
// A block kernel gets n elements and the bits of their largest magnitude, which is finite. N is n
// when known to the compiler, else 0.

template <int N, class F>
inline void each(const float* __restrict x, float* __restrict y, i64 n, F f) {
  const i64 count = N ? N : n;
  for (i64 i = 0; i < count; ++i) y[i] = f(x[i]);
}

template <int N>
inline u32 largest_magnitude(const float* x, i64 n) {
  const i64 count = N ? N : n;
  i32 largest = 0;
  for (i64 i = 0; i < count; ++i)
    largest = max(largest, static_cast<i32>(bits_of(x[i]) & MAGNITUDE));
  return static_cast<u32>(largest);
}

template <int R>
struct BlockFixed {  // parameters: offset, lowest, highest exponent, unit's offset, ones, one zero
  i32 offset, low, high, unit_offset;
  float ones, zero_sum;
  explicit BlockFixed(const double* p)
      : offset(static_cast<i32>(p[0])), low(static_cast<i32>(p[1])),
        high(static_cast<i32>(p[2])), unit_offset(static_cast<i32>(p[3])),
        ones(static_cast<float>(p[4])), zero_sum(p[5] != 0 ? 0.0f : -0.0f) {}
  template <int N>
  void block(const float* x, float* y, i64 n, u32 largest) const {
    i32 unit = clamp(exact_exponent(largest) + offset, low, high) + unit_offset;
    float limit = Power(unit).times(ones);
    Power up(-max(unit, FINEST)), down(max(unit, FINEST));
    float zero = zero_sum;  // -0 + 0 is 0, and -0 + -0 is -0
    each<N>(x, y, n, [=](float v) {
      return clamp(down.times(round_scaled<R>(up.times(v), v)), limit) + zero;
    });
  }
};

template <int R>
struct BlockFloat {  // parameters: mantissa bits, scale's threshold, offset, lowest, highest,
                     // lowest exponent's offset, largest value, its exponent's offset
  i32 mantissa, threshold, offset, low, high, lowest_offset;
  float largest_value;
  i32 limit_offset;
  explicit BlockFloat(const double* p)
      : mantissa(static_cast<i32>(p[0])), threshold(static_cast<i32>(p[1])),
        offset(static_cast<i32>(p[2])), low(static_cast<i32>(p[3])),
        high(static_cast<i32>(p[4])), lowest_offset(static_cast<i32>(p[5])),
        largest_value(static_cast<float>(p[6])), limit_offset(static_cast<i32>(p[7])) {}
  template <int N>
  void block(const float* x, float* y, i64 n, u32 largest) const {
    i32 e = exact_exponent(largest) + mantissa_reaches(largest, threshold);
    i32 scale = clamp(e + offset, low, high);
    i32 lowest = scale + lowest_offset, m = mantissa;
    float limit = Power(scale + limit_offset).times(largest_value);
    if (lowest - m >= -126)
      each<N>(x, y, n, [=](float v) { return clamp(round_float<R>(v, m, lowest, BIAS), limit); });
    else
      each<N>(x, y, n, [=](float v) { return clamp(round_tiny(v, m, lowest), limit); });
  }
  static float round_tiny(float x, i32 mantissa, i32 lowest) {
    i32 unit = max(max(exact_exponent(bits_of(x) & MAGNITUDE), lowest) - mantissa, FINEST);
    return Power(unit).times(round_scaled<R>(Power(-unit).times(x), x));
  }
};

struct BlockLog {  // parameters: LogCarry, largest code, largest bias, the largest's threshold
  LogCarry carry;
  i32 top, max_bias, threshold;
  explicit BlockLog(const double* p)
      : carry(p), top(static_cast<i32>(p[3])), max_bias(static_cast<i32>(p[4])),
        threshold(static_cast<i32>(p[5])) {}
  template <int N>
  void block(const float* x, float* y, i64 n, u32 largest) const {
    i32 e = exact_exponent(largest) + mantissa_reaches(largest, threshold);
    i32 low = -clamp(top - e, 0, max_bias), high = low + top;
    LogCarry c = carry;
    each<N>(x, y, n, [=](float v) { return round_log(v, c, low, high); });
  }
};

// --- threads --------------------------------------------------------------------------------

// body(first, last) over a share of 0..n for each thread; one thread needs no OpenMP at all.
template <class Body>
void shared(i64 n, int threads, Body body) {
  if (threads <= 1) return body(i64{0}, n);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) body(n * t / threads, n * (t + 1) / threads);
}

struct Call {
  const float* x;
  float* y;
  i64 rows, columns, block;
  const double* parameters;
  int threads;
};

template <class Kernel>
void run_elements(const Call& call) {
  const Kernel kernel(call.parameters);
  const float* x = call.x;
  float* y = call.y;
  shared(call.rows * call.columns, call.threads,
         [=](i64 first, i64 last) { each<0>(x + first, y + first, last - first, kernel); });
}

template <int N, class Kernel>
inline void run_block(const Kernel& kernel, const float* x, float* y, i64 n) {
  u32 largest = largest_magnitude<N>(x, n);
  if (largest < INFINITE) return kernel.template block<N>(x, y, n, largest);
  for (i64 i = 0; i < n; ++i) y[i] = float_of(QUIET_NAN);
}

template <class Kernel>
void run_blocks(const Call& call) {
  const Kernel kernel(call.parameters);
  const i64 per_row = (call.columns + call.block - 1) / call.block;
  shared(call.rows * per_row, call.threads, [=](i64 first, i64 last) {
    i64 row = first / per_row, column = first % per_row * call.block;
    for (i64 b = first; b < last; ++b) {
      i64 at = row * call.columns + column, n = call.columns - column;
      if (n > call.block) n = call.block;
      if (n == 32)
        run_block<32>(kernel, call.x + at, call.y + at, n);
      else if (n == 16)
        run_block<16>(kernel, call.x + at, call.y + at, n);
      else
        run_block<0>(kernel, call.x + at, call.y + at, n);
      column += call.block;
      if (column >= call.columns) column = 0, ++row;
    }
  });
}

void mask(const float* __restrict gradient, const float* __restrict x, float* __restrict out,
          i64 first, i64 last, float low, float high) {
  for (i64 i = first; i < last; ++i)
    out[i] = (x[i] >= low) & (x[i] <= high) ? gradient[i] : 0.0f;
}

using Run = void (*)(const Call&);
constexpr int ROUNDINGS = 4;

template <int R>
using NarrowFloat = Float<R, false>;
template <int R>
using WideFloat = Float<R, true>;

#define FOR_EACH_ROUNDING(RUN, KERNEL) \
  {RUN<KERNEL<NEAREST_EVEN>>, RUN<KERNEL<NEAREST_AWAY>>, RUN<KERNEL<FLOOR>>, RUN<KERNEL<TOWARD_ZERO>>}
#define FOR_ANY_ROUNDING(RUN, KERNEL) {RUN<KERNEL>, RUN<KERNEL>, RUN<KERNEL>, RUN<KERNEL>}

// To add a kernel: its struct above, its row here, and its name in kernels.py at the same place.
const Run KERNELS[][ROUNDINGS] = {
    FOR_EACH_ROUNDING(run_elements, Fixed),
    FOR_EACH_ROUNDING(run_elements, NarrowFloat),
    FOR_EACH_ROUNDING(run_elements, WideFloat),
    FOR_ANY_ROUNDING(run_elements, Log),
    FOR_EACH_ROUNDING(run_blocks, BlockFixed),
    FOR_EACH_ROUNDING(run_blocks, BlockFloat),
    FOR_ANY_ROUNDING(run_blocks, BlockLog),
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void mase_quantize(
    int kernel, int rounding, const float* x, float* y, i64 rows, i64 columns, i64 block,
    const double* parameters, int threads) {
  KERNELS[kernel][rounding]({x, y, rows, columns, block, parameters, threads});
}

// The gradient where low <= x <= high, else 0.
extern "C" __attribute__((visibility("default"))) void mase_mask(
    const float* __restrict gradient, const float* __restrict x, float* __restrict out, i64 n,
    float low, float high, int threads) {
  shared(n, threads, [=](i64 first, i64 last) { mask(gradient, x, out, first, last, low, high); });
}
