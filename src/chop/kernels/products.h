#pragma once
// Packed weights on the CPU: unpack, and multiply without unpacking the matrix.
//
// Two ways to multiply. In float32 (float_rows.h). In integers (digits.h), where the processor has
// products of bytes and the elements fit an int8; activations that are huge or not finite take the
// first way.

#include "dots_neon.h"
#include "dots_tiles.h"
#include "dots_x86.h"
#include "rows_alone.h"

namespace {

// --- unpack ---------------------------------------------------------------------------------

// To the nearest bfloat16, ties to even.
inline u16 to_bfloat16(float x) {
  u32 b = bits_of(x);
  u32 rounded = (b + 0x7fffu + (b >> 16 & 1)) >> 16;
  return static_cast<u16>((b & MAGNITUDE) > INFINITE ? (b >> 16 | 0x40u) : rounded);
}

struct Unpack {
  const u8* codes;
  const void* scales;
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
                         scales_of<Format>(c.scales, row, c.shape), values, c.shape, table);
      if (!c.is_bfloat16) continue;
      u16* __restrict out = static_cast<u16*>(c.out) + at;
      for (i64 i = 0; i < c.shape.columns; ++i) out[i] = to_bfloat16(values[i]);
    }
  });
}

// --- linear ---------------------------------------------------------------------------------

// False where activations have to be rounded beforehand.
template <class Format>
bool run_linear(const Linear& c) {
  if constexpr (HAS_DOTS && Format::FITS_INT8)
    if (takes_tiles<Format>(c) ? tile_products<Format>(c) : integer_rows<Format>(c)) return true;
  if (c.rounds) return false;
  float_rows<Format>(c);
  return true;
}

// In the order of FORMATS in cpu.py.
constexpr void (*UNPACK[])(const Unpack&) = {run_unpack<MxInt8>, run_unpack<MxInt4>,
                                             run_unpack<MxFp8>,  run_unpack<MxFp4>,
                                             run_unpack<Int8>,   run_unpack<Int4>};
constexpr bool (*LINEAR[])(const Linear&) = {run_linear<MxInt8>, run_linear<MxInt4>,
                                             run_linear<MxFp8>,  run_linear<MxFp4>,
                                             run_linear<Int8>,   run_linear<Int4>};
// --- offsets ----------------------------------------------------------------------------------

// Sums of the groups of each row of x.
inline std::vector<float> group_sums(const float* x, i64 batch, const Shape& shape) {
  std::vector<float> sums;
  for (i64 b = 0; b < batch; ++b)
    for (i64 first = b * shape.columns; first < (b + 1) * shape.columns; first += shape.group) {
      const i64 last = min(first + shape.group, (b + 1) * shape.columns);
      Floats lanes = {};
      i64 i = first;
      for (; i + LANES <= last; i += LANES) lanes += load(x + i);
      float sum = sum_of_lanes(lanes);
      for (; i < last; ++i) sum += x[i];
      sums.push_back(sum);
    }
  return sums;
}

// Adds the sums of groups times one float32 offset per row and group to y.
inline void add_sums(const Linear& c) {
  if (!c.offsets) return;
  const i64 groups = c.shape.groups();
  shared(c.shape.rows, c.threads, [&](i64 first, i64 last) {
    for (i64 row = first; row < last; ++row)
      for (i64 b = 0; b < c.batch; ++b) {
        c.y[b * c.y_step + row] +=
            short_product(c.offsets + row * groups, c.sums + b * groups, groups);
      }
  });
}

// Adds the group sums of x times one float32 offset per row and group to y.
inline void add_offsets(const float* x, const float* offsets, float* y, i64 batch,
                        const Shape& shape, int threads) {
  const std::vector<float> sums = group_sums(x, batch, shape);
  add_sums(
      {x, nullptr, nullptr, y, batch, shape, false, threads, shape.rows, offsets, sums.data()});
}

// --- rows alone -------------------------------------------------------------------------------

// Products with offsets; the bits of a row do not depend on the other rows. False where activations
// have to be rounded beforehand.
template <class Format>
bool run_linear_alone(const Linear& whole) {
  if constexpr (HAS_DOTS && Format::FITS_INT8)
    if (whole.rounds && takes_tiles<Format>(whole)) return tile_products<Format>(whole);
  Linear c = whole;
  std::vector<float> sums;
  if (c.offsets) {
    sums = group_sums(c.rounds ? rounded_rows(c).data() : c.x, c.batch, c.shape);
    c.sums = sums.data();
  }
  bool is_done = true;
  each_way<Format>(c, [&](const Linear& part, [[maybe_unused]] Way way) {
    if constexpr (HAS_DOTS && Format::FITS_INT8)
      if (way != IN_FLOATS) {
        if (takes_tiles<Format>(part) && tile_products<Format>(part)) return;
        if (integer_rows_alone<Format>(part)) return add_sums(part);
      }
    if (part.rounds)
      is_done = false;
    else
      float_rows_alone<Format>(part);
  });
  return is_done;
}

// In the order of FORMATS in cpu.py.
constexpr bool (*LINEAR_ALONE[])(const Linear&) = {
    run_linear_alone<MxInt8>, run_linear_alone<MxInt4>, run_linear_alone<MxFp8>,
    run_linear_alone<MxFp4>,  run_linear_alone<Int8>,   run_linear_alone<Int4>};

}  // namespace
