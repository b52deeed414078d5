// What the kernels for compute capability 9.0 share: codes decoded, bfloat16, clusters.
//
// FORMAT is one of these.
#define MXINT8 0
#define MXINT4 1
#define MXFP8 2
#define MXFP4 3

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// -- decoding ---------------------------------------------------------------------------------

__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
  u32 d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ u32 sub2(u32 a, u32 b) {
  u32 d;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// (a & mask) | bits and (a & mask) ^ bits as one instruction; left to itself the compiler makes two
// of it, and these are what decoding waits for.
__device__ __forceinline__ u32 masked_or(u32 a, u32 mask, u32 bits) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

__device__ __forceinline__ u32 masked_xor(u32 a, u32 mask, u32 bits) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

// A scale byte as 2^(byte - 127) twice; 0 is subnormal, 255 is NaN.
__device__ __forceinline__ u32 scale2(u32 byte) {
  u32 bits = byte << 7 | (byte == 0 || byte == 255 ? 0x40 : 0);
  return bits * 0x10001;
}

// Two codes, the low bytes of the halves of `pair`, as two values times their scale. A code is
// (low seven bits) / 64 - 2 (top bit). The seven bits below an exponent of 1 are 2 + low / 64;
// the top bit falls on the exponent itself: 2 becomes 4. The difference is exact.
__device__ __forceinline__ u32 decode2(u32 pair, u32 scale) {
  u32 fraction = masked_or(pair, 0x007f007f, 0x40004000);
  u32 minus = masked_or(pair, 0x00800080, 0xc000c000);
  return fma2(fma2(fraction, 0x3f803f80, minus), scale, 0x80008000);
}

__device__ __forceinline__ u32 low_pair(u32 word) { return __byte_perm(word, 0, 0x4140); }
__device__ __forceinline__ u32 high_pair(u32 word) { return __byte_perm(word, 0, 0x4342); }

// A scale byte as the bits of a float32: 2^(byte - 127); 0 is subnormal, 255 is NaN.
__device__ __forceinline__ u32 float_scale(u32 byte) {
  return byte << 23 | (byte == 0 || byte == 255 ? 1u << 22 : 0);
}

// Two codes of E4M3, the low bytes of `pair`, as two values times their scale: in float32, where
// that is exact, and rounded once.
__device__ __forceinline__ u32 e4m3(u32 pair, u32 scale) {
  float low, high, by = __uint_as_float(scale);
  asm("{\n.reg .b16 a, b;\n.reg .b32 both;\ncvt.rn.f16x2.e4m3x2 both, %2;\nmov.b32 {a, b}, both;\n"
      "cvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
      : "=f"(low), "=f"(high)
      : "h"((u16)pair));
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high * by), "f"(low * by));
  return d;
}

// For formats of 8 bits: a scale byte as decoding wants it, and the two lower and the two higher
// codes of a word times their scale.
__device__ __forceinline__ u32 scale8(u32 byte) {
  return FORMAT == MXFP8 ? float_scale(byte) : scale2(byte);
}
__device__ __forceinline__ u32 decode_low(u32 word, u32 scale) {
  return FORMAT == MXFP8 ? e4m3(word, scale) : decode2(low_pair(word), scale);
}
__device__ __forceinline__ u32 decode_high(u32 word, u32 scale) {
  return FORMAT == MXFP8 ? e4m3(word >> 16, scale) : decode2(high_pair(word), scale);
}

// Four bits of two's complement in each half, as two values times their scale: with the top bit
// turned they count from -8, in quarters. As the lowest bits of 32 they are added to it, which is
// taken off again.
__device__ __forceinline__ u32 quarters(u32 pair, u32 scale) {
  return mul2(sub2(masked_xor(pair, 0x000f000f, 0x42084208), 0x42084208), scale);
}

// Four bits of E2M1 in each half, as two values times 2^-126: `copies` moves them to the sign's
// place and to that of the lowest exponent bits.
__device__ __forceinline__ u32 e2m1(u32 pair, u32 copies) { return pair * copies & 0x81c081c0; }

// Both codes of byte `at` of a word, times their scale.
__device__ __forceinline__ u32 decode_byte(u32 word, u32 at, u32 scale) {
  u32 byte = __byte_perm(word, 0, 0x4440 | at);
  if (FORMAT == MXFP4)
    return mul2(mul2(e2m1(byte * 0x1001 & 0x000f000f, 0x1040), 0x7e807e80), scale);
  // As `quarters`, but the second code comes to lie three bits higher, where it is added to 4.
  return mul2(sub2(masked_xor(byte * 0x8001, 0x0078000f, 0x40c04208), 0x40c04208), scale);
}

// -- the rest ---------------------------------------------------------------------------------

__device__ __forceinline__ float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

// The same in all threads of a warp, which the compiler does not see otherwise.
__device__ __forceinline__ int warp_number() {
  return __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
}

// Whether this is the one thread of its warp that speaks for it.
__device__ __forceinline__ bool is_elected() {
  u32 yes;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(yes));
  return yes;
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return (u32)__cvta_generic_to_shared(pointer);
}

// Where `address` of this block's shared memory is in that of the cluster's block `rank`.
__device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// The kernel may start while the one before it on the stream ends, which hides its start; it reads
// nothing until that one has ended.
__device__ __forceinline__ void wait_for_kernel_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// -- the copy engine --------------------------------------------------------------------------

struct __align__(64) TensorMap {
  u8 opaque[128];
};

__device__ __forceinline__ void make_barrier(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// What this thread has read and written of shared memory comes before what the copy engine writes.
__device__ __forceinline__ void order_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// To the copy engine as well, once they are made.
__device__ __forceinline__ void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  order_before_copies();
}

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra READY;\nbra AGAIN;\nREADY:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void load_tile(u32 to, const TensorMap* map, int column, int row,
                                          u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// What the copy engine must know of a matrix, before it is needed.
__device__ __forceinline__ void prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
