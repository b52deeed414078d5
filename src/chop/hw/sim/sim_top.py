"""The simulated top module: with a gate on every inner stream and a probe for each table.

The copy differs from the emitted module in nothing else, and open gates are wires. Gates hold up
the streams inside the design, which no stall at its ports can do one by one. They also cut them:
with `tapped` high, each gate gives the producer and the consumer of its stream their own ports, so
that every component can be driven alone. A probe is a second instance of a table, with its own
ports, so that every entry can be read in every lane.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.stream import Stream

GATE = Path(__file__).parent / "stall_gate.sv"
_STREAM = re.compile(r"^  logic \[(\d+):0\] (\w+_stream);$", re.M)
_TABLE = re.compile(r"^  fixed_lut #\(\n(.*?)\n  \) u_(\w+) \(\n.*?\n  \);\n", re.M | re.S)
_OUTPUT = re.compile(r"^  assign (\w+) = (\w+_stream);$", re.M)
_PARAMETER = re.compile(r'\.(\w+)\s*\((?:"([^"]*)"|(\d+))\)')


@dataclass(frozen=True)
class Probe:
    """A second instance of the table of stage `stage`."""

    stage: str
    parameters: str
    file: str
    """The memory file, relative to the hardware directory."""
    in_width: int
    out_width: int
    lanes: int

    @property
    def ports(self) -> tuple[str, str]:
        """Names of its input and its output stream."""
        return f"probe_{self.stage}_in", f"probe_{self.stage}_out"

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """One beat for each entry."""
        shape = (2**self.in_width, self.lanes)
        return (
            Stream(shape, self.lanes, Fixed(self.in_width)),
            Stream(shape, self.lanes, Fixed(self.out_width)),
        )

    def codes(self) -> Ints:
        """Return every code in every lane, no two lanes with the same one."""
        rows = np.arange(2**self.in_width)[:, None] + np.arange(self.lanes)
        return _signed(rows, self.in_width)[None]

    def entries(self, directory: Path) -> Ints:
        """Return the expected answers to `codes`, from the memory file."""
        text = (directory / self.file).read_text()
        table = np.array([int(word, 16) for word in text.split()], dtype=np.int64)
        unsigned = self.codes() & (2**self.in_width - 1)
        return _signed(table[unsigned], self.out_width)


def _signed(codes: Ints, width: int) -> Ints:
    half = 1 << (width - 1)
    return ((codes + half) & (2 * half - 1)) - half


@dataclass(frozen=True)
class SimTop:
    """The text of the top module for simulation, the streams with a gate, and the probes."""

    text: str
    gates: tuple[str, ...]
    probes: tuple[Probe, ...]
    outputs: Mapping[str, str] = field(default_factory=dict)
    """The output port of each stream that leaves the design, by its signal."""
    widths: Mapping[str, int] = field(default_factory=dict)
    """Bits of a beat of each gated stream."""


def sim_top(text: str) -> SimTop:
    """Return the top module `text` with gates and probes."""
    widths = {name: int(high) + 1 for high, name in _STREAM.findall(text)}
    consumed = set(re.findall(r"\.data_in_\d+_valid\s*\((\w+)_valid\)", text))
    gates = tuple(name for name in widths if name in consumed)
    outputs = {signal: port for port, signal in _OUTPUT.findall(text)}
    probes = tuple(_probe(match) for match in _TABLE.finditer(text))
    for name in gates:
        for end in ("valid", "ready"):
            pin = rf"(\.data_in_\d+_{end}\s*)\({name}_{end}\)"
            text = re.sub(pin, rf"\1({name}_behind_{end})", text)
        text = re.sub(rf"(\.data_in_\d+\s*)\({name}\)", rf"\1({name}_behind)", text)
    ports, signals, instances = ["    input  wire logic tapped"] * bool(gates), [], []
    for name in gates:
        ports += [f"    input  wire logic {name}_go", f"    output      logic {name}_broken"]
        ports += _port_pair(f"{name}_tap_in", f"{name}_tap_out", widths[name], widths[name])
        signals.append(f"  logic [{widths[name] - 1}:0] {name}_behind;")
        signals.append(f"  logic {name}_behind_valid, {name}_behind_ready;")
        instances.append(_gate_text(name, widths[name]))
    for probe in probes:
        ports += _port_pair(*probe.ports, *(stream.beat_width for stream in probe.streams))
        instances.append(_probe_text(probe))
    if ports:
        head = ",\n" + ",\n".join(ports) + "\n);\n" + "\n".join(signals) + "\n"
        text = text.replace("\n);\n", head, 1)
        text = text.replace("\nendmodule\n", "\n" + "\n".join(instances) + "\nendmodule\n", 1)
    return SimTop(text, gates, probes, outputs, {name: widths[name] for name in gates})


def _gate_text(name: str, width: int) -> str:
    return f"""  stall_gate #(
      .DATA_WIDTH({width})
  ) u_{name}_gate (
      .clk         (clk),
      .rst         (rst),
      .go          ({name}_go),
      .tapped      (tapped),
      .data        ({name}),
      .before_valid({name}_valid),
      .before_ready({name}_ready),
      .behind      ({name}_behind),
      .behind_valid({name}_behind_valid),
      .behind_ready({name}_behind_ready),
      .tap_in      ({name}_tap_in),
      .tap_in_valid({name}_tap_in_valid),
      .tap_in_ready({name}_tap_in_ready),
      .tap_out_valid({name}_tap_out_valid),
      .tap_out_ready({name}_tap_out_ready),
      .broken      ({name}_broken)
  );
  assign {name}_tap_out = {name};
"""


def _probe(match: re.Match[str]) -> Probe:
    parameters = {name: text or number for name, text, number in _PARAMETER.findall(match[1])}
    return Probe(
        stage=match[2],
        parameters=match[1],
        file=parameters["INIT_FILE"],
        in_width=int(parameters["DATA_IN_0_PRECISION_0"]),
        out_width=int(parameters["DATA_OUT_0_PRECISION_0"]),
        lanes=int(parameters["DATA_IN_0_PARALLELISM_DIM_0"]),
    )


def _port_pair(into: str, out: str, in_width: int, out_width: int) -> list[str]:
    """Return the lines of an input stream and of an output stream, widths in bits."""
    return [
        f"    input  wire logic [{in_width - 1}:0] {into}",
        f"    input  wire logic {into}_valid",
        f"    output      logic {into}_ready",
        f"    output      logic [{out_width - 1}:0] {out}",
        f"    output      logic {out}_valid",
        f"    input  wire logic {out}_ready",
    ]


def _probe_text(probe: Probe) -> str:
    into, out = probe.ports
    pins = [".clk(clk)", ".rst(rst)"]
    for pin, name in (("data_in_0", into), ("data_out_0", out)):
        pins += [f".{pin}{end}({name}{end})" for end in ("", "_valid", "_ready")]
    joined = ",\n      ".join(pins)
    return f"  fixed_lut #(\n{probe.parameters}\n  ) u_{into} (\n      {joined}\n  );\n"
