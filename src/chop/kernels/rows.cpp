// What a decoder does between its products, on the CPU and in float32: norms of rows, rotations.

#include <cmath>

#include "common.h"

namespace {

constexpr int SUMS = 16;  // side by side, so that no addition waits for the one before

float sum_of_squares(const float* x, i64 n) {
  float sums[SUMS] = {};
  i64 i = 0;
  for (; i + SUMS <= n; i += SUMS)
    for (int j = 0; j < SUMS; ++j) sums[j] += x[i + j] * x[i + j];
  float total = 0.0f;
  for (; i < n; ++i) total += x[i] * x[i];
  for (int j = 0; j < SUMS; ++j) total += sums[j];
  return total;
}

// Filled in by the caller as a row of 64-bit integers; strides in elements.
struct Rotation {
  i64 batches, heads, tokens, size;
  i64 x_batch, x_head, x_token, table_batch, table_token;
};

}  // namespace

// y = x / sqrt(mean(x * x) + eps) * weight for each row.
extern "C" __attribute__((visibility("default"))) void mase_rms_norm(const float* x,
                                                                     const float* weight, float* y,
                                                                     i64 rows, i64 n, float eps) {
  for (i64 r = 0; r < rows; ++r, x += n, y += n) {
    const float factor = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
    for (i64 i = 0; i < n; ++i) y[i] = weight[i] * (x[i] * factor);
  }
}

// y = x * cos + (second half of x negated, first half of x) * sin for each head of each token.
extern "C" __attribute__((visibility("default"))) void mase_rotate(const Rotation* r,
                                                                   const float* from,
                                                                   const float* cos,
                                                                   const float* sin, float* y) {
  const i64 half = r->size / 2;
  for (i64 b = 0; b < r->batches; ++b)
    for (i64 h = 0; h < r->heads; ++h)
      for (i64 t = 0; t < r->tokens; ++t, y += r->size) {
        const float* x = from + b * r->x_batch + h * r->x_head + t * r->x_token;
        const i64 at = b * r->table_batch + t * r->table_token;
        const float *c = cos + at, *s = sin + at;
        for (i64 i = 0; i < half; ++i) y[i] = x[i] * c[i] - x[i + half] * s[i];
        for (i64 i = half; i < r->size; ++i) y[i] = x[i] * c[i] + x[i - half] * s[i];
      }
}
