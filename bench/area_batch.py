"""Several components synthesised in one run of Yosys, each as a module of its own.

What a run takes before it comes to the first component is a second or more: most of the time of a
small one. Nothing is shared between the modules. Their cells are those of each alone but for the
order in which the mapper meets them: it moves one in three by a few LUTs, and few by many.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chop.errors import HardwareError
from chop.hw.check import bench_design
from chop.hw.component import Component
from chop.hw.emit import emit

SCRIPTS = {
    "ecp5": "synth_ecp5 -top together -noflatten",
    "xc7": "synth_xilinx -family xc7 -top together -noiopad -noclkbuf",
}
CHILD = """
import json, sys
from pyosys import libyosys as ys
request = json.loads(sys.argv[1])
design = ys.Design()
for command in request:
    ys.run_pass("tee -q " + command, design)
"""


def synthesize_together(components: Sequence[Component], family: str) -> list[dict[str, int]]:
    """The cells of each of them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "rtl").mkdir()
        for k, component in enumerate(components):
            _emit_as(folder, f"top_{k}", component)
        around, out = folder / "together.v", folder / "stat.json"
        uses = "".join(f"(* keep *) top_{k} u_{k} ();\n" for k in range(len(components)))
        around.write_text(f"module together ();\n{uses}endmodule\n")
        tops = " ".join(f"--top top_{k}" for k in range(len(components)))
        sources = " ".join(map(str, sorted((folder / "rtl").glob("*.sv"))))
        commands = [
            f"read_slang {tops} {sources}",
            f"read_verilog {around}",
            SCRIPTS[family],
            f"-o {out} stat -json",
        ]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(commands)], capture_output=True, text=True
        )
        if done.returncode or not out.exists():
            raise HardwareError(f"yosys failed: {(done.stdout + done.stderr).strip()[-2000:]}")
        modules = json.loads(out.read_text())["modules"]
        return [modules[f"\\top_{k}"]["num_cells_by_type"] for k in range(len(components))]


def _emit_as(folder: Path, top: str, component: Component) -> None:
    """Its files among those of others: the top with a name of its own, memories by full paths."""
    hardware = emit(bench_design([component]), folder / top)
    for source in (hardware / "rtl").glob("*.sv"):
        text = source.read_text()
        if source.name == "top.sv":
            text = re.sub(r"\bmodule top\b", f"module {top}", text)
            text = text.replace('"mem/', f'"{hardware}/mem/')
        name = f"{top}.sv" if source.name == "top.sv" else source.name
        (folder / "rtl" / name).write_text(text)
