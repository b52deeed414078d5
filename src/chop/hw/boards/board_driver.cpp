// A board on a pseudo-terminal: its top module, with UART bits on its pins.
//
//   simulator CLOCKS IDLE RATE SEED
//
// CLOCKS: oscillator cycles per UART bit. IDLE: cycles of silence after which the simulation sleeps
// until the host sends again. RATE: share of bytes with a fault, in each direction; SEED: of their
// random choice. The first line of output is the name of the terminal. The program ends when its
// standard input is closed; its last line lists the cycles and the faults that were injected.

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <random>

#include "Vtop.h"

namespace {

class Faults {
 public:
  Faults(double rate, unsigned seed) : rate_{rate}, random_{seed} {}
  bool happens() {
    const bool is_fault = rate_ > 0 && std::uniform_real_distribution<double>{}(random_) < rate_;
    count += is_fault;
    return is_fault;
  }
  unsigned below(unsigned limit) { return random_() % limit; }
  unsigned count = 0;

 private:
  double rate_;
  std::mt19937 random_;
};

// Levels of the line to the board: what the host sends, bit by bit.
class Transmitter {
 public:
  Transmitter(unsigned clocks, Faults& faults) : clocks_{clocks}, faults_{faults} {}
  void push(uint8_t byte) {
    if (!faults_.happens()) return frame(byte, 1);
    switch (faults_.below(5)) {
      case 0: return;                                          // lost
      case 1: return frame(byte ^ (1u << faults_.below(8)), 1);  // one wrong bit
      case 2: return frame(byte, 0);                           // no stop bit
      case 3:                                                  // a byte too many
        frame(static_cast<uint8_t>(faults_.below(256)), 1);
        return frame(byte, 1);
      default:  // a spike, shorter than a start bit
        level(0, clocks_ / 4);
        level(1, clocks_);
        return frame(byte, 1);
    }
  }
  bool next() {
    if (levels_.empty()) return true;
    const bool value = levels_.front().value;
    if (--levels_.front().cycles == 0) levels_.pop_front();
    return value;
  }
  bool is_idle() const { return levels_.empty(); }

 private:
  struct Level {
    bool value;
    unsigned cycles;
  };
  void level(bool value, unsigned cycles) { if (cycles) levels_.push_back({value, cycles}); }
  void frame(unsigned byte, bool stop) {
    level(0, clocks_);
    for (int k = 0; k < 8; k++) level((byte >> k) & 1, clocks_);
    level(stop, clocks_);
    if (!stop) level(1, clocks_);
  }
  unsigned clocks_;
  Faults& faults_;
  std::deque<Level> levels_;
};

// Bytes of the line from the board, sampled in the middle of each bit.
class Receiver {
 public:
  Receiver(unsigned clocks, Faults& faults) : clocks_{clocks}, faults_{faults} {}
  void sample(bool level, int terminal) {
    if (bit_ < 0) {
      if (!level) { bit_ = 0; left_ = clocks_ / 2; }
    } else if (left_-- == 0) {
      left_ = clocks_ - 1;
      if (bit_ > 0 && bit_ < 9) byte_ = static_cast<uint8_t>((byte_ >> 1) | (level << 7));
      if (bit_ == 9 && level) deliver(terminal);
      bit_ = (bit_ == 9 || (bit_ == 0 && level)) ? -1 : bit_ + 1;
    }
  }
  bool is_idle() const { return bit_ < 0; }

 private:
  void deliver(int terminal) {
    uint8_t bytes[2] = {byte_, static_cast<uint8_t>(faults_.below(256))};
    size_t size = 1;
    if (faults_.happens()) {
      const unsigned kind = faults_.below(3);
      if (kind == 0) return;                                               // lost
      if (kind == 1) bytes[0] ^= static_cast<uint8_t>(1u << faults_.below(8));  // one wrong bit
      if (kind == 2) size = 2;                                             // a byte too many
    }
    if (write(terminal, bytes, size) < 0) std::perror("simulator");
  }
  unsigned clocks_, left_ = 0;
  Faults& faults_;
  int bit_ = -1;
  uint8_t byte_ = 0;
};

int open_terminal() {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) return -1;
  const int other = open(ptsname(terminal), O_RDWR | O_NOCTTY);  // kept open: no hang-up
  termios settings;
  if (other < 0 || tcgetattr(other, &settings)) return -1;
  cfmakeraw(&settings);
  tcsetattr(other, TCSANOW, &settings);
  std::printf("%s\n", ptsname(terminal));
  std::fflush(stdout);
  return terminal;
}

constexpr unsigned kPollCycles = 512;
constexpr int kSleepMs = 50;
constexpr unsigned kStartCycles = 4096;  // more than the power-on reset, in which bytes are lost

void run_cycle(Vtop& top, bool uart_rx) {
  top.uart_rx = uart_rx;
  top.clk = 0;
  top.eval();
  top.clk = 1;
  top.eval();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const unsigned clocks = std::strtoul(argv[1], nullptr, 10);
  const uint64_t idle_limit = std::strtoull(argv[2], nullptr, 10);
  Faults faults{std::strtod(argv[3], nullptr), static_cast<unsigned>(std::atoi(argv[4]))};
  VerilatedContext context;
  context.randReset(2);
  Vtop top{&context};
  Transmitter to_board{clocks, faults};
  Receiver from_board{clocks, faults};
  for (unsigned k = 0; k < kStartCycles; k++) run_cycle(top, true);
  const int terminal = open_terminal();
  if (terminal < 0) return 1;
  pollfd files[2] = {{terminal, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  uint64_t cycles = 0, silent = 0;
  for (bool is_open = true; is_open; cycles++) {
    if (cycles % kPollCycles == 0) {
      poll(files, 2, silent > idle_limit ? kSleepMs : 0);
      uint8_t bytes[256];
      if (files[0].revents & POLLIN) {
        const ssize_t count = read(terminal, bytes, sizeof bytes);
        for (ssize_t k = 0; k < count; k++) to_board.push(bytes[k]);
      }
      if (files[1].revents) is_open = read(STDIN_FILENO, bytes, sizeof bytes) > 0;
    }
    run_cycle(top, to_board.next());
    from_board.sample(top.uart_tx, terminal);
    silent = to_board.is_idle() && from_board.is_idle() ? silent + 1 : 0;
  }
  top.final();
  std::printf("{\"cycles\": %llu, \"injected\": %u}\n", static_cast<unsigned long long>(cycles),
              faults.count);
  return 0;
}
