// Counts the toggles of every net of a verilated top module while tensors stream through it.
//
// The top is traced once per cycle, just before the rising edge, to a file that is not written but
// read as it comes: value change dump (IEEE 1364). Names of one net in several modules have one
// code there, so no net counts twice. Glitches within a cycle are not seen.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "verilated.h"
#include "verilated_vcd_c.h"

struct ActivityPort {
  void* data;
  size_t bytes;  // of `data`, as Verilator stores it
  uint8_t* valid;
  uint8_t* ready;
};

struct ActivityPorts {
  std::vector<ActivityPort> inputs, outputs;
};

class ToggleCounter final : public VerilatedVcdFile {
 public:
  bool open(const std::string&) override { return true; }
  void close() override {}
  ssize_t write(const char* text, ssize_t length) override {
    const char* const end = text + length;
    while (text < end) {
      const char* stop = static_cast<const char*>(memchr(text, '\n', size_t(end - text)));
      line_.append(text, stop ? stop : end);
      if (!stop) break;
      take(line_);
      line_.clear();
      text = stop + 1;
    }
    return length;
  }

  // Forgets all toggles so far.
  void restart() {
    for (Net& net : nets_) net.toggles = 0;
  }

  // One line per net: toggles, bits, and its names.
  void report(FILE* file) const {
    for (const Net& net : nets_) {
      fprintf(file, "%llu %zu", static_cast<unsigned long long>(net.toggles), net.width);
      for (const std::string& name : net.names) fprintf(file, " %s", name.c_str());
      fputc('\n', file);
    }
  }

 private:
  struct Net {
    size_t width;
    std::vector<std::string> names;
    std::string value{};
    uint64_t toggles = 0;
  };

  void take(const std::string& line) {
    const size_t at = line.find_first_not_of(' ');
    if (at == std::string::npos) return;
    const char kind = line[at];
    if (kind == '$')
      declare(line.substr(at));
    else if (kind == 'b')
      change(line.substr(line.find(' ') + 1), line.substr(at + 1, line.find(' ') - at - 1));
    else if (kind == '0' || kind == '1')
      change(line.substr(at + 1), std::string(1, kind));
  }

  void declare(const std::string& line) {
    char scope[16], name[4096], code[64];
    size_t width;
    if (sscanf(line.c_str(), "$scope %15s %4095s", scope, name) == 2)
      scopes_.push_back(name);
    else if (line.rfind("$upscope", 0) == 0)
      scopes_.pop_back();
    else if (sscanf(line.c_str(), "$var %15s %zu %63s %4095s", scope, &width, code, name) == 4) {
      std::string path;
      for (const std::string& each : scopes_) path += each + ".";
      const auto added = index_.emplace(code, nets_.size());
      if (added.second) nets_.push_back(Net{width, {}});
      nets_[added.first->second].names.push_back(path + name);
    }
  }

  void change(const std::string& code, const std::string& value) {
    Net& net = nets_[index_.at(code)];
    if (net.value.size() == value.size())  // empty before the first value
      for (size_t k = 0; k < value.size(); k++) net.toggles += net.value[k] != value[k];
    net.value = value;
  }

  std::string line_;
  std::vector<std::string> scopes_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<Net> nets_;
};

struct ActivityLane {
  ActivityPort port;
  uint64_t wanted = 0, moved = 0, first = 0;
  std::vector<uint8_t> bytes{};
};

inline void activity_get(FILE* file, void* to, size_t bytes) {
  if (fread(to, 1, bytes, file) != bytes) {
    fprintf(stderr, "activity: request file ends early\n");
    exit(3);
  }
}

// Request: patience in cycles; for each input its number of beats and their bytes; for each output
// its number of beats, and after how many of them counting begins. Response: cycles, and the nets.
template <typename Top>
int count_activity(Top& top, VerilatedContext& context, const ActivityPorts& ports, char** argv) {
  FILE* request = fopen(argv[1], "rb");
  if (!request) return 2;
  uint64_t patience;
  activity_get(request, &patience, sizeof patience);
  std::vector<ActivityLane> sources, sinks;
  for (const ActivityPort& port : ports.inputs) {
    ActivityLane lane{port};
    activity_get(request, &lane.wanted, sizeof lane.wanted);
    lane.bytes.resize(lane.wanted * port.bytes);
    activity_get(request, lane.bytes.data(), lane.bytes.size());
    sources.push_back(lane);
  }
  for (const ActivityPort& port : ports.outputs) {
    ActivityLane lane{port};
    activity_get(request, &lane.wanted, sizeof lane.wanted);
    activity_get(request, &lane.first, sizeof lane.first);
    sinks.push_back(lane);
  }
  fclose(request);

  ToggleCounter counter;
  VerilatedVcdC trace{&counter};
  context.traceEverOn(true);
  top.trace(&trace, 99);
  trace.open("unwritten");
  for (ActivityLane& lane : sources) *lane.port.valid = 0;
  for (ActivityLane& lane : sinks) *lane.port.ready = 1;
  for (int cycle = 0; cycle < 4; cycle++)
    for (uint8_t clk : {0, 1}) {
      top.rst = 1;
      top.clk = clk;
      top.eval();
    }
  top.rst = 0;

  const auto all = [&](auto reached) { return std::all_of(sinks.begin(), sinks.end(), reached); };
  bool is_counting = false;
  uint64_t counted = 0, idle = 0;
  for (uint64_t time = 0; !all([](auto& lane) { return lane.moved >= lane.wanted; }); time++) {
    if (idle++ > patience) {
      fprintf(stderr, "activity: no beat moved any more\n");
      return 4;
    }
    if (!is_counting && all([](auto& lane) { return lane.moved >= lane.first; })) {
      counter.restart();
      is_counting = true;
    }
    for (ActivityLane& lane : sources) {
      *lane.port.valid = lane.moved < lane.wanted;
      const size_t at = lane.moved * lane.port.bytes;
      if (*lane.port.valid) memcpy(lane.port.data, lane.bytes.data() + at, lane.port.bytes);
    }
    top.clk = 0;
    top.eval();
    trace.dump(time);
    trace.flush();
    counted += is_counting;
    for (auto* lanes : {&sources, &sinks})
      for (ActivityLane& lane : *lanes)
        if (*lane.port.valid && *lane.port.ready) lane.moved++, idle = 0;
    top.clk = 1;
    top.eval();
  }
  trace.close();
  top.final();
  FILE* response = fopen(argv[2], "wb");
  if (!response) return 2;
  fprintf(response, "%llu\n", static_cast<unsigned long long>(counted));
  counter.report(response);
  return fclose(response) ? 3 : 0;
}
