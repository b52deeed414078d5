// Drives many small verilated designs in one program. Each design has several runs, each with its
// own timing at the ports; a run may begin with a part that a reset cuts off in the middle.
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
  uint64_t all = 0;             // beats of all tensors
  uint64_t wanted = 0;          // beats to send or to expect in this run
  std::vector<uint8_t> beats;   // to send, or received
  uint64_t moved = 0;
  bool offering = false;
  bool waiting = false;
  std::vector<uint8_t> held;
  uint64_t left = 0;            // cycles for which the last decision still holds
  bool decision = false;
};

struct Outcome {
  uint64_t done = 0, violations = 0, cycles = 0;
};

struct Timing {
  uint64_t valid_chance, ready_chance;  // of 256: how often a source offers and a sink takes
  uint64_t burst;   // cycles for which each of these decisions holds
  uint64_t rest;    // a source offers only after so many cycles in which no port moved
  uint64_t middle;  // 0, or the cycle of a reset before everything is sent again
  uint64_t eighths; // of the tensors that are sent
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
      s.moved = s.left = 0;
      s.offering = false;
    }
    for (Stream& s : sinks) {
      *s.port.ready = random.chance(128);
      s.moved = s.left = 0;
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

  bool decide(Stream& s, uint64_t chance, uint64_t burst) {
    if (!s.left) {
      s.left = burst;
      s.decision = random.chance(uint32_t(chance));
    }
    s.left--;
    return s.decision;
  }

  void offer(const Timing& timing, uint64_t idle) {
    for (Stream& s : sources) {
      const bool willing = decide(s, timing.valid_chance, timing.burst) && idle >= timing.rest;
      if (!s.offering && s.moved < s.wanted) s.offering = willing;
      *s.port.valid = s.offering;
      if (s.offering) memcpy(s.port.data, &s.beats[s.moved * s.port.bytes], s.port.bytes);
    }
  }

  bool is_done() const {
    for (const Stream& s : sinks)
      if (s.moved < s.wanted) return false;
    return true;
  }

  // Whether the ports wait for nothing but the design.
  bool is_open() const {
    for (const Stream& s : sources)
      if (!s.offering && s.moved < s.wanted) return false;
    for (const Stream& s : sinks)
      if (!*s.port.ready) return false;
    return true;
  }

  bool cycle(const Timing& timing, uint64_t idle) {
    bool progress = false;
    offer(timing, idle);
    const bool is_late = is_done();  // then only surplus beats can come
    for (Stream& s : sinks)
      *s.port.ready = decide(s, timing.ready_chance, timing.burst) || is_late;
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

  // Until no beat has moved in `patience` cycles in which the ports would have let it.
  Outcome run(const Timing& timing, uint64_t patience, uint64_t limit) {
    Outcome found;
    uint64_t idle = 0, stuck = 0;
    for (; stuck < patience && found.cycles < limit; found.cycles++) {
      const bool progress = cycle(timing, idle);
      idle = progress ? 0 : idle + 1;
      stuck = progress ? 0 : stuck + is_open();
    }
    found.done = is_done();
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
    uint64_t seed, patience, runs;
  } request;
  FILE* file = fopen("request", "rb");
  if (!file) exit(4);
  take(file, &request, sizeof request);
  std::vector<Timing> timings(request.runs);
  take(file, timings.data(), timings.size() * sizeof(Timing));
  Bench<Top> bench{top, {}, {}, {request.seed}};
  ports(top, bench.sources, bench.sinks);
  for (Stream& s : bench.sources) {
    take(file, &s.all, sizeof s.all);
    s.beats.resize(s.all * s.port.bytes);
    take(file, s.beats.data(), s.beats.size());
  }
  for (Stream& s : bench.sinks) take(file, &s.all, sizeof s.all);
  fclose(file);
  file = fopen("response", "wb");
  if (!file) exit(4);
  for (const Timing& timing : timings) {
    for (Stream& s : bench.sources) s.wanted = s.all * timing.eighths / 8;
    for (Stream& s : bench.sinks) s.wanted = s.all * timing.eighths / 8;
    bench.reset(4);
    if (timing.middle) {
      bench.run(timing, request.patience, timing.middle);
      bench.reset(1 + request.seed % 3);  // in the middle of a tensor: nothing of it may remain
    }
    answer(file, bench.run(timing, request.patience, ~uint64_t(0)), bench);
  }
  fclose(file);
  top.final();
}
