// CUDA's words for kernels whose lanes exchange numbers, on a CPU: a thread for each lane. The text
// of the kernels follows, and then `run_NAME(blocks, threads, operands)` for each of them.

#include <pthread.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__

struct Place { unsigned x; };
static thread_local Place blockIdx, threadIdx, blockDim;

// What the lanes of a row hold for each other; all of them come here, or none.
struct Exchange {
  pthread_barrier_t barrier;
  double given[LANES];
  Exchange() { pthread_barrier_init(&barrier, nullptr, LANES); }
};
static thread_local Exchange* exchange;

static double exchanged(double mine, unsigned from) {
  exchange->given[threadIdx.x % LANES] = mine;
  pthread_barrier_wait(&exchange->barrier);
  const double theirs = exchange->given[from];
  pthread_barrier_wait(&exchange->barrier);
  return theirs;
}
static double __shfl_sync(unsigned, double mine, int from, int) { return exchanged(mine, from); }
static double __shfl_xor_sync(unsigned, double mine, int step, int) {
  return exchanged(mine, (threadIdx.x % LANES) ^ step);
}

static long long __double_as_longlong(double x) {
  long long bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static double __longlong_as_double(long long bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

template <class Operands>
static void run(void (*kernel)(const Operands), unsigned blocks, unsigned threads,
                const Operands& operands) {
  for (unsigned block = 0; block < blocks; ++block)
    for (unsigned row = 0; row < threads / LANES; ++row) {
      Exchange shared;
      std::vector<std::thread> lanes;
      for (unsigned lane = 0; lane < LANES; ++lane)
        lanes.emplace_back([&, lane] {
          blockIdx.x = block, threadIdx.x = row * LANES + lane, blockDim.x = threads;
          exchange = &shared;
          kernel(operands);
        });
      for (auto& lane : lanes) lane.join();
    }
}

#define RUNNER(NAME, OPERANDS)                                                   \
  extern "C" __attribute__((visibility("default"))) void run_##NAME(             \
      unsigned blocks, unsigned threads, const OPERANDS* operands) {             \
    run<OPERANDS>(NAME, blocks, threads, *operands);                             \
  }
