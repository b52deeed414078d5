"""Simulation: emit SystemVerilog, run it with Verilator, compare every bit."""
