"""`mase doctor`: what is installed, what works here, what to install for the rest.

It reads package metadata and looks for files. Only `--run` and `--compile` import torch.
"""

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
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from chop import toolchain
from chop.cli.failures import FAILED, OK
from chop.cli.session import Session
from chop.errors import ChopError
from chop.native import find_compiler

EXAMPLES = ("mase doctor", "mase doctor --json")
DISTRIBUTION = "masegraph"
TOOLS_EXTRA = ("test",)
"""Extras that only developers need."""


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Checks."""

    run: Annotated[
        bool,
        "Import torch, quantise a small model, build the CPU kernels and look for a GPU; takes "
        "seconds.",
    ] = False
    compile: Annotated[bool, "Compile a small model with torch.compile."] = False


@dataclass(frozen=True)
class Check:
    """One finding; `remedy`: the advice if it is not `ok`."""

    group: str
    name: str
    ok: bool
    found: str
    remedy: str = ""


def run(config: DoctorConfig, session: Session) -> dict[str, Any]:
    """Print every finding; the exit code is 0 if nothing of the core is missing."""
    session.start_work()
    checks = list(examine(config))
    core = all(check.ok for check in checks if check.group == CORE)
    for group in dict.fromkeys(check.group for check in checks):
        session.console.say(f"{group}")
        for check in (c for c in checks if c.group == group):
            mark = "ok     " if check.ok else "MISSING" if check.group == CORE else "-      "
            remedy = f"  ({check.remedy})" if check.remedy and not check.ok else ""
            session.console.say(f"  {mark} {check.name:22} {check.found}{remedy}")
    session.console.say(f"\n{_verdict(config, core)}")
    return {
        "core_works": core,
        "exit_code": OK if core else FAILED,
        "checks": [asdict(check) for check in checks],
    }


def _verdict(config: DoctorConfig, core: bool) -> str:
    if not core:
        return "The core DOES NOT WORK."
    if config.run:
        return "The core works."
    return "The core is installed. `mase doctor --run` also loads torch and quantises a model."


CORE, OPTIONAL, MACHINE = "core", "optional packages", "this machine"


def examine(config: DoctorConfig) -> Iterator[Check]:
    """Yield every finding in the order of the page."""
    yield from _packages()
    for name, look, remedy in MACHINE_CHECKS:
        yield _attempt(MACHINE, name, look, remedy)
    if config.run:
        for group, name, look, remedy in RUNS:
            yield _attempt(group, name, look, remedy)
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
    python = platform.python_version()
    yield Check(CORE, "python", sys.version_info >= (3, 11), python, "needs 3.11 or newer")
    own = _version(DISTRIBUTION)
    yield Check(CORE, DISTRIBUTION, True, own or "run from its folder: requirements are unknown")
    for need in requirements().values():
        version = _version(need.name) if need.is_optional or _is_importable(need.name) else None
        purpose = f" (for {', '.join(need.extras)})" if need.is_optional else ""
        text = f"{version or 'not installed'}{purpose}"
        ok = version is not None and need.specifier.contains(version, prereleases=True)
        extra = f"[{need.extras[0]}]" if need.is_optional else ""
        remedy = f"pip install '{DISTRIBUTION}{extra}', needs {need.specifier}"
        yield Check(OPTIONAL if need.is_optional else CORE, need.name, ok, text, remedy)


@dataclass(frozen=True)
class Need:
    """A required package; `extras`: the extras that require it."""

    name: str
    specifier: SpecifierSet
    extras: tuple[str, ...]
    is_optional: bool


def requirements() -> dict[str, Need]:
    """Return the required packages: those of the core, then those of extras."""
    required: dict[str, list[tuple[str, Requirement]]] = {}
    inner: dict[str, set[str]] = {}
    for text in _declared():
        requirement = Requirement(text)
        extra = str(requirement.marker).partition("extra == ")[2].strip("\"') ")
        if extra in TOOLS_EXTRA or not _applies(requirement, extra):
            continue
        if requirement.name == DISTRIBUTION:  # an extra that includes others of our own
            for each in requirement.extras:
                inner.setdefault(each, set()).add(extra)
        else:
            required.setdefault(requirement.name, []).append((extra, requirement))
    needs = [_need(name, rows, inner) for name, rows in required.items()]
    return {n.name: n for n in sorted(needs, key=lambda need: (need.is_optional, need.name))}


def _need(name: str, rows: list[tuple[str, Requirement]], inner: dict[str, set[str]]) -> Need:
    own = [extra for extra, _ in rows if extra]
    outer = sorted({each for extra in own for each in inner.get(extra, ())} - set(own))
    is_optional = all(extra for extra, _ in rows)
    return Need(name, rows[0][1].specifier, (*own, *outer), is_optional)


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


def _is_importable(name: str) -> bool:
    """Return whether the files of a package are there, without loading it."""
    return PathFinder.find_spec(name.replace("-", "_")) is not None


# -- what works ------------------------------------------------------------------------------------


def _trace() -> str:
    import torch  # imported late: the doctor must work if torch does not

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


def _cpu_kernels() -> str:
    from chop.nn.quantizers import kernels

    if kernels.library() is None:
        raise OSError("not built: the PyTorch path is used")
    return "built and loaded"


def _torch_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise OSError("none that torch can use")
    triton = _version("triton")
    return f"{torch.cuda.get_device_name()} (Triton {triton or 'missing'})"


RUNS: tuple[tuple[str, str, Callable[[], str], str], ...] = (
    (CORE, "trace and quantise", _trace, "reinstall: pip install --force-reinstall mase"),
    (MACHINE, "CPU kernels", _cpu_kernels, "install a C++ compiler"),
    (MACHINE, "GPU in torch", _torch_gpu, "optional: a CUDA build of torch and a driver"),
)
"""Checks of `--run`: group, name, function, advice if it fails."""


# -- this machine ----------------------------------------------------------------------------------


def _compiler() -> str:
    compiler = find_compiler()
    if compiler is None:
        raise OSError("no C++ compiler")
    return compiler


def _gpu() -> str:
    """Return the name of the first NVIDIA GPU that the driver lists."""
    listed = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    if not listed:
        raise OSError("no NVIDIA driver with a GPU")
    rows = dict(line.partition(":")[::2] for line in listed[0].read_text().splitlines())
    return f"{rows.get('Model', 'NVIDIA').strip()} (torch {_version('torch')})"


def _verilator() -> str:
    verilator = toolchain.verilator()
    return f"{verilator.version()} ({verilator.program})"


def _program(*names: str) -> Callable[[], str]:
    def look() -> str:
        program = next((path for name in names if (path := shutil.which(name))), None)
        if program is None:
            raise OSError("not on the PATH")
        return program

    return look


def _yosys() -> str:
    if importlib.util.find_spec("pyosys") is None:
        raise OSError("pyosys is not installed")
    return f"pyosys {_version('pyosys')}"


def _nextpnr() -> str:
    packages = [name for name in toolchain.INSTALL if name.startswith("yowasp_nextpnr_")]
    for package in packages:
        toolchain.require_package(package)
    versions = (f"{p.rpartition('_')[2]} {_version(p.replace('_', '-'))}" for p in packages)
    return f"nextpnr {', '.join(versions)}"


def _abc() -> str:
    """Return the path of ABC: in the package `pyosys`, or on the PATH."""
    spec = importlib.util.find_spec("pyosys")
    beside = Path(spec.origin).parent / "yosys-abc" if spec is not None and spec.origin else None
    if beside is not None and beside.is_file():
        return str(beside)
    return _program("yosys-abc")()


def _postgres() -> str:
    server = shutil.which("postgres") or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))), None
    )
    if server is None:
        raise OSError("no server on this machine")
    return server


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores, {pages * size / 2**30:.0f} GiB"


MACHINE_CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("processor, memory", _memory, ""),
    ("C++ compiler", _compiler, "apt-get install g++; without it native kernels are off"),
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
"""Name, function, advice if it fails."""
