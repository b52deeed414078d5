#pragma once
// Packed formats on the CPU: what a code is worth, what a scale is worth, and the shape of a matrix.

#include "common.h"

namespace {

constexpr i32 FRACTION = 23;
constexpr i32 BIAS = 127;
constexpr u32 MAGNITUDE = 0x7fffffffu;
constexpr u32 INFINITE = 0x7f800000u;
constexpr u32 QUIET_NAN = 0x7fc00000u;
constexpr u8 SCALE_NAN = 255;

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

// 2**e, also where it is subnormal.
inline float power(i32 e) {
  return e > -BIAS ? float_of(static_cast<u32>(e + BIAS) << FRACTION)
                   : float_of(1u << (e + BIAS + FRACTION - 1));
}

// --- elements -------------------------------------------------------------------------------
// An element is `value(code)` over 2**SHIFT; where it fits, `whole(code)` is the same as int8.
// Scales are powers of two, a byte each, or with REAL_SCALES float32.

struct Whole8 {
  static constexpr int BITS = 8;
  static constexpr bool FITS_INT8 = true;
  static i8 whole(u8 code) { return static_cast<i8>(code); }
  static float value(u8 code) { return static_cast<float>(whole(code)); }
};

struct Whole4 {
  static constexpr int BITS = 4;
  static constexpr bool FITS_INT8 = true;
  static i8 whole(u8 code) { return static_cast<i8>(static_cast<i8>(code << 4) >> 4); }
  static float value(u8 code) { return static_cast<float>(whole(code)); }
};

struct MxInt8 : Whole8 {
  using Element = Whole8;
  static constexpr int SHIFT = 6;
  static constexpr bool REAL_SCALES = false;
};

struct MxInt4 : Whole4 {
  using Element = Whole4;
  static constexpr int SHIFT = 2;
  static constexpr bool REAL_SCALES = false;
};

struct Int8 : Whole8 {
  using Element = Whole8;
  static constexpr int SHIFT = 0;
  static constexpr bool REAL_SCALES = true;
};

struct Int4 : Whole4 {
  using Element = Whole4;
  static constexpr int SHIFT = 0;
  static constexpr bool REAL_SCALES = true;
};

struct MxFp4 {  // sign, 2 exponent and 1 mantissa bit
  using Element = MxFp4;
  static constexpr int SHIFT = 1, BITS = 4;
  static constexpr bool FITS_INT8 = true, REAL_SCALES = false;
  // 0 1 2 3 4 6 8 12: three straight lines, and no shift by a varying amount.
  static i8 magnitude(u8 code) {
    i8 m = code & 7, second = static_cast<i8>(2 * m - 4), third = static_cast<i8>(4 * m - 16);
    m = second > m ? second : m;
    return third > m ? third : m;
  }
  static i8 whole(u8 code) {
    i8 minus = static_cast<i8>(static_cast<i8>(code << 4) >> 7);  // 0 or -1
    return static_cast<i8>((magnitude(code) ^ minus) - minus);
  }
  static float value(u8 code) {  // a zero keeps its sign
    return float_of(bits_of(magnitude(code)) | static_cast<u32>(code & 8) << 28);
  }
};

struct MxFp8 {  // sign, 4 exponent and 3 mantissa bits; the code of all ones is NaN
  using Element = MxFp8;
  static constexpr int SHIFT = 9, BITS = 8;
  static constexpr bool FITS_INT8 = false, REAL_SCALES = false;
  static i8 whole(u8) { return 0; }
  static float value(u8 code) {
    u32 field = code >> 3 & 15, fraction = code & 7;
    u32 magnitude = field == 0 ? fraction : (fraction | 8) << (field - 1);
    u32 bits = (code & 127) == 127 ? QUIET_NAN : bits_of(static_cast<float>(magnitude));
    return float_of(bits | static_cast<u32>(code & 128) << 24);
  }
};

// 2**(byte - 127), NaN for 255: the byte is the exponent, and in both special cases the top bit of
// the fraction is set as well (2**-127 is subnormal).
inline float scale_value(u8 byte) {
  u32 is_special = static_cast<u8>(byte + 1) <= 1;
  return float_of((static_cast<u32>(byte) << 7 | is_special << 6) << 16);
}

// All there is to look up: the value of each code, and of one unit of it under each scale byte.
template <class Format>
struct Table {
  float value[1 << Format::BITS], scale[256];
  Table() {
    for (int c = 0; c < 1 << Format::BITS; ++c) value[c] = Format::value(static_cast<u8>(c));
    for (int s = 0; s < SCALE_NAN; ++s) scale[s] = power(s - BIAS - Format::SHIFT);
    scale[SCALE_NAN] = float_of(QUIET_NAN);
  }
};

// `convert` of `n` codes that start at a whole byte; of two 4-bit codes the low one is first.
template <class Format, class T, class Convert>
inline void each_code(const u8* __restrict codes, T* __restrict out, i64 n, Convert convert) {
  if (Format::BITS == 8) {
    for (i64 i = 0; i < n; ++i) out[i] = convert(codes[i]);
    return;
  }
  for (i64 i = 0; i < n / 2; ++i) {
    out[2 * i] = convert(static_cast<u8>(codes[i] & 15));
    out[2 * i + 1] = convert(static_cast<u8>(codes[i] >> 4));
  }
  if (n % 2) out[n - 1] = convert(static_cast<u8>(codes[n / 2] & 15));
}

// A group is a power of two, 16 at least.
struct Shape {
  i64 rows, columns, group;
  i64 groups() const { return (columns + group - 1) / group; }
  i64 bytes(int bits) const { return (columns * bits + 7) / 8; }
};

// Scales as they lie in memory: a byte or a float32 each.
struct Scales {
  const void* at;
  bool is_real;
  // Scale i, which an element that is an integer is multiplied with.
  float operator[](i64 i) const {
    return is_real ? static_cast<const float*>(at)[i]
                   : scale_value(static_cast<const u8*>(at)[i]);
  }
};

struct Linear {
  const float* x;
  const u8* codes;
  const void* scales;
  float* y;
  i64 batch;
  Shape shape;
  bool rounds;  // the activations to MXINT8 in blocks of 32
  int threads;
  i64 y_step;                      // elements between rows of y
  const float* offsets = nullptr;  // one per row and group of the weight, or none
  const float* sums = nullptr;     // of the activations of each group, for the offsets

  // `count` rows of the activations, from row b.
  Linear rows(i64 b, i64 count) const {
    Linear part = *this;
    part.x += b * shape.columns;
    part.y += b * y_step;
    if (sums) part.sums += b * shape.groups();
    part.batch = count;
    return part;
  }
};

// Whether the processor computes with subnormal numbers; a setting of the thread.
inline bool has_subnormals() {
  volatile float least = float_of(1), one = 1.0f;
  return least * one != 0.0f;
}

}  // namespace
