// Runs the packed products on requests from a file, for processors that are emulated.
//
// A request: seven 64-bit integers (format, batch, rows, columns, group, bytes of codes, bytes of
// scales), the activations, the codes, the scales. The answers, float32, follow one another.

#include "../../src/chop/kernels/cpu.cpp"

#include <cstdio>

template <class T>
std::vector<T> read_from(std::FILE* file, i64 n) {
  std::vector<T> data(static_cast<size_t>(n));
  if (std::fread(data.data(), sizeof(T), data.size(), file) != data.size()) data.clear();
  return data;
}

int main(int, char** names) {
  std::FILE *in = std::fopen(names[1], "rb"), *out = std::fopen(names[2], "wb");
  while (true) {
    const auto head = read_from<i64>(in, 7);
    if (head.empty()) break;
    const i64 batch = head[1], rows = head[2], columns = head[3];
    const auto x = read_from<float>(in, batch * columns);
    const auto codes = read_from<u8>(in, head[5]), scales = read_from<u8>(in, head[6]);
    std::vector<float> y(static_cast<size_t>(batch * rows));
    mase_packed_linear(static_cast<int>(head[0]), x.data(), codes.data(), scales.data(), y.data(),
                       batch, rows, columns, head[4], 0, 1);
    std::fwrite(y.data(), sizeof(float), y.size(), out);
  }
  std::fclose(out);
  return 0;
}
