// Which of TRIGGERS clocks have an edge, eight to a word. Verilator's own, before it packed them into
// bits, walks through them one by one several times in each cycle, which takes longer than the
// stages of a design that sleeps for the most part.
#pragma once
#include <cstring>

#include "verilated.h"

template <>
class VlTriggerVec<TRIGGERS> final {
 public:
  VlTriggerVec() { clear(); }
  void clear() { memset(words_, 0, sizeof words_); }
  bool& at(size_t index) { return reinterpret_cast<bool*>(words_)[index]; }
  bool any() const {
    uint64_t found = 0;
    for (const uint64_t word : words_) found |= word;
    return found != 0;
  }
  void set(const VlTriggerVec& other) {
    for (size_t i = 0; i < kWords; i++) words_[i] |= other.words_[i];
  }
  void andNot(const VlTriggerVec& a, const VlTriggerVec& b) {
    for (size_t i = 0; i < kWords; i++) words_[i] = a.words_[i] & ~b.words_[i];
  }

 private:
  static constexpr size_t kWords = (TRIGGERS + 7) / 8;
  uint64_t words_[kWords];
};
