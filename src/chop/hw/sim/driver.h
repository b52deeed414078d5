// What the driver knows of a verilated design, so that it is compiled once for all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
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

struct Gate {
  uint8_t* go;
  const uint8_t* broken;
};

struct Span {
  const uint8_t* at;
  size_t bytes;
};

// From the first of some fields that follow each other to the end of the last.
template <typename First, typename Last>
Span span(const First& first, const Last& last) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&first);
  return {begin, size_t(reinterpret_cast<const uint8_t*>(&last + 1) - begin)};
}

template <typename T>
bool differs(const T& a, const T& b) {
  if constexpr (std::is_arithmetic_v<T>)
    return a != b;
  else
    return memcmp(&a, &b, sizeof(T)) != 0;
}

// A stage with a clock of its own: all that an edge of it may change.
struct Domain {
  std::vector<Span> state, memories;
};

struct Model {
  uint8_t* clk;
  uint8_t* rst;
  uint8_t* tapped = nullptr;  // cuts every gated stream; null where there is none
  std::vector<Port> inputs, outputs;
  std::vector<Port> tap_inputs, tap_outputs;  // into consumers and out of producers of cut streams
  std::vector<Gate> gates;
  std::vector<Domain> domains;  // none: everything follows `clk`
  virtual ~Model() = default;
  // Wakes the domains whose inputs are not those kept, and raises the clocks of all that are awake.
  virtual void raise(uint8_t* /*is_asleep*/) {}
  virtual void lower() {}
  virtual void keep_inputs(size_t /*domain*/) {}
  virtual void eval() = 0;
  virtual void finish() = 0;
#if VM_TRACE
  virtual void trace(VerilatedFstC& waves) = 0;
#endif
};

std::unique_ptr<Model> make_model(VerilatedContext& context);
