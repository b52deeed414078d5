#pragma once
// Activations as integers, for products by 8-bit dot products.
//
// They are written, CHUNK at a time, as integers over a power of two, with as many bits as a sum in
// 32 bits allows, and cut into int8 digits. The error is near that of float32 arithmetic. Where
// every chunk is an int8 times a power of two (activations rounded to MXINT8, say), few digits hold
// them without any error, and products of a chunk are exact.

#include "elements.h"

namespace {

constexpr i64 CHUNK = 32;
constexpr i32 DIGITS = 3;
constexpr i32 PRECISION = 20;  // bits: 16 products with an int8 stay below 2**31
constexpr i32 LOWEST = -100;   // so that the unit of a chunk is no subnormal
constexpr i32 HIGHEST = 60;    // so that no product overflows before the scale is applied
constexpr i32 FEW_LIMIT = 127;
constexpr i32 MXINT8_PLACES = 6;

// CHUNK activations as integers over 2**places; 0 where there are fewer.
struct Wholes {
  i32 at[CHUNK];
  i32 places;
  bool fits;
  i32 spare;  // low bits that can go so that an int8 is left, or -1 where that loses something

  // With `rounds` the activations are rounded to MXINT8 in blocks of a chunk: 127 at most, times the
  // power of two of the largest over 64.
  INLINED Wholes(const float* __restrict from, i64 n, bool rounds) {
    float x[CHUNK];
    if (n == CHUNK)
      std::memcpy(x, from, sizeof x);
    else
      for (i64 j = 0; j < CHUNK; ++j) x[j] = j < n ? from[j] : 0.0f;
    u32 largest = 0;
    for (i64 j = 0; j < CHUNK; ++j) {
      const u32 m = bits_of(x[j]) & MAGNITUDE;
      largest = m > largest ? m : largest;
    }
    const i32 e = static_cast<i32>(largest >> FRACTION) - BIAS;
    fits = e <= HIGHEST && (!rounds || e >= LOWEST || largest == 0);
    const i32 within = e < LOWEST ? LOWEST : fits ? e : HIGHEST;
    places = (rounds ? MXINT8_PLACES : PRECISION - 1) - within;
    if (rounds)
      round(x, power(places));
    else
      convert(x, power(places));
  }

  INLINED void round(const float* __restrict x, float up) {
    for (i64 j = 0; j < CHUNK; ++j) {
      const i32 whole = static_cast<i32>(__builtin_rintf(x[j] * up));
      at[j] = whole > FEW_LIMIT ? FEW_LIMIT : whole < -FEW_LIMIT ? -FEW_LIMIT : whole;
    }
    spare = 0;
  }

  INLINED void convert(const float* __restrict x, float up) {
    constexpr i32 TOP = (1 << PRECISION) - 1;
    i32 ones = 0, is_inexact = 0;
    for (i64 j = 0; j < CHUNK; ++j) {
      const float raised = x[j] * up, rounded = __builtin_rintf(raised);
      i32 whole = static_cast<i32>(rounded);
      whole = whole > TOP ? TOP : whole;
      whole = whole < -TOP ? -TOP : whole;
      at[j] = whole;
      is_inexact |= raised != rounded;
      ones |= whole < 0 ? -whole : whole;
    }
    spare = ones ? __builtin_ctz(static_cast<u32>(ones)) : 0;
    if (is_inexact || ones >> spare > FEW_LIMIT) spare = -1;
  }

  // The columns 0, 2, 4 … before 1, 3, 5 ….
  INLINED void put_evens_first() {
    i32 sorted[CHUNK];
    for (i64 j = 0; j < CHUNK / 2; ++j) {
      sorted[j] = at[2 * j];
      sorted[CHUNK / 2 + j] = at[2 * j + 1];
    }
    std::memcpy(at, sorted, sizeof at);
  }

  // COUNT digits of BITS bits, the highest first, of the integers without their last `down` bits.
  template <int COUNT, int BITS>
  INLINED void write(i32 down, i8* __restrict out) {
    constexpr i32 HALF = 1 << (BITS - 1), LOW = (1 << BITS) - 1;
    for (i64 j = 0; j < CHUNK; ++j) at[j] >>= down;
    for (int d = COUNT - 1; d > 0; --d)
      for (i64 j = 0; j < CHUNK; ++j) {
        const i32 digit = ((at[j] + HALF) & LOW) - HALF;
        out[d * CHUNK + j] = static_cast<i8>(digit);
        at[j] = (at[j] - digit) >> BITS;
      }
    for (i64 j = 0; j < CHUNK; ++j) out[j] = static_cast<i8>(at[j]);
  }
};

// Rows of activations as digits of BITS bits; two of 7 bits hold an int8.
template <int BITS>
class Digits {
 public:
  static constexpr int WIDTH = BITS, FEW = BITS == 8 ? 1 : 2;
  i64 chunks;
  int count = FEW;
  bool fits = true;

  // An element of the weight is its code over 2**shift. With `evens_first` a chunk has its even
  // columns first: two 4-bit codes that share a byte are then taken apart without sorting them.
  // With `only_few` activations that take many digits do not fit.
  Digits(const Linear& c, int shift, bool evens_first, bool only_few = false)
      : chunks((c.shape.columns + CHUNK - 1) / CHUNK),
        shift_(shift),
        evens_first_(evens_first),
        unit_(static_cast<size_t>(c.batch * chunks)) {
    digit_.resize(unit_.size() * CHUNK * FEW);
    if (write<FEW>(c) || !fits) return;
    fits = !only_few;
    if (only_few) return;
    count = DIGITS;
    digit_.resize(unit_.size() * CHUNK * DIGITS);
    write<DIGITS>(c);
  }

  bool is_few() const { return count == FEW; }
  // What one is worth in each chunk of row b.
  const float* units(i64 b) const { return unit_.data() + b * chunks; }
  // The digits of row b: for each chunk the highest first, CHUNK of each.
  const i8* row(i64 b) const { return digit_.data() + b * chunks * CHUNK * count; }

  // For each chunk of row b, sums of four neighbours, times `factor`.
  void sums_of_four(i64 b, i32 factor, i32* out) const {
    constexpr i64 WIDTH = CHUNK / 4;
    std::memset(out, 0, static_cast<size_t>(chunks * WIDTH) * sizeof *out);
    for (i64 k = 0; k < chunks; ++k, out += WIDTH) {
      const i8* at = row(b) + k * CHUNK * count;
      for (int d = 0; d < count; ++d, at += CHUNK)
        for (i64 j = 0; j < WIDTH; ++j) {
          const i32 four = at[4 * j] + at[4 * j + 1] + at[4 * j + 2] + at[4 * j + 3];
          out[j] = out[j] * (1 << BITS) + four;
        }
      for (i64 j = 0; j < WIDTH; ++j) out[j] *= factor;
    }
  }

 private:
  int shift_;
  bool evens_first_;
  std::vector<float> unit_;
  std::vector<i8> digit_;

  // All chunks in COUNT digits; false where that loses something, or at numbers that do not fit.
  template <int COUNT>
  bool write(const Linear& c) {
    constexpr bool IS_FEW = COUNT == FEW;
    i8* out = digit_.data();
    float* unit = unit_.data();
    for (i64 b = 0; b < c.batch; ++b)
      for (i64 k = 0; k < chunks; ++k, out += CHUNK * COUNT, ++unit) {
        const i64 first = k * CHUNK;
        Wholes x(c.x + b * c.shape.columns + first, min(CHUNK, c.shape.columns - first),
                 c.rounds);
        fits = x.fits;
        if (!fits || (IS_FEW && x.spare < 0)) return false;
        if (evens_first_) x.put_evens_first();
        const i32 down = IS_FEW ? x.spare : 0;
        *unit = power(down - x.places - shift_);
        x.template write<COUNT, BITS>(down, out);
      }
    return true;
  }
};

// The activations as they are after rounding to MXINT8; those that do not fit are any numbers.
inline std::vector<float> rounded_rows(const Linear& c) {
  const i64 columns = c.shape.columns;
  std::vector<float> rounded(static_cast<size_t>(c.batch * columns));
  for (i64 b = 0; b < c.batch; ++b)
    for (i64 first = 0; first < columns; first += CHUNK) {
      const i64 n = min(CHUNK, columns - first), at = b * columns + first;
      const Wholes x(c.x + at, n, true);
      for (i64 j = 0; j < n; ++j)
        rounded[static_cast<size_t>(at + j)] = static_cast<float>(x.at[j]) * power(-x.places);
    }
  return rounded;
}

}  // namespace
