// Drives many small verilated designs in one program: random stalls on every port, a reset in the
// middle of the work, then everything again from the start, and once more at full rate.
// Per design: `request` (what to send, how much to expect) is read and `response` written in its
// folder, which is also where its memory files are found.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "verilated.h"

struct Port {
  void* data;
  size_t bytes;
  uint8_t* valid;
  uint8_t* ready;
};

struct Generator {  // xorshift: not the numbers that the library's own driver draws
  uint64_t state;
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 32);
  }
  bool chance(uint32_t of_256) { return (next() & 255) < of_256; }
};

struct Stream {
  Port port;
  uint64_t wanted = 0;          // beats to send or to expect
  std::vector<uint8_t> beats;   // to send, or received
  uint64_t moved = 0;
  bool offering = false;
  bool waiting = false;
  std::vector<uint8_t> held;
};

struct Outcome {
  uint64_t done = 0, violations = 0, cycles = 0;
};

template <typename Top>
struct Bench {
  Top& top;
  std::vector<Stream> sources, sinks;
  Generator random;
  uint64_t violations = 0;

  void reset(int cycles) {
    top.rst = 1;
    for (Stream& s : sources) {
      *s.port.valid = random.chance(128);  // what is offered in reset is not taken
      s.moved = 0;
      s.offering = false;
    }
    for (Stream& s : sinks) {
      *s.port.ready = random.chance(128);
      s.moved = 0;
      s.beats.clear();
      s.waiting = false;
    }
    for (int k = 0; k < cycles; k++) {
      top.clk = 0;
      top.eval();
      top.clk = 1;
      top.eval();
    }
    top.rst = 0;
  }

  bool cycle(uint32_t valid_chance, uint32_t ready_chance) {
    bool progress = false;
    for (Stream& s : sources) {
      if (!s.offering && s.moved < s.wanted) s.offering = random.chance(valid_chance);
      *s.port.valid = s.offering;
      if (s.offering) memcpy(s.port.data, &s.beats[s.moved * s.port.bytes], s.port.bytes);
    }
    for (Stream& s : sinks) *s.port.ready = random.chance(ready_chance);
    top.clk = 0;
    top.eval();
    for (Stream& s : sources)
      if (s.offering && *s.port.ready) {
        s.moved++;
        s.offering = false;
        progress = true;
      }
    for (Stream& s : sinks) {
      const uint8_t* data = static_cast<const uint8_t*>(s.port.data);
      if (s.waiting) violations += !*s.port.valid || memcmp(s.held.data(), data, s.port.bytes);
      s.waiting = *s.port.valid && !*s.port.ready;
      if (s.waiting) s.held.assign(data, data + s.port.bytes);
      if (*s.port.valid && *s.port.ready) {
        s.beats.insert(s.beats.end(), data, data + s.port.bytes);
        s.moved++;
        progress = true;
      }
    }
    top.clk = 1;
    top.eval();
    return progress;
  }

  Outcome run(uint32_t valid_chance, uint32_t ready_chance, uint64_t patience, uint64_t limit) {
    Outcome found;
    uint64_t idle = 0;
    for (; idle < patience && found.cycles < limit; found.cycles++)
      idle = cycle(valid_chance, ready_chance) ? 0 : idle + 1;
    found.done = 1;
    for (Stream& s : sinks) found.done = found.done && s.moved >= s.wanted;
    found.violations = violations;
    return found;
  }
};

inline void take(FILE* file, void* to, size_t bytes) {
  if (bytes && fread(to, 1, bytes, file) != bytes) {
    fprintf(stderr, "a request ends early\n");
    exit(3);
  }
}

inline void give(FILE* file, const void* from, size_t bytes) {
  if (bytes && fwrite(from, 1, bytes, file) != bytes) {
    fprintf(stderr, "a response cannot be written\n");
    exit(3);
  }
}

template <typename Top>
void answer(FILE* file, const Outcome& found, const Bench<Top>& bench) {
  give(file, &found, sizeof found);
  for (const Stream& s : bench.sinks) {
    const uint64_t count = s.moved;
    give(file, &count, sizeof count);
    give(file, s.beats.data(), s.beats.size());
  }
}

template <typename Top, typename Ports>
void drive(const char* folder, Ports ports) {
  if (chdir(folder)) exit(4);
  VerilatedContext context;
  context.randReset(2);
  Top top{&context};
  struct {
    uint64_t seed, valid_chance, ready_chance, patience, middle;
  } request;
  FILE* file = fopen("request", "rb");
  if (!file) exit(4);
  take(file, &request, sizeof request);
  Bench<Top> bench{top, {}, {}, {request.seed}};
  ports(top, bench.sources, bench.sinks);
  for (Stream& s : bench.sources) {
    take(file, &s.wanted, sizeof s.wanted);
    s.beats.resize(s.wanted * s.port.bytes);
    take(file, s.beats.data(), s.beats.size());
  }
  for (Stream& s : bench.sinks) take(file, &s.wanted, sizeof s.wanted);
  fclose(file);
  file = fopen("response", "wb");
  if (!file) exit(4);
  bench.reset(4);
  bench.run(request.valid_chance, request.ready_chance, request.patience, request.middle);
  bench.reset(1 + request.seed % 3);  // in the middle of a tensor: nothing of it may remain
  const uint64_t ever = ~uint64_t(0);
  answer(file, bench.run(request.valid_chance, request.ready_chance, request.patience, ever), bench);
  bench.reset(1);
  answer(file, bench.run(256, 256, request.patience, ever), bench);
  fclose(file);
  top.final();
}
