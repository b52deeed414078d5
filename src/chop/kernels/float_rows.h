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

#if defined(__AVX512F__)
// Adds the upper to the lower half of each of two vectors, with one addition for both.
template <int LOW, int HIGH>
INLINED Floats add_halves(Floats a, Floats b) {
  return _mm512_shuffle_f32x4(a, b, LOW) + _mm512_shuffle_f32x4(a, b, HIGH);
}
template <int LOW, int HIGH>
INLINED Floats add_in_quarters(Floats a, Floats b) {
  return _mm512_shuffle_ps(a, b, LOW) + _mm512_shuffle_ps(a, b, HIGH);
}
#endif

// The sums of the lanes of N vectors; the bits are those of `sum_of_lanes`.
template <int N>
INLINED void sums_of_lanes(const Floats* x, float* y) {
#if defined(__AVX512F__)
  if constexpr (N % 4 == 0) {  // the additions of _mm512_reduce_add_ps, for four vectors at a time
    Floats four[N / 4];
    for (int i = 0; i < N / 4; ++i) {
      const Floats* from = x + 4 * i;
      four[i] = add_halves<0x88, 0xdd>(add_halves<0x44, 0xee>(from[0], from[1]),
                                       add_halves<0x44, 0xee>(from[2], from[3]));
    }
    for (int i = 0; i < N / 4; ++i) {
      const Floats two = add_in_quarters<0x44, 0xee>(four[i], four[i]);
      const Floats one = add_in_quarters<0x88, 0xdd>(two, two);
      const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
      _mm_storeu_ps(y + 4 * i, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
    }
    return;
  }
#endif
  for (int i = 0; i < N; ++i) y[i] = sum_of_lanes(x[i]);
}

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

// The product of w with each of N rows of x, which are n long as w is, to every `stride` of y. The
// bits of a product depend on PARTS, and not on N.
template <int N, int PARTS = N == 1 ? SUMS : 2>
inline void float_products(const float* w, const float* x, i64 n, float* y, i64 stride) {
  Floats sum[N][PARTS] = {};
  i64 i = 0;
  for (; i + PARTS * LANES <= n; i += PARTS * LANES)
    for (int j = 0; j < PARTS; ++j) {
      const Floats weight = load(w + i + j * LANES);
      for (int b = 0; b < N; ++b)
        sum[b][j] = plus_product(sum[b][j], weight, load(x + b * n + i + j * LANES));
    }
  Floats all[N];
  float total[N];
  for (int b = 0; b < N; ++b) {
    all[b] = sum[b][0];
    for (int j = 1; j < PARTS; ++j) all[b] += sum[b][j];
  }
  sums_of_lanes<N>(all, total);
  for (int b = 0; b < N; ++b) {
    for (i64 k = i; k < n; ++k) total[b] += w[k] * x[b * n + k];
    y[b * stride] = total[b];
  }
}

// --- one row of activations -------------------------------------------------------------------

// The products of R rows of the weight with N rows of activations as `prepared` gives them, `step`
// apart; false where it takes decoding. The bits of a product depend on neither number. ROWS is the
// best R for four rows of activations.
template <class Format>
struct Quick {
  static constexpr bool EXISTS = false;
};

// Up to LANES numbers, and zeros behind them.
INLINED Floats load_some(const float* from, i64 n) {
#if defined(__AVX512F__)
  const __mmask16 some = static_cast<__mmask16>(n < LANES ? (1u << n) - 1u : 0xffffu);
  return _mm512_maskz_loadu_ps(some, from);
#else
  if (n >= LANES) return load(from);
  float padded[LANES] = {};
  std::memcpy(padded, from, static_cast<size_t>(n) * sizeof *padded);
  return load(padded);
#endif
}

// Neighbouring rows of a packed weight, and the offsets of their groups, if there are some.
struct Packed {
  const u8* codes;
  const void* scales;
  i64 code_bytes, scale_bytes;  // of a row
  const float* offsets = nullptr;
  i64 groups = 0;
  const u8* codes_of(int r) const { return codes + r * code_bytes; }
  const void* scales_of(int r) const { return static_cast<const u8*>(scales) + r * scale_bytes; }
  // Adds the offsets of R rows times the sums of groups of N rows of activations.
  template <int R, int N>
  INLINED void add_offsets(Floats (&total)[R][N], const float* sums) const {
    for (i64 g = 0; offsets && g < groups; g += LANES) {
      Floats own[R];
      for (int r = 0; r < R; ++r) own[r] = load_some(offsets + r * groups + g, groups - g);
      for (int b = 0; b < N; ++b) {
        const Floats sum = load_some(sums + b * groups + g, groups - g);
        for (int r = 0; r < R; ++r) total[r][b] = plus_product(total[r][b], own[r], sum);
      }
    }
  }
};

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int ROWS_IN_REGISTERS = 2;  // 32 registers hold the sums of 2 by 4 rows
#else
constexpr int ROWS_IN_REGISTERS = 1;
#endif

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
  static constexpr int ROWS = ROWS_IN_REGISTERS;
  template <int R, int N>
  static bool multiply(const Packed& rows, const float* x, i64 step, const float* sums,
                       float (*y)[N], const Shape& shape, const Table<Format>& table) {
    Floats total[R][N] = {};
    for (i64 first = 0, g = 0; first < shape.columns; first += shape.group, ++g) {
      const i64 last = min(first + shape.group, shape.columns);
      Floats sum[R][N] = {};
      for (i64 i = first; i < last; i += STEP)
        for (i64 j = i; j < i + STEP; j += LANES)
          for (int r = 0; r < R; ++r) {
            const Floats w = to_floats(rows.codes_of(r) + j);
            for (int b = 0; b < N; ++b)
              sum[r][b] = plus_product(sum[r][b], w, load(x + b * step + j));
          }
      for (int r = 0; r < R; ++r) {
        const Floats unit = spread(unit_at<Format>(rows.scales_of(r), g, table));
        for (int b = 0; b < N; ++b) total[r][b] = plus_product(total[r][b], sum[r][b], unit);
      }
    }
    rows.add_offsets<R, N>(total, sums);
    for (int r = 0; r < R; ++r) sums_of_lanes<N>(total[r], y[r]);
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
  static constexpr int ROWS = 1;  // two would need more than 32 registers
  template <int R, int N>
  static bool multiply(const Packed& rows, const float* x, i64 step, const float* sums,
                       float (*y)[N], const Shape& shape, const Table<Format>& table) {
    const __m512 values = _mm512_loadu_ps(table.value);
    const i64 group = shape.group;
    // the group of each lane, counted from the first of its block
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(group));  // no division
    const __m512i which = _mm512_srlv_epi32(lanes, _mm512_set1_epi32(shift - 3));
    const i64 per_block = BLOCK >> shift ? BLOCK >> shift : 1;
    Floats total[R][N] = {};
    for (i64 i = 0; i < shape.columns; i += BLOCK, x += BLOCK) {
      const i64 left = shape.columns - i;
      const i64 used = left < BLOCK ? left / PER_LANE : LANES;
      const __mmask16 some = static_cast<__mmask16>((1u << used) - 1u);
      const i64 groups = min(per_block, (left + group - 1) >> shift);
      const __mmask16 scaled = static_cast<__mmask16>((1u << groups) - 1u);
      for (int r = 0; r < R; ++r) {
        const __m512i eight = _mm512_maskz_loadu_epi32(some, rows.codes_of(r) + i / 2);
        const __m512 units = _mm512_permutexvar_ps(
            which, load_units<Format>(rows.scales_of(r), i >> shift, scaled));
        __m512 w[PER_LANE];
#pragma GCC unroll 8
        for (int k = 0; k < PER_LANE; ++k)
          w[k] = _mm512_permutexvar_ps(_mm512_srli_epi32(eight, static_cast<u32>(4 * k)), values);
#pragma GCC unroll 8
        for (int b = 0; b < N; ++b) {
          const float* own = x + b * step;
          __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
#pragma GCC unroll 4
          for (int k = 0; k < PER_LANE; k += 2) {
            even = _mm512_fmadd_ps(w[k], load(own + k * LANES), even);
            odd = _mm512_fmadd_ps(w[k + 1], load(own + (k + 1) * LANES), odd);
          }
          total[r][b] = plus_product(total[r][b], even + odd, units);
        }
      }
    }
    rows.add_offsets<R, N>(total, sums);
    for (int r = 0; r < R; ++r) sums_of_lanes<N>(total[r], y[r]);
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

// Adds COUNT products of each of N rows to two sums.
template <int COUNT, int N>
inline void add_products(const u8* codes, const float* x, i64 step, float32x4_t (*sum)[2],
                         Seen& seen) {
  uint8x16_t code[COUNT / 16];
  for (int i = 0; i < COUNT / 16; ++i) seen.code(code[i] = vld1q_u8(codes + 16 * i));
  for (int i = 0; i < COUNT / 16; ++i) {
    float32x4_t values[4];
    decode_float8(code[i], values);
    for (int b = 0; b < N; ++b)
      for (int j = 0; j < 4; ++j)
        sum[b][j % 2] =
            vfmaq_f32(sum[b][j % 2], values[j], vld1q_f32(x + b * step + 16 * i + 4 * j));
  }
}

template <>
struct Quick<MxFp8> : InOrder {
  static constexpr bool EXISTS = true;
  static constexpr i64 STEP = 16;
  static constexpr i32 UP = 100, LEAST = -80, ROOM = 0;  // raised: products must not be subnormal
  static constexpr int ROWS = 1;
  template <int R, int N>
  static bool multiply(const Packed& row, const float* x, i64 step, const float* sums,
                       float (*y)[N], const Shape& shape, const Table<MxFp8>&) {
    static_assert(R == 1, "one row of the weight at a time");
    constexpr i32 MORE = MISSING - UP;
    const u8 *codes = row.codes, *scales = static_cast<const u8*>(row.scales);
    const i64 columns = shape.columns, group = shape.group;
    Seen seen;
    Floats total[1][N] = {};
    for (i64 first = 0; first < columns; first += group) {
      const i64 last = min(first + group, columns);
      float32x4_t sum[N][2] = {};
      i64 i = first;
      for (; i + 32 <= last; i += 32) {
        __builtin_prefetch(codes + columns + i);  // a processor does not fetch across pages itself
        add_products<32, N>(codes + i, x + i, step, sum, seen);
      }
      if (i < last) add_products<16, N>(codes + i, x + i, step, sum, seen);
      const u8 scale = *scales++;
      const float unit = float_of(static_cast<u32>(scale + MORE) << FRACTION);
      for (int b = 0; b < N; ++b)
        total[0][b] = vfmaq_n_f32(total[0][b], vaddq_f32(sum[b][0], sum[b][1]), unit);
      seen.scale = scale > seen.scale ? scale : seen.scale;
    }
    row.add_offsets<1, N>(total, sums);
    for (int b = 0; b < N; ++b) y[0][b] = vaddvq_f32(total[0][b]);
    return seen.stays_within(2 * BIAS - MORE);
  }
};

#elif defined(__AVX2__) && defined(__F16C__)

template <>
struct Quick<MxFp8> : InOrder {
  static constexpr bool EXISTS = true;
  static constexpr i64 STEP = 16;
  static constexpr i32 UP = 0, LEAST = -80, ROOM = 20;
  static constexpr int ROWS = 1;
  template <int R, int N>
  static bool multiply(const Packed& row, const float* x, i64 step, const float* sums,
                       float (*y)[N], const Shape& shape, const Table<MxFp8>&) {
    static_assert(R == 1, "one row of the weight at a time");
    constexpr int PARTS = 16 / LANES;
    const u8 *codes = row.codes, *scales = static_cast<const u8*>(row.scales);
    Seen seen;
    Floats total[1][N] = {};
    for (i64 first = 0; first < shape.columns; first += shape.group) {
      const i64 last = min(first + shape.group, shape.columns);
      Floats sum[N] = {};
      for (i64 i = first; i < last; i += STEP) {
        const __m128i code = load_codes(codes + i);
        seen.code(code);
        Floats values[PARTS];
        decode_float8(code, values);
        for (int b = 0; b < N; ++b)
          for (int j = 0; j < PARTS; ++j)
            sum[b] = plus_product(sum[b], values[j], load(x + b * step + i + j * LANES));
      }
      const u8 scale = *scales++;
      const Floats unit = spread(power_of_scale(scale));
      for (int b = 0; b < N; ++b) total[0][b] = plus_product(total[0][b], sum[b], unit);
      seen.scale = scale > seen.scale ? scale : seen.scale;
    }
    row.add_offsets<1, N>(total, sums);
    for (int b = 0; b < N; ++b) y[0][b] = sum_of_lanes(total[0][b]);
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

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int TILE_ROWS = 4;  // 32 registers hold the sums of 4 by 4 rows
#else
constexpr int TILE_ROWS = 2;
#endif

// The products of R rows of the weight with N rows of x, all n long, to y[b * step + r].
template <int R, int N>
inline void tile_products(const float* w, const float* x, i64 n, float* y, i64 step) {
  Floats sum[R][N] = {};
  i64 i = 0;
  for (; i + LANES <= n; i += LANES) {
    Floats weight[R];
    for (int r = 0; r < R; ++r) weight[r] = load(w + r * n + i);
    for (int b = 0; b < N; ++b) {
      const Floats own = load(x + b * n + i);
      for (int r = 0; r < R; ++r) sum[r][b] = plus_product(sum[r][b], weight[r], own);
    }
  }
  for (int b = 0; b < N; ++b)
    for (int r = 0; r < R; ++r) {
      float total = sum_of_lanes(sum[r][b]);
      for (i64 k = i; k < n; ++k) total += w[r * n + k] * x[b * n + k];
      y[b * step + r] = total;
    }
}

// The products of R decoded rows of the weight with all rows of activations.
template <int R>
inline void decoded_products(const Linear& c, const float* w, i64 row) {
  const i64 n = c.shape.columns;
  i64 b = 0;
  for (; b + 4 <= c.batch; b += 4)
    tile_products<R, 4>(w, c.x + b * n, n, c.y + b * c.y_step + row, c.y_step);
  for (; b < c.batch; ++b)
    tile_products<R, 1>(w, c.x + b * n, n, c.y + b * c.y_step + row, c.y_step);
}

template <class Format>
void several_float_rows(const Linear& c, const Table<Format>& table) {
  const i64 n = c.shape.columns, bytes = c.shape.bytes(Format::BITS);
  const i64 scale_bytes = c.shape.groups() * (Format::REAL_SCALES ? 4 : 1);
  shared(c.shape.rows, c.threads, [&](i64 first, i64 last) {
    std::vector<float> w(static_cast<size_t>(TILE_ROWS * n));
    for (i64 row = first; row < last; row += TILE_ROWS) {
      const i64 rows = min(TILE_ROWS, last - row);
      for (i64 r = 0; r < rows; ++r)
        decode_to_multiply<Format>(c.codes + (row + r) * bytes,
                                   static_cast<const u8*>(c.scales) + (row + r) * scale_bytes,
                                   w.data() + r * n, c.shape, table);
      if (rows == TILE_ROWS)
        decoded_products<TILE_ROWS>(c, w.data(), row);
      else
        for (i64 r = 0; r < rows; ++r) decoded_products<1>(c, w.data() + r * n, row + r);
    }
  });
}

template <class Format>
void float_rows(const Linear& c) {
  static const Table<Format> table;
  if (c.batch > 1) return several_float_rows<Format>(c, table);
  const std::vector<float> x = prepared<Format>(c);
  const i64 bytes = c.shape.bytes(Format::BITS);  // once: a division takes as long as many columns
  const i64 scale_bytes = c.shape.groups() * (Format::REAL_SCALES ? 4 : 1);
  shared(c.shape.rows, c.threads, [&](i64 first, i64 last) {
    const bool is_quick = !x.empty() && has_subnormals();
    std::vector<float> w(static_cast<size_t>(c.shape.columns));
    for (i64 row = first; row < last; ++row) {
      const u8* codes = c.codes + row * bytes;
      const void* scales = static_cast<const u8*>(c.scales) + row * scale_bytes;
      if constexpr (Quick<Format>::EXISTS) {
        float y[1][1];
        if (is_quick && Quick<Format>::template multiply<1, 1>({codes, scales, 0, 0}, x.data(), 0,
                                                               nullptr, y, c.shape, table)) {
          c.y[row] = y[0][0];
          continue;
        }
      }
      decode_to_multiply<Format>(codes, scales, w.data(), c.shape, table);
      float_products<1>(w.data(), c.x, c.shape.columns, c.y + row, 1);
    }
  });
}

}  // namespace
