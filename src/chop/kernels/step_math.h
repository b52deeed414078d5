#pragma once
// Functions of single numbers for a decode step, without branches, so that loops vectorise.

#include <cmath>

#include "elements.h"

namespace {

// e**x to about one unit in the last place (polynomial of Cephes); 0 and infinity beyond float32.
inline float exp_of(float x) {
  constexpr float LOG2_E = 1.44269504f, HIGH = 0.693359375f, LOW = -2.12194440e-4f;
  constexpr float MOST = 88.722f, LEAST = -87.33f;
  const float within = x > MOST ? MOST : x < LEAST ? LEAST : x;
  const float whole = __builtin_rintf(within * LOG2_E);
  const float r = (within - whole * HIGH) - whole * LOW;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const i32 half = static_cast<i32>(whole) / 2, rest = static_cast<i32>(whole) - half;
  const float result = p * float_of(static_cast<u32>(half + BIAS) << FRACTION) *
                       float_of(static_cast<u32>(rest + BIAS) << FRACTION);
  const float above = x > MOST ? __builtin_inff() : result;
  return x < LEAST ? 0.0f : x != x ? x : above;
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// Near 0 by a polynomial of Cephes, where the exponentials would cancel.
inline float tanh_of(float x) {
  const float magnitude = x < 0.0f ? -x : x, square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float near = p * square * x + x;
  const float far = 1.0f - 2.0f / (exp_of(2.0f * magnitude) + 1.0f);
  return magnitude < 0.625f ? near : x < 0.0f ? -far : far;
}

inline float gelu_of(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f)); }

inline float gelu_tanh_of(float x) {
  constexpr float ROOT = 0.79788456080286536f, CUBIC = 0.044715f;
  return 0.5f * x * (1.0f + tanh_of(ROOT * (x + CUBIC * (x * x * x))));
}

}  // namespace
