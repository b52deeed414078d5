// Drives the streams of a verilated top module: offers and takes beats under random stalls, checks
// the handshake laws, and records every beat that comes out with its cycle.
// ports.h, written per design, defines `Top` and the tables `inputs` and `outputs`.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "verilated.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

struct Port {
  void* data;
  size_t bytes;  // of `data`, as Verilator stores it
  uint8_t* valid;
  uint8_t* ready;
};

#include "ports.h"

namespace {

struct Random {  // the cycle model draws the same numbers
  uint32_t state;
  bool below(uint32_t threshold) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) < threshold;
  }
};

struct Request {
  uint32_t seed, valid_threshold, ready_threshold, reserved;
  uint64_t patience, extra, trace;
};

struct Lane {  // one stream under test
  Port port;
  Random random;
  uint64_t wanted = 0;
  bool offering = false;
  bool was_waiting = false;
  std::vector<uint8_t> bytes;   // beats to send, or received
  std::vector<uint32_t> times;  // cycle of each beat
};

template <typename T>
void get(FILE* file, T* to, size_t count) {
  if (fread(to, sizeof(T), count, file) != count) {
    fprintf(stderr, "driver: request file ends early\n");
    exit(3);
  }
}

template <typename T>
void put(FILE* file, const T* from, size_t count) {
  if (fwrite(from, sizeof(T), count, file) != count) {
    fprintf(stderr, "driver: cannot write the response\n");
    exit(3);
  }
}

void put_lane(FILE* file, const Lane& lane, bool with_bytes) {
  const uint64_t count = lane.times.size();
  put(file, &count, 1);
  if (with_bytes) put(file, lane.bytes.data(), lane.bytes.size());
  put(file, lane.times.data(), count);
}

constexpr uint64_t kProbedCycles = 256;

// Whether any output's valid changes when its consumer's ready does: valid may not wait for ready.
bool ready_decides_valid(Top& top, std::vector<Lane>& sinks) {
  std::vector<uint8_t> before;
  top.eval();
  for (Lane& lane : sinks) {
    before.push_back(*lane.port.valid);
    *lane.port.ready ^= 1;
  }
  top.eval();
  bool differs = false;
  for (size_t k = 0; k < sinks.size(); k++) {
    differs = differs || before[k] != *sinks[k].port.valid;
    *sinks[k].port.ready ^= 1;
  }
  return differs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::unique_ptr<VerilatedContext> context{new VerilatedContext};
  context->commandArgs(argc, argv);
  context->randReset(2);  // registers start at random: only reset may define them
  const std::unique_ptr<Top> top{new Top{context.get()}};

  FILE* file = fopen(argv[1], "rb");
  if (!file) return 2;
  Request request;
  get(file, &request, 1);
  std::vector<Lane> sources, sinks;
  for (const Port& port : input_ports(*top)) {
    Lane lane{port, {request.seed + 7919u * uint32_t(sources.size() + 1)}};
    get(file, &lane.wanted, 1);
    lane.bytes.resize(lane.wanted * port.bytes);
    get(file, lane.bytes.data(), lane.bytes.size());
    sources.push_back(lane);
  }
  for (const Port& port : output_ports(*top)) {
    Lane lane{port, {request.seed + 104729u * uint32_t(sinks.size() + 1)}};
    get(file, &lane.wanted, 1);
    sinks.push_back(lane);
  }
  fclose(file);

#if VM_TRACE
  context->traceEverOn(true);
  VerilatedFstC waves;
  top->trace(&waves, 99);
  waves.open(argc > 3 ? argv[3] : "waves.fst");
#endif
  uint64_t half_cycles = 0;
  auto settle = [&](uint8_t clk) {
    top->clk = clk;
    top->eval();
    context->timeInc(1);
#if VM_TRACE
    if (half_cycles < 2 * (request.trace + 8)) waves.dump(half_cycles);
#endif
    half_cycles++;
  };

  top->rst = 1;
  for (Lane& lane : sources) *lane.port.valid = 0;
  for (Lane& lane : sinks) *lane.port.ready = 0;
  for (int cycle = 0; cycle < 4; cycle++) {
    settle(0);
    settle(1);
  }
  top->rst = 0;

  std::vector<uint8_t> handshakes;  // per traced cycle: bit 0 valid, bit 1 ready, for each port
  std::vector<std::vector<uint8_t>> held(sinks.size());
  uint64_t violations = 0, last_progress = 0, cycle = 0, done_at = 0;
  bool is_done = false;
  for (;; cycle++) {
    for (Lane& lane : sources) {
      const bool has_more = lane.times.size() < lane.wanted;
      if (!lane.offering) lane.offering = lane.random.below(request.valid_threshold) && has_more;
      *lane.port.valid = lane.offering;
      if (lane.offering)
        memcpy(lane.port.data, &lane.bytes[lane.times.size() * lane.port.bytes], lane.port.bytes);
    }
    for (Lane& lane : sinks) *lane.port.ready = lane.random.below(request.ready_threshold);
    top->clk = 0;
    if (cycle < kProbedCycles) violations += ready_decides_valid(*top, sinks);
    settle(0);

    if (cycle < request.trace) {
      for (auto* side : {&sources, &sinks})
        for (Lane& lane : *side) handshakes.push_back(*lane.port.valid | *lane.port.ready << 1);
    }
    bool progress = false;
    for (Lane& lane : sources) {
      if (lane.offering && *lane.port.ready) {
        lane.times.push_back(uint32_t(cycle));
        lane.offering = false;
        progress = true;
      }
    }
    for (size_t k = 0; k < sinks.size(); k++) {
      Lane& lane = sinks[k];
      const uint8_t* data = static_cast<const uint8_t*>(lane.port.data);
      if (lane.was_waiting)  // an offer stays, with the same data, until it is taken
        violations += !*lane.port.valid || memcmp(held[k].data(), data, lane.port.bytes) != 0;
      lane.was_waiting = *lane.port.valid && !*lane.port.ready;
      if (lane.was_waiting) held[k].assign(data, data + lane.port.bytes);
      if (*lane.port.valid && *lane.port.ready) {
        lane.bytes.insert(lane.bytes.end(), data, data + lane.port.bytes);
        lane.times.push_back(uint32_t(cycle));
        progress = true;
      }
    }
    settle(1);

    if (progress) last_progress = cycle;
    if (!is_done) {
      is_done = true;
      for (Lane& lane : sinks) is_done = is_done && lane.times.size() >= lane.wanted;
      if (is_done) done_at = cycle;
    }
    // keep looking for a while: a beat too many is an error as well
    if (is_done && cycle - done_at >= request.extra) break;
    if (cycle - last_progress > request.patience) break;
    if (context->gotFinish()) break;
  }

#if VM_TRACE
  waves.close();
#endif
  file = fopen(argv[2], "wb");
  if (!file) return 2;
  const uint64_t head[4] = {is_done, is_done ? done_at + 1 : cycle, violations, handshakes.size()};
  put(file, head, 4);
  put(file, handshakes.data(), handshakes.size());
  for (const Lane& lane : sources) put_lane(file, lane, false);
  for (const Lane& lane : sinks) put_lane(file, lane, true);
  fclose(file);
  top->final();
  return 0;
}
