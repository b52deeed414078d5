"""Hardware back end: a quantised graph becomes SystemVerilog, checked bit for bit.

Read in this order: `stream` (what flows), `component` (one op, one class), `design` (components
connected), `lower` (a design from a MaseGraph), `emit`, `simulate`, `synth`. `rtl` has a folder for
each component; a row of the op table that names none of them is an error here.
"""

from chop.hw import library

__all__ = ["library"]
