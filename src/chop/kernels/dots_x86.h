#pragma once
// Products in integers by the byte products of x86-64: those of AVX2, or the dot products of VNNI.
//
// The processor multiplies unsigned bytes with signed ones, so codes get an offset that makes them
// positive, and what it adds is taken off beforehand.

#include "decode.h"
#include "digits.h"

namespace {

#if defined(__AVX2__)

constexpr int ROWS = 4;       // weight rows that share what is loaded of the activations
constexpr i64 FEW_ROWS = 3;   // of activations: with more, products in float32 are faster

#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
constexpr bool HAS_VNNI = true;
INLINED __m256i add_dots(__m256i sum, __m256i codes, __m256i x) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(sum, codes, x);
#else
  return _mm256_dpbusd_avx_epi32(sum, codes, x);
#endif
}
#else
constexpr bool HAS_VNNI = false;
// Pairs are summed in 16 bits, and saturate: 2 * 255 * 64 fits, 2 * 255 * 128 does not.
INLINED __m256i add_dots(__m256i sum, __m256i codes, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(codes, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif

// A chunk of codes plus OFFSET, as unsigned bytes, evens first where two share a byte.
template <class Element>
struct Decoder {
  static constexpr i32 OFFSET = Element::BITS == 8 ? 128 : 12;
  __m256i values;
  Decoder() : values(_mm256_setzero_si256()) {
    if (Element::BITS == 8) return;
    alignas(16) i8 all[16];
    for (u8 code = 0; code < 16; ++code) all[code] = static_cast<i8>(Element::whole(code) + OFFSET);
    values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(all)));
  }
  INLINED __m256i operator()(const u8* codes) const {
    if (Element::BITS == 8)
      return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)),
                              _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m128i two = load_codes(codes);
    const __m256i apart = _mm256_set_m128i(_mm_srli_epi16(two, 4), two);
    return _mm256_shuffle_epi8(values, _mm256_and_si256(apart, _mm256_set1_epi8(15)));
  }
};

// Four rows of the weight: where their codes lie, and what one unit of a product is worth.
template <class Element, bool HALVES>
struct Rows {
  static constexpr i64 PER_CHUNK = HALVES ? 2 : 1;
  std::vector<float> scales[ROWS], units[ROWS];
  const u8* codes[ROWS];
  alignas(32) u8 tail[ROWS][CHUNK];  // the last chunk, where it is short

  Rows(const Shape& shape, i64 chunks) {
    std::memset(tail, 0, sizeof tail);
    for (auto& s : scales) s.resize(static_cast<size_t>(shape.groups() + 1));
    for (auto& u : units) u.resize(static_cast<size_t>(chunks * PER_CHUNK));
  }

  void load(const Linear& c, const Scales& from, i64 row) {
    const i64 bytes = c.shape.bytes(Element::BITS), groups = c.shape.groups();
    const i64 done = c.shape.columns / CHUNK * CHUNK * Element::BITS / 8;
    for (int r = 0; r < ROWS; ++r) {
      const i64 at = min(row + r, c.shape.rows - 1);  // the last rows may be computed twice
      codes[r] = c.codes + at * bytes;
      std::memcpy(tail[r], codes[r] + done, static_cast<size_t>(bytes - done));
      float* __restrict to = scales[r].data();
      if (from.is_real)
        std::memcpy(to, static_cast<const float*>(from.at) + at * groups,
                    static_cast<size_t>(groups) * sizeof *to);
      else
        for (i64 g = 0; g < groups; ++g)
          to[g] = scale_value(static_cast<const u8*>(from.at)[at * groups + g]);
    }
  }

  // Scales times the units of one row of activations.
  void scale(const float* x_units, i64 chunks, int group_shift) {
    for (int r = 0; r < ROWS; ++r) {
      float* __restrict to = units[r].data();
      const float* from = scales[r].data();
      if (HALVES || group_shift)
        for (i64 k = 0; k < chunks * PER_CHUNK; ++k)
          to[k] = from[HALVES ? k : k >> group_shift] * x_units[HALVES ? k / 2 : k];
      else
        for (i64 k = 0; k < chunks; ++k) to[k] = from[k] * x_units[k];
    }
  }

  // What the lanes of a chunk are worth; halves of a chunk lie apart in 8-bit codes, and in those
  // of 4 bits within the even and within the odd columns.
  INLINED __m256 unit(int r, i64 k) const {
    if constexpr (!HALVES) return _mm256_broadcast_ss(units[r].data() + k);
    const double* both = reinterpret_cast<const double*>(units[r].data() + 2 * k);
    const __m256 pairs = _mm256_castpd_ps(_mm256_broadcast_sd(both));
    constexpr int STEP = Element::BITS == 8 ? 4 : 2;
    const __m256i which = _mm256_setr_epi32(0, 0, 2 / STEP, 2 / STEP, 4 / STEP % 2, 4 / STEP % 2,
                                            6 / STEP % 2, 6 / STEP % 2);
    return _mm256_permutevar8x32_ps(pairs, which);
  }
};

// The product of a chunk; D digits of BITS bits each, the highest first.
template <int D, int BITS>
INLINED __m256i chunk_product(__m256i codes, const i8* x, __m256i offset) {
  const auto digit = [x](int d) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + CHUNK * d));
  };
  __m256i sum = D == 1 ? offset : _mm256_setzero_si256();
  for (int d = 0; d < D - 1; ++d) sum = _mm256_slli_epi32(add_dots(sum, codes, digit(d)), BITS);
  if (D > 1) sum = _mm256_add_epi32(sum, offset);
  return add_dots(sum, codes, digit(D - 1));
}

INLINED __m256 plus_product8(__m256 c, __m256 a, __m256 b) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return _mm256_add_ps(c, _mm256_mul_ps(a, b));
#endif
}

inline float sum_of_eight(__m256 x) {
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, x);
  float total = 0.0f;
  for (float lane : lanes) total += lane;
  return total;
}

// Products of four rows of the weight with one row of the activations.
template <class Element, int D, int BITS, bool HALVES>
inline void products(const Rows<Element, HALVES>& rows, const i8* x, const i32* offsets,
                     i64 chunks, i64 whole, float* y) {
  constexpr i64 BYTES = CHUNK * Element::BITS / 8;
  const Decoder<Element> decode;
  __m256 sum[ROWS];
  for (auto& s : sum) s = _mm256_setzero_ps();
  for (i64 k = 0; k < chunks; ++k) {
    const __m256i offset = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offsets + 8 * k));
    for (int r = 0; r < ROWS; ++r) {
      const __m256i codes = decode(k < whole ? rows.codes[r] + k * BYTES : rows.tail[r]);
      const __m256i p = chunk_product<D, BITS>(codes, x + k * CHUNK * D, offset);
      sum[r] = plus_product8(sum[r], _mm256_cvtepi32_ps(p), rows.unit(r, k));
    }
  }
  for (int r = 0; r < ROWS; ++r) y[r] = sum_of_eight(sum[r]);
}

template <class Element, int D, int BITS, bool HALVES>
void dot_rows(const Linear& c, const Scales& scales, const Digits<BITS>& x) {
  const auto per_group = static_cast<unsigned long long>(HALVES ? 1 : c.shape.group / CHUNK);
  const int shift = __builtin_ctzll(per_group);
  const i64 chunks = x.chunks, whole = c.shape.columns / CHUNK;
  std::vector<i32> offsets(static_cast<size_t>(c.batch * chunks * 8));
  for (i64 b = 0; b < c.batch; ++b)
    x.sums_of_four(b, -Decoder<Element>::OFFSET, offsets.data() + b * chunks * 8);
  shared((c.shape.rows + ROWS - 1) / ROWS, c.threads, [&](i64 first, i64 last) {
    Rows<Element, HALVES> rows(c.shape, chunks);
    for (i64 row = first * ROWS; row < last * ROWS; row += ROWS) {
      rows.load(c, scales, row);
      for (i64 b = 0; b < c.batch; ++b) {
        float four[ROWS];
        rows.scale(x.units(b), chunks, shift);
        products<Element, D, BITS, HALVES>(rows, x.row(b), offsets.data() + b * chunks * 8, chunks,
                                          whole, four);
        for (i64 r = 0; r < min(ROWS, c.shape.rows - row); ++r)
          c.y[b * c.y_step + row + r] = four[r];
      }
    }
  });
}

// One row in many digits is faster than in float32 only without the wide registers of AVX-512.
template <class Format>
constexpr bool takes_many() {
#if defined(__AVX512F__)
  return false;
#else
  return Format::BITS == 4;
#endif
}

template <class Format>
auto digits_of(const Linear& c, bool only_few = !takes_many<Format>()) {
  constexpr int BITS = Format::BITS == 8 && !HAS_VNNI ? 7 : 8;
  return Digits<BITS>(c, Format::SHIFT, Format::BITS == 4, only_few);
}

// Products of rows that are in integers alone too, with the same number of digits. False where the
// activations are too large or no numbers, or take too many digits.
template <class Format>
bool integer_rows_alone(const Linear& c, bool only_few = !takes_many<Format>()) {
  using Element = typename Format::Element;
  const auto x = digits_of<Format>(c, only_few);
  using Own = std::decay_t<decltype(x)>;
  constexpr int BITS = Own::WIDTH, FEW = Own::FEW;
  if (!x.fits) return false;
  const Scales scales{c.scales, Format::REAL_SCALES};
  const bool has_halves = c.shape.group < CHUNK;
  if (x.is_few())
    has_halves ? dot_rows<Element, FEW, BITS, true>(c, scales, x) : dot_rows<Element, FEW, BITS, false>(c, scales, x);
  else if constexpr (takes_many<Format>())
    has_halves ? dot_rows<Element, DIGITS, BITS, true>(c, scales, x)
               : dot_rows<Element, DIGITS, BITS, false>(c, scales, x);
  return true;
}

// False where the activations are too large or no numbers, or float32 is faster.
template <class Format>
bool integer_rows(const Linear& c) {
  const bool only_few = !(takes_many<Format>() && c.batch == 1);
  return c.batch <= FEW_ROWS && integer_rows_alone<Format>(c, only_few);
}

#endif

#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool HAS_DOTS = true;
#else
constexpr bool HAS_DOTS = false;
template <class Format>
bool integer_rows(const Linear&) {
  return false;
}
template <class Format>
bool integer_rows_alone(const Linear&) {
  return false;
}
template <class Format>
Digits<8> digits_of(const Linear& c) {
  return Digits<8>(c, Format::SHIFT, false);
}
#endif

}  // namespace
