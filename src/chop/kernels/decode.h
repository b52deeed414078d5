#pragma once
// Rows of packed weights as floats.

#include "elements.h"

namespace {

// A row decoded in vectors; false where it takes the table.
template <class Format>
inline bool decode_quickly(const u8*, const void*, float*, const Shape&) {
  return false;
}

#if defined(__ARM_NEON)

// The bits of a code, moved to where float32 has its sign, exponent and fraction, are the value
// times 2**-MISSING, of subnormal codes as well.
constexpr i32 MISSING = 120;

// Words 4 * part to 4 * part + 3: their top byte is that of `bytes.val[0]`, the next one that of
// `bytes.val[1]`, the rest is 0.
inline uint8x16_t at_the_top(uint8x16x2_t bytes, int part) {
  constexpr u8 O = 128;  // no byte
  constexpr u8 TOP[16] = {O, O, 16, 0, O, O, 17, 1, O, O, 18, 2, O, O, 19, 3};
  return vqtbl2q_u8(bytes, vaddq_u8(vld1q_u8(TOP), vdupq_n_u8(static_cast<u8>(4 * part))));
}

inline void decode_float8(uint8x16_t code, float32x4_t* out) {
  const int8x16_t high = vshrq_n_s8(vreinterpretq_s8_u8(code), 4);
  const uint8x16_t first = vandq_u8(vreinterpretq_u8_s8(high), vdupq_n_u8(0x87));
  const uint8x16x2_t bytes = {first, vshlq_n_u8(code, 4)};
  for (int j = 0; j < 4; ++j) out[j] = vreinterpretq_f32_u8(at_the_top(bytes, j));
}

// What was seen of a row: scales, and codes without their sign, of which that of all ones is NaN.
struct Seen {
  uint8x16_t codes = vdupq_n_u8(0);
  u8 scale = 0;
  void code(uint8x16_t code) { codes = vmaxq_u8(codes, vaddq_u8(code, code)); }
  bool stays_within(i32 highest_scale) const {
    return scale <= highest_scale && vmaxvq_u8(codes) < 2 * 127;
  }
};

template <>
inline bool decode_quickly<MxFp8>(const u8* codes, const void* scale_bytes, float* out,
                                  const Shape& shape) {
  const u8* scales = static_cast<const u8*>(scale_bytes);
  const i64 columns = shape.columns;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(shape.group));
  if (columns % 16 || !has_subnormals()) return false;
  Seen seen;
  for (i64 i = 0; i < columns; i += 16) {
    const uint8x16_t code = vld1q_u8(codes + i);
    const u8 scale = scales[i >> shift];
    const float unit = float_of(static_cast<u32>(scale + MISSING) << FRACTION);
    float32x4_t values[4];
    decode_float8(code, values);
    for (int j = 0; j < 4; ++j) vst1q_f32(out + i + 4 * j, vmulq_n_f32(values[j], unit));
    seen.code(code);
    seen.scale = scale > seen.scale ? scale : seen.scale;
  }
  return seen.stays_within(2 * BIAS - MISSING);
}

#elif defined(__AVX2__) && defined(__F16C__)

// The bits of a code, moved to where float16 has its sign, exponent and fraction, are the value
// times 2**-MISSING, of subnormal codes as well.
constexpr i32 MISSING = 8;

// Sixteen codes as float16.
inline __m256i to_half(__m128i code) {
  const __m256i top = _mm256_slli_epi16(_mm256_cvtepu8_epi16(code), 8);
  return _mm256_and_si256(_mm256_srai_epi16(top, 1), _mm256_set1_epi16(static_cast<short>(0xbfff)));
}

inline void decode_float8(__m128i code, Floats* out) {
  const __m256i half = to_half(code);
#if defined(__AVX512F__)
  out[0] = _mm512_cvtph_ps(half);
#else
  out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
  out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
#endif
}

// What was seen of a row: scales, and codes without their sign, of which that of all ones is NaN.
struct Seen {
  __m128i codes = _mm_setzero_si128();
  u8 scale = 0;
  void code(__m128i code) { codes = _mm_max_epu8(codes, _mm_add_epi8(code, code)); }
  bool stays_within(i32 highest_scale) const {
    const __m128i nan = _mm_cmpeq_epi8(codes, _mm_set1_epi8(static_cast<char>(2 * 127)));
    return scale <= highest_scale && _mm_movemask_epi8(nan) == 0;
  }
};

inline __m128i load_codes(const u8* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// What a code as float16 is multiplied with; of scales that are too large, anything.
inline float power_of_scale(u8 scale) {
  return float_of(static_cast<u32>(scale + MISSING) << FRACTION);
}

template <>
inline bool decode_quickly<MxFp8>(const u8* codes, const void* scale_bytes, float* out,
                                  const Shape& shape) {
  const u8* scales = static_cast<const u8*>(scale_bytes);
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(shape.group));
  if (shape.columns % 16 || !has_subnormals()) return false;
  Seen seen;
  for (i64 i = 0; i < shape.columns; i += 16) {
    const __m128i code = load_codes(codes + i);
    const u8 scale = scales[i >> shift];
    const Floats unit = spread(power_of_scale(scale));
    Floats values[16 / LANES];
    decode_float8(code, values);
    for (int j = 0; j < 16 / LANES; ++j) store(out + i + j * LANES, values[j] * unit);
    seen.code(code);
    seen.scale = scale > seen.scale ? scale : seen.scale;
  }
  return seen.stays_within(2 * BIAS - MISSING);
}

#endif

// What one unit of a code is worth in group g of a row.
template <class Format>
inline float unit_at(const void* scales, i64 g, const Table<Format>& table) {
  if constexpr (Format::REAL_SCALES) return static_cast<const float*>(scales)[g];
  return table.scale[static_cast<const u8*>(scales)[g]];
}

// The scales of one row.
template <class Format>
inline const void* scales_of(const void* scales, i64 row, const Shape& shape) {
  constexpr i64 SIZE = Format::REAL_SCALES ? sizeof(float) : 1;
  return static_cast<const u8*>(scales) + row * shape.groups() * SIZE;
}

template <class Format>
void decode_row(const u8* codes, const void* scales, float* out, const Shape& shape,
                const Table<Format>& table) {
  if (decode_quickly<Format>(codes, scales, out, shape)) return;
  const float* values = table.value;
  for (i64 g = 0; g < shape.groups(); ++g) {
    const i64 first = g * shape.group, n = min(shape.group, shape.columns - first);
    const float unit = unit_at<Format>(scales, g, table);
    const u8* at = codes + first * Format::BITS / 8;
    if constexpr (Format::REAL_SCALES)  // zero has no sign, of a negative scale either
      each_code<Format>(at, out + first, n, [=](u8 c) { return Format::value(c) * unit + 0.0f; });
    else if (Format::BITS == 8 && Format::FITS_INT8)  // converting is faster than looking up
      each_code<Format>(at, out + first, n, [=](u8 code) { return Format::value(code) * unit; });
    else
      each_code<Format>(at, out + first, n, [=](u8 code) { return values[code] * unit; });
  }
}

}  // namespace
