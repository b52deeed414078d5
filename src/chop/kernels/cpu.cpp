// Entry points of packed weights on the CPU; `products.h` has the code.

#include "products.h"

extern "C" __attribute__((visibility("default"))) void mase_unpack(
    int format, const u8* codes, const void* scales, void* out, i64 rows, i64 columns, i64 group,
    int is_bfloat16, int threads) {
  UNPACK[format]({codes, scales, out, {rows, columns, group}, is_bfloat16, threads});
}

extern "C" __attribute__((visibility("default"))) int mase_packed_linear(
    int format, const float* x, const u8* codes, const void* scales, float* y, i64 batch, i64 rows,
    i64 columns, i64 group, int rounds, int threads) {
  return LINEAR[format](
      {x, codes, scales, y, batch, {rows, columns, group}, rounds != 0, threads, rows});
}

// See `add_offsets`.
extern "C" __attribute__((visibility("default"))) void mase_add_offsets(
    const float* x, const float* offsets, float* y, i64 batch, i64 rows, i64 columns, i64 group,
    int threads) {
  add_offsets(x, offsets, y, batch, {rows, columns, group}, threads);
}
