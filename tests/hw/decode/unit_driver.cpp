// Feeds a file of inputs to `unit_bench`, one per cycle with random gaps, and prints all results.
// Inputs: {int64 wide, uint64 u, int32 code, int32 shift}. A root is printed 24 cycles after its u,
// which is stable meanwhile.
#include <cstdint>
#include <cstdio>
#include <memory>

#include "Vtop.h"
#include "verilated.h"

struct Input {
  int64_t wide;
  uint64_t u;
  int32_t code, shift;
};

namespace {

void step(Vtop& top) {
  top.eval();
  if (top.cast_valid) printf("cast %d\n", int(int16_t(top.cast)));
  if (top.mantissa_valid) printf("block %d %d\n", int(int8_t(top.mantissa)), int(top.exponent));
  if (top.product_valid) printf("product %lld\n", static_cast<long long>(top.product));
  if (top.rotated_valid) printf("rotated %d\n", int(int16_t(top.rotated)));
  top.clk = 1;
  top.eval();
  top.clk = 0;
  top.eval();
}

}  // namespace

int main(int, char** arguments) {
  VerilatedContext context;
  auto top = std::make_unique<Vtop>(&context);
  FILE* file = fopen(arguments[1], "rb");
  top->clk = 0;
  top->rst = 1;
  top->valid = 0;
  for (int i = 0; i < 4; i++) step(*top);
  top->rst = 0;
  Input input;
  uint32_t state = 1, count = 0;
  while (fread(&input, sizeof(input), 1, file) == 1) {
    top->wide = uint64_t(input.wide) & ((uint64_t(1) << 56) - 1);
    top->shift = input.shift;
    top->code = input.code;
    top->code_odd = count++ % 2;
    top->u = input.u;
    top->valid = 1;
    step(*top);
    top->valid = 0;
    state = state * 1664525u + 1013904223u;
    for (uint32_t gap = (state >> 24) % 4 == 0 ? 3 : 0; gap > 0; gap--) step(*top);
    if (count % 8 == 0) {
      for (int i = 0; i < 24; i++) step(*top);
      printf("root %u %u\n", unsigned(top->root), unsigned(top->root_place));
    }
  }
  for (int i = 0; i < 40; i++) step(*top);
  fclose(file);
  return 0;
}
