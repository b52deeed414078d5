#pragma once
// Products in float32: of one row of activations in registers, of several by decoding a row of the
// weight into a buffer that stays in the cache.

#include "decode.h"

namespace {

constexpr int SUMS = 4;  // several, so that no addition waits for the one before

#if defined(__ARM_NEON)
inline Floats plus_product(Floats c, Floats a, Floats b) { return vfmaq_f32(c, a, b); }
#elif defined(__AVX512F__)
inline Floats plus_product(Floats c, Floats a, Floats b) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
inline Floats plus_product(Floats c, Floats a, Floats b) { return _mm256_fmadd_ps(a, b, c); }
#else
inline Floats plus_product(Floats c, Floats a, Floats b) { return c + a * b; }
#endif

// LANES integers as floats; compilers convert them one by one if it is left to them.
#if defined(__AVX512F__)
inline Floats to_floats(const u8* from) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}
#elif defined(__AVX2__)
inline Floats to_floats(const u8* from) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
}
#else
inline Floats to_floats(const u8* from) {
  Floats values;
  for (int j = 0; j < LANES; ++j) values[j] = static_cast<i8>(from[j]);
  return values;
}
#endif

#if defined(__AVX512F__)
inline float sum_of_lanes(Floats x) { return _mm512_reduce_add_ps(x); }
#elif defined(__ARM_NEON)
inline float sum_of_lanes(Floats x) { return vaddvq_f32(x); }
#else
inline float sum_of_lanes(Floats x) {
  float total = 0.0f;
  for (int j = 0; j < LANES; ++j) total += x[j];
  return total;
}
#endif

// The product of two rows that may be shorter than a vector.
inline float short_product(const float* a, const float* b, i64 n) {
  Floats sum = {};
  i64 i = 0;
  for (; i + LANES <= n; i += LANES) sum = plus_product(sum, load(a + i), load(b + i));
#if defined(__AVX512F__)
  const __mmask16 rest = static_cast<__mmask16>((1u << (n - i)) - 1u);
  return sum_of_lanes(_mm512_fmadd_ps(_mm512_maskz_loadu_ps(rest, a + i),
                                      _mm512_maskz_loadu_ps(rest, b + i), sum));
#else
  float total = sum_of_lanes(sum);
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
#endif
}

// The product of w with each of N rows of x, which are n long as w is, to every `stride` of y.
template <int N>
inline void float_products(const float* w, const float* x, i64 n, float* y, i64 stride) {
  constexpr int PARTS = N == 1 ? SUMS : 2;
  Floats sum[N][PARTS] = {};
  i64 i = 0;
  for (; i + PARTS * LANES <= n; i += PARTS * LANES)
    for (int j = 0; j < PARTS; ++j) {
      const Floats weight = load(w + i + j * LANES);
      for (int b = 0; b < N; ++b)
        sum[b][j] = plus_product(sum[b][j], weight, load(x + b * n + i + j * LANES));
    }
  for (int b = 0; b < N; ++b) {
    Floats all = sum[b][0];
    for (int j = 1; j < PARTS; ++j) all += sum[b][j];
    float total = sum_of_lanes(all);
    for (i64 k = i; k < n; ++k) total += w[k] * x[b * n + k];
    y[b * stride] = total;
  }
}

// --- one row of activations -------------------------------------------------------------------

// The product of a row with activations as `prepared` gives them; false where it takes decoding.
template <class Format>
struct Quick {
  static constexpr bool EXISTS = false;
};

// Activations in the order of their columns.
struct InOrder {
  static i64 padded(i64 columns) { return columns; }
  static void arrange(const float* x, i64 n, float up, float* out) {
    for (i64 i = 0; i < n; ++i) out[i] = x[i] * up;
  }
};

// Groups of whole numbers of 8 bits: codes become floats as they are, and a sum takes the scale.
template <class Format>
struct QuickWhole8 : InOrder {
  static constexpr bool EXISTS = true;
  static constexpr i64 STEP = 16;                     // divides every group
  static constexpr i32 UP = 0, LEAST = -126, ROOM = 20;  // room for codes and the sum of a group
  static bool multiply(const u8* codes, const void* scales, const float* x, float* y,
                       const Shape& shape, const Table<Format>& table) {
    Floats total = {};
    for (i64 first = 0, g = 0; first < shape.columns; first += shape.group, ++g) {
      const i64 last = min(first + shape.group, shape.columns);
      Floats sum = {};
      for (i64 i = first; i < last; i += STEP)
        for (i64 j = i; j < i + STEP; j += LANES)
          sum = plus_product(sum, to_floats(codes + j), load(x + j));
      total = plus_product(total, sum, spread(unit_at<Format>(scales, g, table)));
    }
    *y = sum_of_lanes(total);
    return true;
  }
};

template <>
struct Quick<MxInt8> : QuickWhole8<MxInt8> {};
template <>
struct Quick<Int8> : QuickWhole8<Int8> {};

#if defined(__AVX512F__)

// Scales of up to 16 groups as floats; 0 where `which` has no bit.
template <class Format>
INLINED __m512 load_units(const void* scales, i64 g, __mmask16 which) {
  if constexpr (Format::REAL_SCALES)
    return _mm512_maskz_loadu_ps(which, static_cast<const float*>(scales) + g);
  const u8* from = static_cast<const u8*>(scales) + g;
  unsigned long long bytes = 0;
  if (which == 15)
    std::memcpy(&bytes, from, 4);
  else  // at most eight: a block of 128 columns in groups of 16
    for (int j = 0; which >> j; ++j) bytes |= static_cast<unsigned long long>(from[j]) << (8 * j);
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  // 2**-127 is subnormal and 255 is NaN: in both the top bit of the fraction is set
  const __mmask16 is_special = _mm512_cmplt_epu32_mask(
      _mm512_and_si512(_mm512_add_epi32(wide, _mm512_set1_epi32(1)), _mm512_set1_epi32(255)),
      _mm512_set1_epi32(2));
  const __m512i bits = _mm512_slli_epi32(wide, FRACTION);
  const __m512i fixed =
      _mm512_mask_or_epi32(bits, is_special, bits, _mm512_set1_epi32(1 << (FRACTION - 1)));
  // of the others none: a subnormal number takes long to multiply
  return _mm512_maskz_mul_ps(which, _mm512_castsi512_ps(fixed),
                             _mm512_set1_ps(power(-Format::SHIFT)));
}

// Codes of 4 bits: a table of 16 floats is one register, and a lookup in it one instruction, which
// takes the low 4 bits of a lane and ignores the rest. A lane has the codes of 8 columns side by
// side, so the activations of 128 columns are arranged by their place in a lane.
template <class Format>
struct QuickCodes4 {
  static constexpr bool EXISTS = true;
  static constexpr i64 STEP = 32, BLOCK = 128, PER_LANE = 8;
  static constexpr i32 UP = 0, LEAST = -126, ROOM = 20;
  static i64 padded(i64 columns) { return (columns + BLOCK - 1) / BLOCK * BLOCK; }
  static void arrange(const float* x, i64 n, float, float* out) {
    for (i64 first = 0; first < n; first += BLOCK, out += BLOCK)
      for (i64 lane = 0; lane < min(LANES, (n - first) / PER_LANE); ++lane)
        for (i64 k = 0; k < PER_LANE; ++k) out[k * LANES + lane] = x[first + lane * PER_LANE + k];
  }
  static bool multiply(const u8* codes, const void* scales, const float* x, float* y,
                       const Shape& shape, const Table<Format>& table) {
    const __m512 values = _mm512_loadu_ps(table.value);
    const i64 group = shape.group;
    // the group of each lane, counted from the first of its block
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(group));  // no division
    const __m512i which = _mm512_srlv_epi32(lanes, _mm512_set1_epi32(shift - 3));
    const i64 per_block = BLOCK >> shift ? BLOCK >> shift : 1;
    Floats total = {};
    for (i64 i = 0; i < shape.columns; i += BLOCK, codes += BLOCK / 2, x += BLOCK) {
      const i64 left = shape.columns - i;
      const i64 used = left < BLOCK ? left / PER_LANE : LANES;
      const __mmask16 some = static_cast<__mmask16>((1u << used) - 1u);
      const i64 groups = min(per_block, (left + group - 1) >> shift);
      const __m512 units = _mm512_permutexvar_ps(
          which, load_units<Format>(scales, i >> shift,
                                    static_cast<__mmask16>((1u << groups) - 1u)));
      const __m512i eight = _mm512_maskz_loadu_epi32(some, codes);
      __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int k = 0; k < PER_LANE; k += 2) {
        const __m512 one = _mm512_permutexvar_ps(_mm512_srli_epi32(eight, 4 * k), values);
        const __m512 two = _mm512_permutexvar_ps(_mm512_srli_epi32(eight, 4 * k + 4), values);
        even = _mm512_fmadd_ps(one, load(x + k * LANES), even);
        odd = _mm512_fmadd_ps(two, load(x + (k + 1) * LANES), odd);
      }
      total = plus_product(total, even + odd, units);
    }
    *y = sum_of_lanes(total);
    return true;
  }
};

template <>
struct Quick<MxInt4> : QuickCodes4<MxInt4> {};
template <>
struct Quick<Int4> : QuickCodes4<Int4> {};
template <>
struct Quick<MxFp4> : QuickCodes4<MxFp4> {};

#endif

#if defined(__ARM_NEON)

// Adds N products to two sums.
template <int N>
inline void add_products(const u8* codes, const float* x, float32x4_t* sum, Seen& seen) {
  uint8x16_t code[N / 16];
  for (int i = 0; i < N / 16; ++i) seen.code(code[i] = vld1q_u8(codes + 16 * i));
  for (int i = 0; i < N / 16; ++i) {
    float32x4_t values[4];
    decode_float8(code[i], values);
    for (int j = 0; j < 4; ++j)
      sum[j % 2] = vfmaq_f32(sum[j % 2], values[j], vld1q_f32(x + 16 * i + 4 * j));
  }
}

template <>
struct Quick<MxFp8> : InOrder {
  static constexpr bool EXISTS = true;
  static constexpr i64 STEP = 16;
  static constexpr i32 UP = 100, LEAST = -80, ROOM = 0;  // raised: products must not be subnormal
  static bool multiply(const u8* codes, const void* scale_bytes, const float* x, float* y,
                       const Shape& shape, const Table<MxFp8>&) {
    constexpr i32 MORE = MISSING - UP;
    const u8* scales = static_cast<const u8*>(scale_bytes);
    const i64 columns = shape.columns, group = shape.group;
    Seen seen;
    float32x4_t total = vdupq_n_f32(0.0f);
    for (i64 first = 0; first < columns; first += group) {
      const i64 last = min(first + group, columns);
      float32x4_t sum[2] = {};
      i64 i = first;
      for (; i + 32 <= last; i += 32) {
        __builtin_prefetch(codes + columns + i);  // a processor does not fetch across pages itself
        add_products<32>(codes + i, x + i, sum, seen);
      }
      if (i < last) add_products<16>(codes + i, x + i, sum, seen);
      const u8 scale = *scales++;
      const float unit = float_of(static_cast<u32>(scale + MORE) << FRACTION);
      total = vfmaq_n_f32(total, vaddq_f32(sum[0], sum[1]), unit);
      seen.scale = scale > seen.scale ? scale : seen.scale;
    }
    *y = vaddvq_f32(total);
    return seen.stays_within(2 * BIAS - MORE);
  }
};

#elif defined(__AVX2__) && defined(__F16C__)

template <>
struct Quick<MxFp8> : InOrder {
  static constexpr bool EXISTS = true;
  static constexpr i64 STEP = 16;
  static constexpr i32 UP = 0, LEAST = -80, ROOM = 20;
  static bool multiply(const u8* codes, const void* scale_bytes, const float* x, float* y,
                       const Shape& shape, const Table<MxFp8>&) {
    constexpr int PARTS = 16 / LANES;
    const u8* scales = static_cast<const u8*>(scale_bytes);
    Seen seen;
    Floats total = {};
    for (i64 first = 0; first < shape.columns; first += shape.group) {
      const i64 last = min(first + shape.group, shape.columns);
      Floats sum = {};
      for (i64 i = first; i < last; i += STEP) {
        const __m128i code = load_codes(codes + i);
        seen.code(code);
        Floats values[PARTS];
        decode_float8(code, values);
        for (int j = 0; j < PARTS; ++j)
          sum = plus_product(sum, values[j], load(x + i + j * LANES));
      }
      const u8 scale = *scales++;
      total = plus_product(total, sum, spread(power_of_scale(scale)));
      seen.scale = scale > seen.scale ? scale : seen.scale;
    }
    *y = sum_of_lanes(total);
    return seen.stays_within(2 * BIAS - MISSING);
  }
};

#endif

// The one row of activations times 2**UP, arranged for the product; none where that may overflow,
// or where products may be subnormal.
template <class Format>
std::vector<float> prepared(const Linear& c) {
  using Way = Quick<Format>;
  std::vector<float> x;
  if constexpr (Way::EXISTS) {
    const i64 n = c.shape.columns;
    if (c.batch != 1 || n % Way::STEP) return x;
    u32 most = 0;  // by their bits, magnitudes are in order, and NaN is above all
    for (i64 i = 0; i < n; ++i) {
      const u32 magnitude = bits_of(c.x[i]) & MAGNITUDE;
      most = magnitude > most ? magnitude : most;
    }
    const float largest = float_of(most);
    if (!(largest >= power(Way::LEAST) && largest < power(BIAS - Way::UP - Way::ROOM))) return x;
    x.resize(static_cast<size_t>(Way::padded(n)));
    Way::arrange(c.x, n, power(Way::UP), x.data());
  }
  return x;
}

// --- several rows -----------------------------------------------------------------------------

#if defined(__AVX2__)

// A row of 4-bit codes, 32 at a time: looked up as int8, converted, multiplied with their scale.
template <class Format>
inline void decode_codes4(const u8* codes, const void* scales, float* out, const Shape& shape,
                          const Table<Format>& table) {
  alignas(16) i8 all[16];
  for (u8 code = 0; code < 16; ++code) all[code] = Format::whole(code);
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(all));
  const __m128i low_half = _mm_set1_epi8(15);
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(shape.group));
  for (i64 i = 0; i < shape.columns; i += 16) {
    const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i / 2));
    const __m128i apart = _mm_unpacklo_epi8(two, _mm_srli_epi16(two, 4));
    alignas(16) u8 whole[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(whole),
                    _mm_shuffle_epi8(values, _mm_and_si128(apart, low_half)));
    const Floats unit = spread(unit_at<Format>(scales, i >> shift, table));
    for (int j = 0; j < 16; j += LANES) store(out + i + j, to_floats(whole + j) * unit);
  }
}

#endif

// A row decoded for a product, which does not see the sign of a zero.
template <class Format>
inline void decode_to_multiply(const u8* codes, const void* scales, float* out, const Shape& shape,
                               const Table<Format>& table) {
#if defined(__AVX2__)
  if constexpr (Format::BITS == 4) {
    if (shape.columns % 16 == 0) return decode_codes4<Format>(codes, scales, out, shape, table);
  }
#endif
  decode_row<Format>(codes, scales, out, shape, table);
}

template <class Format>
void float_rows(const Linear& c) {
  static const Table<Format> table;
  const std::vector<float> x = prepared<Format>(c);
  const i64 bytes = c.shape.bytes(Format::BITS);  // once: a division takes as long as many columns
  const i64 scale_bytes = c.shape.groups() * (Format::REAL_SCALES ? 4 : 1);
  shared(c.shape.rows, c.threads, [&](i64 first, i64 last) {
    const bool is_quick = !x.empty() && has_subnormals();
    std::vector<float> w(static_cast<size_t>(c.shape.columns));
    for (i64 row = first; row < last; ++row) {
      const u8* codes = c.codes + row * bytes;
      const void* scales = static_cast<const u8*>(c.scales) + row * scale_bytes;
      if constexpr (Quick<Format>::EXISTS)
        if (is_quick &&
            Quick<Format>::multiply(codes, scales, x.data(), c.y + row, c.shape, table))
          continue;
      decode_to_multiply<Format>(codes, scales, w.data(), c.shape, table);
      const i64 n = c.shape.columns, stride = c.shape.rows;
      float* y = c.y + row;
      i64 b = 0;
      for (; b + 4 <= c.batch; b += 4)
        float_products<4>(w.data(), c.x + b * n, n, y + b * stride, stride);
      for (; b < c.batch; ++b) float_products<1>(w.data(), c.x + b * n, n, y + b * stride, stride);
    }
  });
}

}  // namespace
