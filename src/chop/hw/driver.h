// What the driver knows of a verilated design, so that it is compiled once for all of them.
#pragma once
#include <cstddef>
#include <cstdint>
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

struct Gate {
  uint8_t* go;
  const uint8_t* broken;
};

struct Model {
  uint8_t* clk;
  uint8_t* rst;
  std::vector<Port> inputs, outputs;
  std::vector<Gate> gates;
  virtual ~Model() = default;
  virtual void eval() = 0;
  virtual void finish() = 0;
#if VM_TRACE
  virtual void trace(VerilatedFstC& waves) = 0;
#endif
};

std::unique_ptr<Model> make_model(VerilatedContext& context);
