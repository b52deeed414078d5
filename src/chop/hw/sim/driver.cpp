// Drives the streams of a verilated top module: offers and takes beats under random stalls, holds
// up the streams inside by their gates, checks the handshake laws, and records every beat that
// comes out with its cycle.
// It knows no design: the code written for each defines `make_model`.
#include "driver.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace {

struct Random {  // the cycle model draws the same numbers
  uint32_t state, threshold, burst;
  uint32_t left = 0;
  bool passes = false;
  uint32_t draw() { return (state = state * 1664525u + 1013904223u) >> 8; }
  bool next() {
    if (left == 0) {
      left = burst;
      passes = draw() < threshold;
    }
    left--;
    return passes;
  }
};

struct Request {
  uint32_t seed, valid_threshold, ready_threshold, inside_threshold, burst, resets;
  uint32_t tapped, unused;  // tapped: every component alone, between the ports of its own taps
  uint64_t patience, extra, trace, reset_span;
};

struct Lane {  // one stream under test
  Port port;
  uint64_t wanted = 0;
  std::vector<uint8_t> bytes;     // beats to send, or received
  std::vector<uint8_t> expected;  // beats that should be received
  Random random{};
  bool offering = false;
  bool was_waiting = false;
  std::vector<uint8_t> held;    // what was offered and not taken
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
constexpr uint64_t kWatchPeriod = 19;  // cycles; beats often come every 2^n of them

class Copy {  // of memory that lies in pieces
 public:
  explicit Copy(const std::vector<Span>& spans) : spans_(spans) {
    size_t total = 0;
    for (const Span& span : spans_) total += span.bytes;
    bytes_.resize(total);
  }

  void take() {
    uint8_t* to = bytes_.data();
    for (const Span& span : spans_) {
      memcpy(to, span.at, span.bytes);
      to += span.bytes;
    }
  }

  bool is_same() const {
    const uint8_t* from = bytes_.data();
    for (const Span& span : spans_) {
      if (memcmp(from, span.at, span.bytes)) return false;
      from += span.bytes;
    }
    return true;
  }

 private:
  std::vector<Span> spans_;
  std::vector<uint8_t> bytes_;
};

// Finds out whether an edge leaves a domain as it was; then every further edge does, for as long as
// the inputs stay as they were at that edge.
class Watch {
 public:
  explicit Watch(const Domain& domain) : state_(domain.state), memories_(domain.memories) {}

  bool is_due() {  // a domain that moved is looked at less often
    if (rest_ == 0) return true;
    rest_--;
    return false;
  }

  void before_edge() {
    is_watching_ = true;
    state_.take();
    if (is_still_) memories_.take();
  }

  bool is_same_after_edge() {
    if (!is_watching_) return false;
    is_watching_ = false;
    if (!state_.is_same() || (is_still_ && !memories_.is_same())) {
      is_still_ = false;
      wait_ = wait_ < kLongestWait ? wait_ + 1 : wait_;
      rest_ = wait_;
      return false;
    }
    const bool is_all_same = is_still_;
    is_still_ = !is_still_;  // memories are long: they are looked at once all else stands still
    wait_ = 0;
    return is_all_same;
  }

 private:
  static constexpr uint32_t kLongestWait = 4;
  Copy state_, memories_;
  bool is_watching_ = false, is_still_ = false;
  uint32_t rest_ = 0, wait_ = 0;
};

class Bench {
 public:
  Bench(VerilatedContext& context, Model& model, const char* request, const char* waves)
      : context_(context), model_(model), gates_(model.gates) {
    read(request);
    for (const Domain& domain : model.domains) watches_.emplace_back(domain);
    is_asleep_.resize(watches_.size());
#if VM_TRACE
    context.traceEverOn(true);
    model.trace(waves_);
    waves_.open(waves ? waves : "waves.fst");
#endif
  }

  void run() {
    rewind(0);
    for (Lane& lane : sources_) *lane.port.valid = 0;
    for (Lane& lane : sinks_) *lane.port.ready = 0;
    for (const Gate& gate : gates_) *gate.go = 1;
    reset(4);
    cut_off_by_resets();
    is_recorded_ = true;
    for (cycle_ = 0; !ends(); cycle_++) step();
#if VM_TRACE
    waves_.close();
#endif
  }

  void write(const char* path) const {
    FILE* file = fopen(path, "wb");
    if (!file) exit(2);
    const uint64_t cycles = is_done_ ? done_at_ + 1 : cycle_;
    const uint64_t head[5] = {is_done_, cycles, violations_, spoilt_, handshakes_.size()};
    put(file, head, 5);
    put(file, handshakes_.data(), handshakes_.size());
    for (const Lane& lane : sources_) put_lane(file, lane, false);
    for (const Lane& lane : sinks_) put_lane(file, lane, true);
    fclose(file);
  }

 private:
  void read(const char* path) {
    FILE* file = fopen(path, "rb");
    if (!file) exit(2);
    get(file, &request_, 1);
    if (model_.tapped) *model_.tapped = request_.tapped;
    for (const Port& port : ports(model_.inputs, model_.tap_inputs)) {
      Lane lane{port};
      get(file, &lane.wanted, 1);
      lane.bytes.resize(lane.wanted * port.bytes);
      get(file, lane.bytes.data(), lane.bytes.size());
      sources_.push_back(lane);
    }
    for (const Port& port : ports(model_.outputs, model_.tap_outputs)) {
      Lane lane{port};
      get(file, &lane.wanted, 1);
      lane.expected.resize(lane.wanted * port.bytes);
      get(file, lane.expected.data(), lane.expected.size());
      sinks_.push_back(lane);
    }
    fclose(file);
  }

  std::vector<Port> ports(std::vector<Port> own, const std::vector<Port>& taps) const {
    if (request_.tapped) own.insert(own.end(), taps.begin(), taps.end());
    return own;
  }

  // Every stream from its first beat again, and the decisions of attempt `attempt`.
  void rewind(uint32_t attempt) {
    const uint32_t seed = request_.seed + attempt * 15485863u;
    auto begin = [&](Random& random, uint32_t prime, size_t k, uint32_t threshold) {
      random = Random{seed + prime * uint32_t(k + 1), threshold, request_.burst};
    };
    for (size_t k = 0; k < sources_.size(); k++) {
      begin(sources_[k].random, 7919u, k, request_.valid_threshold);
      sources_[k].offering = false;
      sources_[k].times.clear();
    }
    for (size_t k = 0; k < sinks_.size(); k++) {
      begin(sinks_[k].random, 104729u, k, request_.ready_threshold);
      sinks_[k].was_waiting = false;
      sinks_[k].bytes.clear();
      sinks_[k].times.clear();
    }
    gate_random_.resize(gates_.size());
    for (size_t k = 0; k < gates_.size(); k++)
      begin(gate_random_[k], 1299709u, k, request_.inside_threshold);
    last_progress_ = 0;
    is_done_ = false;
  }

  void settle(uint8_t clk) {
    *model_.clk = clk;
    model_.eval();
    context_.timeInc(1);
#if VM_TRACE
    if (is_recorded_ && cycle_ < request_.trace + 8) waves_.dump(half_cycles_++);
#endif
  }

  // The rising edge, left out for the domains in which it would change nothing.
  void edge() {
    model_.raise(is_asleep_.data());
    const bool is_watching = cycle_ % kWatchPeriod == 0;
    for (size_t k = 0; is_watching && k < watches_.size(); k++)
      if (!is_asleep_[k] && watches_[k].is_due()) {
        model_.keep_inputs(k);
        watches_[k].before_edge();
      }
    settle(1);
    for (size_t k = 0; is_watching && k < watches_.size(); k++)
      is_asleep_[k] |= watches_[k].is_same_after_edge();
    model_.lower();
  }

  void reset(int cycles) {
    *model_.rst = 1;
    for (int cycle = 0; cycle < cycles; cycle++) {
      std::fill(is_asleep_.begin(), is_asleep_.end(), 0);
      settle(0);
      edge();
    }
    *model_.rst = 0;
    std::fill(is_asleep_.begin(), is_asleep_.end(), 0);
  }

  // Begins the run and cuts it off in the middle of a tensor: state that reset leaves alone shows.
  // The reset is one cycle long and comes while beats are offered and taken.
  void cut_off_by_resets() {
    Random length{request_.seed, 0, 1};
    for (uint32_t attempt = request_.resets; attempt > 0; attempt--) {
      rewind(attempt);
      const uint64_t until = 1 + length.draw() % request_.reset_span;
      for (cycle_ = 0; cycle_ < until; cycle_++) step();
      reset(1);
    }
    rewind(0);
  }

  // Whether any output's valid changes when its consumer's ready does: valid may not wait for it.
  bool ready_decides_valid() {
    std::vector<uint8_t> before;
    model_.eval();
    for (Lane& lane : sinks_) {
      before.push_back(*lane.port.valid);
      *lane.port.ready ^= 1;
    }
    model_.eval();
    bool differs = false;
    for (size_t k = 0; k < sinks_.size(); k++) {
      differs = differs || before[k] != *sinks_[k].port.valid;
      *sinks_[k].port.ready ^= 1;
    }
    return differs;
  }

  void step() {
    drive();
    *model_.clk = 0;
    if (cycle_ < kProbedCycles) violations_ += ready_decides_valid();
    settle(0);
    if (is_recorded_ && cycle_ < request_.trace) {
      for (auto* side : {&sources_, &sinks_})
        for (Lane& lane : *side) handshakes_.push_back(*lane.port.valid | *lane.port.ready << 1);
    }
    for (const Gate& gate : gates_) violations_ += *gate.broken;
    for (Lane& lane : sources_) send(lane);
    for (Lane& lane : sinks_) receive(lane);
    edge();
  }

  void drive() {
    for (Lane& lane : sources_) {
      const bool has_more = lane.times.size() < lane.wanted;
      if (!lane.offering) lane.offering = lane.random.next() && has_more;
      *lane.port.valid = lane.offering;
      if (lane.offering)
        memcpy(lane.port.data, &lane.bytes[lane.times.size() * lane.port.bytes], lane.port.bytes);
    }
    for (Lane& lane : sinks_)  // a component that is not driven is left alone
      *lane.port.ready = lane.random.next() && (lane.wanted || !request_.tapped);
    for (size_t k = 0; k < gates_.size(); k++) *gates_[k].go = gate_random_[k].next();
  }

  void send(Lane& lane) {
    if (!lane.offering || !*lane.port.ready) return;
    lane.times.push_back(uint32_t(cycle_));
    lane.offering = false;
    last_progress_ = cycle_;
  }

  void receive(Lane& lane) {
    const uint8_t* data = static_cast<const uint8_t*>(lane.port.data);
    if (lane.was_waiting)  // an offer stays, with the same data, until it is taken
      violations_ += !*lane.port.valid || memcmp(lane.held.data(), data, lane.port.bytes) != 0;
    lane.was_waiting = *lane.port.valid && !*lane.port.ready;
    if (lane.was_waiting) lane.held.assign(data, data + lane.port.bytes);
    if (!*lane.port.valid || !*lane.port.ready) return;
    if (!is_recorded_) spoilt_ += !is_expected(lane, data);
    lane.bytes.insert(lane.bytes.end(), data, data + lane.port.bytes);
    lane.times.push_back(uint32_t(cycle_));
    last_progress_ = cycle_;
  }

  static bool is_expected(const Lane& lane, const uint8_t* data) {
    const size_t at = lane.times.size() * lane.port.bytes;
    return at < lane.expected.size() && !memcmp(&lane.expected[at], data, lane.port.bytes);
  }

  // After the last beat it looks on for a while: a beat too many is an error as well.
  bool ends() {
    if (!is_done_) {
      is_done_ = true;
      for (const Lane& lane : sinks_) is_done_ = is_done_ && lane.times.size() >= lane.wanted;
      if (is_done_) done_at_ = cycle_ ? cycle_ - 1 : 0;
    }
    if (is_done_ && cycle_ > done_at_ + request_.extra) return true;
    for (const Lane& lane : sinks_)  // beats without end
      if (lane.times.size() > lane.wanted + request_.extra) return true;
    return cycle_ > last_progress_ + request_.patience + 1 || context_.gotFinish();
  }

  VerilatedContext& context_;
  Model& model_;
  Request request_{};
  std::vector<Lane> sources_, sinks_;
  const std::vector<Gate>& gates_;
  std::vector<Random> gate_random_;
  std::vector<Watch> watches_;
  std::vector<uint8_t> is_asleep_;
  std::vector<uint8_t> handshakes_;  // per traced cycle: bit 0 valid, bit 1 ready, for each port
  uint64_t cycle_ = 0, done_at_ = 0, last_progress_ = 0, violations_ = 0;
  uint64_t spoilt_ = 0;  // wrong beats in the runs that a reset cut off
  bool is_done_ = false, is_recorded_ = false;
#if VM_TRACE
  VerilatedFstC waves_;
  uint64_t half_cycles_ = 0;
#endif
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::unique_ptr<VerilatedContext> context{new VerilatedContext};
  context->commandArgs(argc, argv);
  context->randReset(2);  // registers start at random: only reset may define them
  const std::unique_ptr<Model> model = make_model(*context);
  Bench bench{*context, *model, argv[1], argc > 3 ? argv[3] : nullptr};
  bench.run();
  bench.write(argv[2]);
  model->finish();
  return 0;
}
