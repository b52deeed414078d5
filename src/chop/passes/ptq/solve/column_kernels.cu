// Rounding of the columns of a weight in turn, as `column_feedback.decide_columns` defines it, and
// the search of the range of each group. Every row of the weight is independent of the others.
//
// Compiled at run time, once per set of: RULE (Integers or Table), ROUNDING (of integers: 0 to
// nearest even, 1 to nearest away from zero, 2 down, 3 toward zero), BLOCK (most columns of a
// launch), LANES (threads of a row, or of a group).

using i64 = long long;

#define FUNCTION __device__ __forceinline__

// `limits` and `values` are those of `Table`, the others those of `Integers`.
struct Rule {
  const i64* limits;
  const double* values;
  i64 count;
  double low, high, zero;
};

// Integers from `low` to `high`, of which `zero` stands for zero, times a scale.
struct Integers {
  FUNCTION static double whole(double x) {
#if ROUNDING == 0
    return rint(x);
#elif ROUNDING == 1
    const double part = trunc(x);
    return part + copysign(fabs(x - part) >= 0.5 ? 1.0 : 0.0, x);
#elif ROUNDING == 2
    return floor(x);
#else
    return trunc(x);
#endif
  }

  FUNCTION static double rounded(double x, double scale, const Rule& rule) {
    double q = whole(x / scale) + rule.zero;
    q = q < rule.low ? rule.low : q;  // NaN stays
    q = q > rule.high ? rule.high : q;
    const double y = (q - rule.zero) * scale;
    return y == 0.0 ? 0.0 : y;
  }
};

// Up to 256 values times a scale. A number rounds to value k if `limits[k - 1]` is the last limit
// that is not above it. Limits are bits whose order is that of the numbers, -0 before 0.
struct Table {
  FUNCTION static double rounded(double x, double scale, const Rule& rule) {
    const double steps = scale == 0.0 ? x * 0.0 : x / scale;
    if (steps != steps) return steps;
    const i64 bits = __double_as_longlong(steps);
    const i64 place = bits ^ (bits >> 63 & 0x7fffffffffffffffll);
    i64 first = 0, size = rule.count - 1;
    while (size > 0) {
      const i64 half = size / 2;
      const bool is_above = place >= rule.limits[first + half];
      first = is_above ? first + half + 1 : first;
      size = is_above ? size - half - 1 : half;
    }
    return rule.values[first] * scale;
  }
};

FUNCTION i64 own_thread() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Threads of this thread's row or group, as bits of its warp.
FUNCTION unsigned own_lanes() {
  return static_cast<unsigned>((1ull << LANES) - 1) << threadIdx.x % 32 / LANES * LANES;
}

// `work`: the current values of at most BLOCK columns, of which those from `first` to before `last`
// are decided. `scales` has `groups` for each row, and `group` the group of each column. `mask` may
// be null. `factors` (columns, columns) and `errors` (rows, columns) have no gaps.
struct Columns {
  double* work;
  const double* factors;
  const double* scales;
  const int* group;
  double* errors;
  const bool* mask;
  i64 work_stride, mask_stride, rows, columns, groups, first, last;
  Rule rule;
};

// Lane l has the columns l, l + LANES, … in registers. All lanes of a row decide a column of their
// own at a time, and the error of the one whose turn it is corrects the later columns of them all.
extern "C" __global__ void round_columns(const __grid_constant__ Columns it) {
  const i64 row = own_thread() / LANES;
  const int lane = threadIdx.x % LANES, columns = it.columns;
  if (row >= it.rows) return;
  double* const work = it.work + row * it.work_stride;
  double value[BLOCK / LANES], scale[BLOCK / LANES], pivot[BLOCK / LANES];
  bool is_kept[BLOCK / LANES];
#pragma unroll
  for (int k = 0; k < BLOCK / LANES; ++k) {
    const int own = k * LANES + lane;
    const bool is_here = own < columns;
    value[k] = is_here ? work[own] : 0.0;
    scale[k] = is_here ? it.scales[row * it.groups + it.group[own]] : 1.0;
    pivot[k] = is_here ? it.factors[own * columns + own] : 1.0;
    is_kept[k] = !is_here || !it.mask || it.mask[row * it.mask_stride + own];
  }
#pragma unroll
  for (int k = 0; k < BLOCK / LANES; ++k) {
#pragma unroll 1
    for (int turn = 0; turn < LANES; ++turn) {
      const int column = k * LANES + turn;
      if (column < it.first || column >= it.last) continue;
      const double* const factors = it.factors + column * columns;
      const double decided = is_kept[k] ? RULE::rounded(value[k], scale[k], it.rule) : 0.0;
      const double own_error = (value[k] - decided) / pivot[k];
      const double error = __shfl_sync(own_lanes(), own_error, turn, LANES);
      if (lane == turn) {
        value[k] = decided;
        it.errors[row * columns + column] = error;
      }
#pragma unroll
      for (int later = k; later < BLOCK / LANES; ++later) {
        const int own = later * LANES + lane;
        if (own > column && own < columns) value[later] -= error * factors[own];
      }
    }
  }
#pragma unroll
  for (int k = 0; k < BLOCK / LANES; ++k) {
    const int own = k * LANES + lane;
    if (own < columns) work[own] = value[k];
  }
}

// Columns that are decided again, as `rounding_refinement.moved_elements` defines it. `errors` has
// the gradient of the error at each element, and `factors` the sums over the inputs. Without the
// turn of its own, a lane only keeps its gradients up to date.
extern "C" __global__ void move_columns(const __grid_constant__ Columns it) {
  const i64 row = own_thread() / LANES;
  const int lane = threadIdx.x % LANES, columns = it.columns;
  if (row >= it.rows) return;
  double* const work = it.work + row * it.work_stride;
  double gradient[BLOCK / LANES];
#pragma unroll
  for (int k = 0; k < BLOCK / LANES; ++k) {
    const int own = k * LANES + lane;
    gradient[k] = own < columns ? it.errors[row * columns + own] : 0.0;
  }
#pragma unroll
  for (int k = 0; k < BLOCK / LANES; ++k) {
    const int own = k * LANES + lane;
    const bool is_here = own < columns;
    const double value = is_here ? work[own] : 0.0;
    const double scale = is_here ? it.scales[row * it.groups + it.group[own]] : 1.0;
    const double pivot = is_here ? it.factors[own * columns + own] : 1.0;
    const bool is_kept = !is_here || !it.mask || it.mask[row * it.mask_stride + own];
#pragma unroll 1
    for (int turn = 0; turn < LANES; ++turn) {
      const int column = k * LANES + turn;
      if (column >= columns) continue;
      const double best = value - gradient[k] / pivot;
      const double moved = is_kept ? RULE::rounded(best, scale, it.rule) : 0.0;
      if (lane == turn) work[own] = moved;
      const double step = __shfl_sync(own_lanes(), moved - value, turn, LANES);
      const double* const across = it.factors + column * columns;
#pragma unroll
      for (int later = k; later < BLOCK / LANES; ++later) {
        const int other = later * LANES + lane;
        if (other > column && other < columns) gradient[later] += step * across[other];
      }
    }
  }
}

// `weight` (rows, columns) has no gaps; group g has the columns from `starts[g]` to before
// `starts[g + 1]`. `largest` and `best` are (rows, groups), `scales` is (trials, rows, groups). A
// later trial must have an error below `tie` times the least.
struct Groups {
  const double* weight;
  const i64* starts;
  const double* importance;
  const double* scales;
  double* largest;
  int* best;
  i64 rows, columns, groups, trials;
  double tie;
  Rule rule;
};

FUNCTION double larger(double a, double b) { return b > a || b != b ? b : a; }  // NaN stays

// The largest magnitude of each group.
extern "C" __global__ void largest_of_groups(const __grid_constant__ Groups it) {
  const i64 own = own_thread() / LANES, group = own % it.groups, row = own / it.groups;
  if (row >= it.rows) return;
  double largest = 0.0;
  for (i64 i = it.starts[group] + threadIdx.x % LANES; i < it.starts[group + 1]; i += LANES)
    largest = larger(largest, fabs(it.weight[row * it.columns + i]));
  for (int step = LANES / 2; step > 0; step /= 2)
    largest = larger(largest, __shfl_xor_sync(own_lanes(), largest, step, LANES));
  if (threadIdx.x % LANES == 0) it.largest[own] = largest;
}

// The number of the first scale of each group with the least squared error, weighted by the
// importance of each column; 0 if no error is finite.
extern "C" __global__ void best_of_trials(const __grid_constant__ Groups it) {
  const i64 own = own_thread() / LANES, group = own % it.groups, row = own / it.groups;
  if (row >= it.rows) return;
  double least = __longlong_as_double(0x7ff0000000000000ll);
  int best = 0;
  for (int trial = 0; trial < it.trials; ++trial) {
    const double scale = it.scales[trial * it.rows * it.groups + own];
    double total = 0.0;
    for (i64 i = it.starts[group] + threadIdx.x % LANES; i < it.starts[group + 1]; i += LANES) {
      const double x = it.weight[row * it.columns + i];
      const double error = x - RULE::rounded(x, scale, it.rule);
      total += error * error * it.importance[i];
    }
    for (int step = LANES / 2; step > 0; step /= 2)
      total += __shfl_xor_sync(own_lanes(), total, step, LANES);
    if (total < least * it.tie) {
      least = total;
      best = trial;
    }
  }
  if (threadIdx.x % LANES == 0) it.best[own] = best;
}
