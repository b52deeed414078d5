#pragma once
// What the kernels on the CPU share.

#include <cstdint>
#include <cstring>
#include <vector>

#include "../vectors.h"

// For what has to stay in registers, however large the loop around it.
#define INLINED inline __attribute__((always_inline))

namespace {

using i8 = std::int8_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using i32 = std::int32_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;

inline i64 min(i64 a, i64 b) { return a < b ? a : b; }

// body(first, last) over a share of 0..n for each thread; one thread needs no OpenMP at all.
template <class Body>
void shared(i64 n, int threads, Body body) {
  if (threads <= 1) return body(i64{0}, n);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) body(n * t / threads, n * (t + 1) / threads);
}

}  // namespace
