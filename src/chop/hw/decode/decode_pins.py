"""A module around a decode engine that needs five pins, so that any package can hold it.

Shift registers stand for the token ports and for the memory controller. Each port of the engine
begins or ends at a flip-flop, so that all paths of the engine are timed.
"""

from __future__ import annotations

from chop.hw.decode.decode_emit import PORTS, TOP, DecodeDesign, port_widths

PINS = "decode_pins"
"""Name of the module."""


def pins_text(design: DecodeDesign) -> str:
    """Return the module around the engine of `design`, in SystemVerilog."""
    inputs, outputs = (_slices(design, way) for way in ("input", "output"))
    pins = [f".{name}(in_q[{place}+:{width}])" for name, place, width in inputs]
    pins += [f".{name}(outs[{place}+:{width}])" for name, place, width in outputs]
    joined = ",\n      ".join([".clk(clk)", ".rst(rst_q)", *pins])
    return _TEXT.format(
        name=PINS, top=TOP, pins=joined, inputs=_total(inputs) - 1, outputs=_total(outputs) - 1
    )


_Slice = tuple[str, int, int]
"""Name of a port, its first bit in a shift register, and its width."""


def _slices(design: DecodeDesign, way: str) -> list[_Slice]:
    widths, slices = port_widths(design), list[_Slice]()
    for name, (direction, _) in PORTS.items():
        if direction == way and name not in ("clk", "rst"):
            slices.append((name, _total(slices), widths[name]))
    return slices


def _total(slices: list[_Slice]) -> int:
    return sum(slices[-1][1:]) if slices else 0


_TEXT = """\
// The decode engine with its ports in shift registers.
`default_nettype none

module {name} (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic serial_in,
    input  wire logic capture,
    output      logic serial_out
);

  logic [{inputs}:0] in_q;
  logic [{outputs}:0] outs, held_q, out_q;
  logic rst_q, capture_q;

  assign serial_out = out_q[0];

  always_ff @(posedge clk) begin
    rst_q     <= rst;
    capture_q <= capture;
    in_q      <= {{in_q[{inputs}-1:0], serial_in}};
    held_q    <= outs;
    out_q     <= capture_q ? held_q : out_q >> 1;
  end

  {top} u_top (
      {pins}
  );

endmodule

`default_nettype wire
"""
