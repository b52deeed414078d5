#pragma once
// Instructions of a decode step. The fields are filled in by `step_code.py`.
//
// `run` of an instruction computes the share of one thread. Tensors have up to four dimensions, a
// step in elements for each; a step of 0 repeats a number.

#include "products.h"
#include "step_math.h"

namespace {

struct View {
  float* at;
  i64 step[4];
};

struct Instruction {
  i64 kind, function, waits, is_shared;
  i64 size[4];
  View out, a, b;
  const void* more[4];
  i64 whole[6];
  double number[2];
};

// Keys and values of a layer: `size` numbers per token; `row` numbers between the rows of a batch
// and `head` numbers between heads.
struct Layer {
  float *key, *value;
  i64 key_row, value_row, key_head, value_head;
  i64 tokens;  // with the new one
  i64 is_updated_by_caller;
};

// Tokens of a page and pages of a slab, as in `cache_pages.py`.
constexpr i64 PAGE = 32, SLAB = 32;

// A function of the caller that adds the new tokens to a layer and fills in its record; 0 if it
// failed.
using Update = int (*)(i64 layer);

// Keys and values of all layers for a batch of rows. All rows end at the same token, and row b
// starts at token starts[b] of the `length` tokens so far; without `starts` all start at 0. With
// `is_sequence` the rows are successive tokens of one sequence: row b ends b tokens later.
//
// With `pages` row b has stored[b] tokens so far, in the pages that are listed from pages[b *
// pages_step] on. Keys and values of a layer are then lists of slabs; a slab has SLAB pages, which
// are `row` numbers apart, and the heads of a page are `head` numbers apart.
struct Past {
  const Layer* layers;
  Update update;
  const i64* starts;
  i64 length, is_sequence;
  i64 rows, used;                  // rows of the program, and how many of them have a token
  i64 results_from, first_result;  // from this instruction on, only rows from `first_result` count
  const i64* pages;
  const i64* stored;
  i64 pages_step;

  i64 end(const Layer& l, i64 row) const {
    const i64 own = pages ? stored[is_sequence ? 0 : row] + 1 : l.tokens;
    return own + (is_sequence ? row : 0);
  }
  // Keys of a head from one token on, to the end of its page if there are pages; `size` numbers
  // per token.
  float* keys(const Layer& l, i64 row, i64 head, i64 token, i64 size) const {
    if (pages) return in_page(l.key, l.key_row, row, token) + head * l.key_head + token % PAGE * size;
    return l.key + (is_sequence ? 0 : row * l.key_row) + head * l.key_head + token * size;
  }
  float* values(const Layer& l, i64 row, i64 head, i64 token, i64 size) const {
    if (pages)
      return in_page(l.value, l.value_row, row, token) + head * l.value_head + token % PAGE * size;
    return l.value + (is_sequence ? 0 : row * l.value_row) + head * l.value_head + token * size;
  }
  float* in_page(const float* slabs, i64 step, i64 row, i64 token) const {
    const i64 page = pages[(is_sequence ? 0 : row * pages_step) + token / PAGE];
    return reinterpret_cast<float* const*>(slabs)[page / SLAB] + page % SLAB * step;
  }

  // A layer with a window may have dropped tokens.
  i64 start(const Layer& l, i64 row) const {
    const i64 first = starts ? starts[row] - (length - l.tokens) : 0;
    return first > 0 ? first : 0;
  }
};

// Rows `first` to `last` - 1 of the operands of an instruction.
struct Span {
  i64 first, last;
  i64 count() const { return last - first; }
};

struct Share {
  int index, count;
  i64 first(i64 n) const { return n * index / count; }
  i64 last(i64 n) const { return n * (index + 1) / count; }
};

// --- elementwise ------------------------------------------------------------------------------

struct Add { static float of(float a, float b) { return a + b; } };
struct Subtract { static float of(float a, float b) { return a - b; } };
struct Multiply { static float of(float a, float b) { return a * b; } };
struct Divide { static float of(float a, float b) { return a / b; } };
struct Power { static float of(float a, float b) { return std::pow(a, b); } };
struct SiluTimes { static float of(float a, float b) { return a / (1.0f + exp_of(-a)) * b; } };

struct Copy { static float of(float x) { return x; } };
struct Negate { static float of(float x) { return -x; } };
struct Rsqrt { static float of(float x) { return 1.0f / std::sqrt(x); } };
struct Sqrt { static float of(float x) { return std::sqrt(x); } };
struct Cos { static float of(float x) { return std::cos(x); } };
struct Sin { static float of(float x) { return std::sin(x); } };
struct Tanh { static float of(float x) { return tanh_of(x); } };
struct Exp { static float of(float x) { return exp_of(x); } };
struct Sigmoid { static float of(float x) { return sigmoid_of(x); } };
struct Silu { static float of(float x) { return x / (1.0f + exp_of(-x)); } };
struct Gelu { static float of(float x) { return gelu_of(x); } };
struct GeluTanh { static float of(float x) { return gelu_tanh_of(x); } };
struct Relu { static float of(float x) { return x < 0.0f ? 0.0f : x; } };

template <class F>
void unary_row(const Instruction&, float* out, const float* a, const float*, i64 so, i64 sa, i64,
               i64 n) {
  if (so == 1 && sa == 1)
    for (i64 i = 0; i < n; ++i) out[i] = F::of(a[i]);
  else
    for (i64 i = 0; i < n; ++i) out[i * so] = F::of(a[i * sa]);
}

template <class F>
void binary_row(const Instruction&, float* out, const float* a, const float* b, i64 so, i64 sa,
                i64 sb, i64 n) {
  if (so == 1 && sa == 1 && sb == 1)
    for (i64 i = 0; i < n; ++i) out[i] = F::of(a[i], b[i]);
  else if (so == 1 && sa == 1 && sb == 0)
    for (i64 i = 0; i < n; ++i) out[i] = F::of(a[i], *b);
  else
    for (i64 i = 0; i < n; ++i) out[i * so] = F::of(a[i * sa], b[i * sb]);
}

using Row = void (*)(const Instruction&, float*, const float*, const float*, i64, i64, i64, i64);

// In the order of FUNCTIONS in `step_code.py`.
constexpr Row ROWS_OF[] = {
    binary_row<Add>,     binary_row<Subtract>, binary_row<Multiply>, binary_row<Divide>,
    binary_row<Power>,   binary_row<SiluTimes>, unary_row<Copy>,     unary_row<Negate>,
    unary_row<Rsqrt>,    unary_row<Sqrt>,      unary_row<Cos>,       unary_row<Sin>,
    unary_row<Tanh>,     unary_row<Exp>,       unary_row<Sigmoid>,   unary_row<Silu>,
    unary_row<Gelu>,     unary_row<GeluTanh>,  unary_row<Relu>};

inline const float* at(const View& v, i64 i, i64 j, i64 k) {
  return v.at + i * v.step[0] + j * v.step[1] + k * v.step[2];
}

// The first dimension that is longer than one is split between the threads.
inline void elementwise(const Instruction& c, const Share& share) {
  i64 first[4] = {}, last[4];
  int split = 0;
  while (split < 3 && c.size[split] == 1) ++split;
  for (int d = 0; d < 4; ++d) last[d] = c.size[d];
  first[split] = share.first(c.size[split]);
  last[split] = share.last(c.size[split]);
  const Row row = ROWS_OF[c.function];
  for (i64 i = first[0]; i < last[0]; ++i)
    for (i64 j = first[1]; j < last[1]; ++j)
      for (i64 k = first[2]; k < last[2]; ++k) {
        const i64 so = c.out.step[3], sa = c.a.step[3], sb = c.b.step[3];
        row(c, const_cast<float*>(at(c.out, i, j, k)) + first[3] * so,
            at(c.a, i, j, k) + first[3] * sa, at(c.b, i, j, k) + first[3] * sb, so, sa, sb,
            last[3] - first[3]);
      }
}

// --- rows ---------------------------------------------------------------------------------------

constexpr int PARTIAL_SUMS = 16;  // side by side, so that no addition waits for the one before

template <class Term>
float sum_of(i64 n, Term term) {
  float sums[PARTIAL_SUMS] = {};
  i64 i = 0;
  for (; i + PARTIAL_SUMS <= n; i += PARTIAL_SUMS)
    for (int j = 0; j < PARTIAL_SUMS; ++j) sums[j] += term(i + j);
  float total = 0.0f;
  for (; i < n; ++i) total += term(i);
  for (float part : sums) total += part;
  return total;
}

// Sum of each row, divided by number[0].
inline void row_sums(const Instruction& c, const Share& share) {
  for (i64 r = share.first(c.size[0]); r < share.last(c.size[0]); ++r) {
    const float* x = c.a.at + r * c.a.step[0];
    c.out.at[r] = sum_of(c.size[1], [x](i64 i) { return x[i]; }) / static_cast<float>(c.number[0]);
  }
}

inline void layer_norm(const Instruction& c, const Share& share) {
  const i64 n = c.size[1];
  const float* weight = static_cast<const float*>(c.more[0]);
  const float* bias = static_cast<const float*>(c.more[1]);
  for (i64 r = share.first(c.size[0]); r < share.last(c.size[0]); ++r) {
    const float* x = c.a.at + r * c.a.step[0];
    float* y = c.out.at + r * n;
    const float mean = sum_of(n, [x](i64 i) { return x[i]; }) / static_cast<float>(n);
    const float variance =
        sum_of(n, [x, mean](i64 i) { return (x[i] - mean) * (x[i] - mean); }) /
        static_cast<float>(n);
    const float factor = 1.0f / std::sqrt(variance + static_cast<float>(c.number[0]));
    for (i64 i = 0; i < n; ++i) {
      const float normal = (x[i] - mean) * factor;
      y[i] = (weight ? normal * weight[i] : normal) + (bias ? bias[i] : 0.0f);
    }
  }
}

// Replaces n numbers by their softmax.
inline void softmax_in_place(float* x, i64 n) {
  float most = -__builtin_inff();
  for (i64 i = 0; i < n; ++i) most = x[i] > most || x[i] != x[i] ? x[i] : most;
  for (i64 i = 0; i < n; ++i) x[i] = exp_of(x[i] - most);
  const float total = sum_of(n, [x](i64 i) { return x[i]; });
  for (i64 i = 0; i < n; ++i) x[i] /= total;
}

// --- tables and products ------------------------------------------------------------------------

// Products, tables and attention have size[2] rows: number[1] for each row of the program, or 0
// where all have to be computed.
inline Span rows_of(const Instruction& c, const Past& past, bool is_result) {
  const i64 each = static_cast<i64>(c.number[1]);
  if (!each) return {0, c.size[2]};
  return {is_result ? past.first_result * each : 0, past.used * each};
}

// Rows a[b] of a float table of size (rows, columns); false where there is no such row.
inline bool embed(const Instruction& c, Span some) {
  const i64 columns = c.size[1];
  for (i64 b = some.first; b < some.last; ++b) {
    const i64 row = static_cast<i64>(c.a.at[b]);
    if (row < 0 || row >= c.size[0]) return false;
    std::memcpy(c.out.at + b * columns, static_cast<const float*>(c.more[0]) + row * columns,
                static_cast<size_t>(columns) * sizeof(float));
  }
  return true;
}

// whole: format, rows, columns, group.
inline Shape shape_of(const Instruction& c) { return {c.whole[1], c.whole[2], c.whole[3]}; }

template <class T>
const T* row_of(const void* from, i64 row, i64 per_row) {
  return static_cast<const T*>(from) + row * per_row;
}

inline i64 scale_bytes(const Instruction& c) {
  return shape_of(c).groups() * (c.whole[4] ? static_cast<i64>(sizeof(float)) : 1);
}

// Rows a[b] of a packed table; more: codes, scales, offsets. False where there is no such row.
inline bool embed_packed(const Instruction& c, Span some) {
  Shape shape = shape_of(c);
  const i64 rows = shape.rows, bytes = shape.bytes(static_cast<int>(c.whole[5]));
  shape.rows = 1;
  for (i64 b = some.first; b < some.last; ++b) {
    const i64 row = static_cast<i64>(c.a.at[b]);
    float* out = c.out.at + b * shape.columns;
    if (row < 0 || row >= rows) return false;
    UNPACK[c.whole[0]]({row_of<u8>(c.more[0], row, bytes),
                        row_of<u8>(c.more[1], row, scale_bytes(c)), out, shape, 0, 1});
    if (!c.more[2]) continue;
    const float* offsets = row_of<float>(c.more[2], row, shape.groups());
    for (i64 i = 0; i < shape.columns; ++i) out[i] += offsets[i / shape.group];
  }
  return true;
}

// Adds a bias to the columns `first` to `last` - 1 of rows that are `step` long.
inline void add_bias(float* y, i64 batch, i64 step, const void* bias, i64 first, i64 last) {
  if (!bias) return;
  const float* values = static_cast<const float*>(bias);
  for (i64 b = 0; b < batch; ++b)
    for (i64 i = first; i < last; ++i) y[b * step + i] += values[i];
}

// more: codes, scales, offsets, bias; `function` is 1 where x is rounded to MXINT8.
inline bool packed_product(const Instruction& c, Span some, const Share& share) {
  Shape shape = shape_of(c);
  const i64 step = shape.rows, batch = some.count();
  const float* x = c.a.at + some.first * shape.columns;
  float* y = c.out.at + some.first * step;
  const i64 first = share.first(step), last = share.last(step);
  shape.rows = last - first;
  if (!shape.rows) return true;
  const i64 bytes = shape.bytes(static_cast<int>(c.whole[5]));
  const float* offsets = c.more[2] ? row_of<float>(c.more[2], first, shape.groups()) : nullptr;
  const Linear part{x, row_of<u8>(c.more[0], first, bytes),
                    row_of<u8>(c.more[1], first, scale_bytes(c)), y + first, batch, shape,
                    c.function != 0, 1, step, offsets};
  if (!LINEAR_ALONE[c.whole[0]](part)) return false;
  add_bias(y, batch, step, c.more[3], first, last);
  return true;
}

// A float weight (rows, columns); more: weight, bias.
inline void float_product(const Instruction& c, Span some, const Share& share) {
  const i64 rows = c.size[0], columns = c.size[1];
  const i64 first = share.first(rows), last = share.last(rows);
  for (i64 r = first; r < last; ++r) {
    const float* w = row_of<float>(c.more[0], r, columns);
    i64 b = some.first;
    for (; b + 4 <= some.last; b += 4)
      float_products<4, SUMS>(w, c.a.at + b * columns, columns, c.out.at + b * rows + r, rows);
    for (; b < some.last; ++b)
      float_products<1, SUMS>(w, c.a.at + b * columns, columns, c.out.at + b * rows + r, rows);
  }
  add_bias(c.out.at + some.first * rows, some.count(), rows, c.more[1], first, last);
}

// A float weight (columns, rows), as in `addmm`.
inline void transposed_product(const Instruction& c, Span some, const Share& share) {
  const i64 rows = c.size[0], columns = c.size[1];
  const i64 first = share.first(rows), last = share.last(rows);
  for (i64 b = some.first; b < some.last; ++b)
    for (i64 r = first; r < last; ++r) c.out.at[b * rows + r] = 0.0f;
  for (i64 k = 0; k < columns; ++k) {
    const float* __restrict w = row_of<float>(c.more[0], k, rows);
    for (i64 b = some.first; b < some.last; ++b) {
      float* __restrict y = c.out.at + b * rows;
      const float x = c.a.at[b * columns + k];
      for (i64 r = first; r < last; ++r) y[r] += x * w[r];
    }
  }
  add_bias(c.out.at + some.first * rows, some.count(), rows, c.more[1], first, last);
}

// --- attention ----------------------------------------------------------------------------------

// Writes the key and the value of the new token of each row; whole: layer, heads, size, value size.
inline bool append(const Instruction& c, const Past& past, Span some) {
  const Layer& l = past.layers[c.whole[0]];
  if (l.is_updated_by_caller) return past.update(c.whole[0]) != 0;
  for (i64 b = some.first; b < some.last; ++b)
    for (i64 h = 0; h < c.whole[1]; ++h) {
      const i64 token = past.end(l, b) - 1;
      float* key = past.keys(l, b, h, token, c.whole[2]);
      float* value = past.values(l, b, h, token, c.whole[3]);
      const float* new_key = c.a.at + b * c.a.step[2] + h * c.a.step[0];
      const float* new_value = c.b.at + b * c.b.step[2] + h * c.b.step[0];
      for (i64 i = 0; i < c.whole[2]; ++i) key[i] = new_key[i * c.a.step[1]];
      for (i64 i = 0; i < c.whole[3]; ++i) value[i] = new_value[i * c.b.step[1]];
    }
  return true;
}

// An operation on all scores: a function of ROWS_OF and a number.
struct ScoreStep {
  i64 function;
  double number;
};

inline void change_scores(const Instruction& c, float* scores, i64 n) {
  const ScoreStep* steps = static_cast<const ScoreStep*>(c.more[0]);
  for (i64 s = 0; s < c.whole[5]; ++s) {
    const float number = static_cast<float>(steps[s].number);
    ROWS_OF[steps[s].function](c, scores, scores, &number, 1, 1, 0, n);
  }
}

inline void dot_keys(const float* query, const float* keys, i64 size, i64 n, float* scores) {
  i64 t = 0;
  for (; t + 4 <= n; t += 4) float_products<4>(query, keys + t * size, size, scores + t, 1);
  for (; t < n; ++t) float_products<1>(query, keys + t * size, size, scores + t, 1);
}

inline void add_values(const float* weights, const float* values, i64 size, i64 n,
                       float* __restrict out) {
  i64 t = 0;
  for (; t + 4 <= n; t += 4) {
    const float* v = values + t * size;
    for (i64 i = 0; i < size; ++i)
      out[i] += (weights[t] * v[i] + weights[t + 1] * v[size + i]) +
                (weights[t + 2] * v[2 * size + i] + weights[t + 3] * v[3 * size + i]);
  }
  for (; t < n; ++t)
    for (i64 i = 0; i < size; ++i) out[i] += weights[t] * values[t * size + i];
}

// Keys or values of tokens `first` to `last` - 1 of a row, side by side.
template <class At>
const float* gathered(std::vector<float>& memory, i64 first, i64 last, i64 size, At at) {
  memory.resize(static_cast<size_t>((last - first) * size));
  for (i64 t = first, next; t < last; t = next) {
    next = min(last, (t / PAGE + 1) * PAGE);
    std::memcpy(memory.data() + (t - first) * size, at(t),
                static_cast<size_t>((next - t) * size) * sizeof(float));
  }
  return memory.data();
}

// Memory of a thread for attention.
struct Scratch {
  std::vector<float> scores, keys, values;
};

// size[0] heads of each row. whole: layer, query heads per key head, size, value size, window (0:
// none), steps on scores.
inline void attend(const Instruction& c, const Past& past, Span some, const Share& share) {
  static thread_local Scratch own;
  const Layer& l = past.layers[c.whole[0]];
  const i64 heads = c.size[0], size = c.whole[2], value_size = c.whole[3], window = c.whole[4];
  const i64 items = some.count() * heads;
  for (i64 i = share.first(items); i < share.last(items); ++i) {
    const i64 b = some.first + i / heads, h = i % heads, head = h / c.whole[1];
    const i64 end = past.end(l, b);
    i64 start = past.pages ? 0 : past.start(l, b);
    if (window && end - start > window) start = end - window;
    const i64 n = end - start;
    if (static_cast<i64>(own.scores.size()) < n) own.scores.resize(static_cast<size_t>(2 * n));
    float* scores = own.scores.data();
    const auto keys = [&](i64 t) { return past.keys(l, b, head, t, size); };
    const auto values = [&](i64 t) { return past.values(l, b, head, t, value_size); };
    // sums take four tokens at a time, which lie side by side if the first is that of a page
    const bool is_gathered = past.pages && start % PAGE;
    const i64 most = past.pages && !is_gathered ? PAGE : n;
    const float *all_keys = nullptr, *all_values = nullptr;
    if (is_gathered) {
      all_keys = gathered(own.keys, start, end, size, keys);
      all_values = gathered(own.values, start, end, value_size, values);
    }
    const float* query = c.a.at + b * c.a.step[2] + h * c.a.step[0];
    for (i64 t = start; t < end; t += most)
      dot_keys(query, all_keys ? all_keys : keys(t), size, min(most, end - t), scores + t - start);
    change_scores(c, scores, n);
    softmax_in_place(scores, n);
    float* out = c.out.at + b * c.out.step[2] + h * c.out.step[0];
    for (i64 j = 0; j < value_size; ++j) out[j] = 0.0f;
    for (i64 t = start; t < end; t += most)
      add_values(scores + t - start, all_values ? all_values : values(t), value_size,
                 min(most, end - t), out);
  }
}

}  // namespace
