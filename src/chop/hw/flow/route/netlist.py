"""The cells of a design on a part: from RTL to the netlist that is placed, and its simulation."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.design.component import rtl_sources
from chop.hw.design.design import Interface
from chop.hw.flow.route.dsp_registers import pack_dsp_registers
from chop.hw.flow.route.parts import Part
from chop.hw.flow.route.pins import as_bits, pins_interface, pins_name, pins_text
from chop.hw.flow.route.tools import run_yosys
from chop.hw.flow.synth import mapped_for
from chop.hw.sim.emit import write_files
from chop.hw.sim.simulate import Simulator, Verdict
from chop.hw.timing.stalls import Stalls

CELLS = Path(__file__).parent / "cells"
SERIAL = ("serial_in", "serial_out")
NETLIST = "netlist.json"
STALLS = Stalls(0.8, 0.7, 3)
"""Stalls of the second simulation of a netlist."""


@dataclass(frozen=True)
class Shell:
    """The module that is placed: it surrounds a design and has the pins of the part."""

    top: str
    sources: tuple[Path, ...]
    """SystemVerilog files beside those of the design."""
    constraints: Path | None = None
    """File with the pins; None lets nextpnr choose them."""


@dataclass(frozen=True)
class Netlist:
    """The file that is placed, and its number of cells of each type."""

    file: Path
    top: str
    cells: Mapping[str, int]
    packed: int
    """Flip-flops that went into multipliers."""


def pins_shell(interface: Interface, work: Path) -> Shell:
    """Write the module that puts the streams of a design on pins to `work`, and return it."""
    top = pins_name(interface.name)
    (work / f"{top}.sv").write_text(pins_text(interface))
    return Shell(top, (work.resolve() / f"{top}.sv", *(rtl_sources()[name] for name in SERIAL)))


def make_netlist(
    hardware: Path,
    shell: Shell,
    part: Part,
    work: Path,
    logic_mhz: float = DEFAULT_MHZ,
) -> Netlist:
    """Synthesise the RTL emitted in `hardware`, with `shell` around it; files in `work`."""
    top = shell.top
    sources = [*sorted((hardware.resolve() / "rtl").glob("*.sv")), *shell.sources]
    script = part.family.synthesis.format(top=top, more=part.synthesis)
    commands = [
        f"read_slang --top {top} {' '.join(map(str, sources))}",
        mapped_for(logic_mhz),
        f"{script} -json {(work / NETLIST).resolve()}",
    ]
    run_yosys(commands, hardware)  # memory files are named from there
    netlist = json.loads((work / NETLIST).read_text())
    packed = pack_dsp_registers(netlist, top) if part.family.name == "ecp5" else 0
    (work / NETLIST).write_text(json.dumps(netlist))
    counts = Counter(cell["type"] for cell in netlist["modules"][top]["cells"].values())
    return Netlist(work / NETLIST, top, dict(sorted(counts.items())), packed)


# -- simulation ------------------------------------------------------------------------------------


def simulate_netlist(
    netlist: Netlist,
    interface: Interface,
    part: Part,
    work: Path,
    vectors: tuple[Mapping[str, Ints], Mapping[str, Ints]],
) -> Verdict:
    """Stream inputs through the pins of the netlist; raise unless every output bit is right.

    `vectors` are codes at the ports of the design: inputs, and their expected outputs. They are
    streamed at full rate, and again with random stalls.
    """
    text = _simulation_text(netlist, work)
    files = {f"rtl/{netlist.top}.sv": text, "rtl/cells.sv": _cell_models(part)}
    write_files(work / "netlist", files)
    simulator = Simulator(pins_interface(interface), work / "netlist")
    inputs = as_bits(interface.inputs, vectors[0])
    expected = as_bits(interface.outputs, vectors[1])
    simulator.run(inputs, STALLS, expected=expected).require_exact()
    return simulator.run(inputs, expected=expected).require_exact()


def _simulation_text(netlist: Netlist, work: Path) -> str:
    """Return the netlist in Verilog, with cells that have models."""
    record = json.loads(netlist.file.read_text())
    for cell in record["modules"][netlist.top]["cells"].values():
        if cell["type"] in _VECTORS:
            _to_vectors(cell)
    (work / "simulated.json").write_text(json.dumps(record))
    text = work / "simulated.v"
    names = (str((work / "simulated.json").resolve()), str(text.resolve()))
    run_yosys([f"read_json {names[0]}", f"write_verilog -noattr {names[1]}"], work)
    return text.read_text()


_VECTORS: dict[str, tuple[str, dict[str, int]]] = {
    "MULT18X18D": ("ecp5_multiplier", {"A": 18, "B": 18, "P": 36, "CE": 4}),
    "DP16KD": ("ecp5_memory", {"ADA": 14, "ADB": 14, "DIA": 18, "DIB": 18, "DOA": 18, "DOB": 18}),
}
"""Cells that Yosys has no model of: ours, and the ports that become vectors in it."""
_SCALARS = {
    "MULT18X18D": {"CLK0": "CLK", "SIGNEDA": "SIGNEDA", "SIGNEDB": "SIGNEDB"},
    "DP16KD": {n: n for n in ("CLKA", "CEA", "WEA", "RSTA", "CLKB", "CEB", "WEB", "RSTB")},
}
_PARAMETERS = {
    "MULT18X18D": tuple(
        f"REG_{at}_{pin}" for at in ("INPUTA", "INPUTB", "OUTPUT") for pin in ("CLK", "CE")
    ),
    "DP16KD": ("DATA_WIDTH_A", "DATA_WIDTH_B", "WRITEMODE_A", "WRITEMODE_B"),
}
_REFUSED = {"DP16KD": {"CLKAMUX": "INV", "CLKBMUX": "INV", "REGMODE_B": "OUTREG"}}


def _to_vectors(cell: dict[str, Any]) -> None:
    """Replace a cell by its model: ports with a number become vectors."""
    kind, pins, parameters = cell["type"], cell["connections"], cell["parameters"]
    for name, value in _REFUSED.get(kind, {}).items():
        if parameters.get(name) == value:
            raise HardwareError(f"netlist: there is no model of {kind} with {name} = {value}.")
    model, vectors = _VECTORS[kind]

    def pin(name: str) -> Any:
        return (pins.get(name) or ["0"])[0]

    joined = {name: [pin(f"{name}{k}") for k in range(width)] for name, width in vectors.items()}
    joined |= {new: [pin(old)] for old, new in _SCALARS[kind].items()}
    passed = {name: parameters[name] for name in _PARAMETERS[kind] if name in parameters}
    if kind == "DP16KD":
        slices = [parameters.get(f"INITVAL_{k:02X}", "0" * 320) for k in range(64)]
        passed["INIT"] = "".join(reversed(slices)).replace("x", "0")
    outputs = ("P", "DOA", "DOB")
    cell["port_directions"] = {n: "output" if n in outputs else "input" for n in joined}
    cell |= {"type": model, "parameters": passed, "connections": joined}


def _cell_models(part: Part) -> str:
    """Return Yosys' models of the family's cells, and ours of the others."""
    spec = importlib.util.find_spec("pyosys")
    assert spec is not None and spec.origin is not None, "synthesised with it a moment ago"
    share = Path(spec.origin).parent / "share"
    if part.family.name == "ice40":
        return f"`define NO_ICE40_DEFAULT_ASSIGNMENTS\n{(share / 'ice40/cells_sim.v').read_text()}"
    theirs = "".join((share / "lattice" / n).read_text() for n in _ECP5_MODELS)
    ours = "".join(p.read_text() for p in sorted(CELLS.glob("*.sv")))
    return (
        re.sub(r"\bspecify\b.*?\bendspecify\b|`include[^\n]*", "", theirs, flags=re.DOTALL) + ours
    )


_ECP5_MODELS = ("common_sim.vh", "ccu2c_sim.vh")
