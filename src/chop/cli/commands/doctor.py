"""`mase doctor`: what is installed, what works here, what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from chop.cli.configs import DoctorConfig
from chop.cli.failures import FAILED, OK
from chop.cli.session import Session
from chop.errors import ChopError
from chop.native import find_compiler

DISTRIBUTION = "masegraph"
TOOLS_EXTRA = ("test",)
"""Extras that only developers need."""


@dataclass(frozen=True)
class Check:
    """One finding: `remedy` says what to do where it is not `ok`."""

    group: str
    name: str
    ok: bool
    found: str
    remedy: str = ""


def run(config: DoctorConfig, session: Session) -> dict[str, Any]:
    """Look at everything; exit code 0 where the core works."""
    checks = list(examine(config))
    core = all(check.ok for check in checks if check.group == CORE)
    for group in dict.fromkeys(check.group for check in checks):
        session.console.say(f"{group}")
        for check in (c for c in checks if c.group == group):
            mark = "ok     " if check.ok else "MISSING" if check.group == CORE else "-      "
            remedy = f"  ({check.remedy})" if check.remedy and not check.ok else ""
            session.console.say(f"  {mark} {check.name:22} {check.found}{remedy}")
    session.console.say(f"\nThe core {'works' if core else 'DOES NOT WORK'}.")
    return {
        "core_works": core,
        "exit_code": OK if core else FAILED,
        "checks": [asdict(check) for check in checks],
    }


CORE, OPTIONAL, MACHINE = "core", "optional packages", "this machine"


def examine(config: DoctorConfig) -> Iterator[Check]:
    """Every finding, in the order it is told."""
    yield from _packages()
    yield _attempt(
        CORE, "trace and quantise", _trace, "reinstall: pip install --force-reinstall mase"
    )
    for name, look, remedy in MACHINE_CHECKS:
        yield _attempt(MACHINE, name, look, remedy)
    if config.compile:
        yield _attempt(
            MACHINE, "torch.compile", _compile, "needs a C++ compiler, or a GPU with Triton"
        )


def _attempt(group: str, name: str, look: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(group, name, True, look())
    except (ChopError, ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Check(group, name, False, lines[0][:90], remedy)


# -- packages --------------------------------------------------------------------------------------


def _packages() -> Iterator[Check]:
    version = platform.python_version()
    yield Check(CORE, "python", sys.version_info >= (3, 11), version, "needs 3.11 or newer")
    for requirement, extras in requirements().values():
        group = OPTIONAL if extras else CORE
        extra = f"[{extras[0]}]" if extras else ""
        found = _version(requirement.name)
        purpose = f" (for {', '.join(extras)})" if extras else ""
        told = f"{found or 'not installed'}{purpose}"
        ok = found is not None and requirement.specifier.contains(found, prereleases=True)
        remedy = f"pip install '{DISTRIBUTION}{extra}', needs {requirement.specifier}"
        yield Check(group, requirement.name, ok, told, remedy)


def requirements() -> dict[str, tuple[Requirement, list[str]]]:
    """Package -> what of it is needed, and the extras that ask for it; none: the core does."""
    found: dict[str, tuple[Requirement, list[str]]] = {}
    for text in _declared():
        requirement = Requirement(text)
        extra = str(requirement.marker).partition("extra == ")[2].strip("\"') ")
        if extra in TOOLS_EXTRA or not _applies(requirement, extra):
            continue
        extras = found.setdefault(requirement.name, (requirement, []))[1]
        if extra:
            extras.append(extra)
    return dict(sorted(found.items(), key=lambda item: (bool(item[1][1]), item[0])))


def _declared() -> list[str]:
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- what works ------------------------------------------------------------------------------------


def _trace() -> str:
    import torch  # imported late: the doctor must speak where it cannot be

    from chop import MaseGraph
    from chop.passes import quantize_transform_pass

    start = time.perf_counter()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    graph = MaseGraph(model, dummy_in=torch.zeros(1, 4))
    rules = {"linear": {"config": {"name": "integer", "data_in_width": 8, "weight_width": 8}}}
    quantize_transform_pass(graph, rules)
    graph.model(torch.zeros(1, 4))
    return f"in {time.perf_counter() - start:.2f} s"


def _compile() -> str:
    import torch

    start = time.perf_counter()
    torch.compile(torch.nn.Linear(4, 4))(torch.zeros(1, 4))
    return f"in {time.perf_counter() - start:.1f} s"


def _compiler() -> str:
    found = find_compiler()
    if found is None:
        raise OSError("no C++ compiler")
    return found


def _cpu_kernels() -> str:
    from chop.nn.quantizers import kernels

    if kernels.library() is None:
        raise OSError("not built: the PyTorch path is used")
    return "built and loaded"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise OSError("none that torch can use")
    triton = _version("triton")
    return f"{torch.cuda.get_device_name()} (Triton {triton or 'missing'})"


def _verilator() -> str:
    from chop.hw.toolchain import verilator

    found = verilator()
    return f"{found.version()} ({found.program})"


def _program(*names: str) -> Callable[[], str]:
    def look() -> str:
        found = next((path for name in names if (path := shutil.which(name))), None)
        if found is None:
            raise OSError("not on the PATH")
        return found

    return look


def _yosys() -> str:
    if importlib.util.find_spec("pyosys") is None:
        raise OSError("pyosys is not installed")
    return f"pyosys {_version('pyosys')}"


def _nextpnr() -> str:
    from chop.hw.route.parts import FAMILIES
    from chop.hw.toolchain import require_package

    for family in FAMILIES:
        require_package(family.package)
    told = (f"{f.name} {_version(f.package.replace('_', '-'))}" for f in FAMILIES)
    return f"nextpnr {', '.join(told)}"


def _abc() -> str:
    from chop.hw.proofs.engine import find_abc

    return str(find_abc())


def _postgres() -> str:
    found = shutil.which("postgres") or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))), None
    )
    if found is None:
        raise OSError("no server on this machine")
    return found


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores, {pages * size / 2**30:.0f} GiB"


MACHINE_CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("processor, memory", _memory, ""),
    ("C++ compiler", _compiler, "apt-get install g++; without it native kernels are off"),
    ("CPU kernels", _cpu_kernels, "install a C++ compiler"),
    ("GPU", _gpu, "optional: a CUDA build of torch and a driver"),
    ("Verilator", _verilator, "for simulation: apt-get install verilator"),
    ("Icarus Verilog", _program("iverilog"), "for cocotb: apt-get install iverilog"),
    ("Yosys", _yosys, "for synthesis: pip install 'masegraph[hardware]'"),
    ("place and route", _nextpnr, "for a clock and a bitstream: pip install 'masegraph[route]'"),
    ("ABC", _abc, "for proofs: pip install 'masegraph[hardware]'"),
    ("PostgreSQL", _postgres, "for searches over many machines: apt-get install postgresql"),
    (
        "Chromium",
        _program("chromium", "chromium-browser", "google-chrome"),
        "only for tests of report.html",
    ),
)
"""Name, how to look, what to do where it fails."""
