// The number formats, element by element: what `kernels.cpp` and `kernels.cu` have in common.
//
// All arithmetic is exact (products with powers of two, rounding to integers, comparisons), so that
// every processor gives the bits of the PyTorch definitions. Parameters are numbers that float32
// holds. No header is needed: this is also compiled where there are none.

#if defined(__CUDACC__)
#define FUNCTION __device__ __forceinline__
#define OURS namespace mase
#else
#define FUNCTION inline
#define OURS namespace  // without a name: what no other file can call is compiled better
#endif

OURS {

using i32 = int;
using u32 = unsigned;
using i64 = long long;
using u64 = unsigned long long;

enum Rounding { NEAREST_EVEN, NEAREST_AWAY, FLOOR, TOWARD_ZERO };

constexpr i32 FRACTION = 23;
constexpr i32 BIAS = 127;
constexpr i32 FINEST = -149;   // every float is a multiple of 2**FINEST
constexpr i32 OF_ZERO = -151;  // the exponent that stands for zero
constexpr u32 MAGNITUDE = 0x7fffffffu;
constexpr u32 INFINITE = 0x7f800000u;
constexpr u32 QUIET_NAN = 0x7fc00000u;
constexpr u32 FRACTION_MASK = 0x007fffffu;

// What compilers name differently.
#if defined(__CUDACC__)
FUNCTION u32 bits_of(float x) { return __float_as_uint(x); }
FUNCTION float float_of(u32 b) { return __uint_as_float(b); }
FUNCTION i32 leading_zeros(u32 x) { return __clz(static_cast<i32>(x)); }
FUNCTION float nearest_even(float x) { return rintf(x); }
FUNCTION float below(float x) { return floorf(x); }
FUNCTION float without_fraction(float x) { return truncf(x); }
FUNCTION float absolute(float x) { return fabsf(x); }
FUNCTION float with_sign_of(float magnitude, float x) { return copysignf(magnitude, x); }
#else
FUNCTION u32 bits_of(float x) {
  u32 b;
  __builtin_memcpy(&b, &x, sizeof b);
  return b;
}
FUNCTION float float_of(u32 b) {
  float x;
  __builtin_memcpy(&x, &b, sizeof x);
  return x;
}
FUNCTION i32 leading_zeros(u32 x) { return __builtin_clz(x); }
FUNCTION float nearest_even(float x) { return __builtin_rintf(x); }
FUNCTION float below(float x) { return __builtin_floorf(x); }
FUNCTION float without_fraction(float x) { return __builtin_truncf(x); }
FUNCTION float absolute(float x) { return __builtin_fabsf(x); }
FUNCTION float with_sign_of(float magnitude, float x) { return __builtin_copysignf(magnitude, x); }
#endif

FUNCTION i32 max(i32 a, i32 b) { return a > b ? a : b; }
FUNCTION i32 min(i32 a, i32 b) { return a < b ? a : b; }
FUNCTION i64 min(i64 a, i64 b) { return a < b ? a : b; }
FUNCTION i32 clamp(i32 a, i32 low, i32 high) { return min(max(a, low), high); }
FUNCTION float clamp(float x, float low, float high) {  // NaN stays
  x = x < low ? low : x;
  return x > high ? high : x;
}
FUNCTION i32 magnitude_of(float x) { return static_cast<i32>(bits_of(x) & MAGNITUDE); }

// An exponent where a float has it, the bits of 2**e, and 2**e itself if that is a normal number.
FUNCTION i32 shifted(i32 e) { return static_cast<i32>(static_cast<u32>(e) << FRACTION); }
FUNCTION i32 in_place(i32 e) { return shifted(e + BIAS); }
FUNCTION float power(i32 e) { return float_of(static_cast<u32>(in_place(e))); }

// 2**e as a product of two powers, for exponents that no normal number has.
struct Power {
  float first, second;
  FUNCTION explicit Power(i32 e) : first(power(e >> 1)), second(power(e - (e >> 1))) {}
  FUNCTION float times(float x) const { return x * first * second; }
};

// --- rounding ---------------------------------------------------------------------------------

template <int R>
FUNCTION float round_whole(float x) {
  if (R == NEAREST_EVEN) return nearest_even(x);
  if (R == FLOOR) return below(x);
  float whole = without_fraction(x);
  if (R == TOWARD_ZERO) return whole;
  return whole + with_sign_of(absolute(x - whole) >= 0.5f ? 1.0f : 0.0f, x);
}

// `scaled`, which is x over the unit, as an integer. A tiny negative x may have underflowed.
template <int R>
FUNCTION float round_scaled(float scaled, float x) {
  float whole = round_whole<R>(scaled);
  return R == FLOOR && scaled == 0.0f && x < 0.0f ? -1.0f : whole;
}

// x as a multiple of 2**unit, for any unit.
template <int R>
FUNCTION float round_to_multiple(float x, i32 unit) {
  unit = max(unit, FINEST);
  return Power(unit).times(round_scaled<R>(Power(-unit).times(x), x));
}

// floor(log2) of a finite magnitude given by its bits, subnormals included.
FUNCTION i32 exact_exponent(u32 magnitude) {
  if (magnitude == 0) return OF_ZERO;
  if (magnitude > FRACTION_MASK) return static_cast<i32>(magnitude >> FRACTION) - BIAS;
  return FINEST + 31 - leading_zeros(magnitude);
}

// Whether the mantissa of a magnitude, as a fraction in 2**-23, is at least `threshold`.
FUNCTION bool mantissa_reaches(u32 magnitude, i32 threshold) {
  if (magnitude == 0) return false;
  i32 shift = magnitude > FRACTION_MASK ? 0 : leading_zeros(magnitude) - 8;
  return static_cast<i32>((magnitude << shift) & FRACTION_MASK) >= threshold;
}

// --- elements that stand alone ------------------------------------------------------------------
// A format is made from its parameters and maps an element to its value.

template <int R>
struct Fixed {  // parameters: exponent of the unit, lowest and highest value
  float up, down, low, high;
  template <class P>
  FUNCTION explicit Fixed(const P* p)
      : up(power(-static_cast<i32>(p[0]))), down(power(static_cast<i32>(p[0]))),
        low(static_cast<float>(p[1])), high(static_cast<float>(p[2])) {}
  FUNCTION float operator()(float x) const {
    return clamp(round_scaled<R>(x * up, x) * down, low, high) + 0.0f;  // -0 becomes 0
  }
};

template <int R>
FUNCTION float round_scaled_float(float x, i32 mantissa, i32 lowest, float limit) {
  x = clamp(x, -limit, limit);  // the limit is a value, so that this may come first
  i32 exponent = max(magnitude_of(x) & static_cast<i32>(INFINITE), in_place(lowest));
  float up = float_of(static_cast<u32>(((2 * BIAS + mantissa) << FRACTION) - exponent));
  float down = float_of(static_cast<u32>(exponent - (mantissa << FRACTION)));
  return round_scaled<R>(x * up, x) * down;
}

template <int R>
struct Float {  // parameters: mantissa bits, lowest exponent, largest value; moderate exponents
  i32 mantissa, lowest;
  float limit;
  template <class P>
  FUNCTION explicit Float(const P* p)
      : mantissa(static_cast<i32>(p[0])), lowest(static_cast<i32>(p[1])),
        limit(static_cast<float>(p[2])) {}
  FUNCTION float operator()(float x) const {
    return round_scaled_float<R>(x, mantissa, lowest, limit);
  }
};

template <int R>
struct WideFloat {  // the same parameters, and what a magnitude beyond the largest value becomes
  i32 mantissa, lowest;
  float limit, beyond;
  template <class P>
  FUNCTION explicit WideFloat(const P* p)
      : mantissa(static_cast<i32>(p[0])), lowest(static_cast<i32>(p[1])),
        limit(static_cast<float>(p[2])), beyond(static_cast<float>(p[3])) {}
  FUNCTION float operator()(float x) const {
    i32 e = (magnitude_of(x) >> FRACTION) - BIAS;
    float y = round_to_multiple<R>(x, max(e, lowest) - mantissa);
    return absolute(y) > limit ? with_sign_of(beyond, y) : y;
  }
};

// How a magnitude becomes a power of two: what to add to its bits so that they carry into the
// exponent, for positive and for negative values, and whether the lowest exponent means zero.
struct LogRule {
  u32 positive, negative;
  bool has_zero;
  template <class P>
  FUNCTION explicit LogRule(const P* p)
      : positive(static_cast<u32>(p[0])), negative(static_cast<u32>(p[1])), has_zero(p[2] != 0) {}
  FUNCTION bool is_plain() const { return positive == negative && !has_zero; }
};

struct Powers {  // exponents `low` and `high` are in place: with their bias, times 2**FRACTION
  LogRule rule;
  i32 low, high;
  FUNCTION float operator()(float x) const {
    float signed_x = x + 0.0f;  // -0 becomes 0
    i32 magnitude = magnitude_of(signed_x);
    u32 carry = signed_x >= 0.0f ? rule.positive : rule.negative;
    i32 carried = static_cast<i32>((static_cast<u32>(magnitude) + carry) & INFINITE);
    i32 exponent = clamp(carried, low, high);
    float y = with_sign_of(float_of(static_cast<u32>(exponent)), signed_x);
    y = rule.has_zero && exponent == low ? 0.0f : y;
    return magnitude > static_cast<i32>(INFINITE) ? x : y;
  }
};

template <int R>
struct Log : Powers {  // parameters: LogRule, which has the rounding, lowest and highest exponent
  template <class P>
  FUNCTION explicit Log(const P* p)
      : Powers{LogRule(p), in_place(static_cast<i32>(p[3])), in_place(static_cast<i32>(p[4]))} {}
};

// --- blocks -------------------------------------------------------------------------------------
// A format is made from its parameters; given the bits of the largest magnitude of a block, which
// is finite, its `rule` maps the elements of the block to their values.

template <int R>
struct BlockFixed {  // parameters: offset, lowest, highest exponent, unit's offset, ones, one zero
  i32 offset, low, high, unit_offset;
  float ones, zero;
  template <class P>
  FUNCTION explicit BlockFixed(const P* p)
      : offset(static_cast<i32>(p[0])), low(static_cast<i32>(p[1])), high(static_cast<i32>(p[2])),
        unit_offset(static_cast<i32>(p[3])), ones(static_cast<float>(p[4])),
        zero(p[5] != 0 ? 0.0f : -0.0f) {}

  struct Rule {
    Power up, down;
    float limit, zero;
    FUNCTION float operator()(float v) const {  // -0 + 0 is 0, -0 + -0 is -0
      return clamp(down.times(round_scaled<R>(up.times(v), v)), -limit, limit) + zero;
    }
  };
  FUNCTION Rule rule(u32 largest) const {
    const i32 unit = clamp(exact_exponent(largest) + offset, low, high) + unit_offset;
    const i32 step = max(unit, FINEST);
    return {Power(-step), Power(step), Power(unit).times(ones), zero};
  }
};

template <int R>
struct BlockFloat {  // parameters: mantissa bits, scale's threshold, offset, lowest, highest,
                     // lowest exponent's offset, largest value, its exponent's offset
  i32 mantissa, threshold, offset, low, high, lowest_offset;
  float largest_value;
  i32 limit_offset;
  template <class P>
  FUNCTION explicit BlockFloat(const P* p)
      : mantissa(static_cast<i32>(p[0])), threshold(static_cast<i32>(p[1])),
        offset(static_cast<i32>(p[2])), low(static_cast<i32>(p[3])), high(static_cast<i32>(p[4])),
        lowest_offset(static_cast<i32>(p[5])), largest_value(static_cast<float>(p[6])),
        limit_offset(static_cast<i32>(p[7])) {}

  struct Rule {
    i32 mantissa, lowest;
    float limit;
    FUNCTION float operator()(float v) const {
      if (lowest - mantissa >= -126) return round_scaled_float<R>(v, mantissa, lowest, limit);
      const i32 exponent = max(exact_exponent(bits_of(v) & MAGNITUDE), lowest);
      return clamp(round_to_multiple<R>(v, exponent - mantissa), -limit, limit);
    }
  };
  FUNCTION Rule rule(u32 largest) const {
    const i32 e = exact_exponent(largest) + mantissa_reaches(largest, threshold);
    const i32 scale = clamp(e + offset, low, high);
    return {mantissa, scale + lowest_offset, Power(scale + limit_offset).times(largest_value)};
  }
};

template <int R>
struct BlockLog {  // parameters: LogRule, which has the rounding, largest code, largest bias, the
                   // largest's threshold
  LogRule log;
  i32 top, max_bias, threshold;
  template <class P>
  FUNCTION explicit BlockLog(const P* p)
      : log(p), top(static_cast<i32>(p[3])), max_bias(static_cast<i32>(p[4])),
        threshold(static_cast<i32>(p[5])) {}
  FUNCTION Powers rule(u32 largest) const {
    const i32 e = exact_exponent(largest) + mantissa_reaches(largest, threshold);
    const i32 bias = clamp(top - e, 0, max_bias);
    return {log, in_place(-bias), in_place(top - bias)};
  }
};

}  // OURS
