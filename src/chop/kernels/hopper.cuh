// What the kernels for compute capability 9.0 share: MXINT8 decoded, bfloat16, clusters.
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

// (a & mask) | bits as one instruction; left to itself the compiler makes two of it, and these are
// what decoding waits for.
__device__ __forceinline__ u32 masked_or(u32 a, u32 mask, u32 bits) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
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

// -- the rest ---------------------------------------------------------------------------------

__device__ __forceinline__ float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

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
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
