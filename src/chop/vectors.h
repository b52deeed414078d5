// Vectors as wide as the processor's, for the native code on the CPU.

#if defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int __attribute__((vector_size(4 * LANES)));
using Unaligned = float __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Floats x) { *reinterpret_cast<Unaligned*>(to) = x; }
inline Floats spread(float x) { return x - Floats{}; }  // minus keeps the sign of zero

}  // namespace
