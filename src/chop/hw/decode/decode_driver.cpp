// Drives a verilated decode engine: external memory behind AXI4, prompts in, tokens and logits out.
//
//     simulator REQUEST MEMORY RESPONSE
//
// REQUEST, little-endian: `Settings`, then for each sequence its prompt length, new tokens and the
// prompt. MEMORY: the image; the cache behind it starts as zeros. RESPONSE: for each sequence the
// cycles at which prompt tokens were taken, and token, cycle and logits of each output; then counts.
// The memory keeps time as `memory_timing.py` does.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

namespace {

struct Settings {
  uint32_t latency, bandwidth, refresh_interval, refresh_cycles, write_cycles, write_latency, bursts;
  uint32_t stalls, seed, sequences, with_logits, beats;
  uint64_t image_bytes, cache_start, patience;
};

struct Burst {
  uint64_t ready_at, address;
  uint32_t left;
};

struct Write {
  uint64_t answer_at, address;
  std::vector<uint8_t> data;
};

struct Draws {
  uint32_t state, threshold;
  bool passes() {
    if (!threshold) return true;
    state = state * 1664525u + 1013904223u;
    return (state >> 8) >= threshold;
  }
};

[[noreturn]] void fail(const char* what, uint64_t cycle) {
  fprintf(stderr, "decode driver: %s in cycle %llu\n", what, (unsigned long long)cycle);
  exit(4);
}

template <typename T>
void get(FILE* file, T* to, size_t count) {
  if (fread(to, sizeof(T), count, file) != count) fail("the request ends early", 0);
}

FILE* open_file(const char* path, const char* mode) {
  FILE* file = fopen(path, mode);
  if (!file) fail(path, 0);
  return file;
}

constexpr uint32_t kOne = 1u << 16;
constexpr uint32_t kChannels = 5;

class Bench {
 public:
  Bench(Vtop& top, const Settings& settings, std::vector<uint8_t> memory)
      : top_(top), s_(settings), memory_(std::move(memory)) {
    for (uint32_t i = 0; i < kChannels; i++) draws_[i] = Draws{s_.seed * 7919u + i, s_.stalls};
  }

  // One cycle: inputs, then what moves, then the clock edge.
  void cycle(bool offers, uint32_t token, bool is_last) {
    bool passes[kChannels];  // read address, read data, write address, tokens, write data
    for (uint32_t i = 0; i < kChannels; i++) passes[i] = draws_[i].passes();
    begin_memory(passes);
    top_.token_in_valid = offers;
    top_.token_in = token;
    top_.token_in_last = is_last;
    top_.token_out_ready = passes[3];
    top_.eval();
    check_held();
    took_token = offers && top_.token_in_ready;
    sent_token = top_.token_out_valid && top_.token_out_ready;
    out_token = top_.token_out;
    if (top_.logit_valid) logits.push_back((int16_t)top_.logit);
    end_memory();
    top_.clk = 1;
    top_.eval();
    top_.clk = 0;
    top_.eval();
    now++;
  }

  uint64_t now = 0, read_beats = 0, written_beats = 0;
  bool took_token = false, sent_token = false;
  uint32_t out_token = 0;
  std::vector<int16_t> logits;

 private:
  void begin_memory(const bool* passes) {
    credit_ = credit_ + s_.bandwidth < 2 * kOne - 1 ? credit_ + s_.bandwidth : 2 * kOne - 1;
    const bool refreshing =
        s_.refresh_interval && now % s_.refresh_interval < s_.refresh_cycles;
    const bool ready = !waiting_.empty() && now >= waiting_.front().ready_at && credit_ >= kOne;
    gives_ = ready && passes[1] && !refreshing && now >= blocked_until_;
    answered_ = !writes_.empty() && now >= writes_.front().answer_at;
    top_.m_axi_arready = passes[0] && waiting_.size() < s_.bursts;
    top_.m_axi_rvalid = gives_;
    if (gives_) {
      memcpy(&top_.m_axi_rdata, memory_.data() + waiting_.front().address, beat_bytes());
      top_.m_axi_rlast = waiting_.front().left == 1;
    }
    top_.m_axi_awready = passes[2];
    top_.m_axi_wready = passes[4];
    top_.m_axi_bvalid = answered_;
  }

  void end_memory() {
    if (gives_) {
      if (!top_.m_axi_rready) fail("read data had to wait", now);
      credit_ -= kOne;
      read_beats++;
      waiting_.front().address += beat_bytes();
      if (--waiting_.front().left == 0) waiting_.pop_front();
    }
    if (top_.m_axi_arvalid && top_.m_axi_arready) take_burst();
    if (answered_) store();
    if (top_.m_axi_awvalid && top_.m_axi_awready) addresses_.push_back(top_.m_axi_awaddr);
    if (top_.m_axi_wvalid && top_.m_axi_wready) {
      const auto* data = reinterpret_cast<const uint8_t*>(&top_.m_axi_wdata);
      words_.emplace_back(data, data + beat_bytes());
    }
    if (!addresses_.empty() && !words_.empty()) write_beat();
  }

  void take_burst() {
    const uint64_t address = top_.m_axi_araddr, beats = uint64_t(top_.m_axi_arlen) + 1;
    const uint64_t end = address + beats * beat_bytes();
    if (address % beat_bytes() || end > memory_.size()) fail("a burst is outside memory", now);
    if (address / 4096 != (end - 1) / 4096) fail("a burst crosses 4096 bytes", now);
    waiting_.push_back({now + s_.latency, address, uint32_t(beats)});
  }

  void write_beat() {
    const uint64_t address = addresses_.front();
    if (address < s_.cache_start || address + beat_bytes() > memory_.size()) {
      fail("a write is outside the cache", now);
    }
    writes_.push_back({now + s_.write_latency, address, std::move(words_.front())});
    addresses_.pop_front();
    words_.pop_front();
    written_beats++;
    blocked_until_ = (blocked_until_ > now + 1 ? blocked_until_ : now + 1) + s_.write_cycles;
  }

  // A read sees a write only after its answer, as late as AXI4 allows.
  void store() {
    memcpy(memory_.data() + writes_.front().address, writes_.front().data.data(), beat_bytes());
    writes_.pop_front();
  }

  // An address or token that was offered and not taken is offered again, unchanged.
  void check_held() {
    const bool waits = top_.m_axi_arvalid && !top_.m_axi_arready;
    if (held_ && (!top_.m_axi_arvalid || held_address_ != top_.m_axi_araddr ||
                  held_length_ != top_.m_axi_arlen)) {
      fail("a read address changed before it was taken", now);
    }
    if (write_held_ && (!top_.m_axi_awvalid || held_write_ != top_.m_axi_awaddr)) {
      fail("a write address changed before it was taken", now);
    }
    if (token_held_ && (!top_.token_out_valid || held_token_ != top_.token_out)) {
      fail("a token changed before it was taken", now);
    }
    held_ = waits;
    held_address_ = top_.m_axi_araddr;
    held_length_ = top_.m_axi_arlen;
    write_held_ = top_.m_axi_awvalid && !top_.m_axi_awready;
    held_write_ = top_.m_axi_awaddr;
    token_held_ = top_.token_out_valid && !top_.token_out_ready;
    held_token_ = top_.token_out;
  }

  size_t beat_bytes() const { return sizeof(top_.m_axi_rdata); }

  Vtop& top_;
  Settings s_;
  std::vector<uint8_t> memory_;
  Draws draws_[kChannels];
  std::deque<Burst> waiting_;
  std::deque<uint64_t> addresses_;
  std::deque<Write> writes_;
  std::deque<std::vector<uint8_t>> words_;
  uint64_t blocked_until_ = 0, held_address_ = 0, held_write_ = 0;
  uint32_t credit_ = 0, held_length_ = 0, held_token_ = 0;
  bool gives_ = false, answered_ = false, held_ = false, write_held_ = false, token_held_ = false;
};

void put(FILE* file, const void* from, size_t bytes) {
  if (fwrite(from, 1, bytes, file) != bytes) fail("cannot write the response", 0);
}

void run_sequence(Bench& bench, Vtop& top, const Settings& s, FILE* request, FILE* response) {
  uint32_t counts[2];  // prompt, new tokens
  get(request, counts, 2);
  std::vector<uint32_t> prompt(counts[0]);
  get(request, prompt.data(), prompt.size());
  top.new_tokens = counts[1];
  uint64_t last_event = bench.now;
  for (uint32_t i = 0; i < counts[0];) {
    bench.cycle(true, prompt[i], i + 1 == counts[0]);
    if (bench.now - last_event > s.patience) fail("no prompt token was taken for too long", bench.now);
    if (!bench.took_token) continue;
    last_event = bench.now;
    const uint64_t cycle = bench.now - 1;
    put(response, &cycle, 8);
    i++;
  }
  for (uint32_t i = 0; i < counts[1];) {
    bench.cycle(false, 0, false);
    if (bench.now - last_event > s.patience) fail("no token came for too long", bench.now);
    if (!bench.sent_token) continue;
    last_event = bench.now;
    const uint64_t record[3] = {bench.out_token, bench.now - 1, bench.logits.size()};
    put(response, record, 24);
    put(response, bench.logits.data(), 2 * bench.logits.size());
    bench.logits.clear();
    i++;
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) fail("usage: simulator REQUEST MEMORY RESPONSE", 0);
  FILE* request = open_file(arguments[1], "rb");
  Settings settings;
  get(request, &settings, 1);
  std::vector<uint8_t> memory(settings.beats * sizeof(Vtop::m_axi_rdata));
  FILE* image = open_file(arguments[2], "rb");
  get(image, memory.data(), settings.image_bytes);
  fclose(image);
  FILE* response = open_file(arguments[3], "wb");
  VerilatedContext context;
  context.randReset(2);
  context.randSeed(int(settings.seed));
  auto top = std::make_unique<Vtop>(&context);
  top->rst = 1;
  for (int i = 0; i < 4; i++) {
    top->clk = 0;
    top->eval();
    top->clk = 1;
    top->eval();
  }
  top->clk = 0;
  top->rst = 0;
  Bench bench(*top, settings, std::move(memory));
  for (uint32_t i = 0; i < settings.sequences; i++) {
    run_sequence(bench, *top, settings, request, response);
  }
  const uint64_t totals[3] = {bench.now, bench.read_beats, bench.written_beats};
  put(response, totals, 24);
  fclose(response);
  top->final();
  return 0;
}
