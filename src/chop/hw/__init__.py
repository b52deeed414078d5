"""Hardware back end: a quantised graph becomes SystemVerilog, checked bit for bit.

Read in this order: `stream` (what flows), `component` (one op, one class), `design` (components
connected), `emit`, `simulate`, `synth`; `lower` makes a design from a MaseGraph.
"""
