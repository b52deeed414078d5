#pragma once
// Products of several rows of activations, each with the bits of its product alone.
//
// A product alone is in integers or in float32 by the numbers of its row. Rows that go the same way
// share what is loaded and decoded of the weight.

#include "dots_neon.h"
#include "dots_x86.h"
#include "float_rows.h"

namespace {

enum Way { IN_FLOATS, IN_FEW_DIGITS, IN_MANY_DIGITS };

// The way of the one row of c.
template <class Format>
Way way_of(const Linear& c) {
  if constexpr (HAS_DOTS && Format::FITS_INT8) {
    const auto x = digits_of<Format>(c);
    if (x.fits) return x.is_few() ? IN_FEW_DIGITS : IN_MANY_DIGITS;
  }
  return IN_FLOATS;
}

// body(part, way) for neighbouring rows that go the same way.
template <class Format, class Body>
void each_way(const Linear& c, Body body) {
  for (i64 first = 0, last; first < c.batch; first = last) {
    const Way way = way_of<Format>(c.rows(first, 1));
    for (last = first + 1; last < c.batch && way_of<Format>(c.rows(last, 1)) == way;) ++last;
    body(c.rows(first, last - first), way);
  }
}

// Rows of activations that share a decoded vector of the weight: as many as registers hold.
#if defined(__AVX512F__)
constexpr int TOGETHER = 8;
#else
constexpr int TOGETHER = 4;
#endif
constexpr i64 NEAREST_CACHE = 24 * 1024;  // bytes that such rows may take
constexpr i64 TILE = 32;     // rows of the weight for which such rows stay in the nearest cache
constexpr i64 LINE = 16;     // floats of a cache line

// Rows of activations arranged for `Quick`, each at a cache line, and those that take decoding.
template <class Format>
struct Arranged {
  std::vector<float> memory;
  std::vector<i64> quick, others;
  std::vector<float> sums;
  float* x = nullptr;
  i64 step = 0;

  explicit Arranged(const Linear& c) {
    const bool is_quick = has_subnormals();
    for (i64 b = 0; b < c.batch; ++b) {
      const std::vector<float> row = prepared<Format>(c.rows(b, 1));
      if (row.empty() || !is_quick)
        others.push_back(b);
      else
        add(row, b, c);
    }
  }

  i64 count() const { return static_cast<i64>(quick.size()); }

 private:
  void add(const std::vector<float>& row, i64 b, const Linear& c) {
    const i64 groups = c.shape.groups();
    if (!x) {
      step = (static_cast<i64>(row.size()) + LINE - 1) / LINE * LINE;
      memory.resize(static_cast<size_t>(c.batch * step + LINE));
      x = memory.data();
      while (reinterpret_cast<std::uintptr_t>(x) % (LINE * sizeof(float))) ++x;
    }
    std::memcpy(x + count() * step, row.data(), row.size() * sizeof(float));
    if (c.sums) sums.insert(sums.end(), c.sums + b * groups, c.sums + (b + 1) * groups);
    quick.push_back(b);
  }
};

// Rows `first` to `last` - 1 of the weight.
template <class Format>
struct WeightRows {
  const Linear& c;
  const Table<Format>& table;
  i64 first, last;
  Packed from(i64 row) const {
    const i64 code_bytes = c.shape.bytes(Format::BITS);
    const i64 scale_bytes = c.shape.groups() * (Format::REAL_SCALES ? 4 : 1);
    const i64 groups = c.shape.groups();
    return {c.codes + row * code_bytes, static_cast<const u8*>(c.scales) + row * scale_bytes,
            code_bytes, scale_bytes, c.offsets ? c.offsets + row * groups : nullptr, groups};
  }
};

template <class Format>
void decoded_product(const WeightRows<Format>& w, i64 row, const std::vector<i64>& rows, i64 first,
                     i64 last, std::vector<float>& buffer) {
  const Linear& c = w.c;
  const i64 n = c.shape.columns;
  if (first == last) return;
  buffer.resize(static_cast<size_t>(n));
  const Packed packed = w.from(row);
  decode_to_multiply<Format>(packed.codes, packed.scales, buffer.data(), c.shape, w.table);
  for (i64 i = first; i < last; ++i) {
    const i64 b = rows[static_cast<size_t>(i)];
    float* y = c.y + b * c.y_step + row;
    float_products<1>(buffer.data(), c.x + b * n, n, y, 1);
    if (c.offsets)
      *y += short_product(packed.offsets, c.sums + b * packed.groups, packed.groups);
  }
}

// The products of R rows of the weight, from `row` on, with quick rows i to i + N - 1.
template <class Format, int R, int N>
INLINED void quick_tile(const WeightRows<Format>& w, i64 row, const Arranged<Format>& rows, i64 i,
                        std::vector<float>& buffer) {
  const Linear& c = w.c;
  float y[R][N];
  const Packed packed = w.from(row);
  if (!Quick<Format>::template multiply<R, N>(packed, rows.x + i * rows.step, rows.step,
                                              rows.sums.data() + i * packed.groups, y, c.shape,
                                              w.table)) {
    for (int r = 0; r < R; ++r) decoded_product(w, row + r, rows.quick, i, i + N, buffer);
    return;
  }
  for (int b = 0; b < N; ++b)
    for (int r = 0; r < R; ++r)
      c.y[rows.quick[static_cast<size_t>(i + b)] * c.y_step + row + r] = y[r][b];
}

template <class Format, int N>
void quick_products(const WeightRows<Format>& w, const Arranged<Format>& rows, i64 i,
                    std::vector<float>& buffer) {
  constexpr int R = N == 2 || N == 4 ? Quick<Format>::ROWS : 1;
  i64 row = w.first;
  for (; row + R <= w.last; row += R) quick_tile<Format, R, N>(w, row, rows, i, buffer);
  for (; row < w.last; ++row) quick_tile<Format, 1, N>(w, row, rows, i, buffer);
}

template <class Format>
void float_rows_alone(const Linear& c) {
  static const Table<Format> table;
  const Arranged<Format> rows(c);
  std::vector<float> buffer;
  for (i64 first = 0; first < c.shape.rows; first += TILE) {
    const WeightRows<Format> w{c, table, first, min(first + TILE, c.shape.rows)};
    if constexpr (Quick<Format>::EXISTS) {
      i64 i = 0;
      if (TOGETHER * rows.step * static_cast<i64>(sizeof(float)) <= NEAREST_CACHE)
        for (; i + TOGETHER <= rows.count(); i += TOGETHER)
          quick_products<Format, TOGETHER>(w, rows, i, buffer);
      for (; i + 4 <= rows.count(); i += 4) quick_products<Format, 4>(w, rows, i, buffer);
      for (; i + 2 <= rows.count(); i += 2) quick_products<Format, 2>(w, rows, i, buffer);
      for (; i < rows.count(); ++i) quick_products<Format, 1>(w, rows, i, buffer);
    }
    const i64 others = static_cast<i64>(rows.others.size());
    for (i64 row = w.first; row < w.last; ++row)
      decoded_product(w, row, rows.others, 0, others, buffer);
  }
}

}  // namespace
