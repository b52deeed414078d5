// Attention on the CPU: softmax(Q K^T * scale + mask) V for each head, in float32.
//
// A panel of queries, one per lane, is worked on from start to end: its scores, with the queries
// side by side for each key, stay in the cache. So the softmax needs no sums across lanes, and what
// it leaves is laid out as the second product reads it. Keys and values are copied once per head
// into the order in which they are read.

#include <type_traits>

#include "common.h"

namespace {

// A tile of a product, ROWS by WIDTH, has to fit the registers: 32 of them, or 16.
#if defined(__ARM_NEON) || defined(__AVX512F__)
constexpr int ROWS = 8;
#else
constexpr int ROWS = 4;
#endif
constexpr int WIDTH = 2 * LANES;

constexpr float INFINITE = __builtin_inff();

// The larger number, and NaN where one of the two is.
#if defined(__ARM_NEON)
inline Floats max(Floats a, Floats b) { return vmaxq_f32(a, b); }
#else
inline Floats max(Floats a, Floats b) { return (a > b) | (a != a) ? a : b; }
#endif

inline i64 round_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }

// e**x for x <= 0, to about one unit in the last place: 2**whole + 2**whole * (2**part - 1). Of what
// is below the normal numbers, and of -inf, exactly 0; NaN of NaN.
inline Floats exp_of(Floats x) {
  constexpr float LOG2_E = 1.44269504f, LEAST = -88.03f;  // 2**-127, whose bits are those of 0
  constexpr float ROUNDS = 12582912.0f + 127.0f;  // adding it leaves whole + 127 in the low bits
  constexpr float C1 = 0.693147004f, C2 = 0.240222424f, C3 = 0.0555073358f, C4 = 0.00967151299f,
                  C5 = 0.00132647273f;
  x = max(x, spread(LEAST));
  const Floats shifted = x * LOG2_E + ROUNDS;
  const Floats part = x * LOG2_E + (ROUNDS - shifted), square = part * part;
  const Floats power = reinterpret_cast<Floats>(reinterpret_cast<Ints>(shifted) << 23);
  const Floats high = (part * C4 + C3) + square * C5, low = (part * C2 + C1) + square * high;
  return power + power * part * low;
}

// --- what is asked ----------------------------------------------------------------------------

struct Strides {  // in elements; within a head, size is the unit
  i64 batch, head, token;
};

// Filled in by the caller as a row of 64-bit integers.
struct Problem {
  i64 batches, heads, key_heads, queries, keys, size, value_size;
  Strides query, key, value, out;
  Strides mask;  // of its queries
  i64 mask_key;  // of its keys
  i64 mask_kind, is_causal, threads;

  i64 padded_keys() const { return round_up(keys, ROWS); }
  i64 padded_values() const { return round_up(value_size, WIDTH); }
  i64 panels() const { return (queries + WIDTH - 1) / WIDTH; }
  i64 last_key(i64 query) const {  // of a panel that begins at `query`
    return is_causal ? min(keys, query + WIDTH) : keys;
  }
};

enum MaskKind : i64 { NO_MASK, ADDED, ALLOWED };

struct Call {
  Problem problem;
  const float *query, *key, *value;
  const void* mask;
  float* out;
  float scale;
};

// --- copies in reading order ------------------------------------------------------------------

constexpr i64 SQUARE = 4;

#if defined(__ARM_NEON)
inline void transpose_square(const float* from, i64 stride, float* to, i64 to_stride) {
  float32x4_t a[4], b[4];
  for (int i = 0; i < 4; ++i) a[i] = vld1q_f32(from + i * stride);
  for (int i = 0; i < 4; i += 2) {
    b[i] = vtrn1q_f32(a[i], a[i + 1]);
    b[i + 1] = vtrn2q_f32(a[i], a[i + 1]);
  }
  const auto wide = [](float32x4_t x) { return vreinterpretq_f64_f32(x); };
  const auto narrow = [](float64x2_t x) { return vreinterpretq_f32_f64(x); };
  for (int i = 0; i < 2; ++i) {
    vst1q_f32(to + i * to_stride, narrow(vtrn1q_f64(wide(b[i]), wide(b[i + 2]))));
    vst1q_f32(to + (i + 2) * to_stride, narrow(vtrn2q_f64(wide(b[i]), wide(b[i + 2]))));
  }
}
#else
inline void transpose_square(const float* from, i64 stride, float* to, i64 to_stride) {
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) to[j * to_stride + i] = from[i * stride + j];
}
#endif

// to[column][row] = from[row][column].
inline void transpose(const float* from, i64 stride, i64 rows, i64 columns, float* to,
                      i64 to_stride) {
  const i64 whole_rows = rows / SQUARE * SQUARE, whole_columns = columns / SQUARE * SQUARE;
  for (i64 j = 0; j < columns; j += SQUARE)
    for (i64 i = 0; i < rows; i += SQUARE) {
      const float* at = from + i * stride + j;
      float* there = to + j * to_stride + i;
      if (i < whole_rows && j < whole_columns) {
        transpose_square(at, stride, there, to_stride);
        continue;
      }
      for (i64 b = 0; b < min(SQUARE, columns - j); ++b)
        for (i64 a = 0; a < min(SQUARE, rows - i); ++a)
          there[b * to_stride + a] = at[a * stride + b];
    }
}

struct alignas(64) Line {
  float x[16];
};

// Memory of one thread; what is not written stays 0.
class Buffer {
 public:
  explicit Buffer(i64 n) : lines_(static_cast<size_t>((n + 15) / 16)) {}
  float* data() { return lines_.data()->x; }

 private:
  std::vector<Line> lines_;
};

struct Work {
  Buffer keys, values, queries, scores;
  explicit Work(const Problem& p)
      : keys(p.padded_keys() * p.size),
        values(p.padded_keys() * p.padded_values()),
        queries(p.size * WIDTH),
        scores(p.padded_keys() * WIDTH) {}
};

// Keys as [key / ROWS][size][ROWS], values as [size / WIDTH][key][WIDTH].
void copy_head(const Call& c, i64 batch, i64 head, Work& work) {
  const Problem& p = c.problem;
  const float* key = c.key + batch * p.key.batch + head * p.key.head;
  for (i64 k = 0; k < p.keys; k += ROWS)
    transpose(key + k * p.key.token, p.key.token, min(ROWS, p.keys - k), p.size,
              work.keys.data() + k * p.size, ROWS);
  const float* value = c.value + batch * p.value.batch + head * p.value.head;
  for (i64 k = 0; k < p.keys; ++k)
    for (i64 d = 0; d < p.value_size; d += WIDTH)
      std::memcpy(work.values.data() + d * p.padded_keys() + k * WIDTH,
                  value + k * p.value.token + d,
                  static_cast<size_t>(min(WIDTH, p.value_size - d)) * sizeof(float));
}

// --- products ---------------------------------------------------------------------------------

struct Tile {
  Floats at[ROWS][2];
};

// The sum over n steps of a[step][row] * b[step][column].
template <int A_STRIDE>
inline __attribute__((always_inline)) Tile product(const float* __restrict a,
                                                   const float* __restrict b, i64 n) {
  Tile sum = {};
  for (i64 i = 0; i < n; ++i, a += A_STRIDE, b += WIDTH) {
    const Floats left = load(b), right = load(b + LANES);
#if defined(__ARM_NEON)
    const Floats rows[2] = {load(a), load(a + LANES)};
#endif
    for (int r = 0; r < ROWS; ++r) {
#if defined(__ARM_NEON)
      const float x = rows[r / LANES][r % LANES];
#else
      const float x = a[r];
#endif
      sum.at[r][0] += left * x;
      sum.at[r][1] += right * x;
    }
  }
  return sum;
}

// --- masks ------------------------------------------------------------------------------------

// What a mask adds to the score of a key.
struct Added {
  const float* at;
  float operator[](i64 i) const { return at[i]; }
};
struct Allowed {
  const u8* at;
  float operator[](i64 i) const { return at[i] ? 0.0f : -INFINITE; }
};

// Any mask.
template <class Mask>
void spread_mask(const Problem& p, Mask mask, i64 queries, i64 keys, float* to) {
  for (i64 k = 0; k < keys; ++k, to += WIDTH)
    for (i64 q = 0; q < queries; ++q) to[q] = mask[q * p.mask.token + k * p.mask_key];
}

// A mask that is the same for all queries.
template <class Mask>
void repeat_mask(const Problem& p, Mask mask, i64 keys, float* to) {
  for (i64 k = 0; k < keys; ++k, to += WIDTH)
    for (int h = 0; h < 2; ++h) store(to + h * LANES, spread(mask[k * p.mask_key]));
}

template <class Mask>
void read_mask(const Problem& p, Mask mask, i64 queries, i64 keys, float* to) {
  if (p.mask.token == 0) return repeat_mask(p, mask, keys, to);
  if constexpr (std::is_same_v<Mask, Added>)
    if (p.mask_key == 1) return transpose(mask.at, p.mask.token, queries, keys, to, WIDTH);
  spread_mask(p, mask, queries, keys, to);
}

// What is added to the scores of a panel, to[key][query].
void read_mask(const Call& c, i64 batch, i64 head, i64 query, i64 keys, float* to) {
  const Problem& p = c.problem;
  const i64 at = batch * p.mask.batch + head * p.mask.head + query * p.mask.token;
  const i64 queries = min(WIDTH, p.queries - query);
  if (p.mask_kind == ADDED)
    read_mask(p, Added{static_cast<const float*>(c.mask) + at}, queries, keys, to);
  if (p.mask_kind == ALLOWED)
    read_mask(p, Allowed{static_cast<const u8*>(c.mask) + at}, queries, keys, to);
}

// -inf for keys that are none, and for those after the query.
__attribute__((noinline)) void forbid(const Problem& p, i64 query, i64 key, float* scores) {
  for (i64 k = 0; k < ROWS; ++k)
    for (i64 q = 0; q < WIDTH; ++q)
      if (key + k >= p.keys || (p.is_causal && key + k > query + q))
        scores[k * WIDTH + q] = -INFINITE;
}

// --- one panel of queries ---------------------------------------------------------------------

// Scores of all keys up to `last`, which replace what is added to them, and in `most` the highest
// of each query.
void score(const Call& c, i64 query, i64 last, Work& work, Floats* most) {
  static constexpr float NOTHING[ROWS * WIDTH] = {};
  const Problem& p = c.problem;
  const bool is_masked = p.mask_kind != NO_MASK;
  const i64 size = p.size, all_allowed = min(p.keys, p.is_causal ? query : p.keys) - ROWS;
  const float *keys = work.keys.data(), *queries = work.queries.data(), scale = c.scale;
  Floats highest[2] = {spread(-INFINITE), spread(-INFINITE)};
  float* scores = work.scores.data();
  for (i64 key = 0; key < last; key += ROWS, keys += ROWS * size, scores += ROWS * WIDTH) {
    Tile tile = product<ROWS>(keys, queries, size);
    const float* added = is_masked ? scores : NOTHING;
    for (int r = 0; r < ROWS; ++r)
      for (int h = 0; h < 2; ++h) {
        const i64 at = r * WIDTH + h * LANES;
        tile.at[r][h] = tile.at[r][h] * scale + load(added + at);
        store(scores + at, tile.at[r][h]);
      }
    if (key > all_allowed) {
      forbid(p, query, key, scores);
      for (int r = 0; r < ROWS; ++r)
        for (int h = 0; h < 2; ++h) tile.at[r][h] = load(scores + r * WIDTH + h * LANES);
    }
    for (int r = 0; r < ROWS; ++r)
      for (int h = 0; h < 2; ++h) highest[h] = max(highest[h], tile.at[r][h]);
  }
  for (int h = 0; h < 2; ++h) most[h] = highest[h];
}

constexpr int AT_ONCE = 8;  // vectors, so that no instruction waits for the one before
static_assert(ROWS % (AT_ONCE / 2) == 0, "keys are padded to whole rows of a tile");

// Scores to weights before they are divided by their sums, of which the inverses are given; 0 for
// a query that may see nothing.
void soften(i64 keys, const Floats* most, float* scores, float* inverse) {
  Floats sum[2] = {}, highest[2];
  for (int h = 0; h < 2; ++h) highest[h] = most[h] == -INFINITE ? spread(0.0f) : most[h];
  for (i64 k = 0; k < keys; k += AT_ONCE / 2, scores += AT_ONCE * LANES) {
    Floats x[AT_ONCE];
    for (int j = 0; j < AT_ONCE; ++j) x[j] = exp_of(load(scores + j * LANES) - highest[j % 2]);
    for (int j = 0; j < AT_ONCE; ++j) {
      sum[j % 2] += x[j];
      store(scores + j * LANES, x[j]);
    }
  }
  for (int h = 0; h < 2; ++h)
    store(inverse + h * LANES, sum[h] == 0.0f ? spread(0.0f) : 1.0f / sum[h]);
}

void write(const Tile& tile, const float* inverse, i64 rows, i64 columns, float* to, i64 stride) {
  if (rows == ROWS && columns == WIDTH) {
    for (int r = 0; r < ROWS; ++r)
      for (int h = 0; h < 2; ++h)
        store(to + r * stride + h * LANES, tile.at[r][h] * inverse[r]);
    return;
  }
  for (i64 r = 0; r < rows; ++r)
    for (i64 j = 0; j < columns; ++j)
      to[r * stride + j] = tile.at[r][j / LANES][j % LANES] * inverse[r];
}

// Values, weighed with the scores and divided by the sums.
void weigh(const Problem& p, i64 queries, i64 keys, Work& work, const float* inverse, float* out) {
  for (i64 d = 0; d < p.value_size; d += WIDTH)
    for (i64 r = 0; r < queries; r += ROWS) {
      const float* values = work.values.data() + d * p.padded_keys();
      const Tile tile = product<WIDTH>(work.scores.data() + r, values, keys);
      write(tile, inverse + r, min(ROWS, queries - r), min(WIDTH, p.value_size - d),
            out + r * p.out.token + d, p.out.token);
    }
}

void attend(const Call& c, i64 batch, i64 head, i64 query, Work& work) {
  const Problem& p = c.problem;
  const i64 queries = min(WIDTH, p.queries - query), last = p.last_key(query);
  const float* from = c.query + batch * p.query.batch + head * p.query.head;
  transpose(from + query * p.query.token, p.query.token, queries, p.size, work.queries.data(),
            WIDTH);
  if (p.mask_kind != NO_MASK) read_mask(c, batch, head, query, last, work.scores.data());
  Floats most[2];
  alignas(64) float inverse[WIDTH];
  score(c, query, last, work, most);
  const i64 padded = round_up(last, ROWS);
  soften(padded, most, work.scores.data(), inverse);
  float* out = c.out + batch * p.out.batch + head * p.out.head + query * p.out.token;
  weigh(p, queries, padded, work, inverse, out);
}

void run(const Call& c) {
  const Problem& p = c.problem;
  const i64 panels = p.panels(), share = p.heads / p.key_heads;
  shared(p.batches * p.heads * panels, static_cast<int>(p.threads), [&](i64 first, i64 last) {
    Work work(p);
    i64 copied = -1;
    for (i64 i = first; i < last; ++i) {
      const i64 batch = i / panels / p.heads, head = i / panels % p.heads;
      const i64 key_head = head / share, wanted = batch * p.key_heads + key_head;
      if (wanted != copied) copy_head(c, batch, key_head, work);
      copied = wanted;
      attend(c, batch, head, i % panels * WIDTH, work);
    }
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void mase_attention(
    const i64* problem, const float* query, const float* key, const float* value, const void* mask,
    float* out, float scale) {
  Call call = {{}, query, key, value, mask, out, scale};
  std::memcpy(&call.problem, problem, sizeof call.problem);
  run(call);
}
