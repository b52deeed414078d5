"""A module around a design that puts its streams on pins: three for each, for any width.

A beat goes bit by bit, the lowest first, so that the module is an ordinary design whose elements
are bits: the same simulator runs it, on the same vectors. Reset is registered once. The pace of
a stream is that of its pins; the clock is that of the design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.design import Interface
from chop.hw.design.stream import Stream

BIT = Fixed(1, 0, is_signed=False)


def pins_name(design: str) -> str:
    """Return the name of the module around `design`."""
    return f"{design}_pins"


def pins_interface(interface: Interface) -> Interface:
    """Return ports and pace of the module around a design."""
    ports = [{n: bits_of(s) for n, s in side.items()} for side in _sides(interface)]
    slowest = max(s.beats * (s.beat_width + 1) for side in _sides(interface) for s in side.values())
    return replace(
        interface,
        name=pins_name(interface.name),
        inputs=ports[0],
        outputs=ports[1],
        cycles=max(interface.cycles, slowest),
        control=None,
    )


def _sides(interface: Interface) -> tuple[Mapping[str, Stream], Mapping[str, Stream]]:
    return interface.inputs, interface.outputs


def bits_of(stream: Stream) -> Stream:
    """Return the stream of the bits of `stream`."""
    return Stream((stream.elements * stream.format.width,), 1, BIT)


def as_bits(streams: Mapping[str, Stream], codes: Mapping[str, Ints]) -> dict[str, Ints]:
    """Return the bits of tensors of codes, in the order in which they pass the pins.

    >>> as_bits({"x": Stream((2,), 2, Fixed(3, 0))}, {"x": np.array([[1, -2]])})["x"].tolist()
    [[1, 0, 0, 0, 1, 1]]
    """
    bits = {}
    for name, stream in streams.items():
        rows = np.asarray(codes[name]).reshape(-1, stream.elements, 1)
        bits[name] = ((rows >> np.arange(stream.format.width)) & 1).reshape(len(rows), -1)
    return bits


def pins_text(interface: Interface) -> str:
    """Return the module, in SystemVerilog."""
    ports = ["    input  wire logic clk", "    input  wire logic rst"]
    signals, instances, directions = [], [], ("input  wire", "output     ")
    design_pins = [".clk(clk)", ".rst(rst_q)"]
    for into, side in zip((True, False), _sides(interface), strict=True):
        for name, stream in side.items():
            driven, back = directions if into else reversed(directions)
            ports += [
                f"    {driven} logic {name}",
                f"    {driven} logic {name}_valid",
                f"    {back} logic {name}_ready",
            ]
            beat = f"{name}_beat"
            signals += [
                f"  logic [{stream.beat_width - 1}:0] {beat};",
                f"  logic {beat}_valid, {beat}_ready;",
            ]
            instances.append(_serial_text(name, stream.beat_width, into))
            design_pins += [f".{name}{end}({beat}{end})" for end in ("", "_valid", "_ready")]
    joined = ",\n      ".join(design_pins)
    listed = ",\n".join(ports)
    return "\n".join(
        [
            f"// `{interface.name}` with its streams on pins, bit by bit, the lowest bit first.",
            "`default_nettype none\n",
            f"module {pins_name(interface.name)} (\n{listed}\n);\n",
            *signals,
            "  logic rst_q;\n",
            "  always_ff @(posedge clk) rst_q <= rst;\n",
            *instances,
            f"  {interface.name} u_{interface.name} (\n      {joined}\n  );\n",
            "endmodule\n\n`default_nettype wire\n",
        ]
    )


def _serial_text(name: str, width: int, into: bool) -> str:
    module = "serial_in" if into else "serial_out"
    outer, inner = ("data_in_0", "data_out_0") if into else ("data_out_0", "data_in_0")
    pins = [".clk(clk)", ".rst(rst_q)"]
    for end in ("", "_valid", "_ready"):
        pins += [f".{outer}{end}({name}{end})", f".{inner}{end}({name}_beat{end})"]
    joined = ",\n      ".join(pins)
    return f"  {module} #(\n      .DATA_WIDTH({width})\n  ) u_{name}_pins (\n      {joined}\n  );\n"
