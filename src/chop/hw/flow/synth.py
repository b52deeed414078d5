"""Area of emitted RTL with Yosys. Runs in a child process: an error in Yosys ends its process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chop import toolchain
from chop.errors import HardwareError
from chop.hw.design.clock import DEFAULT_MHZ, logic_picoseconds
from chop.ir.design_spec import check_clock
from chop.registry import suggest

FAMILIES = {
    "xc7": "synth_xilinx -family xc7 -top {top} -flatten -noiopad -noclkbuf",
    "xcup": "synth_xilinx -family xcup -top {top} -flatten -noiopad -noclkbuf",
    "ecp5": "synth_ecp5 -top {top}",
    "ice40": "synth_ice40 -top {top} -dsp",
}
"""Device families and the Yosys script of each."""


def mapped_for(clock_mhz: float) -> str:
    """Return the command that sets the time for logic on ECP5, and the better of its mappers.

    Without a target the mapper makes each path as fast as it can and takes an eighth more LUTs, up
    to three times as many for a component. Its second flow takes the best of four mappings: 3 to
    5 % fewer LUTs of whole designs, and up to a fifth of a component.
    """
    return (
        f"scratchpad -set abc9.D {logic_picoseconds(clock_mhz)} -copy abc9.script.flow2 abc9.script"
    )


_GROUPS = {
    "lut": ("LUT", "SB_LUT4"),
    "ff": ("FD", "TRELLIS_FF", "SB_DFF"),
    "dsp": ("DSP", "MULT18", "SB_MAC16"),
    "lutram": ("RAM32", "RAM64", "RAM128", "SRL", "TRELLIS_DPR"),
    "bram": ("RAMB", "DP16KD", "SB_RAM"),
}
"""Cells by the start of their name."""

_CHILD = """
import json, sys
from pyosys import libyosys as ys
request = json.loads(sys.argv[1])
design = ys.Design()
for command in request["commands"]:
    ys.run_pass("tee -q " + command, design)
ys.run_pass("tee -q -o " + request["out"] + " stat -json", design)
"""


@dataclass(frozen=True)
class Area:
    """Cells of a design on one device family."""

    family: str
    lut: int
    ff: int
    dsp: int
    lutram: int
    bram: int
    cells: Mapping[str, int]

    def __str__(self) -> str:
        return (
            f"{self.lut} LUT, {self.ff} FF, {self.dsp} DSP, {self.lutram} LUTRAM, "
            f"{self.bram} BRAM ({self.family})"
        )


def synthesize(
    directory: Path, top: str = "top", family: str = "xc7", clock_mhz: float = DEFAULT_MHZ
) -> Area:
    """Return cell counts of the RTL emitted in the hardware directory `directory`.

    `clock_mhz`: clock that logic is mapped for on ecp5; a faster one takes more LUTs.
    """
    check_clock(clock_mhz)
    if family not in FAMILIES:
        raise HardwareError(f"synthesize: unknown family '{family}'. {suggest(family, FAMILIES)}")
    toolchain.require_package("pyosys")
    sources = " ".join(str(p.resolve()) for p in sorted((directory / "rtl").glob("*.sv")))
    commands = [
        f"read_slang --top {top} {sources}",
        mapped_for(clock_mhz),
        FAMILIES[family].format(top=top),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "stat.json")
        request = json.dumps({"commands": commands, "out": str(out)})
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, request], cwd=directory, capture_output=True, text=True
        )
        if done.returncode or not out.exists():
            output = (done.stdout + done.stderr).strip()
            raise HardwareError(f"yosys failed ({done.returncode}): {output[-2000:]}")
        return group(family, json.loads(out.read_text())["design"]["num_cells_by_type"])


def group(family: str, cells: Mapping[str, int]) -> Area:
    """Return the cells of a family by kind."""
    counts = {
        group: sum(n for cell, n in cells.items() if cell.startswith(starts))
        for group, starts in _GROUPS.items()
    }
    return Area(family, cells=dict(sorted(cells.items())), **counts)


def elaborate(directory: Path, top: str = "top") -> dict[str, int]:
    """Return port widths of the emitted top module, from slang; raise if it does not elaborate."""
    toolchain.require_package("pyslang")
    import pyslang

    compilation = pyslang.ast.Compilation()
    for source in sorted((directory / "rtl").glob("*.sv")):
        compilation.addSyntaxTree(pyslang.syntax.SyntaxTree.fromFile(str(source)))
    errors = [d for d in compilation.getAllDiagnostics() if d.isError()]
    if errors:
        engine = pyslang.DiagnosticEngine
        report = engine.reportAll(compilation.sourceManager, errors)
        raise HardwareError(f"slang: {report[-2000:]}")
    for instance in compilation.getRoot().topInstances:
        if instance.name == top:
            return {port.name: int(port.type.bitWidth) for port in instance.body.portList}
    raise HardwareError(f"slang: no top module '{top}' in {directory}.")
