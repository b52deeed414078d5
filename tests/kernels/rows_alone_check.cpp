// Products of packed weights: rows together have the bits of each alone, and the values of doubles.
// Prints the number of products, and of those that fail.

#include "products.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

namespace {

struct Case {
  int format;
  i64 group, columns, rows, batch;
  bool has_offsets;
  int kind;  // of activations: 0 plain, 1 large, 2 with infinities, 3 rounded in the product
};

struct Counts {
  long products = 0, different = 0, wrong = 0;
};

bool is_same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

void check(const Case& k, std::mt19937& draw, Counts& counts) {
  const bool is_nibble = k.format % 2 == 1, has_real_scales = k.format >= 4;
  const i64 groups = k.columns / k.group;
  std::vector<u8> codes(k.rows * k.columns / (is_nibble ? 2 : 1)), powers(k.rows * groups);
  std::vector<float> reals(k.rows * groups), offsets(k.rows * groups), x(k.batch * k.columns);
  for (auto& code : codes) {
    code = static_cast<u8>(draw());
    if (k.format == 2 && (code & 0x7f) == 0x7f) code = 0;  // not a number
  }
  for (auto& power : powers) power = static_cast<u8>(120 + draw() % 12);
  for (auto& scale : reals) scale = 0.01f * static_cast<float>(1 + draw() % 100);
  for (auto& offset : offsets) offset = 0.1f * (static_cast<float>(draw() % 21) - 10.0f);
  std::normal_distribution<float> normal;
  for (auto& value : x) value = normal(draw) * (k.kind == 1 ? 1e4f : 1.0f);
  if (k.kind == 2)
    for (i64 b = 0; b < k.batch; b += 2) x[b * k.columns] = INFINITY;

  const Shape shape{k.rows, k.columns, k.group};
  const void* scales = has_real_scales ? static_cast<const void*>(reals.data()) : powers.data();
  std::vector<float> together(k.batch * k.rows), alone(k.batch * k.rows), weight(k.rows * k.columns);
  const float* added = k.has_offsets ? offsets.data() : nullptr;
  Linear call{x.data(), codes.data(), scales, together.data(), k.batch, shape, k.kind == 3, 1,
              k.rows, added};
  if (!LINEAR_ALONE[k.format](call) && k.kind == 3) return;  // they are rounded beforehand
  for (i64 b = 0; b < k.batch; ++b) {
    Linear one = call.rows(b, 1);
    one.y = alone.data() + b * k.rows;
    LINEAR_ALONE[k.format](one);
  }
  if (k.kind == 3) x = rounded_rows(call);
  UNPACK[k.format]({codes.data(), scales, weight.data(), shape, 0, 1});
  for (i64 b = 0; b < k.batch; ++b)
    for (i64 row = 0; row < k.rows; ++row) {
      double sum = 0, size = 0;
      for (i64 i = 0; i < k.columns; ++i) {
        const double offset = added ? added[row * groups + i / k.group] : 0;
        const double term = x[b * k.columns + i] * (weight[row * k.columns + i] + offset);
        sum += term, size += std::fabs(term);
      }
      const float y = together[b * k.rows + row];
      ++counts.products;
      counts.different += !is_same(y, alone[b * k.rows + row]);
      counts.wrong += std::isfinite(size) && std::fabs(y - sum) > 1e-4 * size + 1e-6;
    }
}

}  // namespace

int main() {
  std::mt19937 draw(1);
  Counts counts;
  for (int format = 0; format < 6; ++format)
    for (i64 group : {16, 32, 64})
      for (i64 columns : {64, 192, 576})
        for (i64 rows : {1, 7, 33})
          for (i64 batch : {2, 3, 4, 5, 8, 13})
            for (bool has_offsets : {false, true})
              for (int kind : {0, 1, 2, 3})
                check({format, group, columns, rows, batch, has_offsets, kind}, draw, counts);
  std::printf("%ld %ld %ld\n", counts.products, counts.different, counts.wrong);
}
