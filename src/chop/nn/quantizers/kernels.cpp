// The values of the number formats in one pass over memory, bit-equal to the PyTorch definitions.
//
// Each kernel is a row of the table at the end. All arithmetic is exact: products with powers of
// two, rounding to integers, comparisons. Loops are plain so that the compiler vectorises them.

#include <cstdint>
#include <cstring>

namespace {

using i32 = std::int32_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;

enum Rounding { NEAREST_EVEN, NEAREST_AWAY, FLOOR, TOWARD_ZERO };

constexpr i32 FRACTION = 23;
constexpr i32 BIAS = 127;
constexpr i32 FINEST = -149;   // every float is a multiple of 2**FINEST
constexpr i32 OF_ZERO = -151;  // the exponent that stands for zero
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
inline i64 min(i64 a, i64 b) { return a < b ? a : b; }
inline i32 clamp(i32 a, i32 low, i32 high) { return min(max(a, low), high); }
inline float clamp(float x, float low, float high) {  // NaN stays
  x = x < low ? low : x;
  return x > high ? high : x;
}
inline i32 magnitude_of(float x) { return static_cast<i32>(bits_of(x) & MAGNITUDE); }
inline float with_sign_of(float magnitude, float x) { return __builtin_copysignf(magnitude, x); }

// The bits of 2**e, and 2**e itself, for the exponent of a normal number.
inline i32 in_place(i32 e) { return static_cast<i32>(static_cast<u32>(e + BIAS) << FRACTION); }
inline float power(i32 e) { return float_of(static_cast<u32>(in_place(e))); }

// 2**e as a product of two powers, for exponents that no normal number has.
struct Power {
  float first, second;
  explicit Power(i32 e) : first(power(e >> 1)), second(power(e - (e >> 1))) {}
  float times(float x) const { return x * first * second; }
};

// --- rounding ---------------------------------------------------------------------------------

template <int R>
inline float round_whole(float x) {
  if (R == NEAREST_EVEN) return __builtin_rintf(x);
  if (R == FLOOR) return __builtin_floorf(x);
  float whole = __builtin_truncf(x);
  if (R == TOWARD_ZERO) return whole;
  return whole + with_sign_of(__builtin_fabsf(x - whole) >= 0.5f ? 1.0f : 0.0f, x);
}

// `scaled`, which is x over the unit, as an integer. A tiny negative x may have underflowed.
template <int R>
inline float round_scaled(float scaled, float x) {
  float whole = round_whole<R>(scaled);
  return R == FLOOR && scaled == 0.0f && x < 0.0f ? -1.0f : whole;
}

// x as a multiple of 2**unit, for any unit.
template <int R>
inline float round_to_multiple(float x, i32 unit) {
  unit = max(unit, FINEST);
  return Power(unit).times(round_scaled<R>(Power(-unit).times(x), x));
}

// Nearest-even needs no scaling where |x| < 2**(unit+22): in the sum with 1.5 * 2**(unit+23) the
// last bit is worth 2**unit, so that the addition itself rounds. A zero comes out positive.
constexpr i32 SUM_WIDTH = 22;
constexpr i32 SUM_HIGHEST_UNIT = 127 - FRACTION;
inline float sum_constant(i32 unit) { return 1.5f * power(unit + FRACTION); }
inline float round_by_sum(float x, float constant) { return (x + constant) - constant; }

// floor(log2) of a finite magnitude given by its bits, subnormals included.
inline i32 exact_exponent(u32 magnitude) {
  if (magnitude == 0) return OF_ZERO;
  if (magnitude > FRACTION_MASK) return static_cast<i32>(magnitude >> FRACTION) - BIAS;
  return FINEST + 31 - __builtin_clz(magnitude);
}

// The same where it is known not to be subnormal.
inline i32 ordinary_exponent(u32 magnitude) {
  return static_cast<i32>(magnitude >> FRACTION) - BIAS;
}

// Whether the mantissa of a magnitude, as a fraction in 2**-23, is at least `threshold`.
inline bool mantissa_reaches(u32 magnitude, i32 threshold) {
  if (magnitude == 0) return false;
  i32 shift = magnitude > FRACTION_MASK ? 0 : __builtin_clz(magnitude) - 8;
  return static_cast<i32>((magnitude << shift) & FRACTION_MASK) >= threshold;
}

// --- loops ------------------------------------------------------------------------------------

// y = f(x) for N elements. A fixed count, so that the compiler interleaves a whole run of them; the
// limit on unrolling keeps it from taking 16 of them apart before it vectorises.
template <int N, class F>
inline void each_of(const float* __restrict x, float* __restrict y, F f) {
  if constexpr (N == 16) {
    _Pragma("GCC unroll 12") for (int i = 0; i < N; ++i) y[i] = f(x[i]);
  } else {
    for (int i = 0; i < N; ++i) y[i] = f(x[i]);
  }
}

// Keeps a short loop rolled until it is vectorised.
#define KEEP_LOOP _Pragma("GCC unroll 1")

constexpr i64 RUN = 32;
constexpr i64 AHEAD = 512;

template <class F>
inline void each(const float* __restrict x, float* __restrict y, i64 n, F f) {
  i64 i = 0;
  for (; i + RUN <= n; i += RUN) {
    __builtin_prefetch(x + i + AHEAD);
    __builtin_prefetch(x + i + AHEAD + RUN / 2);
    each_of<RUN>(x + i, y + i, f);
  }
  for (; i < n; ++i) y[i] = f(x[i]);
}

template <class Body>
__attribute__((noinline)) void run_share(const Body& body, i64 first, i64 last) {
  body(first, last);
}

// body(first, last) over a share of 0..n for each thread; one thread needs no OpenMP at all.
template <class Body>
void shared(i64 n, int threads, const Body& body) {
  if (threads <= 1) return run_share(body, 0, n);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) run_share(body, n * t / threads, n * (t + 1) / threads);
}

struct Call {
  const float* x;
  float* y;
  i64 rows, columns, block;
  const double* parameters;
  int threads;
};

template <class Element>
void run_elements(const Call& call, Element element) {
  const float* x = call.x;
  float* y = call.y;
  shared(call.rows * call.columns, call.threads,
         [=](i64 first, i64 last) { each(x + first, y + first, last - first, element); });
}

// --- elements that stand alone ------------------------------------------------------------------

// Parameters: exponent of the unit, lowest and highest value.
template <int R>
void run_fixed(const Call& call) {
  const i32 unit = static_cast<i32>(call.parameters[0]);
  const float low = static_cast<float>(call.parameters[1]);
  const float high = static_cast<float>(call.parameters[2]);
  const float up = power(-unit), down = power(unit);
  const bool is_small = -low < power(unit + SUM_WIDTH) && high < power(unit + SUM_WIDTH);
  if (R == NEAREST_EVEN && is_small && unit <= SUM_HIGHEST_UNIT) {
    const float constant = sum_constant(unit);
    return run_elements(call, [=](float x) { return round_by_sum(clamp(x, low, high), constant); });
  }
  run_elements(call, [=](float x) {
    return clamp(round_scaled<R>(x * up, x) * down, low, high) + 0.0f;  // -0 becomes 0
  });
}

// Round a finite magnitude, given by its bits, to `mantissa` bits after the leading one, fewer
// below `lowest`. Exponents are in place, that is times 2**FRACTION and with their bias.
struct SumFloat {
  i32 lowest, highest, to_constant;
  SumFloat(i32 mantissa, i32 lowest_exponent, float limit)
      : lowest(in_place(lowest_exponent)), highest(magnitude_of(limit)),
        to_constant(((FRACTION - mantissa) << FRACTION) | (1 << (FRACTION - 1))) {}
  float operator()(float x) const {
    i32 magnitude = min(magnitude_of(x), highest);
    i32 exponent = max(magnitude & static_cast<i32>(INFINITE), lowest);
    float constant = float_of(static_cast<u32>(exponent + to_constant));
    return with_sign_of(round_by_sum(float_of(static_cast<u32>(magnitude)), constant), x);
  }
};

template <int R>
inline float round_scaled_float(float x, i32 mantissa, i32 lowest, float limit) {
  x = clamp(x, -limit, limit);  // the limit is a value, so that this may come first
  i32 exponent = max(magnitude_of(x) & static_cast<i32>(INFINITE), in_place(lowest));
  float up = float_of(static_cast<u32>(((2 * BIAS + mantissa) << FRACTION) - exponent));
  float down = float_of(static_cast<u32>(exponent - (mantissa << FRACTION)));
  return round_scaled<R>(x * up, x) * down;
}

// Parameters: mantissa bits, lowest exponent, largest value. For moderate exponents.
template <int R>
void run_float(const Call& call) {
  const i32 mantissa = static_cast<i32>(call.parameters[0]);
  const i32 lowest = static_cast<i32>(call.parameters[1]);
  const float limit = static_cast<float>(call.parameters[2]);
  if (R == NEAREST_EVEN) {
    const SumFloat round(mantissa, lowest, limit);
    return run_elements(call, [=](float x) {
      float y = round(x);
      return magnitude_of(x) > static_cast<i32>(INFINITE) ? x : y;
    });
  }
  run_elements(call, [=](float x) { return round_scaled_float<R>(x, mantissa, lowest, limit); });
}

// Parameters: the same, and what a magnitude beyond the largest value becomes.
template <int R>
void run_wide_float(const Call& call) {
  const i32 mantissa = static_cast<i32>(call.parameters[0]);
  const i32 lowest = static_cast<i32>(call.parameters[1]);
  const float limit = static_cast<float>(call.parameters[2]);
  const float beyond = static_cast<float>(call.parameters[3]);
  run_elements(call, [=](float x) {
    i32 e = (magnitude_of(x) >> FRACTION) - BIAS;
    float y = round_to_multiple<R>(x, max(e, lowest) - mantissa);
    return __builtin_fabsf(y) > limit ? with_sign_of(beyond, y) : y;
  });
}

// How a magnitude becomes a power of two: what to add to its bits so that they carry into the
// exponent, for positive and for negative values, and whether the lowest exponent means zero.
struct LogRule {
  u32 positive, negative;
  bool has_zero;
  explicit LogRule(const double* p)
      : positive(static_cast<u32>(p[0])), negative(static_cast<u32>(p[1])), has_zero(p[2] != 0) {}
  bool is_plain() const { return positive == negative && !has_zero; }
};

// Exponents `low` and `high` are in place, that is with their bias and times 2**FRACTION.
template <bool PLAIN>
inline float round_log(float x, LogRule rule, i32 low, i32 high) {
  float signed_x = x + 0.0f;  // -0 becomes 0
  i32 magnitude = magnitude_of(signed_x);
  u32 carry = PLAIN || signed_x >= 0.0f ? rule.positive : rule.negative;
  i32 carried = static_cast<i32>((static_cast<u32>(magnitude) + carry) & INFINITE);
  i32 exponent = clamp(carried, low, high);
  float y = with_sign_of(float_of(static_cast<u32>(exponent)), signed_x);
  if (!PLAIN) y = rule.has_zero && exponent == low ? 0.0f : y;
  return magnitude > static_cast<i32>(INFINITE) ? x : y;
}

// Parameters: LogRule, lowest and highest exponent.
void run_log(const Call& call) {
  const LogRule rule(call.parameters);
  const i32 low = in_place(static_cast<i32>(call.parameters[3]));
  const i32 high = in_place(static_cast<i32>(call.parameters[4]));
  if (rule.is_plain())
    return run_elements(call, [=](float x) { return round_log<true>(x, rule, low, high); });
  run_elements(call, [=](float x) { return round_log<false>(x, rule, low, high); });
}

// --- blocks -------------------------------------------------------------------------------------
// A block kernel offers two ways. `block` takes any n elements and the bits of their largest
// magnitude, which is finite. `group` takes G whole blocks of N at once, plans them side by side,
// and answers false, with nothing done, where one of them is out of the ordinary.

template <int R>
struct BlockFixed {  // parameters: offset, lowest, highest exponent, unit's offset, ones, one zero
  static constexpr bool HAS_GROUPS = R == NEAREST_EVEN;
  i32 offset, low, high, unit_offset;
  float ones, zero;
  bool has_one_zero, is_narrow;
  explicit BlockFixed(const double* p)
      : offset(static_cast<i32>(p[0])), low(static_cast<i32>(p[1])), high(static_cast<i32>(p[2])),
        unit_offset(static_cast<i32>(p[3])), ones(static_cast<float>(p[4])),
        zero(p[5] != 0 ? 0.0f : -0.0f), has_one_zero(p[5] != 0),
        is_narrow(ones < power(SUM_WIDTH)) {}

  void block(const float* x, float* y, i64 n, u32 largest) const {
    const i32 unit = clamp(exact_exponent(largest) + offset, low, high) + unit_offset;
    const Power up(-max(unit, FINEST)), down(max(unit, FINEST));
    const float limit = Power(unit).times(ones), sum = zero;  // -0 + 0 is 0, -0 + -0 is -0
    each(x, y, n, [=](float v) {
      return clamp(down.times(round_scaled<R>(up.times(v), v)), -limit, limit) + sum;
    });
  }

  template <int N, int G>
  bool group(const float* x, float* y, const u32* largest) const {
    float constants[G], limits[G];
    i32 is_unusual = !is_narrow;
    KEEP_LOOP for (int g = 0; g < G; ++g) {
      i32 e = ordinary_exponent(largest[g]);
      i32 unit = clamp(e + offset, low, high) + unit_offset;
      constants[g] = sum_constant(unit);
      limits[g] = power(unit) * ones;
      is_unusual |= (e < -126) | (e > BIAS) | (unit < -126) | (unit > SUM_HIGHEST_UNIT);
    }
    if (is_unusual) return false;
    for (int g = 0; g < G; ++g, x += N, y += N) {
      const float c = constants[g], limit = limits[g], sum = zero;
      if (largest[g] > bits_of(limit))  // rare
        each_of<N>(x, y, [=](float v) {
          return with_sign_of(round_by_sum(clamp(v, -limit, limit), c), v) + sum;
        });
      else if (has_one_zero)
        each_of<N>(x, y, [=](float v) { return round_by_sum(v, c); });
      else
        each_of<N>(x, y, [=](float v) { return with_sign_of(round_by_sum(v, c), v); });
    }
    return true;
  }
};

template <int R>
struct BlockFloat {  // parameters: mantissa bits, scale's threshold, offset, lowest, highest,
                     // lowest exponent's offset, largest value, its exponent's offset
  static constexpr bool HAS_GROUPS = R == NEAREST_EVEN;
  i32 mantissa, threshold, offset, low, high, lowest_offset;
  float largest_value;
  i32 limit_offset;
  explicit BlockFloat(const double* p)
      : mantissa(static_cast<i32>(p[0])), threshold(static_cast<i32>(p[1])),
        offset(static_cast<i32>(p[2])), low(static_cast<i32>(p[3])), high(static_cast<i32>(p[4])),
        lowest_offset(static_cast<i32>(p[5])), largest_value(static_cast<float>(p[6])),
        limit_offset(static_cast<i32>(p[7])) {}

  void block(const float* x, float* y, i64 n, u32 largest) const {
    const i32 e = exact_exponent(largest) + mantissa_reaches(largest, threshold);
    const i32 scale = clamp(e + offset, low, high), lowest = scale + lowest_offset, m = mantissa;
    const float limit = Power(scale + limit_offset).times(largest_value);
    if (lowest - m >= -126)
      return each(x, y, n, [=](float v) { return round_scaled_float<R>(v, m, lowest, limit); });
    for (i64 i = 0; i < n; ++i) {
      i32 exponent = exact_exponent(bits_of(x[i]) & MAGNITUDE);
      y[i] = clamp(round_to_multiple<R>(x[i], max(exponent, lowest) - m), -limit, limit);
    }
  }

  template <int N, int G>
  bool group(const float* x, float* y, const u32* largest) const {
    i32 lowests[G];
    float limits[G];
    i32 is_unusual = mantissa >= SUM_WIDTH;
    KEEP_LOOP for (int g = 0; g < G; ++g) {
      i32 e = ordinary_exponent(largest[g]);
      i32 carry = static_cast<i32>(largest[g] & FRACTION_MASK) >= threshold;
      i32 scale = clamp(e + carry + offset, low, high);
      lowests[g] = scale + lowest_offset;
      limits[g] = power(scale + limit_offset) * largest_value;
      is_unusual |= (e < -126) | (e >= SUM_HIGHEST_UNIT) | (lowests[g] - mantissa < -126) |
                    (scale + limit_offset < -126);
    }
    if (is_unusual) return false;
    for (int g = 0; g < G; ++g, x += N, y += N)
      each_of<N>(x, y, SumFloat(mantissa, lowests[g], limits[g]));
    return true;
  }
};

struct BlockLog {  // parameters: LogRule, largest code, largest bias, the largest's threshold
  static constexpr bool HAS_GROUPS = true;
  LogRule rule;
  i32 top, max_bias, threshold;
  explicit BlockLog(const double* p)
      : rule(p), top(static_cast<i32>(p[3])), max_bias(static_cast<i32>(p[4])),
        threshold(static_cast<i32>(p[5])) {}

  void block(const float* x, float* y, i64 n, u32 largest) const {
    const i32 e = exact_exponent(largest) + mantissa_reaches(largest, threshold);
    const i32 bias = clamp(top - e, 0, max_bias);
    const i32 lowest = in_place(-bias), highest = in_place(top - bias);
    const LogRule r = rule;
    each(x, y, n, [=](float v) { return round_log<false>(v, r, lowest, highest); });
  }

  template <int N, int G>
  bool group(const float* x, float* y, const u32* largest) const {
    i32 lowests[G];
    i32 is_unusual = !rule.is_plain();
    KEEP_LOOP for (int g = 0; g < G; ++g) {
      i32 e = ordinary_exponent(largest[g]);
      i32 carry = static_cast<i32>(largest[g] & FRACTION_MASK) >= threshold;
      lowests[g] = in_place(-clamp(top - e - carry, 0, max_bias));
      is_unusual |= (e < -126) | (e > BIAS);
    }
    if (is_unusual) return false;
    const LogRule r = rule;
    for (int g = 0; g < G; ++g, x += N, y += N) {
      const i32 lowest = lowests[g], highest = lowest + (top << FRACTION);
      each_of<N>(x, y, [=](float v) { return round_log<true>(v, r, lowest, highest); });
    }
    return true;
  }
};

template <class Kernel>
void run_block(const Kernel& kernel, const float* x, float* y, i64 n) {
  i32 largest = 0;
  for (i64 i = 0; i < n; ++i) largest = max(largest, magnitude_of(x[i]));
  if (largest < static_cast<i32>(INFINITE))
    return kernel.block(x, y, n, static_cast<u32>(largest));
  for (i64 i = 0; i < n; ++i) y[i] = float_of(QUIET_NAN);
}

// The largest magnitude of each of G blocks of N: four lanes per block, then across the lanes of
// all blocks at once, which spares a reduction per block.
template <int N, int G>
inline void largest_of_blocks(const float* x, u32* largest) {
  i32 lanes[G * 4];
  for (int g = 0; g < G; ++g) {
    i32 most[4] = {0, 0, 0, 0};
    for (int i = 0; i < N; i += 4)
      for (int j = 0; j < 4; ++j) most[j] = max(most[j], magnitude_of(x[g * N + i + j]));
    for (int j = 0; j < 4; ++j) lanes[4 * g + j] = most[j];
  }
  KEEP_LOOP for (int g = 0; g < G; ++g) {
    const i32* of = lanes + 4 * g;
    largest[g] = static_cast<u32>(max(max(of[0], of[1]), max(of[2], of[3])));
  }
}

// As many whole groups of blocks of N as there are; answers how many elements that were.
template <int N, class Kernel>
i64 run_groups(const Kernel& kernel, const float* x, float* y, i64 n) {
  constexpr int G = 16;
  i64 done = 0;
  for (; done + G * N <= n; done += G * N, x += G * N, y += G * N) {
    u32 largest[G];
    largest_of_blocks<N, G>(x, largest);
    for (i64 i = 0; i < G * N; i += RUN / 2) __builtin_prefetch(x + AHEAD + i);
    if (!kernel.template group<N, G>(x, y, largest))
      for (i64 g = 0; g < G; ++g) run_block(kernel, x + g * N, y + g * N, N);
  }
  return done;
}

template <class Kernel>
void run_row(const Kernel& kernel, const float* x, float* y, i64 columns, i64 block) {
  i64 done = 0;
  if constexpr (Kernel::HAS_GROUPS) {
    if (block == 32) done = run_groups<32>(kernel, x, y, columns);
    if (block == 16) done = run_groups<16>(kernel, x, y, columns);
  }
  for (; done < columns; done += block)
    run_block(kernel, x + done, y + done, min(block, columns - done));
}

template <class Kernel>
void run_blocks(const Call& call) {
  const Kernel kernel(call.parameters);
  const float* x = call.x;
  float* y = call.y;
  const i64 block = call.block;
  i64 rows = call.rows, columns = call.columns;
  const bool is_dense = columns % block == 0;  // blocks follow each other without a gap
  if (is_dense) rows *= columns / block, columns = block;
  shared(rows, call.threads, [=](i64 first, i64 last) {
    if (is_dense)
      return run_row(kernel, x + first * block, y + first * block, (last - first) * block, block);
    for (i64 row = first; row < last; ++row)
      run_row(kernel, x + row * columns, y + row * columns, columns, block);
  });
}

// --- table --------------------------------------------------------------------------------------

void mask(const float* __restrict gradient, const float* __restrict x, float* __restrict out,
          i64 n, float low, float high) {
  for (i64 i = 0; i < n; ++i) {
    u32 passes = -static_cast<u32>((x[i] >= low) & (x[i] <= high));
    out[i] = float_of(bits_of(gradient[i]) & passes);
  }
}

using Run = void (*)(const Call&);

#define EACH_ROUNDING(RUN) {RUN<NEAREST_EVEN>, RUN<NEAREST_AWAY>, RUN<FLOOR>, RUN<TOWARD_ZERO>}
#define ANY_ROUNDING(RUN) {RUN, RUN, RUN, RUN}

template <int R>
void run_block_fixed(const Call& call) { run_blocks<BlockFixed<R>>(call); }
template <int R>
void run_block_float(const Call& call) { run_blocks<BlockFloat<R>>(call); }

// To add a kernel: its row here, and its name at the same place in kernels.py.
const Run KERNELS[][4] = {
    EACH_ROUNDING(run_fixed),
    EACH_ROUNDING(run_float),
    EACH_ROUNDING(run_wide_float),
    ANY_ROUNDING(run_log),
    EACH_ROUNDING(run_block_fixed),
    EACH_ROUNDING(run_block_float),
    ANY_ROUNDING(run_blocks<BlockLog>),
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void mase_quantize(int kernel, int rounding, const float* x, float* y, i64 rows,
                          i64 columns, i64 block, const double* parameters, int threads) {
  KERNELS[kernel][rounding]({x, y, rows, columns, block, parameters, threads});
}

// The gradient where low <= x <= high, else 0.
EXPORT void mase_mask(const float* gradient, const float* x, float* out, i64 n, float low,
                      float high, int threads) {
  shared(n, threads, [=](i64 first, i64 last) {
    mask(gradient + first, x + first, out + first, last - first, low, high);
  });
}
