#pragma once
// Products in integers by the 8-bit dot products of aarch64.

#include "decode.h"
#include "digits.h"

namespace {

#if defined(__ARM_FEATURE_DOTPROD)

constexpr int ROWS = 4;  // weight rows that share what is loaded of the activations

// A chunk of codes as int8, 2**RAISED times what they are worth, evens first where two share a byte.
template <class Element>
struct Decoder;

template <>
struct Decoder<Whole8> {
  static constexpr int RAISED = 0;
  INLINED void operator()(const u8* codes, int8x16_t* out) const {
    for (int i = 0; i < 2; ++i) out[i] = vreinterpretq_s8_u8(vld1q_u8(codes + 16 * i));
  }
};

template <>
struct Decoder<Whole4> {
  static constexpr int RAISED = 4;
  INLINED void operator()(const u8* codes, int8x16_t* out) const {
    const int8x16_t two = vreinterpretq_s8_u8(vld1q_u8(codes));
    out[0] = vshlq_n_s8(two, 4);
    out[1] = vandq_s8(two, vdupq_n_s8(static_cast<i8>(0xf0)));
  }
};

template <>
struct Decoder<MxFp4> {
  static constexpr int RAISED = 0;
  int8x16_t values;
  Decoder() {
    i8 all[16];
    for (u8 code = 0; code < 16; ++code) all[code] = MxFp4::whole(code);
    values = vld1q_s8(all);
  }
  INLINED void operator()(const u8* codes, int8x16_t* out) const {
    const uint8x16_t two = vld1q_u8(codes);
    out[0] = vqtbl1q_s8(values, vandq_u8(two, vdupq_n_u8(15)));
    out[1] = vqtbl1q_s8(values, vshrq_n_u8(two, 4));
  }
};

// 16 scale bytes of each row as floats, rows side by side. False where one is 0 or 255, which
// are no exponents of float32.
inline bool sixteen_to_float(const u8* const* in, float* out) {
  constexpr u8 O = 128;  // no byte
  static constexpr u8 TOP[4][16] = {{O, O, O, 0, O, O, O, 1, O, O, O, 2, O, O, O, 3},
                                    {O, O, O, 4, O, O, O, 5, O, O, O, 6, O, O, O, 7},
                                    {O, O, O, 8, O, O, O, 9, O, O, O, 10, O, O, O, 11},
                                    {O, O, O, 12, O, O, O, 13, O, O, O, 14, O, O, O, 15}};
  const uint8x16_t a = vld1q_u8(in[0]), b = vld1q_u8(in[1]), c = vld1q_u8(in[2]),
                   d = vld1q_u8(in[3]);
  const uint8x16x2_t even = vzipq_u8(a, c), odd = vzipq_u8(b, d);
  for (int i = 0; i < 4; ++i) {
    const uint8x16x2_t both = vzipq_u8(even.val[i / 2], odd.val[i / 2]);
    for (int j = 0; j < 4; ++j) {
      const uint8x16_t word = vqtbl1q_u8(both.val[i % 2], vld1q_u8(TOP[j]));
      const uint32x4_t bits = vshrq_n_u32(vreinterpretq_u32_u8(word), 1);
      vst1q_f32(out + 16 * i + 4 * j, vreinterpretq_f32_u32(bits));
    }
  }
  const uint8x16_t least = vminq_u8(vminq_u8(a, b), vminq_u8(c, d));
  const uint8x16_t most = vmaxq_u8(vmaxq_u8(a, b), vmaxq_u8(c, d));
  return vminvq_u8(least) > 0 && vmaxvq_u8(most) < SCALE_NAN;
}

constexpr i64 FETCHED_AHEAD = 8192;  // bytes

// Where to fetch from while the codes at `here` are multiplied: whole blocks of rows ahead, so far
// that memory answers in time. Fetching from beyond the end does nothing.
inline const u8* codes_ahead(const u8* here, i64 block) {
  return here + (FETCHED_AHEAD + block - 1) / block * block;
}

// Four rows of the weight: where their codes lie, and their scales as floats, rows side by side.
template <class Element>
struct Rows {
  std::vector<float> scales;
  const u8* codes[ROWS];
  alignas(16) u8 tail[ROWS][CHUNK];  // the last chunk, where it is short
  bool is_short;
  const u8* ahead;  // the codes of rows after these

  // Where groups are halves of chunks, the last chunk may have a group that does not exist.
  explicit Rows(const Shape& shape)
      : scales(static_cast<size_t>((shape.groups() + 1) * ROWS)),
        is_short(shape.columns % CHUNK != 0) {
    std::memset(tail, 0, sizeof tail);
  }

  void load(const Linear& c, const Scales& from, i64 row) {
    const i64 bytes = c.shape.bytes(Element::BITS), groups = c.shape.groups();
    const i64 done = c.shape.columns / CHUNK * CHUNK * Element::BITS / 8;
    ahead = codes_ahead(c.codes + row * bytes, ROWS * bytes);
    i64 at[ROWS];
    for (int r = 0; r < ROWS; ++r) {
      at[r] = min(row + r, c.shape.rows - 1);  // the last rows may be computed twice
      codes[r] = c.codes + at[r] * bytes;
      if (is_short) std::memcpy(tail[r], codes[r] + done, static_cast<size_t>(bytes - done));
      at[r] *= groups;
    }
    load_scales(from, at, groups);
  }

  void load_scales(const Scales& from, const i64* at, i64 groups) {
    float* out = scales.data();
    for (i64 g = 0; g < groups; g += 16, out += 16 * ROWS) {
      const i64 n = min(16, groups - g);
      if (n == 16 && !from.is_real) {
        const u8* in[ROWS];
        for (int r = 0; r < ROWS; ++r) in[r] = static_cast<const u8*>(from.at) + at[r] + g;
        if (sixteen_to_float(in, out)) continue;
      }
      for (i64 i = 0; i < n; ++i)
        for (int r = 0; r < ROWS; ++r) out[i * ROWS + r] = from[at[r] + g + i];
    }
  }
};

// Zero, made and not copied from a register: processors do that without a vector unit. In long
// code, as for many digits, it only stands in the way of the compiler.
INLINED int32x4_t fresh_zero() {
  int32x4_t zero;
  asm volatile("movi %0.4s, 0" : "=w"(zero));
  return zero;
}

// Sums over a chunk of the products of four rows with one row of activations: in each of the four
// lanes over 8 columns; lanes 0 and 1 have the first half of the chunk, 2 and 3 the second, if the
// halves have scales of their own.
template <int BITS, int D, bool HALVES>
INLINED void dots(const int8x16_t (*w)[2], const i8* x, int32x4_t* p) {
  constexpr bool APART = HALVES && BITS == 8;
  int32x4_t q[ROWS][2];  // the halves of 8-bit codes
  for (int r = 0; r < ROWS; ++r)
    for (int h = 0; h <= APART; ++h) q[r][h] = D < DIGITS ? fresh_zero() : vdupq_n_s32(0);
  for (int d = 0; d < D; ++d) {
    const int8x16_t low = vld1q_s8(x + CHUNK * d), high = vld1q_s8(x + CHUNK * d + 16);
    for (int r = 0; r < ROWS; ++r) q[r][0] = vdotq_s32(q[r][0], w[r][0], low);
    for (int r = 0; r < ROWS; ++r) q[r][APART] = vdotq_s32(q[r][APART], w[r][1], high);
    if (d == D - 1) break;
    for (int r = 0; r < ROWS; ++r)
      for (int h = 0; h <= APART; ++h) q[r][h] = vshlq_n_s32(q[r][h], 8);
  }
  for (int r = 0; r < ROWS; ++r) p[r] = APART ? vpaddq_s32(q[r][0], q[r][1]) : q[r][0];
}

// The sums of one row of activations.
template <int D, bool HALVES>
struct Sum {
  float32x4_t rows[2] = {};

  INLINED void add(const int32x4_t* p, const float* scales, float unit) {
    const int32x4_t first_two = vpaddq_s32(p[0], p[1]), last_two = vpaddq_s32(p[2], p[3]);
    if constexpr (HALVES) {
      const float32x4_t here = vld1q_f32(scales), there = vld1q_f32(scales + ROWS);
      const float32x4_t a = vmulq_n_f32(vcvtq_f32_s32(first_two), unit);
      const float32x4_t b = vmulq_n_f32(vcvtq_f32_s32(last_two), unit);
      rows[0] = vfmaq_f32(rows[0], a, vzip1q_f32(here, there));
      rows[1] = vfmaq_f32(rows[1], b, vzip2q_f32(here, there));
    } else {
      // Few digits leave room for all of a chunk; converting is the slow step.
      const float32x4_t total =
          D < DIGITS ? vcvtq_f32_s32(vpaddq_s32(first_two, last_two))
                     : vpaddq_f32(vcvtq_f32_s32(first_two), vcvtq_f32_s32(last_two));
      rows[0] = vfmaq_f32(rows[0], vmulq_n_f32(total, unit), vld1q_f32(scales));
    }
  }

  float32x4_t total() const { return HALVES ? vpaddq_f32(rows[0], rows[1]) : rows[0]; }
};

// Where the activations of N rows, and what they are worth, lie for one chunk.
template <int N>
struct Place {
  const i8* x[N];
  const float* unit[N];
};

// Adds K chunks, so that no instruction waits for the one before.
template <class Element, int D, bool HALVES, int N, int K>
INLINED void add_chunks(const Decoder<Element>& decode, const u8* const* codes,
                        const Place<N>& at, i64 first, const float* scales, int group_shift,
                        Sum<D, HALVES>* sum) {
  int8x16_t w[K][ROWS][2];
  int32x4_t p[K][N][ROWS];
  for (int k = 0; k < K; ++k)
    for (int r = 0; r < ROWS; ++r) decode(codes[r] + k * CHUNK * Element::BITS / 8, w[k][r]);
  for (int k = 0; k < K; ++k)
    for (int i = 0; i < N; ++i)
      dots<Element::BITS, D, HALVES>(w[k], at.x[i] + (first + k) * CHUNK * D, p[k][i]);
  for (int k = 0; k < K; ++k)
    for (int i = 0; i < N; ++i) {
      const i64 group = HALVES ? 2 * (first + k) : (first + k) >> group_shift;
      sum[i].add(p[k][i], scales + group * ROWS, at.unit[i][first + k]);
    }
}

// Products of four rows of the weight with rows b to b + N - 1 of the activations.
template <class Element, int D, bool HALVES, int N>
inline void products(const Rows<Element>& rows, const Digits<8>& digits, i64 b, int group_shift,
                     float32x4_t* y) {
  constexpr i64 BYTES = CHUNK * Element::BITS / 8;
  constexpr int K = N == 1 ? 2 : 1;
  const Decoder<Element> decode;
  const float* scales = rows.scales.data();
  Sum<D, HALVES> sum[N];
  Place<N> at;
  for (int i = 0; i < N; ++i) at.x[i] = digits.row(b + i);
  for (int i = 0; i < N; ++i) at.unit[i] = digits.units(b + i);
  const i64 whole = digits.chunks - rows.is_short;
  const u8 *w[ROWS], *ahead = rows.ahead;
  for (int r = 0; r < ROWS; ++r) w[r] = rows.codes[r];
  i64 k = 0;
  for (; k + K <= whole; k += K, ahead += K * ROWS * BYTES) {
    // A processor does not fetch ahead across pages by itself.
    for (i64 i = 0; i < K * ROWS * BYTES; i += 64) __builtin_prefetch(ahead + i);
    add_chunks<Element, D, HALVES, N, K>(decode, w, at, k, scales, group_shift, sum);
    for (int r = 0; r < ROWS; ++r) w[r] += K * BYTES;
  }
  if (k < whole) add_chunks<Element, D, HALVES, N, 1>(decode, w, at, k, scales, group_shift, sum);
  if (rows.is_short) {
    for (int r = 0; r < ROWS; ++r) w[r] = rows.tail[r];
    add_chunks<Element, D, HALVES, N, 1>(decode, w, at, whole, scales, group_shift, sum);
  }
  for (int i = 0; i < N; ++i) y[i] = sum[i].total();
}

template <class Element, int D, bool HALVES>
void dot_rows(const Linear& c, const Scales& scales, const Digits<8>& x) {
  const auto per_group = static_cast<unsigned long long>(HALVES ? 1 : c.shape.group / CHUNK);
  const int shift = __builtin_ctzll(per_group);
  shared((c.shape.rows + ROWS - 1) / ROWS, c.threads, [&](i64 first, i64 last) {
    Rows<Element> rows(c.shape);
    for (i64 row = first * ROWS; row < last * ROWS; row += ROWS) {
      rows.load(c, scales, row);
      for (i64 b = 0; b < c.batch; b += 2) {
        float32x4_t y[2];
        if (b + 2 <= c.batch)
          products<Element, D, HALVES, 2>(rows, x, b, shift, y);
        else
          products<Element, D, HALVES, 1>(rows, x, b, shift, y);
        for (i64 i = 0; i < min(2, c.batch - b); ++i) {
          float four[ROWS];
          vst1q_f32(four, y[i]);
          for (i64 r = 0; r < min(ROWS, c.shape.rows - row); ++r)
            c.y[(b + i) * c.y_step + row + r] = four[r];
        }
      }
    }
  });
}

template <class Format>
Digits<8> digits_of(const Linear& c) {
  constexpr int SHIFT = Format::SHIFT + Decoder<typename Format::Element>::RAISED;
  return Digits<8>(c, SHIFT, Format::BITS == 4);
}

// False where the activations are too large, or no numbers.
template <class Format>
bool integer_rows(const Linear& c) {
  using Element = typename Format::Element;
  const Digits<8> x = digits_of<Format>(c);
  if (!x.fits) return false;
  const Scales scales{c.scales, Format::REAL_SCALES};
  const bool has_halves = c.shape.group < CHUNK;
  if (x.is_few())
    has_halves ? dot_rows<Element, 1, true>(c, scales, x) : dot_rows<Element, 1, false>(c, scales, x);
  else
    has_halves ? dot_rows<Element, DIGITS, true>(c, scales, x) : dot_rows<Element, DIGITS, false>(c, scales, x);
  return true;
}

// Products of rows that are in integers alone too, with the same number of digits.
template <class Format>
bool integer_rows_alone(const Linear& c) {
  return integer_rows<Format>(c);
}

#endif

}  // namespace
