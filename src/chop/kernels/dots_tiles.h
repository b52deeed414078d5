#pragma once
// Products of activations rounded to 8 bits, by the dot products of AVX-512: sixteen rows of the
// weight at a time, one in each lane.
//
// What is decoded of the weight serves up to eight rows of activations. The sum over a chunk is
// exact, and chunks are added in order, so that a row has the same bits with any number of others.

#include "decode.h"
#include "digits.h"

namespace {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

constexpr bool HAS_TILES = true;
constexpr i64 DEEP = 16;         // rows of the weight in a tile
constexpr i64 TILE_AHEAD = 8192;  // bytes to fetch ahead: processors stop at the end of a page
constexpr i64 CACHE_LINE = 64;

// Bytes 4 * c to 4 * c + 3 of row r in lane r of out[c]; row r is r * step bytes behind `from`.
// Only the first bytes are read, by `which`; the others are 0.
template <bool IS_WHOLE = true>
INLINED void load_columns(const u8* from, i64 step, __m512i* out, __mmask16 which = 0xffff) {
  const auto sixteen = [=](i64 row) {
    const u8* at = from + row * step;
    return IS_WHOLE ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(at))
                    : _mm_maskz_loadu_epi8(which, at);
  };
  __m512i w[4];
  for (int i = 0; i < 4; ++i) {
    w[i] = _mm512_castsi128_si512(sixteen(i));
    w[i] = _mm512_inserti32x4(w[i], sixteen(4 + i), 1);
    w[i] = _mm512_inserti32x4(w[i], sixteen(8 + i), 2);
    w[i] = _mm512_inserti32x4(w[i], sixteen(12 + i), 3);
  }
  const __m512i low = _mm512_unpacklo_epi32(w[0], w[1]), high = _mm512_unpackhi_epi32(w[0], w[1]);
  const __m512i more_low = _mm512_unpacklo_epi32(w[2], w[3]);
  const __m512i more_high = _mm512_unpackhi_epi32(w[2], w[3]);
  out[0] = _mm512_unpacklo_epi64(low, more_low);
  out[1] = _mm512_unpackhi_epi64(low, more_low);
  out[2] = _mm512_unpacklo_epi64(high, more_high);
  out[3] = _mm512_unpackhi_epi64(high, more_high);
}

// Sixteen bytes of sixteen rows of codes, as unsigned bytes that are OFFSET too large: WIDE
// registers of four columns, evens first where two codes share a byte.
template <class Element>
struct TileDecoder;

template <>
struct TileDecoder<Whole8> {
  static constexpr i32 OFFSET = 128, WIDE = 4;
  INLINED void operator()(const __m512i* bytes, __m512i* out) const {
    const __m512i top = _mm512_set1_epi8(static_cast<char>(0x80));
    for (int c = 0; c < 4; ++c) out[c] = _mm512_xor_si512(bytes[c], top);
  }
};

template <>
struct TileDecoder<Whole4> {
  static constexpr i32 OFFSET = 8, WIDE = 8;
  INLINED void operator()(const __m512i* bytes, __m512i* out) const {
    const __m512i tops = _mm512_set1_epi8(static_cast<char>(0x88)), low = _mm512_set1_epi8(15);
    for (int c = 0; c < 4; ++c) {
      const __m512i raised = _mm512_xor_si512(bytes[c], tops);
      out[c] = _mm512_and_si512(raised, low);
      out[4 + c] = _mm512_and_si512(_mm512_srli_epi32(raised, 4), low);
    }
  }
};

template <>
struct TileDecoder<MxFp4> {
  static constexpr i32 OFFSET = 12, WIDE = 8;
  __m512i values;
  TileDecoder() {
    alignas(16) i8 all[16];
    for (u8 code = 0; code < 16; ++code) all[code] = static_cast<i8>(MxFp4::whole(code) + OFFSET);
    values = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(all)));
  }
  INLINED void operator()(const __m512i* bytes, __m512i* out) const {
    const __m512i low = _mm512_set1_epi8(15);
    for (int c = 0; c < 4; ++c) {
      const __m512i high = _mm512_and_si512(_mm512_srli_epi32(bytes[c], 4), low);
      out[c] = _mm512_shuffle_epi8(values, _mm512_and_si512(bytes[c], low));
      out[4 + c] = _mm512_shuffle_epi8(values, high);
    }
  }
};

// How many of n rows of activations go together next.
inline int together(i64 n) { return n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1; }

// One chunk of a row of activations: what one is worth, what the OFFSET of the codes adds, and the
// sum of the rounded activations.
struct ChunkFacts {
  float unit, sum;
  i32 surplus;
};

// A chunk rounded to MXINT8 as `Wholes` does it, in whole numbers over 2**places. False where the
// numbers are too large or too small, or no numbers.
INLINED bool round_chunk(const float* x, __m512i* whole, i32& places) {
  const __m512i magnitude = _mm512_set1_epi32(static_cast<i32>(MAGNITUDE));
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + LANES);
  const u32 largest = _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                       _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
  const i32 e = static_cast<i32>(largest >> FRACTION) - BIAS;
  if (e > HIGHEST || (e < LOWEST && largest)) return false;
  places = MXINT8_PLACES - (e < LOWEST ? LOWEST : e);
  const __m512 up = _mm512_set1_ps(power(places));
  const __m512i most = _mm512_set1_epi32(FEW_LIMIT), least = _mm512_set1_epi32(-FEW_LIMIT);
  whole[0] = _mm512_cvtps_epi32(low * up), whole[1] = _mm512_cvtps_epi32(high * up);
  for (int i = 0; i < 2; ++i)
    whole[i] = _mm512_max_epi32(_mm512_min_epi32(whole[i], most), least);
  return true;
}

// Rows of activations rounded to int8. Those that go together lie side by side, chunk by chunk.
template <class Format>
struct RoundedRows {
  i64 chunks;
  bool fits;
  std::vector<i8> digits;
  std::vector<ChunkFacts> facts;

  explicit RoundedRows(const Linear& c)
      : chunks(c.shape.columns / CHUNK), facts(static_cast<size_t>(c.batch * chunks)) {
    digits.resize(facts.size() * CHUNK);
    fits = c.rounds ? round(c) : take(c);
  }

 private:
  static constexpr i32 OFFSET = TileDecoder<typename Format::Element>::OFFSET;

  // Calls body(b, at, step) for each row: chunk k of row b comes to place at + k * step.
  template <class Body>
  static bool each_row(const Linear& c, i64 chunks, Body body) {
    for (i64 b = 0; b < c.batch;) {
      const int n = together(c.batch - b);
      for (int i = 0; i < n; ++i)
        if (!body(b + i, b * chunks + i, i64{n})) return false;
      b += n;
    }
    return true;
  }

  void set(i64 at, i32 total, float unit) {
    const float sum = static_cast<float>(total) * unit * power(Format::SHIFT);
    facts[static_cast<size_t>(at)] = {unit, sum, -OFFSET * total};
  }

  bool round(const Linear& c) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    return each_row(c, chunks, [&](i64 b, i64 at, i64 step) {
      const float* x = c.x + b * c.shape.columns;
      for (i64 k = 0; k < chunks; ++k, at += step, x += CHUNK) {
        __m512i whole[2];
        i32 places;
        if (!round_chunk(x, whole, places)) return false;
        set(at, _mm512_reduce_add_epi32(_mm512_add_epi32(whole[0], whole[1])),
            power(-places - Format::SHIFT));
        __m512i first = whole[0], second = whole[1];
        if constexpr (Format::BITS == 4) {
          first = _mm512_permutex2var_epi32(whole[0], evens, whole[1]);
          second = _mm512_permutex2var_epi32(whole[0], odds, whole[1]);
        }
        __m128i* out = reinterpret_cast<__m128i*>(digits.data() + at * CHUNK);
        _mm_storeu_si128(out, _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128(out + 1, _mm512_cvtepi32_epi8(second));
      }
      return true;
    });
  }

  // Activations that are MXINT8 as they are.
  bool take(const Linear& c) {
    const Digits<8> own(c, Format::SHIFT, Format::BITS == 4, true);
    return own.fits && each_row(c, chunks, [&](i64 b, i64 at, i64 step) {
      for (i64 k = 0; k < chunks; ++k, at += step) {
        const i8* from = own.row(b) + k * CHUNK;
        std::memcpy(digits.data() + at * CHUNK, from, CHUNK);
        i32 total = 0;
        for (i64 j = 0; j < CHUNK; ++j) total += from[j];
        set(at, total, own.units(b)[k]);
      }
      return true;
    });
  }
};

// Sixteen rows of the weight: scales and offsets of a group lie side by side.
template <class Format>
struct Tile {
  using Element = typename Format::Element;
  const u8* codes;
  i64 step;  // bytes between rows
  const float *scales, *offsets;
  int shift;  // a group has 2**shift chunks

  template <int N>
  INLINED void multiply(const RoundedRows<Format>& x, i64 b, __m512* total) const {
    constexpr i64 BYTES = CHUNK * Format::BITS / 8, PARTS = BYTES / 16;
    constexpr int WIDE = TileDecoder<Element>::WIDE;
    const TileDecoder<Element> decode;
    const i8* own = x.digits.data() + b * x.chunks * CHUNK;
    const ChunkFacts* facts = x.facts.data() + b * x.chunks;
    for (int n = 0; n < N; ++n) total[n] = _mm512_setzero_ps();
    for (i64 k = 0; k < x.chunks; ++k, own += N * CHUNK, facts += N) {
      const u8* ahead = codes + k * DEEP * BYTES + TILE_AHEAD;
      for (i64 i = 0; i < DEEP * BYTES; i += CACHE_LINE) __builtin_prefetch(ahead + i);
      __m512i sum[N];
      for (int n = 0; n < N; ++n) sum[n] = _mm512_set1_epi32(facts[n].surplus);
      for (i64 part = 0; part < PARTS; ++part) {
        __m512i bytes[4], w[WIDE];
        load_columns(codes + k * BYTES + 16 * part, step, bytes);
        decode(bytes, w);
        for (int c = 0; c < WIDE; ++c)
          for (int n = 0; n < N; ++n) {
            i32 four;
            std::memcpy(&four, own + n * CHUNK + 4 * (WIDE * part + c), sizeof four);
            sum[n] = _mm512_dpbusd_epi32(sum[n], w[c], _mm512_set1_epi32(four));
          }
      }
      const __m512 scale = _mm512_loadu_ps(scales + (k >> shift) * DEEP);
      for (int n = 0; n < N; ++n) {
        const __m512 unit = scale * _mm512_set1_ps(facts[n].unit);
        total[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[n]), unit, total[n]);
      }
      if (!offsets) continue;
      const __m512 offset = _mm512_loadu_ps(offsets + (k >> shift) * DEEP);
      for (int n = 0; n < N; ++n)
        total[n] = _mm512_fmadd_ps(offset, _mm512_set1_ps(facts[n].sum), total[n]);
    }
  }
};

// Numbers of sixteen rows, `step` bytes apart, as floats: those of a group side by side.
inline void floats_by_group(const u8* from, i64 step, i64 groups, float* out) {
  for (i64 g = 0; g < groups; g += 4) {
    __m512i four[4];
    const i64 n = min(4, groups - g);
    load_columns<false>(from + 4 * g, step, four, static_cast<__mmask16>((1u << (4 * n)) - 1u));
    for (i64 i = 0; i < n; ++i)
      _mm512_storeu_ps(out + (g + i) * DEEP, _mm512_castsi512_ps(four[i]));
  }
}

// The same of scales of one byte; see `scale_value`.
inline void scales_by_group(const u8* from, i64 step, i64 groups, float* out) {
  const __m512i last = _mm512_set1_epi32(255);
  for (i64 g = 0; g < groups; g += 16) {
    __m512i four[4];
    const i64 n = min(16, groups - g);
    load_columns<false>(from + g, step, four, static_cast<__mmask16>((1u << n) - 1u));
    for (i64 i = 0; i < n; ++i) {
      const __m512i wide =
          _mm512_and_si512(_mm512_srlv_epi32(four[i / 4], _mm512_set1_epi32(8 * (i % 4))), last);
      const __m512i next = _mm512_and_si512(_mm512_add_epi32(wide, _mm512_set1_epi32(1)), last);
      const __mmask16 is_special = _mm512_cmplt_epu32_mask(next, _mm512_set1_epi32(2));
      const __m512i bits = _mm512_slli_epi32(wide, FRACTION);
      const __m512i top = _mm512_set1_epi32(1 << (FRACTION - 1));
      const __m512i fixed = _mm512_mask_or_epi32(bits, is_special, bits, top);
      _mm512_storeu_ps(out + (g + i) * DEEP, _mm512_castsi512_ps(fixed));
    }
  }
}

// Scales and offsets of a tile, and copies of its rows where it has fewer than sixteen.
template <class Format>
struct TileMemory {
  std::vector<float> scales, offsets;
  std::vector<u8> codes, raw_scales, raw_offsets;
  i64 step, scale_step, offset_step;

  explicit TileMemory(const Linear& c)
      : step(c.shape.bytes(Format::BITS)),
        scale_step(c.shape.groups() * (Format::REAL_SCALES ? static_cast<i64>(sizeof(float)) : 1)),
        offset_step(c.shape.groups() * static_cast<i64>(sizeof(float))) {
    const size_t groups = static_cast<size_t>(c.shape.groups() * DEEP);
    scales.resize(groups);
    if (c.offsets) offsets.resize(groups);
  }

  // Rows from `row` on, of which the weight has `rows`.
  Tile<Format> load(const Linear& c, i64 row, i64 rows) {
    const i64 groups = c.shape.groups();
    const u8* code = c.codes + row * step;
    const u8* scale = static_cast<const u8*>(c.scales) + row * scale_step;
    const u8* offset = nullptr;
    if (c.offsets) offset = reinterpret_cast<const u8*>(c.offsets) + row * offset_step;
    if (rows < DEEP) {
      code = padded(codes, code, rows, step);
      scale = padded(raw_scales, scale, rows, scale_step);
      if (offset) offset = padded(raw_offsets, offset, rows, offset_step);
    }
    if constexpr (Format::REAL_SCALES)
      floats_by_group(scale, scale_step, groups, scales.data());
    else
      scales_by_group(scale, scale_step, groups, scales.data());
    if (offset) floats_by_group(offset, offset_step, groups, offsets.data());
    const int shift = __builtin_ctzll(static_cast<unsigned long long>(c.shape.group / CHUNK));
    return {code, step, scales.data(), offset ? offsets.data() : nullptr, shift};
  }

 private:
  static const u8* padded(std::vector<u8>& memory, const u8* from, i64 rows, i64 step) {
    memory.assign(static_cast<size_t>(DEEP * step), 0);
    std::memcpy(memory.data(), from, static_cast<size_t>(rows * step));
    return memory.data();
  }
};

template <class Format, int N>
inline void tile_rows(const Linear& c, const Tile<Format>& tile, const RoundedRows<Format>& x,
                      i64 b, i64 row, __mmask16 some) {
  __m512 y[N];
  tile.template multiply<N>(x, b, y);
  for (int n = 0; n < N; ++n) _mm512_mask_storeu_ps(c.y + (b + n) * c.y_step + row, some, y[n]);
}

// Whether tiles take the shape: whole chunks, in groups of whole chunks.
template <class Format>
bool takes_tiles(const Linear& c) {
  return Format::FITS_INT8 && c.shape.columns % CHUNK == 0 && c.shape.group >= CHUNK;
}

// Products, with offsets, of activations that are rounded, or MXINT8 as they are. False where they
// are not, too large, or no numbers.
template <class Format>
bool tile_products(const Linear& c) {
  const RoundedRows<Format> x(c);
  if (!x.fits) return false;
  shared((c.shape.rows + DEEP - 1) / DEEP, c.threads, [&](i64 first, i64 last) {
    TileMemory<Format> memory(c);
    for (i64 row = first * DEEP; row < min(last * DEEP, c.shape.rows); row += DEEP) {
      const i64 rows = min(DEEP, c.shape.rows - row);
      const Tile<Format> tile = memory.load(c, row, rows);
      const __mmask16 some = static_cast<__mmask16>((1u << rows) - 1u);
      for (i64 b = 0; b < c.batch; b += together(c.batch - b)) switch (together(c.batch - b)) {
        case 8: tile_rows<Format, 8>(c, tile, x, b, row, some); break;
        case 4: tile_rows<Format, 4>(c, tile, x, b, row, some); break;
        case 2: tile_rows<Format, 2>(c, tile, x, b, row, some); break;
        default: tile_rows<Format, 1>(c, tile, x, b, row, some);
      }
    }
  });
  return true;
}

#else

constexpr bool HAS_TILES = false;
template <class Format>
bool takes_tiles(const Linear&) {
  return false;
}
template <class Format>
bool tile_products(const Linear&) {
  return false;
}

#endif

}  // namespace
