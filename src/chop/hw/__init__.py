"""Hardware back end: turn a quantised graph into SystemVerilog, checked bit for bit.

Each room imports only from the rooms after it: `flow` (synthesis, routing, prediction) and
`proofs`, `sim` (emit, simulate, compare), `library` (a folder per component), `lower` (from a
graph to a design), `timing` (cycle model, FIFO depths), `streams` (components that every design
needs), `area` (parts lists), `design` (streams, components, stages), `reference` (exact values)
and `arith` (integers). A row of the op table that names no component is an error here.
"""

from chop.hw import library

__all__ = ["library"]
