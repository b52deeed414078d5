// Packed MX weights on the CPU: unpack, and multiply without unpacking the matrix.
//
// Two ways to multiply. In float32: a row of the weight is decoded into a buffer that stays in the
// cache. Where the processor has 8-bit dot products and the elements fit an int8, in integers:
// activations are written, 32 at a time, as integers over a power of two, with as many bits as a
// sum in 32 bits allows (20), and cut into three int8 digits. The error is near that of float32
// arithmetic. Activations that are huge or not finite take the first way.

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

struct MxInt8 {
  static constexpr int SHIFT = 6, BITS = 8;
  static constexpr bool FITS_INT8 = true;
  static i8 whole(u8 code) { return static_cast<i8>(code); }
  static float value(u8 code) { return static_cast<float>(whole(code)); }
};

struct MxInt4 {
  static constexpr int SHIFT = 2, BITS = 4;
  static constexpr bool FITS_INT8 = true;
  static i8 whole(u8 code) { return static_cast<i8>(static_cast<i8>(code << 4) >> 4); }
  static float value(u8 code) { return static_cast<float>(whole(code)); }
};

struct MxFp4 {  // sign, 2 exponent and 1 mantissa bit
  static constexpr int SHIFT = 1, BITS = 4;
  static constexpr bool FITS_INT8 = true;
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
  static constexpr int SHIFT = 9, BITS = 8;
  static constexpr bool FITS_INT8 = false;
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

// All there is to look up: the value of each code, and of one unit of it under each scale.
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

struct Shape {
  i64 rows, columns, group;
  i64 groups() const { return (columns + group - 1) / group; }
  i64 bytes(int bits) const { return (columns * bits + 7) / 8; }
};

// Whether the processor computes with subnormal numbers; a setting of the thread.
inline bool has_subnormals() {
  volatile float least = float_of(1), one = 1.0f;
  return least * one != 0.0f;
}

// A row decoded in vectors; false where it takes the table.
template <class Format>
inline bool decode_quickly(const u8*, const u8*, float*, const Shape&) {
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
inline bool decode_quickly<MxFp8>(const u8* codes, const u8* scales, float* out,
                                  const Shape& shape) {
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

#endif

template <class Format>
void decode_row(const u8* codes, const u8* scales, float* out, const Shape& shape,
                const Table<Format>& table) {
  if (decode_quickly<Format>(codes, scales, out, shape)) return;
  const float* values = table.value;
  for (i64 g = 0; g < shape.groups(); ++g) {
    const i64 first = g * shape.group, n = min(shape.group, shape.columns - first);
    const float scale = table.scale[scales[g]];
    const u8* at = codes + first * Format::BITS / 8;
    if (Format::BITS == 8 && Format::FITS_INT8)  // converting is faster than looking up
      each_code<Format>(at, out + first, n, [=](u8 code) { return Format::value(code) * scale; });
    else
      each_code<Format>(at, out + first, n, [=](u8 code) { return values[code] * scale; });
  }
}

// --- unpack ---------------------------------------------------------------------------------

// To the nearest bfloat16, ties to even.
inline u16 to_bfloat16(float x) {
  u32 b = bits_of(x);
  u32 rounded = (b + 0x7fffu + (b >> 16 & 1)) >> 16;
  return static_cast<u16>((b & MAGNITUDE) > INFINITE ? (b >> 16 | 0x40u) : rounded);
}

struct Unpack {
  const u8 *codes, *scales;
  void* out;
  Shape shape;
  int is_bfloat16, threads;
};

template <class Format>
void run_unpack(const Unpack& c) {
  const Table<Format> table;
  shared(c.shape.rows, c.threads, [&](i64 first, i64 last) {
    std::vector<float> buffer(c.is_bfloat16 ? static_cast<size_t>(c.shape.columns) : 0);
    for (i64 row = first; row < last; ++row) {
      i64 at = row * c.shape.columns;
      float* values = c.is_bfloat16 ? buffer.data() : static_cast<float*>(c.out) + at;
      decode_row<Format>(c.codes + row * c.shape.bytes(Format::BITS),
                         c.scales + row * c.shape.groups(), values, c.shape, table);
      if (!c.is_bfloat16) continue;
      u16* __restrict out = static_cast<u16*>(c.out) + at;
      for (i64 i = 0; i < c.shape.columns; ++i) out[i] = to_bfloat16(values[i]);
    }
  });
}

// --- linear in float32 ----------------------------------------------------------------------

struct Linear {
  const float* x;
  const u8 *codes, *scales;
  float* y;
  i64 batch;
  Shape shape;
  int threads;
};

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

inline float sum_of_lanes(Floats x) {
  float total = 0.0f;
  for (int j = 0; j < LANES; ++j) total += x[j];
  return total;
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

// The product of a row with the activations as `raised` gives them, without writing values to memory;
// false where they have to be.
template <class Format>
inline bool multiply_quickly(const u8*, const u8*, const float*, float*, const Shape&,
                             const Table<Format>&) {
  return false;
}

constexpr i32 RAISED = 100;

// Codes become floats as they are, and a group's sum is multiplied with its scale.
template <>
inline bool multiply_quickly<MxInt8>(const u8* codes, const u8* scales, const float* x, float* y,
                                     const Shape& shape, const Table<MxInt8>& table) {
  constexpr i64 STEP = 16;  // divides every group
  Floats total = {};
  for (i64 first = 0; first < shape.columns; first += shape.group) {
    const i64 last = min(first + shape.group, shape.columns);
    Floats sum = {};
    for (i64 i = first; i < last; i += STEP)
      for (i64 j = i; j < i + STEP; j += LANES)
        sum = plus_product(sum, to_floats(codes + j), load(x + j));
    total = plus_product(total, sum, spread(table.scale[*scales++]));
  }
  *y = sum_of_lanes(total);
  return true;
}

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
inline bool multiply_quickly<MxFp8>(const u8* codes, const u8* scales, const float* x, float* y,
                                    const Shape& shape, const Table<MxFp8>&) {
  constexpr i32 MORE = MISSING - RAISED;
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

#endif

// The one row of activations times 2**RAISED, or as it is for integers; none where that may
// overflow, or where products may be subnormal.
template <class Format>
std::vector<float> raised(const Linear& c) {
  constexpr i32 up = Format::FITS_INT8 ? 0 : RAISED, least = Format::FITS_INT8 ? -126 : -80;
  constexpr i32 room = Format::FITS_INT8 ? 20 : 0;  // for codes and the sum of a group
  const bool can_be_quick = Format::BITS == 8 && c.batch == 1 && c.shape.columns % 16 == 0;
  std::vector<float> x(can_be_quick ? static_cast<size_t>(c.shape.columns) : 0);
  float most = 0.0f;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = c.x[i] * power(up);
    const float magnitude = __builtin_fabsf(c.x[i]);
    most = magnitude > most ? magnitude : most;  // NaN gives NaN in either way
  }
  if (!(most >= power(least) && most < power(BIAS - up - room))) x.clear();
  return x;
}

template <class Format>
void float_rows(const Linear& c) {
  const Table<Format> table;
  const std::vector<float> x = raised<Format>(c);
  shared(c.shape.rows, c.threads, [&](i64 first, i64 last) {
    const bool is_quick = !x.empty() && has_subnormals();
    std::vector<float> w(static_cast<size_t>(c.shape.columns));
    for (i64 row = first; row < last; ++row) {
      const u8* codes = c.codes + row * c.shape.bytes(Format::BITS);
      const u8* scales = c.scales + row * c.shape.groups();
      if (is_quick && multiply_quickly<Format>(codes, scales, x.data(), c.y + row, c.shape, table))
        continue;
      decode_row<Format>(codes, scales, w.data(), c.shape, table);
      const i64 n = c.shape.columns, stride = c.shape.rows;
      float* y = c.y + row;
      i64 b = 0;
      for (; b + 4 <= c.batch; b += 4)
        float_products<4>(w.data(), c.x + b * n, n, y + b * stride, stride);
      for (; b < c.batch; ++b) float_products<1>(w.data(), c.x + b * n, n, y + b * stride, stride);
    }
  });
}

// --- linear in integers ---------------------------------------------------------------------

#if defined(__ARM_FEATURE_DOTPROD)

constexpr i32 DIGITS = 3;
constexpr i32 LOWEST = -100;  // so that the unit of a chunk is no subnormal
constexpr i32 HIGHEST = 60;  // so that no product overflows before the scale is applied
constexpr int ROWS = 4;      // weight rows that share what is loaded of the activations

// Columns that are summed in integers; a group of 64 or 128 is several chunks of one scale.
inline i64 chunk_of(const Shape& shape) { return min(shape.group, 32); }

// Bits of an activation: chunk / 2 products with an int8, which is what a lane holds at most, stay
// below 2**31.
inline i32 precision(i64 chunk) { return chunk == 16 ? 21 : 20; }

// Activations as integers: three digits of eight bits each, and what one unit is worth.
struct Digits {
  i64 chunk, chunks;
  std::vector<i8> digit[DIGITS];
  std::vector<float> unit;
  bool fits = true;

  Digits(const Linear& c, int shift)
      : chunk(chunk_of(c.shape)), chunks((c.shape.columns + chunk - 1) / chunk) {
    for (auto& d : digit) d.assign(static_cast<size_t>(c.batch * chunks * chunk), 0);
    unit.resize(static_cast<size_t>(c.batch * chunks));
    for (i64 b = 0; b < c.batch; ++b)
      for (i64 k = 0; k < chunks; ++k) {
        const float* x = c.x + b * c.shape.columns + k * chunk;
        const i64 n = min(chunk, c.shape.columns - k * chunk);
        const i32 up = places(x, n);
        unit[static_cast<size_t>(b * chunks + k)] = power(-up - shift);
        write(x, (b * chunks + k) * chunk, n, power(up));
      }
  }

  // Binary places after which the activations of a chunk are cut off.
  i32 places(const float* x, i64 n) {
    u32 largest = 0;
    for (i64 i = 0; i < n; ++i) {
      u32 m = bits_of(x[i]) & MAGNITUDE;
      largest = m > largest ? m : largest;
    }
    i32 e = static_cast<i32>(largest >> FRACTION) - BIAS;
    if (e > HIGHEST) fits = false;
    return precision(chunk) - 1 - (e < LOWEST ? LOWEST : e > HIGHEST ? HIGHEST : e);
  }

  void write(const float* __restrict x, i64 at, i64 n, float up) {
    i8* __restrict low = digit[0].data() + at;
    i8* __restrict mid = digit[1].data() + at;
    i8* __restrict high = digit[2].data() + at;
    const i32 top = (1 << precision(chunk)) - 1;
    for (i64 i = 0; i < n; ++i) {
      i32 whole = static_cast<i32>(__builtin_rintf(x[i] * up));
      whole = whole > top ? top : whole;
      whole = whole < -top ? -top : whole;
      low[i] = static_cast<i8>(whole);
      mid[i] = static_cast<i8>((whole + 128) >> 8);
      high[i] = static_cast<i8>((whole + 128 + (128 << 8)) >> 16);
    }
  }
};

// Four rows of the weight: codes as int8, zero where the last chunk is short, and scales as floats
// with those of the four rows side by side.
template <class Format>
struct Rows {
  std::vector<i8> buffer[ROWS];
  std::vector<float> scales;
  const i8* w[ROWS];
  const u8* ahead;  // the codes of the four rows after these

  Rows(const Digits& x, const Shape& shape)
      : scales(static_cast<size_t>(shape.groups() * ROWS)) {
    for (auto& b : buffer) b.assign(static_cast<size_t>(x.chunks * x.chunk), 0);
  }

  void load(const Linear& c, const Digits& x, i64 row) {
    const bool in_place = Format::BITS == 8 && c.shape.columns % x.chunk == 0;
    const i64 groups = c.shape.groups();
    const u8* bytes[ROWS];
    const i64 next = row + 2 * ROWS <= c.shape.rows ? row + ROWS : 0;
    ahead = c.codes + next * c.shape.bytes(Format::BITS);
    for (i64 i = 0; i < ROWS * groups; i += 64) __builtin_prefetch(c.scales + next * groups + i);
    for (int r = 0; r < ROWS; ++r) {
      const i64 at = min(row + r, c.shape.rows - 1);  // the last rows may be computed twice
      const u8* codes = c.codes + at * c.shape.bytes(Format::BITS);
      if (!in_place) to_whole(codes, buffer[r].data(), c.shape.columns);
      w[r] = in_place ? reinterpret_cast<const i8*>(codes) : buffer[r].data();
      bytes[r] = c.scales + at * groups;
    }
    to_float(bytes, scales.data(), groups);
  }

  // Codes as int8; those of 4 bits are looked up, 32 at a time.
  static void to_whole(const u8* codes, i8* out, i64 n) {
    i64 done = 0;
    if (Format::BITS == 4) {
      i8 values[16];
      for (u8 code = 0; code < 16; ++code) values[code] = Format::whole(code);
      const int8x16_t table = vld1q_s8(values);
      for (; done + 32 <= n; done += 32) {
        const uint8x16_t two = vld1q_u8(codes + done / 2);
        const int8x16_t low = vqtbl1q_s8(table, vandq_u8(two, vdupq_n_u8(15)));
        const int8x16_t high = vqtbl1q_s8(table, vshrq_n_u8(two, 4));
        vst1q_s8(out + done, vzip1q_s8(low, high));
        vst1q_s8(out + done + 16, vzip2q_s8(low, high));
      }
    }
    each_code<Format>(codes + done * Format::BITS / 8, out + done, n - done, Format::whole);
  }

  // `scale_value` of 16 bytes of each row, rows side by side. A lookup puts the byte, and the bit
  // for special cases, at the top of a word, where one shift brings them into place.
  static void to_float(const u8* const* in, float* out) {
    const uint8x16x2_t even = vzipq_u8(vld1q_u8(in[0]), vld1q_u8(in[2]));
    const uint8x16x2_t odd = vzipq_u8(vld1q_u8(in[1]), vld1q_u8(in[3]));
    for (int i = 0; i < 4; ++i) {
      const uint8x16x2_t both = vzipq_u8(even.val[i / 2], odd.val[i / 2]);
      const uint8x16_t byte = both.val[i % 2];
      const uint8x16_t is_special = vcleq_u8(vaddq_u8(byte, vdupq_n_u8(1)), vdupq_n_u8(1));
      const uint8x16x2_t parts = {byte, vandq_u8(is_special, vdupq_n_u8(128))};
      for (int j = 0; j < 4; ++j) {
        const uint32x4_t word = vreinterpretq_u32_u8(at_the_top(parts, j));
        vst1q_f32(out + 16 * i + 4 * j, vreinterpretq_f32_u32(vshrq_n_u32(word, 1)));
      }
    }
  }

  static void to_float(const u8* const* in, float* out, i64 n) {
    i64 g = 0;
    for (; g + 16 <= n; g += 16) {
      const u8* const at[ROWS] = {in[0] + g, in[1] + g, in[2] + g, in[3] + g};
      to_float(at, out + g * ROWS);
    }
    for (; g < n; ++g)
      for (int r = 0; r < ROWS; ++r) out[g * ROWS + r] = scale_value(in[r][g]);
  }
};

template <int N, int K>
inline void add_digit(int32x4_t (*p)[ROWS], const i8* const* w, const i8* digit, i64 at) {
  for (int i = 0; i < N; i += 16)
    for (int k = 0; k < K; ++k) {
      const i64 here = at + k * N + i;
      const int8x16_t x = vld1q_s8(digit + here);
      for (int r = 0; r < ROWS; ++r) p[k][r] = vdotq_s32(p[k][r], vld1q_s8(w[r] + here), x);
    }
}

template <int K>
inline void shift_up(int32x4_t (*p)[ROWS]) {
  for (int k = 0; k < K; ++k)
    for (int r = 0; r < ROWS; ++r) p[k][r] = vshlq_n_s32(p[k][r], 8);
}

// The activations of one row as the products need them.
struct Activations {
  const i8* digit[DIGITS];
  const float* unit;
  Activations(const Digits& x, i64 b) : unit(x.unit.data() + b * x.chunks) {
    for (int d = 0; d < DIGITS; ++d) digit[d] = x.digit[d].data() + b * x.chunks * x.chunk;
  }
};

// Adds to `sum` the products of four rows of the weight with K chunks of the activations; K, so
// that no instruction waits for the one before.
template <int N, int K, class Format>
inline float32x4_t add_chunks(float32x4_t sum, const Rows<Format>& rows, const Activations& x,
                              i64 first, int group_shift) {
  // A processor does not fetch ahead across pages by itself.
  constexpr int BYTES = ROWS * N * Format::BITS / 8;
  for (int i = 0; i < K * BYTES; i += 64) __builtin_prefetch(rows.ahead + first * BYTES + i);
  int32x4_t p[K][ROWS];
  for (auto& chunk : p)
    for (auto& v : chunk) v = vdupq_n_s32(0);
  add_digit<N, K>(p, rows.w, x.digit[2], first * N);
  shift_up<K>(p);
  add_digit<N, K>(p, rows.w, x.digit[1], first * N);
  shift_up<K>(p);
  add_digit<N, K>(p, rows.w, x.digit[0], first * N);
  for (int k = 0; k < K; ++k) {
    // Pairs of lanes still fit 32 bits where x has one bit less; converting is the slow step.
    const float32x4_t first_two = vcvtq_f32_s32(vpaddq_s32(p[k][0], p[k][1]));
    const float32x4_t last_two = vcvtq_f32_s32(vpaddq_s32(p[k][2], p[k][3]));
    const float32x4_t total = vpaddq_f32(first_two, last_two);
    const float* scales = rows.scales.data() + ((first + k) >> group_shift) * ROWS;
    sum = vfmaq_f32(sum, vmulq_n_f32(total, x.unit[first + k]), vld1q_f32(scales));
  }
  return sum;
}

// Products of four rows of the weight with row `b` of the activations.
template <int N, class Format>
inline float32x4_t products(const Rows<Format>& rows, const Digits& digits, i64 b,
                            int group_shift) {
  const Activations x(digits, b);
  float32x4_t sum = vdupq_n_f32(0.0f);
  i64 k = 0;
  for (; k + 2 <= digits.chunks; k += 2) sum = add_chunks<N, 2>(sum, rows, x, k, group_shift);
  return k < digits.chunks ? add_chunks<N, 1>(sum, rows, x, k, group_shift) : sum;
}

template <class Format>
bool integer_rows(const Linear& c) {
  const Digits x(c, Format::SHIFT);
  if (!x.fits) return false;
  const i64 blocks = (c.shape.rows + ROWS - 1) / ROWS;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(c.shape.group / x.chunk));
  shared(blocks, c.threads, [&](i64 first, i64 last) {
    Rows<Format> rows(x, c.shape);
    for (i64 row = first * ROWS; row < last * ROWS; row += ROWS) {
      rows.load(c, x, row);
      for (i64 b = 0; b < c.batch; ++b) {
        const float32x4_t y = x.chunk == 16 ? products<16>(rows, x, b, shift)
                                            : products<32>(rows, x, b, shift);
        float four[ROWS];
        vst1q_f32(four, y);
        for (i64 r = 0; r < min(ROWS, c.shape.rows - row); ++r)
          c.y[b * c.shape.rows + row + r] = four[r];
      }
    }
  });
  return true;
}

#else

template <class Format>
bool integer_rows(const Linear&) {
  return false;
}

#endif

template <class Format>
void run_linear(const Linear& c) {
  if (Format::FITS_INT8 && integer_rows<Format>(c)) return;
  float_rows<Format>(c);
}

// In the order of FORMATS in cpu.py.
constexpr void (*UNPACK[])(const Unpack&) = {
    run_unpack<MxInt8>, run_unpack<MxInt4>, run_unpack<MxFp8>, run_unpack<MxFp4>};
constexpr void (*LINEAR[])(const Linear&) = {
    run_linear<MxInt8>, run_linear<MxInt4>, run_linear<MxFp8>, run_linear<MxFp4>};

}  // namespace

extern "C" __attribute__((visibility("default"))) void mase_unpack(
    int format, const u8* codes, const u8* scales, void* out, i64 rows, i64 columns, i64 group,
    int is_bfloat16, int threads) {
  UNPACK[format]({codes, scales, out, {rows, columns, group}, is_bfloat16, threads});
}

extern "C" __attribute__((visibility("default"))) void mase_packed_linear(
    int format, const float* x, const u8* codes, const u8* scales, float* y, i64 batch, i64 rows,
    i64 columns, i64 group, int threads) {
  LINEAR[format]({x, codes, scales, y, batch, {rows, columns, group}, threads});
}
