// The values of the number formats in one pass over memory, bit-equal to the PyTorch definitions.
//
// Each kernel is a row of the table at the end. The formats themselves are in `exact.h`.
//
// Rounding to nearest even, the default, is written in vectors, because a copy of the tensor leaves
// time for about seven vector instructions and no more. What ordinary numbers do not need (limits,
// NaN) is watched for with one instruction, and done over with care where it does occur. All else
// is plain loops that the compiler vectorises.

#include <cstring>

#include "../../vectors.h"
#include "exact.h"

OURS {

// --- vectors ----------------------------------------------------------------------------------

inline Ints spread(i32 x) { return Ints{} + x; }
inline Ints bits_of(Floats x) { return reinterpret_cast<Ints>(x); }
inline Floats floats_of(Ints b) { return reinterpret_cast<Floats>(b); }
inline Ints max(Ints a, Ints b) { return a > b ? a : b; }
inline Ints min(Ints a, Ints b) { return a < b ? a : b; }
inline Floats magnitude_of(Floats x) {
  return floats_of(bits_of(x) & static_cast<i32>(MAGNITUDE));
}

inline bool any(Ints is_true) {  // lanes are 0 or -1
  const auto pairs = reinterpret_cast<i64 __attribute__((vector_size(4 * LANES)))>(is_true);
  i64 found = 0;
  for (int i = 0; i < LANES / 2; ++i) found |= pairs[i];
  return found != 0;
}

// The larger and the smaller number, and NaN where one of the two is; c plus or minus a * b where
// the product is exact or c is 0, so that rounding once or twice is the same; the magnitude of one
// with the sign of the other.
#if defined(__ARM_NEON)
inline Floats max(Floats a, Floats b) { return vmaxq_f32(a, b); }
inline Floats min(Floats a, Floats b) { return vminq_f32(a, b); }
inline i32 max_of_lanes(Ints x) { return vmaxvq_s32(x); }
inline Floats plus_product(Floats c, Floats a, Floats b) { return vfmaq_f32(c, a, b); }
inline Floats minus_product(Floats c, Floats a, Floats b) { return vfmsq_f32(c, a, b); }
inline Floats with_sign_of(Floats magnitude, Floats x) {
  const uint32x4_t sign = vdupq_n_u32(~MAGNITUDE);
  return (Floats)vbslq_u32(sign, (uint32x4_t)x, (uint32x4_t)magnitude);
}
#else
inline Floats max(Floats a, Floats b) { return (a > b) | (a != a) ? a : b; }
inline Floats min(Floats a, Floats b) { return (a < b) | (a != a) ? a : b; }
inline i32 max_of_lanes(Ints x) {
  i32 most = x[0];
  for (int i = 1; i < LANES; ++i) most = max(most, x[i]);
  return most;
}
inline Floats plus_product(Floats c, Floats a, Floats b) { return c + a * b; }
inline Floats minus_product(Floats c, Floats a, Floats b) { return c - a * b; }
inline Floats with_sign_of(Floats magnitude, Floats x) {
  const Ints sign = spread(static_cast<i32>(~MAGNITUDE));
  return floats_of((bits_of(magnitude) & ~sign) | (bits_of(x) & sign));
}
#endif

// --- rounding ---------------------------------------------------------------------------------

// Nearest-even needs no scaling where |x| < 2**(unit+22): in the sum with 1.5 * 2**(unit+23) the
// last bit is worth 2**unit, so that the addition itself rounds. A zero comes out positive.
constexpr i32 SUM_WIDTH = 22;
constexpr i32 SUM_HIGHEST_UNIT = 127 - FRACTION;
inline float sum_constant(i32 unit) { return 1.5f * power(unit + FRACTION); }

// --- loops ------------------------------------------------------------------------------------

#define ALWAYS_INLINE inline __attribute__((always_inline))

#define UNROLLED _Pragma("GCC unroll 8")

constexpr i64 RUN = 32;
constexpr i64 AHEAD = 512;

// y = f(x); a fixed count, so that the compiler interleaves a whole run of elements.
template <class F>
inline void each(const float* __restrict x, float* __restrict y, i64 n, F f) {
  i64 i = 0;
  for (; i + RUN <= n; i += RUN) {
    __builtin_prefetch(x + i + AHEAD);
    __builtin_prefetch(x + i + AHEAD + RUN / 2);
    for (i64 j = i; j < i + RUN; ++j) y[j] = f(x[j]);
  }
  for (; i < n; ++i) y[i] = f(x[i]);
}

template <class Body>
__attribute__((noinline)) bool run_share(const Body& body, i64 first, i64 last) {
  return body(first, last);
}

// Whether body(first, last) holds for all shares of 0..n, one for each thread; one thread needs no
// OpenMP at all.
template <class Body>
bool shared(i64 n, int threads, const Body& body) {
  if (threads <= 1) return run_share(body, 0, n);
  bool all = true;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(&& : all)
  for (int t = 0; t < threads; ++t) {
    const bool holds = run_share(body, n * t / threads, n * (t + 1) / threads);
    all = all && holds;
  }
  return all;
}

struct Call {
  const float* x;
  float* y;
  i64 rows, columns, block;
  const double* parameters;
  int threads;
};

// A kernel answers whether all elements are known to lie within the range of the format.
constexpr bool UNKNOWN = false;

template <class Element>
bool run_elements(const Call& call, Element element) {
  const float* x = call.x;
  float* y = call.y;
  return shared(call.rows * call.columns, call.threads, [=](i64 first, i64 last) {
    each(x + first, y + first, last - first, element);
    return UNKNOWN;
  });
}

// A step maps a vector and notes what it sees; in the end it accepts what it saw or not. A fused
// multiply-add overwrites its summand, and loading costs no time, so that a step gets a vector for
// that: the same once more, or zero. Of a stride, a step may have `ASIDE` vectors watched in
// integer registers, which are idle otherwise.
constexpr int AT_ONCE = 8;  // vectors, so that no instruction waits for the one before
constexpr i64 STRIDE = AT_ONCE * LANES;
constexpr float ZEROS[STRIDE] = {};
constexpr i64 CHUNK = 4096;  // elements after which a step is asked

template <class Step>
ALWAYS_INLINE typename Step::Seen run_stride(const Step step, const float* x, const float* twin,
                                             float* y, typename Step::Seen seen) {
  Floats one[AT_ONCE], two[AT_ONCE];
  for (int i = 0; i < AT_ONCE; ++i) one[i] = load(x + i * LANES), two[i] = load(twin + i * LANES);
  if constexpr (Step::ASIDE > 0) {
    for (int i = 0; i < Step::ASIDE * LANES; i += 2) step.watch(x + i, seen);
    for (int i = 0; i < Step::ASIDE; ++i) one[i] = step.round(one[i], two[i]);
  }
  for (int i = Step::ASIDE; i < AT_ONCE; ++i) one[i] = step(one[i], two[i], seen);
  for (int i = 0; i < AT_ONCE; ++i) store(y + i * LANES, one[i]);
  return seen;
}

template <class Step>
ALWAYS_INLINE bool run_step(const Step step, const float* x, float* y, i64 n) {
  typename Step::Seen seen = step.nothing();
  const float* twin = Step::TAKES_ZERO ? ZEROS : x;
  asm("" : "+r"(twin));  // or the compiler would copy registers instead of loading
  i64 i = 0;
  for (; i + STRIDE <= n; i += STRIDE) {
    for (i64 j = 0; j < STRIDE; j += RUN / 2) __builtin_prefetch(x + i + j + AHEAD);
    seen = run_stride(step, x + i, twin + (Step::TAKES_ZERO ? 0 : i), y + i, seen);
  }
  if (i < n) {
    float in[STRIDE] = {}, out[STRIDE];
    const size_t rest = static_cast<size_t>(n - i) * sizeof *x;
    std::memcpy(in, x + i, rest);
    seen = run_stride(step, in, Step::TAKES_ZERO ? ZEROS : in, out, seen);
    std::memcpy(y + i, out, rest);
  }
  return step.accepts(seen);
}

template <class Step>
__attribute__((noinline)) bool run_aside(const Step& step, const float* x, float* y, i64 n) {
  return run_step(step, x, y, n);
}

// The quick step, and the careful one where the quick one does not accept; as long as elements lie
// outside the range, the quick one is not tried.
template <class Quick, class Careful>
bool run_steps(const Call& call, const Quick& quick, const Careful& careful) {
  return shared(call.rows * call.columns, call.threads, [&](i64 first, i64 last) {
    bool all_inside = true, is_calm = true;
    for (i64 i = first; i < last; i += CHUNK) {
      const i64 n = min(CHUNK, last - i);
      if (is_calm && run_step(quick, call.x + i, call.y + i, n)) continue;
      is_calm = run_aside(careful, call.x + i, call.y + i, n);
      all_inside &= is_calm;
    }
    return all_inside;
  });
}

// Whether all magnitudes seen are below a limit, given by its bits. Two elements at a time: a lane
// that reaches the limit carries into its top bit.
struct Watched {
  u64 carries = 0;
  void note(const float* x, u32 limit) {
    u64 two;
    std::memcpy(&two, x, sizeof two);
    asm("" : "+r"(two));  // or the compiler would use vectors again
    carries |= (two & (MAGNITUDE * BOTH)) + (~MAGNITUDE - limit) * BOTH;
  }
  bool are_below() const { return (carries & (~MAGNITUDE * BOTH)) == 0; }
  static constexpr u64 BOTH = 0x100000001u;
};

#if defined(__ARM_NEON)
constexpr int WATCHED_ASIDE = 4;
#else
constexpr int WATCHED_ASIDE = 0;
#endif

// --- elements that stand alone ------------------------------------------------------------------

// Fixed point to nearest even: the sum with a constant rounds. Quick: the largest and the smallest
// element are noted. Careful: elements are brought into the range first.
struct QuickFixed {
  static constexpr bool TAKES_ZERO = false;
  static constexpr int ASIDE = 0;
  Floats constant, low, high;
  struct Seen { Floats most, least; };
  Seen nothing() const { return {low, high}; }
  Floats operator()(Floats x, Floats, Seen& seen) const {
    seen = {max(seen.most, x), min(seen.least, x)};
    return (x + constant) - constant;
  }
  bool accepts(const Seen& seen) const {
    return !any(~((seen.most <= high) & (seen.least >= low)));
  }
};

struct CarefulFixed {
  static constexpr bool TAKES_ZERO = false;
  static constexpr int ASIDE = 0;
  Floats constant, low, high;
  using Seen = Ints;
  Ints nothing() const { return Ints{}; }
  Floats operator()(Floats x, Floats, Ints& outside) const {
    const Floats inside = min(max(x, low), high);
    outside |= ~(inside == x);
    return (inside + constant) - constant;
  }
  bool accepts(Ints outside) const { return !any(outside); }
};

template <int R>
bool run_fixed(const Call& call) {
  const Fixed<R> format(call.parameters);
  const i32 unit = static_cast<i32>(call.parameters[0]);
  const float most = power(unit + SUM_WIDTH);
  if (R == NEAREST_EVEN && -format.low < most && format.high < most && unit <= SUM_HIGHEST_UNIT) {
    const Floats constant = spread(sum_constant(unit));
    const Floats low = spread(format.low), high = spread(format.high);
    return run_steps(call, QuickFixed{constant, low, high}, CarefulFixed{constant, low, high});
  }
  return run_elements(call, format);
}

// Small floats to nearest even: the constant of the sum follows the exponent of each element, which
// is what is left of its bits without sign and fraction, and `lowest` for those below it. The sum
// loses the sign of zero. Quick: the largest exponent is noted, and must stay below that of the
// limit. Careful: elements are brought into the range first.
inline Floats round_by_exponent(Floats x, Floats signed_x, Ints exponent, Floats factor) {
  const Floats sum = plus_product(x, floats_of(exponent), factor);
  return with_sign_of(minus_product(sum, floats_of(exponent), factor), signed_x);
}

inline Ints exponent_of(Floats x) { return bits_of(x) & static_cast<i32>(INFINITE); }

struct QuickFloat {
  static constexpr bool TAKES_ZERO = false;
  static constexpr int ASIDE = WATCHED_ASIDE;
  Ints lowest;
  Floats factor;  // of the constant over the power of two of the element
  Floats limit;
  struct Seen { Ints most; Watched aside; };
  QuickFloat(i32 mantissa, i32 lowest_exponent, float limit)
      : lowest(spread(in_place(lowest_exponent))), factor(spread(sum_constant(-mantissa))),
        limit(spread(limit)) {}
  Seen nothing() const { return {Ints{}, Watched{}}; }
  Floats operator()(Floats x, Floats twin, Seen& seen) const {
    const Ints exponent = max(exponent_of(x), lowest);
    seen.most = max(seen.most, exponent);
    return round_by_exponent(twin, x, exponent, factor);
  }
  Floats round(Floats x, Floats twin) const {
    return round_by_exponent(twin, x, max(exponent_of(x), lowest), factor);
  }
  void watch(const float* x, Seen& seen) const {
    seen.aside.note(x, bits_of(limit[0]) & INFINITE);
  }
  bool accepts(const Seen& seen) const {
    return !any(seen.most >= exponent_of(limit)) && seen.aside.are_below();
  }
};

struct CarefulFloat : QuickFloat {
  using QuickFloat::QuickFloat;
  static constexpr int ASIDE = 0;
  using Seen = Ints;
  Ints nothing() const { return Ints{}; }
  Floats operator()(Floats x, Floats, Ints& outside) const {
    const Floats inside = min(max(x, -limit), limit);
    outside |= ~(inside == x);
    return round_by_exponent(inside, x, max(exponent_of(inside), lowest), factor);
  }
  bool accepts(Ints outside) const { return !any(outside); }
};

template <int R>
bool run_float(const Call& call) {
  const Float<R> format(call.parameters);
  const i32 mantissa = format.mantissa, lowest = format.lowest;
  if (R == NEAREST_EVEN)
    return run_steps(call, QuickFloat(mantissa, lowest, format.limit),
                     CarefulFloat(mantissa, lowest, format.limit));
  return run_elements(call, format);
}

template <int R>
bool run_wide_float(const Call& call) {
  return run_elements(call, WideFloat<R>(call.parameters));
}

// Powers of two, quick: times `factor` a mantissa that rounds up is 2 or more, one that rounds down
// is less, so that the exponent of the product is the answer. Zero counts as positive. The largest
// exponent is noted and must stay below the highest.
struct QuickLog {
  static constexpr bool TAKES_ZERO = true;
  static constexpr int ASIDE = 0;
  Floats factor;
  Ints low, high;
  using Seen = Ints;
  Ints nothing() const { return Ints{}; }
  Floats operator()(Floats x, Floats zero, Ints& most) const {
    const Floats product = plus_product(zero, x, factor);  // -0 becomes 0
    const Ints exponent = max(exponent_of(product), low);
    most = max(most, exponent);
    return with_sign_of(floats_of(exponent), product);
  }
  bool accepts(Ints most) const { return !any(most >= high); }
};

struct CarefulLog : QuickLog {
  Floats operator()(Floats x, Floats zero, Ints& outside) const {
    outside |= ~((x <= floats_of(high)) & (x >= -floats_of(high)));
    const Floats product = plus_product(zero, x, factor);
    const Ints exponent = max(exponent_of(product), low);
    const Floats y = with_sign_of(floats_of(min(exponent, high)), product);
    return x == x ? y : x;
  }
  bool accepts(Ints outside) const { return !any(outside); }
};

// The factor of a rule, 0 if float32 has none.
inline float log_factor(const LogRule& rule) {
  if (!rule.is_plain() || rule.positive == 0) return rule.is_plain() ? 1.0f : 0.0f;
  const float first = float_of((1u << FRACTION) - rule.positive + bits_of(1.0f));  // to go up
  const float last = float_of(bits_of(first) - 1);
  float factor = 2.0f / first;
  if (first * factor < 2.0f) factor = float_of(bits_of(factor) + 1);
  return first * factor >= 2.0f && last * factor < 2.0f ? factor : 0.0f;
}

template <int R>
bool run_log(const Call& call) {
  const Log<R> format(call.parameters);
  const float factor = log_factor(format.rule);
  const QuickLog quick{spread(factor), spread(format.low), spread(format.high)};
  if (factor > 0.0f) return run_steps(call, quick, CarefulLog{quick});
  return run_elements(call, format);
}

// --- blocks -------------------------------------------------------------------------------------

// A block kernel is a format with a second, quick way. `round` takes a block of N whose largest
// magnitude lies in `usual`, and gets its bits, the lower 16 only if it `needs_all_bits`: there,
// exponents are neither clamped nor subnormal, and what a block shares is its exponent, in place,
// plus a constant.

struct Window {  // of exponents, as bits of magnitudes; empty where there is no way to round
  i32 first, beyond;
  Window(i32 lowest, i32 highest)
      : first(in_place(clamp(lowest, -126, BIAS + 1))),
        beyond(in_place(clamp(highest, -BIAS, BIAS) + 1)) {}
};

inline i32 upper_half(i32 bits) { return bits & ~0xffff; }

// y = f(x, x) for the N elements of a block; twice, as a step gets them.
template <int N, class F>
ALWAYS_INLINE void each_in_block(const float* x, float* y, F f) {
  constexpr int VECTORS = N / LANES;
  const float* twin = x;
  asm("" : "+r"(twin));
  Floats one[VECTORS], two[VECTORS];
  for (int i = 0; i < VECTORS; ++i) one[i] = load(x + i * LANES), two[i] = load(twin + i * LANES);
  for (int i = 0; i < VECTORS; ++i) one[i] = f(one[i], two[i]);
  for (int i = 0; i < VECTORS; ++i) store(y + i * LANES, one[i]);
}

template <int R, bool HAS_ONE_ZERO>
struct QuickBlockFixed : BlockFixed<R> {
  using Format = BlockFixed<R>;
  using Format::offset, Format::low, Format::high, Format::unit_offset, Format::ones, Format::zero;
  i32 to_constant, to_limit;  // added to the exponent of the largest
  explicit QuickBlockFixed(const double* p)
      : Format(p),
        to_constant(magnitude_of(sum_constant(offset + unit_offset)) - in_place(0)),
        to_limit(magnitude_of(ones) + shifted(offset + unit_offset) - in_place(0)) {}

  bool needs_all_bits() const { return false; }

  Window usual() const {
    const bool has_way = R == NEAREST_EVEN && ones < power(SUM_WIDTH);
    const i32 unit = offset + unit_offset;
    return Window(max(low - offset, -126 - unit),
                  has_way ? min(high - offset, SUM_HIGHEST_UNIT - unit) : -BIAS);
  }

  template <int N>
  ALWAYS_INLINE void round(const float* x, float* y, i32 largest) const {
    const i32 exponent = largest & static_cast<i32>(INFINITE);
    const Floats c = floats_of(spread(exponent + to_constant));
    if (largest >= upper_half(exponent + to_limit)) {
      const Floats limit = floats_of(spread(exponent + to_limit)), sum = spread(zero);
      each_in_block<N>(x, y, [=](Floats v, Floats) {
        return with_sign_of((min(max(v, -limit), limit) + c) - c, v) + sum;
      });
    } else {
      each_in_block<N>(x, y, [=](Floats v, Floats) {
        const Floats rounded = (v + c) - c;
        return HAS_ONE_ZERO ? rounded : with_sign_of(rounded, v);
      });
    }
  }
};

template <int R>
struct QuickBlockFloat : BlockFloat<R> {
  using Format = BlockFloat<R>;
  using Format::mantissa, Format::threshold, Format::offset, Format::low, Format::high,
      Format::lowest_offset, Format::largest_value, Format::limit_offset;
  i32 carry, to_lowest, to_limit, to_beyond;  // added to the largest, to its exponent
  explicit QuickBlockFloat(const double* p)
      : Format(p), carry((1 << FRACTION) - threshold),
        to_lowest(shifted(offset + lowest_offset)),
        to_limit(magnitude_of(largest_value) + shifted(offset + limit_offset) - in_place(0)),
        to_beyond(to_limit + (1 << FRACTION >> (mantissa + 1))) {}  // what is less, rounds down

  bool needs_all_bits() const { return threshold != upper_half(threshold); }

  Window usual() const {
    const bool has_way = R == NEAREST_EVEN && mantissa < SUM_WIDTH;
    const i32 lowest = max(low, max(mantissa - lowest_offset, -limit_offset) - 126) - offset;
    return Window(lowest, has_way ? min(high - offset, SUM_HIGHEST_UNIT) - 1 : -BIAS);
  }

  template <int N>
  ALWAYS_INLINE void round(const float* x, float* y, i32 largest) const {
    const i32 exponent = (largest + carry) & static_cast<i32>(INFINITE);
    const Ints lowest = spread(exponent + to_lowest);
    const Floats factor = spread(sum_constant(-mantissa));
    if (largest >= upper_half(exponent + to_beyond)) {
      const Floats limit = floats_of(spread(exponent + to_limit));
      each_in_block<N>(x, y, [=](Floats v, Floats) {
        const Floats inside = min(max(v, -limit), limit);
        return round_by_exponent(inside, v, max(exponent_of(inside), lowest), factor);
      });
    } else {
      each_in_block<N>(x, y, [=](Floats v, Floats twin) {
        return round_by_exponent(twin, v, max(exponent_of(v), lowest), factor);
      });
    }
  }
};

template <int R>
struct QuickBlockLog : BlockLog<R> {
  using Format = BlockLog<R>;
  using Format::top, Format::max_bias, Format::threshold;
  float factor;
  explicit QuickBlockLog(const double* p) : Format(p), factor(log_factor(this->log)) {}

  bool needs_all_bits() const { return threshold != upper_half(threshold); }

  Window usual() const { return Window(-126, factor > 0.0f ? BIAS - 1 : -BIAS); }

  template <int N>
  ALWAYS_INLINE void round(const float* x, float* y, i32 largest) const {
    const i32 exponent = (largest + (1 << FRACTION) - threshold) & static_cast<i32>(INFINITE);
    const i32 bottom = clamp(exponent - shifted(top), in_place(-max_bias), in_place(0));
    const Ints lowest = spread(bottom), highest = spread(bottom + shifted(top));
    const Floats times = spread(factor);
    each_in_block<N>(x, y, [=](Floats v, Floats) {
      const Floats product = v * times + 0.0f;
      return with_sign_of(floats_of(min(max(exponent_of(product), lowest), highest)), product);
    });
  }
};

template <class Kernel>
__attribute__((noinline)) void run_block(const Kernel& kernel, const float* x, float* y, i64 n) {
  i32 largest = 0;
  for (i64 i = 0; i < n; ++i) largest = max(largest, magnitude_of(x[i]));
  if (largest < static_cast<i32>(INFINITE))
    return each(x, y, n, kernel.rule(static_cast<u32>(largest)));
  for (i64 i = 0; i < n; ++i) y[i] = float_of(QUIET_NAN);
}

// The bits of the largest magnitude of a block.
template <int N>
ALWAYS_INLINE i32 largest_of_block(const float* x) {
  Floats most[N / LANES];
  for (int i = 0; i < N / LANES; ++i) most[i] = magnitude_of(load(x + i * LANES));
  for (int half = N / LANES / 2; half > 0; half /= 2)  // a tree: fewer steps wait for another
    for (int i = 0; i < half; ++i) most[i] = max(most[i], most[i + half]);
  return max_of_lanes(bits_of(most[0]));
}

// The same without the lower 16 bits: a vector holds twice as many.
#if defined(__ARM_NEON)
template <int N>
ALWAYS_INLINE i32 upper_largest_of_block(const float* x) {
  constexpr int VECTORS = N / 8;
  uint16x8_t most[VECTORS];
  for (int i = 0; i < VECTORS; ++i)
    most[i] = vuzp2q_u16((uint16x8_t)load(x + 8 * i), (uint16x8_t)load(x + 8 * i + LANES));
  for (auto& v : most) v = vbicq_u16(v, vdupq_n_u16(1 << 15));
  for (int half = VECTORS / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) most[i] = vmaxq_u16(most[i], most[i + half]);
  return vmaxvq_u16(most[0]) << 16;
}
#else
template <int N>
ALWAYS_INLINE i32 upper_largest_of_block(const float* x) {
  return upper_half(largest_of_block<N>(x));
}
#endif

// As many groups of G blocks of N as there are; answers how many elements that were. All blocks of
// a group are looked at before the first is rounded, so that none waits for its own maximum; and
// they are so few that the maxima stay in registers, of integers, which are idle otherwise: a store
// between those of the output would end the processor's streaming of whole cache lines.
template <int N, int G, bool IN_FULL, class Kernel>
i64 run_groups(const Kernel kernel, const float* x, float* y, i64 n) {
  const Window usual = kernel.usual();
  i64 done = 0;
  for (; done + G * N <= n; done += G * N, x += G * N, y += G * N) {
    i32 largest[G];
    UNROLLED for (int g = 0; g < G; ++g) {
      for (int i = 0; i < N; i += RUN / 2) __builtin_prefetch(x + AHEAD + g * N + i);
      largest[g] = IN_FULL ? largest_of_block<N>(x + g * N) : upper_largest_of_block<N>(x + g * N);
    }
    UNROLLED for (int g = 0; g < G; ++g) {
      if (largest[g] >= usual.first && largest[g] < usual.beyond)
        kernel.template round<N>(x + g * N, y + g * N, largest[g]);
      else
        run_block(kernel, x + g * N, y + g * N, N);
    }
  }
  return done;
}

template <int N, class Kernel>
i64 run_whole_blocks(const Kernel& kernel, const float* x, float* y, i64 n) {
  const i64 done = kernel.needs_all_bits() ? run_groups<N, 3, true>(kernel, x, y, n)
                                           : run_groups<N, 3, false>(kernel, x, y, n);
  return done + run_groups<N, 1, true>(kernel, x + done, y + done, n - done);
}

template <class Kernel>
void run_row(const Kernel& kernel, const float* x, float* y, i64 columns, i64 block) {
  i64 done = 0;
  if (block == 32) done = run_whole_blocks<32>(kernel, x, y, columns);
  if (block == 16) done = run_whole_blocks<16>(kernel, x, y, columns);
  for (; done < columns; done += block)
    run_block(kernel, x + done, y + done, min(block, columns - done));
}

template <class Kernel>
bool run_blocks(const Call& call) {
  const Kernel kernel(call.parameters);
  const float* x = call.x;
  float* y = call.y;
  const i64 block = call.block;
  i64 rows = call.rows, columns = call.columns;
  const bool is_dense = columns % block == 0;  // blocks follow each other without a gap
  if (is_dense) rows *= columns / block, columns = block;
  return shared(rows, call.threads, [=](i64 first, i64 last) {
    const i64 width = is_dense ? (last - first) * block : columns, step = is_dense ? last : 1;
    for (i64 row = first; row < last; row += step)
      run_row(kernel, x + row * columns, y + row * columns, width, block);
    return UNKNOWN;
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

using Run = bool (*)(const Call&);

#define EACH_ROUNDING(RUN) {RUN<NEAREST_EVEN>, RUN<NEAREST_AWAY>, RUN<FLOOR>, RUN<TOWARD_ZERO>}

template <int R>
bool run_block_fixed(const Call& call) {
  const bool has_one_zero = call.parameters[5] != 0;
  return has_one_zero ? run_blocks<QuickBlockFixed<R, true>>(call)
                      : run_blocks<QuickBlockFixed<R, false>>(call);
}
template <int R>
bool run_block_float(const Call& call) { return run_blocks<QuickBlockFloat<R>>(call); }
template <int R>
bool run_block_log(const Call& call) { return run_blocks<QuickBlockLog<R>>(call); }

// To add a kernel: its row here, and its name at the same place in kernels.py.
const Run KERNELS[][4] = {
    EACH_ROUNDING(run_fixed),       EACH_ROUNDING(run_float),       EACH_ROUNDING(run_wide_float),
    EACH_ROUNDING(run_log),         EACH_ROUNDING(run_block_fixed), EACH_ROUNDING(run_block_float),
    EACH_ROUNDING(run_block_log),
};

}  // OURS

#define EXPORT extern "C" __attribute__((visibility("default")))

// Whether all of x is known to lie within the range of the format.
EXPORT bool mase_quantize(int kernel, int rounding, const float* x, float* y, i64 rows,
                          i64 columns, i64 block, const double* parameters, int threads) {
  return KERNELS[kernel][rounding]({x, y, rows, columns, block, parameters, threads});
}

// The gradient where low <= x <= high, else 0.
EXPORT void mase_mask(const float* gradient, const float* x, float* out, i64 n, float low,
                      float high, int threads) {
  shared(n, threads, [=](i64 first, i64 last) {
    mask(gradient + first, x + first, out + first, last - first, low, high);
    return true;
  });
}
