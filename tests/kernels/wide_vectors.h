// The AVX-512 and VNNI instructions that the products use, written out, for an emulator without
// them: included first, it lets the code for such processors be built for AVX2.

#include <immintrin.h>

#include <cstring>

namespace wide {

template <class T, int N, class V>
void split(V from, T (&to)[N]) {
  static_assert(sizeof from == sizeof to, "sizes");
  std::memcpy(to, &from, sizeof to);
}

template <class V, class T, int N>
V join(const T (&from)[N]) {
  V to;
  static_assert(sizeof to == sizeof from, "sizes");
  std::memcpy(&to, from, sizeof to);
  return to;
}

template <class T>
__m512i widen(__m128i a) {
  T in[16];
  int out[16];
  split(a, in);
  for (int i = 0; i < 16; ++i) out[i] = in[i];
  return join<__m512i>(out);
}

inline __m512 to_float(__m512i a) {
  int in[16];
  float out[16];
  split(a, in);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(in[i]);
  return join<__m512>(out);
}

inline __m512 look_up(__m512i which, __m512 table) {
  unsigned at[16];
  float in[16], out[16];
  split(which, at);
  split(table, in);
  for (int i = 0; i < 16; ++i) out[i] = in[at[i] & 15];
  return join<__m512>(out);
}

inline __m512i shift_right(__m512i a, unsigned n) {
  unsigned in[16];
  split(a, in);
  for (unsigned& x : in) x >>= n;
  return join<__m512i>(in);
}

inline __m512 blend(unsigned mask, __m512 a, __m512 b) {
  float in[16], other[16];
  split(a, in);
  split(b, other);
  for (int i = 0; i < 16; ++i) in[i] = mask >> i & 1 ? other[i] : in[i];
  return join<__m512>(in);
}

inline __m512 load(const float* from) {
  float in[16];
  std::memcpy(in, from, sizeof in);
  return join<__m512>(in);
}

inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
  float x[16], y[16], z[16];
  split(a, x);
  split(b, y);
  split(c, z);
  for (int i = 0; i < 16; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return join<__m512>(z);
}

inline __m512 from_half(__m256i a) {
  __m128i halves[2];
  __m256 out[2];
  split(a, halves);
  for (int i = 0; i < 2; ++i) out[i] = _mm256_cvtph_ps(halves[i]);
  return join<__m512>(out);
}

inline __m256i add_dots(__m256i sum, __m256i a, __m256i b) {
  unsigned char x[32];
  signed char y[32];
  int out[8];
  split(a, x);
  split(b, y);
  split(sum, out);
  for (int i = 0; i < 32; ++i) out[i / 4] += x[i] * y[i];
  return join<__m256i>(out);
}

}  // namespace wide

#define __AVX512F__ 1
#define __AVX512VL__ 1
#define __AVX512VNNI__ 1
#define _mm512_cvtepu8_epi32 wide::widen<unsigned char>
#define _mm512_cvtepi8_epi32 wide::widen<signed char>
#define _mm512_cvtepi32_ps wide::to_float
#define _mm512_permutexvar_ps wide::look_up
#define _mm512_srli_epi32 wide::shift_right
#define _mm512_mask_blend_ps wide::blend
#define _mm512_loadu_ps wide::load
#define _mm512_fmadd_ps wide::multiply_add
#define _mm512_cvtph_ps wide::from_half
#define _mm256_dpbusd_epi32 wide::add_dots
