"""Compilation of emitted RTL to a program, with Verilator and the C++ compiler, and its lint."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from chop import toolchain
from chop.errors import HardwareError
from chop.files import cache_dir
from chop.hw.design.design import Interface
from chop.hw.design.reload import PORT
from chop.hw.sim import manifest, stage_clocks
from chop.hw.sim.emit import write_files
from chop.hw.sim.sim_top import GATE, SimTop
from chop.hw.sim.stage_clocks import ClockedTop
from chop.log import get_logger

logger = get_logger(__name__)

DRIVER = Path(__file__).parent / "driver.cpp"
HEADER = DRIVER.with_suffix(".h")
TRIGGERS = DRIVER.with_name("triggers.h")
_CXX_FLAGS = ("-std=gnu++17", "-pthread", "-fno-strict-aliasing")
_LEVELS = {"fast": "-O1", "waves": "-O1", "long": "-O3", "quick": "-O0", "activity": "-O1"}
"""Optimisation of each kind of program: a quick one compiles for longer than it runs."""
_PLAIN = ("verilated", "verilated_threads")
_RUNTIME = dict.fromkeys(_LEVELS, _PLAIN) | {
    "waves": (*_PLAIN, "verilated_fst_c"),
    "activity": (*_PLAIN, "verilated_vcd_c"),
}
_PRELUDE = ("verilated.h", "cstdint", "cstdio", "cstring", "memory", "vector")
_OPTIONS = {
    "fast": (),
    "waves": ("--trace-fst",),
    "long": ("--flatten",),
    "quick": (),
    "activity": ("--trace-vcd", "--no-trace-params", "--trace-max-width", "65536"),
}


def lint(directory: Path, top: str = "top", folders: Iterable[str] = ("rtl",)) -> str:
    """Return the complaints of `verilator --lint-only -Wall` on the emitted RTL; empty for none."""
    sources = [p for name in folders for p in sorted((directory.resolve() / name).glob("*.sv"))]
    command = [str(toolchain.verilator().program), "--lint-only", "-Wall", "--top-module", top]
    command += map(str, sources)
    environment = os.environ | toolchain.verilator().environment()
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment)
    return toolchain.complaints(done)


def build(
    interface: Interface,
    directory: Path,
    top: SimTop,
    *,
    waves: bool = False,
    is_quick: bool = False,
) -> Path:
    """Return the simulator program of the RTL in `directory`, built if a source changed.

    `is_quick` builds fast and simulates slowly.
    """
    name = f"{interface.name}.sv"
    sources = [p for p in sorted((directory / "rtl").glob("*.sv")) if p.name != name]
    key = hashlib.sha256()
    version = toolchain.verilator().version()
    for text in (top.text, _model_text(interface, top), version, str(waves)):
        key.update(text.encode())
    for source in (*sources, GATE, DRIVER, HEADER, TRIGGERS, Path(stage_clocks.__file__)):
        key.update(source.read_bytes())
    plain = "quick" if is_quick else "fast"
    kind = "waves" if waves else "long" if isinstance(top, ClockedTop) else plain
    work = directory / "sim" / f"{kind}-{key.hexdigest()[:16]}"
    program = work / "simulator"
    if not manifest.is_built_here(program):
        shutil.rmtree(work, ignore_errors=True)  # a file that came with the folder is not compiled
        write_files(work, {name: top.text})
        _verilate(interface.name, [*sources, GATE, work / name], work, _OPTIONS[kind])
        domains = _domains(top, work, sources) if isinstance(top, ClockedTop) else ("", "")
        write_files(work, {"model.cpp": _model_text(interface, top, *domains)})
        _put_resets_aside(work)
        _compile(work, kind)
        manifest.note_built(program)
    return program


def build_program(
    top: str, sources: Sequence[Path], driver: Path, directory: Path, *, kind: str = "fast"
) -> Path:
    """Return a program of RTL with the C++ file `driver`, built if a source changed.

    The driver has a `main` and includes "Vtop.h". The program is in a folder of `directory`.
    `kind` is "fast", "long" for a program that compiles slowly and runs fast, or "activity" for
    one that traces all nets.
    """
    key = hashlib.sha256(toolchain.verilator().version().encode())
    for source in (*sources, driver):
        key.update(source.read_bytes())
    work = directory / f"{kind}-{key.hexdigest()[:16]}"
    program = work / "simulator"
    if not manifest.is_built_here(program):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        _verilate(top, sources, work, _OPTIONS[kind])
        _put_resets_aside(work)
        parts = [*(p.name for p in sorted(work.glob("Vtop*.cpp"))), str(driver)]
        _link(work, parts, kind, _RUNTIME[kind])
        manifest.note_built(program)
    return program


def _domains(top: ClockedTop, work: Path, sources: Sequence[Path]) -> tuple[str, str]:
    """Return the code that describes the clocks of `top` to the driver."""
    root = work / "Vtop___024root.h"
    others = [p.name for p in work.glob("Vtop_[!_]*.h")]
    if others:  # where the state of a stage lies elsewhere nobody would see it change
        raise HardwareError(f"verilator left modules apart from the design: {', '.join(others)}.")
    return stage_clocks.model_members(top, root.read_text(), [p.read_text() for p in sources])


def _model_text(interface: Interface, top: SimTop, domains: str = "", members: str = "") -> str:
    """Return the code that describes the ports and clocks of the verilated module."""

    def port(name: str) -> str:
        data, valid, ready = (
            stage_clocks.member(f"{name}{end}") for end in ("", "_valid", "_ready")
        )
        return f"&top.{data}, sizeof(top.{data}), &top.{valid}, &top.{ready}"

    def gate(name: str) -> str:
        go, broken = (stage_clocks.member(f"{name}{end}") for end in ("_go", "_broken"))
        return f"&top.{go}, &top.{broken}"

    rows = {
        "inputs": [port(n) for n in (*interface.inputs, *(p.ports[0] for p in top.probes))],
        "outputs": [port(n) for n in (*interface.outputs, *(p.ports[1] for p in top.probes))],
        "gates": [gate(name) for name in top.gates],
        "tap_inputs": [port(f"{name}_tap_in") for name in top.gates],
        "tap_outputs": [port(f"{name}_tap_out") for name in top.gates],
    }
    cut = "    tapped = &top.tapped;\n" if top.gates else ""
    tables = "".join(
        f"    {name} = {{\n" + "".join(f"        {{{row}}},\n" for row in listed) + "    };\n"
        for name, listed in rows.items()
    )
    # nothing writes weights in these simulations; an input that nobody drives begins at random
    loads = f"    top.{PORT}_valid = 0;\n" if interface.reload else ""
    return _MODEL.replace("TABLES", loads + cut + tables + domains).replace("MEMBERS", members)


_MODEL = """#include "Vtop.h"
#include "Vtop___024root.h"

#include "driver.h"

namespace {
struct VerilatedTop final : Model {
  Vtop top;
MEMBERS  explicit VerilatedTop(VerilatedContext& context) : top{&context} {
    clk = &top.clk;
    rst = &top.rst;
TABLES  }
  void eval() override { top.eval(); }
  void finish() override { top.final(); }
#if VM_TRACE
  void trace(VerilatedFstC& waves) override { top.trace(&waves, 99); }
#endif
};
}  // namespace

std::unique_ptr<Model> make_model(VerilatedContext& context) {
  return std::unique_ptr<Model>{new VerilatedTop{context}};
}
"""


def _verilate(top: str, sources: Sequence[Path], work: Path, options: Sequence[str]) -> None:
    tool = toolchain.verilator()
    command = [str(tool.program), "--cc", "-Wno-fatal", "-Werror-USERERROR"]
    command += ["--top-module", top, "--prefix", "Vtop"]
    command += ["-O3", "--x-assign", "fast", "--x-initial", "unique", "--Mdir", str(work)]
    command += [*options, *(str(s.resolve()) for s in sources)]
    call(command, work, tool.environment())


def _compile(work: Path, kind: str) -> None:
    """Compile the design as one translation unit: small designs take a second or two."""
    is_long = kind == "long"
    parts = [*(p.name for p in sorted(work.glob("Vtop*.cpp"))), "model.cpp"]
    parts += [str(DRIVER)] if is_long else []
    # objects shared by all designs are not optimised as a program for long runs is
    shared = _RUNTIME[kind] if is_long else (*_RUNTIME[kind], "driver")
    _link(work, parts, kind, shared)


def _link(work: Path, parts: Sequence[str], kind: str, shared: Sequence[str]) -> None:
    """Compile `parts` as one unit and link it with the objects that all programs share."""
    unit = work / "unit.cpp"
    unit.write_text(_triggers(work) + "".join(_included(part) for part in parts))
    draft = work / f"simulator.{os.getpid()}"
    runtime = _runtime("fast" if kind == "long" else kind)
    more = () if kind == "long" else ("-include", str(runtime / "prelude.h"))
    objects = [str(runtime / f"{name}.o") for name in shared]
    libraries = ["-lz", "-llz4"] if kind == "waves" else []
    flags = [*_flags(kind), *more, "-I", str(work), "-I", str(HEADER.parent)]
    call(
        [str(toolchain.program("g++")), *flags, str(unit), *objects, *libraries, "-o", str(draft)],
        cwd=work,
    )
    draft.replace(work / "simulator")


def _put_resets_aside(work: Path) -> None:
    """Tell the compiler that resets are rare: code of every cycle is then contiguous."""
    for file in work.glob("Vtop*DepSet*.cpp"):
        text = file.read_text()
        file.write_text(re.sub(r"if \((vlSelf(?:->|Ref\.)rst)\)", r"if (VL_UNLIKELY(\1))", text))


def _triggers(work: Path) -> str:
    """Return lines that replace Verilator's list of clocks, if it is slow and there are many."""
    slow = "std::array<bool, T_size> m_flags"
    types = toolchain.verilator().include / "verilated_types.h"
    count = re.search(r"VlTriggerVec<(\d+)> __Vnba", (work / "Vtop___024root.h").read_text())
    if count is None or int(count[1]) < 8 or slow not in types.read_text():
        return ""
    return f'#define TRIGGERS {count[1]}\n#include "{TRIGGERS.name}"\n'


def _included(part: str) -> str:
    """Return a line that includes `part`; code that runs once is not optimised, to save time."""
    line = f'#include "{part}"\n'
    if "Slow" not in part and "Syms" not in part:
        return line
    begin = '#pragma GCC push_options\n#pragma GCC optimize("O0")\n'
    return f"{begin}{line}#pragma GCC pop_options\n"


def _flags(kind: str) -> list[str]:
    waves, nets = kind == "waves", kind == "activity"
    include = toolchain.verilator().include
    places = ["-I", str(include), "-I", str(include / "vltstd")]
    switches = [f"-DVM_TRACE={int(waves or nets)}", f"-DVM_TRACE_FST={int(waves)}"]
    switches += ["-DVM_TRACE_VCD=1"] if nets else []
    return [*_CXX_FLAGS, _LEVELS[kind], *switches, "-DVM_COVERAGE=0", "-DVM_SC=0", *places]


def _runtime(kind: str) -> Path:
    """Compile Verilator's run time, headers and the driver once, in the user's cache."""
    tool = toolchain.verilator()
    driver = DRIVER.read_text() + HEADER.read_text()
    key = hashlib.sha256(f"{tool.version()} {_flags(kind)} {driver}".encode()).hexdigest()
    cache = cache_dir() / key[:16]
    cache.mkdir(parents=True, exist_ok=True)
    prelude = cache / "prelude.h"
    write_files(cache, {prelude.name: "".join(f"#include <{name}>\n" for name in _PRELUDE)})
    objects = {f"{name}.o": ["-c", str(tool.include / f"{name}.cpp")] for name in _RUNTIME[kind]}
    if kind != "activity":  # its driver comes with the design
        objects["driver.o"] = ["-c", str(DRIVER)]
    objects["prelude.h.gch"] = ["-x", "c++-header", str(prelude)]
    for name, source in objects.items():
        if not (cache / name).exists():
            logger.info("compiling Verilator's run time: %s", name)
            draft = cache / f"{os.getpid()}.{name}"
            call([str(toolchain.program("g++")), *_flags(kind), *source, "-o", str(draft)], cache)
            draft.replace(cache / name)
    return cache


def call(command: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None) -> None:
    """Run a program; raise with its output if it fails."""
    environment = os.environ | (more or {})
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    if done.returncode:
        output = (done.stderr + done.stdout).strip()
        raise HardwareError(f"{Path(command[0]).name} failed ({done.returncode}): {output[-2000:]}")
