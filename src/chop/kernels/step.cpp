// One decode step of a language model in one call: a list of instructions over buffers.
//
// All threads run through the list and compute their share of each instruction. Before an
// instruction that reads what another thread has written they wait for each other.

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <atomic>
#include <chrono>
#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#endif

#include "step_ops.h"

namespace {

enum Kind {  // in the order of KINDS in `step_code.py`
  ELEMENTWISE, ROW_SUMS, LAYER_NORM, EMBED, EMBED_PACKED, FLOAT_PRODUCT,
  TRANSPOSED_PRODUCT, PACKED_PRODUCT, APPEND, ATTEND
};

inline void pause_thread() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Threads wait here until all have come. They spin at first, since the others come soon.
class Barrier {
 public:
  void wait(int count) {
    if (count == 1) return;
    const int turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) {
      pause_thread();
#if defined(__unix__) || defined(__APPLE__)
      if (spins > SPINS) sched_yield();  // the other may wait for this processor
#endif
    }
  }

 private:
  static constexpr int SPINS = 4000;  // about 0.1 ms
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> turn_{0};
};

// False where an instruction cannot compute its result.
bool run(const Instruction& c, const Past& past, Span some, const Share& share) {
  switch (c.kind) {
    case ELEMENTWISE: elementwise(c, share); return true;
    case ROW_SUMS: row_sums(c, share); return true;
    case LAYER_NORM: layer_norm(c, share); return true;
    case EMBED: return embed(c, some);
    case EMBED_PACKED: return embed_packed(c, some);
    case FLOAT_PRODUCT: float_product(c, some, share); return true;
    case TRANSPOSED_PRODUCT: transposed_product(c, some, share); return true;
    case PACKED_PRODUCT: return packed_product(c, some, share);
    case APPEND: return append(c, past, some);
    case ATTEND: attend(c, past, some, share); return true;
    default: return false;
  }
}

double seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

// 1 if the rows of a product share what is decoded of the weight; `rounds`: of rounded rows.
extern "C" __attribute__((visibility("default"))) int mase_step_shares_rows(int rounds) {
#if defined(__AVX512F__)
  return rounds ? HAS_TILES : 1;
#else
  return rounds ? HAS_TILES : 0;
#endif
}

// Runs `count` instructions; 0 if one of them could not. `times`, if given, receives the seconds of
// each instruction on the first thread, with its waiting.
extern "C" __attribute__((visibility("default"))) int mase_step(const Instruction* code, i64 count,
                                                                const Past* past, int threads,
                                                                double* times) {
  Barrier barrier;
  std::atomic<int> is_sound{1};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#if defined(_OPENMP)  // it may have started fewer threads
    const Share own{omp_get_thread_num(), omp_get_num_threads()}, all{0, 1};
#else
    const Share own{0, 1}, all{0, 1};
#endif
    const bool is_first = own.index == 0;
    for (i64 i = 0; i < count; ++i) {
      const double start = times && is_first ? seconds() : 0.0;
      if (code[i].waits) barrier.wait(own.count);
      if ((code[i].is_shared || is_first) && is_sound.load(std::memory_order_relaxed) &&
          !run(code[i], *past, rows_of(code[i], *past, i >= past->results_from),
               code[i].is_shared ? own : all))
        is_sound = 0;
      if (times && is_first) times[i] += seconds() - start;
    }
  }
  return is_sound;
}
