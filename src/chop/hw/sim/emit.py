"""SystemVerilog of a design: `rtl/top.sv`, the components used, `mem/*.mem`, `design.json`.

Same design, same bytes. All text is made before anything is written; each file appears at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.files import read_json
from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint_wire import Mxint
from chop.hw.design.component import OWN_SOURCES, ROOMS, Memory, Parameter
from chop.hw.design.control import read_control, signal_name
from chop.hw.design.cycle_model import record
from chop.hw.design.design import Design, Interface, Stage, Wire
from chop.hw.design.folders import BOARDS, INTERFACES
from chop.hw.design.memories import Files, memory_text, sent
from chop.hw.design.memories import memory_files as memory_files
from chop.hw.design.memories import read_inputs as read_inputs
from chop.hw.design.memories import read_vectors as read_vectors
from chop.hw.design.memories import vector_files as vector_files
from chop.hw.design.reload import PORT
from chop.hw.design.stream import Stream
from chop.hw.sim import manifest
from chop.hw.sim.cocotb_run import PROGRAMS
from chop.hw.sim.reload_record import describe_reload, load_ports, read_reload
from chop.hw.sim.worst_case import EndFiles, check_widths, ends_files, files_of
from chop.hw.timing.liveness import check_live

BOARD_FILES = ("board/*.*", "board/Makefile")
"""Patterns of the files of a board project."""
AROUND = ("component.xml", *BOARD_FILES)
_LIBRARIES: list[Path] = [*ROOMS]


def emit(design: Design, directory: Path) -> Path:
    """Write all files of `design` under `directory`, the hardware directory, and return it.

    Raise an error for a design that is inconsistent, whose sums are too narrow, or that some
    timing at its ports deadlocks.
    """
    require_sound(design)
    files = {**design_files(design), **ends_files(design)}
    write_files(directory, files)
    for pattern in ("rtl/*.sv", "mem/*.mem", "test/ends_*.mem", "axi/*", "reload/*", *AROUND):
        remove_stale(directory, pattern, files)
    return directory


def require_sound(design: Design) -> None:
    """Raise an error unless `design` is consistent, wide enough and provably never deadlocks."""
    design.check()
    check_widths(design)
    check_live(design)


def design_files(design: Design) -> Files:
    """Return the RTL, the memories and `design.json`, without any check."""
    return {**top_files(design), **component_files(design), **memory_files(design)}


def design_fingerprint(design: Design) -> str:
    """Return a digest of the RTL and memories, equal on every machine.

    >>> from chop.hw.library.components import Relu
    >>> from chop.hw.streams.builder import Builder
    >>> from chop.hw.arith.golden import Fixed
    >>> from chop.hw.design.stream import Stream
    >>> builder = Builder("top")
    >>> x = builder.input("data_in_0", Stream((4,), 2, Fixed(8, 4)))
    >>> builder.output("data_out_0", builder.add("relu", Relu(builder.stream(x), Fixed(8, 4)), x))
    >>> len(design_fingerprint(builder.build()))
    16
    """
    files = design_files(design)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\n{files[name]}\n".encode())
    return digest.hexdigest()[:16]


def top_files(design: Design) -> Files:
    """Return `rtl/<name>.sv` and `design.json`."""
    return {
        f"rtl/{design.name}.sv": top_text(design),
        "design.json": json.dumps(describe(design), indent=2) + "\n",
    }


def component_files(design: Design) -> Files:
    """Return exactly the components the top module uses, found by reading the sources."""
    sources = component_sources(used_components(top_text(design)))
    return {f"rtl/{name}.sv": text for name, text in sources.items()}


def component_sources(names: Iterable[str]) -> dict[str, str]:
    """Return the SystemVerilog of modules of the library, by name."""
    return {name: _source(name) for name in names}


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write each file completely or not at all; skip a file with the same text."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text() == text:
            continue
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)
    manifest.seal(directory, files)


def remove_stale(directory: Path, pattern: str, current: Iterable[str]) -> None:
    """Remove files of `pattern`, left by an earlier design, that are not `current`."""
    paths = {directory / name for name in current}
    stale = [path for path in directory.glob(pattern) if path not in paths]
    for path in stale:
        path.unlink()
    manifest.seal(directory, {}, [str(path.relative_to(directory)) for path in stale])


def require_ours(directory: Path, top: str) -> None:
    """Raise unless this package emitted the files of `directory`; RTL is a program."""
    folders = (INTERFACES, BOARDS / "rtl")
    around = {path.stem: folder for folder in folders for path in folder.glob("*.sv")}
    programs = (*PROGRAMS, BOARDS / "host.py")
    manifest.require_ours(directory, top, {**_known(), **around}, programs)


def add_library(folder: str | Path) -> None:
    """Look for components in `folder` as well, which has a folder for each component.

    Such a component may use the library's; it may not have the name of one.
    """
    library = Path(folder).resolve()
    if not any(library.glob("*/*.sv")):
        raise HardwareError(f"add_library: there is no <component>/<component>.sv in '{folder}'.")
    clashes = sorted(set(_folders(library)) & set(_known() if library not in _LIBRARIES else ()))
    if clashes:
        raise HardwareError(f"add_library: '{folder}' names components that exist: {clashes}.")
    if library not in _LIBRARIES:
        _LIBRARIES.append(library)


def _folders(library: Path) -> dict[str, Path]:
    return {f.name: f for f in library.iterdir() if (f / f"{f.name}.sv").is_file()}


def _known() -> dict[str, Path]:
    """Return the folder of every module: of the libraries, and next to registered classes."""
    folders = {name: folder for library in _LIBRARIES for name, folder in _folders(library).items()}
    return {**OWN_SOURCES, **folders}


def used_components(text: str) -> list[str]:
    """Return the library modules that `text` instantiates, directly or through others."""
    modules = set(_known())
    used: set[str] = set()
    texts = [text]
    while texts:
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", texts.pop(), flags=re.DOTALL)
        fresh = set(re.findall(r"\b(\w+)\s+(?:#\s*\(|u_\w+\s*\()", code)) & modules - used
        used |= fresh
        texts += [_source(name) for name in fresh]
    return sorted(used)


def _source(name: str) -> str:
    return (_known()[name] / f"{name}.sv").read_text()


def read_interface(directory: Path) -> Interface:
    """Return ports and pace of the design emitted in `directory`, from its `design.json`."""
    path = directory / "design.json"
    if not path.exists():
        raise HardwareError(f"{path}: no such file. Run emit_verilog_top_transform_pass first.")
    record = read_json(path, HardwareError)
    manifest.check_names(record, path)
    try:
        ports = {
            side: {n: _read_stream(s) for n, s in record[side].items()}
            for side in ("inputs", "outputs")
        }
        control = read_control(record)
        port = read_reload(record)
        sizes = {n: tuple(s["sent"]["shape"]) for n, s in record["inputs"].items() if "sent" in s}
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise HardwareError(f"{path}: not the streams of a design ({error!r}).") from error
    loop = (record.get("passes", 1), record.get("in_flight", 1))
    streams = (ports["inputs"], ports["outputs"])
    return Interface(record["name"], *streams, record["cycles"], control, sizes, *loop, port)


def read_ends(directory: Path) -> tuple[EndFiles, ...]:
    """Return the stages of the design in `directory` whose worst-case inputs are in files."""
    path = directory / "design.json"
    record = read_json(path, HardwareError)
    try:
        ports = {Wire(name): _read_stream(each) for name, each in record["inputs"].items()}
        inside = {
            Wire(stage["name"], k): _read_stream(each)
            for stage in record["stages"]
            for k, each in enumerate(stage["outputs"])
        }
        return files_of(record["stages"], {**ports, **inside})
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise HardwareError(f"{path}: not the stages of a design ({error!r}).") from error


def _read_stream(record: Mapping[str, Any]) -> Stream:
    width, frac_width = record["precision"]
    number = Fixed(width, frac_width, record.get("is_signed", True))
    if "block_size" in record:
        top, row = record["exponents"] - 1, record["shape"][-1]
        blocks = {"mantissa": width, "top": top, "block": record["block_size"], "row": row}
        number = Mxint(width + top, frac_width, **blocks)
    return Stream(tuple(record["shape"]), record["parallelism"], number)


def describe(design: Design) -> dict[str, object]:
    """Return the contents of `design.json`: streams, stages, parameters, memory hashes."""
    return {
        "name": design.name,
        "cycles": design.cycles(),
        **({"passes": design.passes, "in_flight": design.in_flight} if design.loop else {}),
        "inputs": {
            name: {**_describe_stream(s), **_describe_sent(design, name)}
            for name, s in design.inputs.items()
        },
        "outputs": {name: _describe_stream(s) for name, s in design.output_streams().items()},
        "stages": [_describe_stage(stage) for stage in design.stages],
        **describe_reload(design),
        "connections": {name: _signal(design, wire) for name, wire in design.outputs.items()},
    }


def _describe_stream(stream: Stream) -> dict[str, object]:
    number = stream.format
    record: dict[str, object] = {
        "shape": list(stream.shape),
        "parallelism": stream.lanes,
        "precision": [number.lane_width, number.frac_width],
        "is_signed": number.is_signed,
    }
    if isinstance(number, Mxint):
        record |= {"exponents": number.top + 1, "block_size": number.block}
    return record


def _describe_sent(design: Design, name: str) -> dict[str, object]:
    """Return the shape of the codes that a port with weights receives; 1: repeated."""
    if name not in design.sent:
        return {}
    return {
        "sent": {"shape": list(design.sent[name].shape), **_describe_memory(sent(design, name))}
    }


def _describe_memory(memory: Memory) -> dict[str, object]:
    return {
        "words": len(memory.words),
        "width": memory.width,
        "sha256": hashlib.sha256(memory_text(memory).encode()).hexdigest(),
    }


def _describe_stage(stage: Stage) -> dict[str, object]:
    component = stage.component
    twins = [record(twin) for twin in component.twins()]
    return {
        "name": stage.name,
        "module": component.module,
        "sources": [[wire.stage, wire.port] for wire in stage.sources],
        "outputs": [_describe_stream(s) for s in component.outputs],
        "parameters": dict(component.parameters()),
        "cycles": component.cycles(),
        "twins": None if None in twins else twins,
        "memories": {m.name: _describe_memory(m) for m in component.memories()},
        "has_ends": component.has_sums,
    }


def top_text(design: Design) -> str:
    """Return the top module."""
    blocks = [
        _header(design),
        _module_line(design),
        _signals(design),
        *(_stage_text(design, stage) for stage in design.stages),
        _output_text(design),
        _unused(design),
        "endmodule\n\n`default_nettype wire\n",
    ]
    return "\n".join(block for block in blocks if block)


def _header(design: Design) -> str:
    streams = [(name, "", stream) for name, stream in design.inputs.items()]
    streams += [(s.name, s.component.kind, s.component.outputs[0]) for s in design.stages]
    rows = [
        (name, module, str(s.shape), f"{s.format}, {s.lanes} per beat, {s.beats} beats")
        for name, module, s in streams
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = [
        "//   "
        + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
        + f"  {row[3]}"
        for row in rows
    ]
    return "\n".join(
        [
            f"// Accelerator `{design.name}`: streams in, streams out, one tensor after the other.",
            f"// At best one tensor every {design.cycles()} cycles. Its streams in order:",
            "//",
            *lines,
            "`default_nettype none",
            "",
        ]
    )


def _port_streams(design: Design) -> dict[str, Stream]:
    return {**design.inputs, **design.output_streams()}


def _port_parameters(design: Design) -> list[tuple[str, int, str]]:
    """Return name, value and meaning of the parameters that describe the ports.

    They are local: a design has its sizes built in.
    """
    rows: list[tuple[str, int, str]] = []
    for port, stream in _port_streams(design).items():
        name = port.upper()
        rows.append((f"{name}_PRECISION_0", stream.format.lane_width, "width of an element, bits"))
        rows.append((f"{name}_PRECISION_1", stream.format.frac_width, "its fractional bits"))
        for dim, size in enumerate(reversed(stream.shape)):
            rows.append((f"{name}_TENSOR_SIZE_DIM_{dim}", size, "elements"))
        rows.append((f"{name}_PARALLELISM_DIM_0", stream.lanes, "elements per beat"))
    return rows


def _module_line(design: Design) -> str:
    rows = _port_parameters(design)
    width = max(len(name) for name, _, _ in rows)
    constants = "\n".join(
        f"    localparam int {name:<{width}} = {value}{',' * (k < len(rows))}  // {note}"
        for k, (name, value, note) in enumerate(rows, start=1)
    )
    ports = ["    input  wire logic clk", "    input  wire logic rst"]
    streams = _port_streams(design)
    for name, into in [(n, True) for n in design.inputs] + [(n, False) for n in design.outputs]:
        bits = f"[{name.upper()}_PARALLELISM_DIM_0*{name.upper()}_PRECISION_0-1:0]"
        if shared := streams[name].format.shared_width:
            bits = bits.replace("-1:0", f"+{shared}-1:0")
        driven, back = ("input  wire", "output     ") if into else ("output     ", "input  wire")
        ports += [
            f"    {driven} logic {bits} {name}",
            f"    {driven} logic {name}_valid",
            f"    {back} logic {name}_ready",
        ]
    ports += load_ports(design.reload_port)
    return f"module {design.name} #(\n{constants}\n) (\n" + ",\n".join(ports) + "\n);\n"


def _signal(design: Design, wire: Wire) -> str:
    """Return the name of a stream inside the top module."""
    if wire.stage in design.inputs:
        return wire.stage
    return signal_name(wire, len(design.stage(wire.stage).component.outputs))


def _signals(design: Design) -> str:
    lines = []
    for stage in design.stages:
        for port, stream in enumerate(stage.component.outputs):
            lines += _stream_signals(_signal(design, Wire(stage.name, port)), stream.beat_width)
        for memory in stage.component.memories():
            if memory.is_streamed:
                lines += _stream_signals(f"{stage.name}_{memory.name}", memory.width)
        lines += [f"  logic {stage.name}_{port}_ready;" for port in _unfed(stage)]
    return "\n".join(lines) + "\n"


def _unfed(stage: Stage) -> list[str]:
    parameters = stage.component.parameters()
    return [port for name, port in _OPTIONAL_PORTS.items() if parameters.get(name) is False]


_OPTIONAL_PORTS = {"HAS_BIAS": "bias", "HAS_MASK": "data_in_1", "HAS_WEIGHT": "weight"}
"""Parameter that enables a stream -> its port."""


def _stream_signals(name: str, bits: int) -> list[str]:
    return [f"  logic [{bits - 1}:0] {name};", f"  logic {name}_valid, {name}_ready;"]


def _stage_text(design: Design, stage: Stage) -> str:
    """Return the instances of one stage: the component and the sources of its constants."""
    component = stage.component
    parameters = dict(component.parameters())
    pins = {"clk": "clk", "rst": "rst"}
    for k, wire in enumerate(stage.sources):
        pins |= _stream_pins(component.pin(k), [_signal(design, wire)])
    sources = []
    for memory in component.memories():
        file = f"mem/{stage.name}_{memory.name}.mem"
        if memory.is_streamed:
            pins |= _stream_pins(memory.name, [f"{stage.name}_{memory.name}"])
            sources.append(_source_text(design, stage.name, memory, file))
        else:
            parameters[memory.parameter] = file
    for port in _unfed(stage):
        pins |= {port: "'0", f"{port}_valid": "1'b0", f"{port}_ready": f"{stage.name}_{port}_ready"}
    outputs = [
        _signal(design, Wire(stage.name, p)) for p in reversed(range(len(component.outputs)))
    ]
    pins |= _stream_pins("data_out_0", outputs)
    what = " -> ".join(str(s.shape) for s in (*component.inputs[:1], *component.outputs[:1]))
    note = f"  // {stage.name}: {what}, {component.cycles()} cycles"
    return "\n".join([note, *sources, _instance(component.module, stage.name, parameters, pins)])


def _stream_pins(pin: str, signals: list[str]) -> dict[str, str]:
    """Return data, valid and ready of a port; several signals are concatenated, the last low."""
    suffixes = ("", "_valid", "_ready")
    joined = [", ".join(f"{s}{suffix}" for s in signals) for suffix in suffixes]
    texts = [f"{{{text}}}" if len(signals) > 1 else text for text in joined]
    return {f"{pin}{suffix}": text for suffix, text in zip(suffixes, texts, strict=True)}


def _source_text(design: Design, stage: str, memory: Memory, file: str) -> str:
    """Return the source of a memory, which can be written if the design has a port for it."""
    banks: dict[str, Parameter] = {"BANKS": memory.banks, "REPEATS": memory.repeats}
    parameters: dict[str, Parameter] = {
        "DATA_WIDTH": memory.width,
        "DEPTH": len(memory.words) // memory.banks,
        **(banks if memory.banks > 1 else {}),
        "INIT_FILE": file,
    }
    name = f"{stage}_{memory.name}"
    pins = {"clk": "clk", "rst": "rst", **_stream_pins("data_out_0", [name])}
    module = "rom_bank_source" if memory.banks > 1 else "rom_source"
    port = design.reload_port
    if port is not None and stage in design.reloaded:
        module = "ram_source"
        here = (stage, memory.name)
        first = next(m.first for m in design.reloaded_memories if (m.stage, m.memory.name) == here)
        parameters |= {"INDEX_WIDTH": port.index_width, "FIRST": first}
        pins |= {f"{PORT}_{end}": f"{PORT}_{end}" for end in ("valid", "index", "word")}
    return _instance(module, f"{name}_source", parameters, pins)


def _instance(
    module: str, name: str, parameters: Mapping[str, Parameter], pins: Mapping[str, str]
) -> str:
    lists = []
    for rows in ({k: _literal(v) for k, v in parameters.items()}, pins):
        width = max(len(key) for key in rows)
        lists.append(",\n".join(f"      .{key:<{width}}({value})" for key, value in rows.items()))
    return f"  {module} #(\n{lists[0]}\n  ) u_{name} (\n{lists[1]}\n  );\n"


def _literal(value: Parameter) -> str:
    if isinstance(value, bool):
        return f"1'b{int(value)}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "{" + ", ".join(f"64'h{word:x}" for word in reversed(value)) + "}"
    return str(value) if abs(value) < 1 << 31 else f"64'sd{value}"


def _output_text(design: Design) -> str:
    lines = []
    for name, wire in design.outputs.items():
        signal = _signal(design, wire)
        lines += [
            f"  assign {name} = {signal};",
            f"  assign {name}_valid = {signal}_valid;",
            f"  assign {signal}_ready = {name}_ready;",
        ]
    return "\n".join(lines) + "\n"


def _unused(design: Design) -> str:
    names = [n for n, _, _ in _port_parameters(design) if "SIZE" in n or n.endswith("PRECISION_1")]
    listed = "".join(f",\n    32'({name})" for name in names)
    listed += "".join(f",\n    {s.name}_{p}_ready" for s in design.stages for p in _unfed(s))
    note = "  // Told to readers and tools only; the logic has these sizes built in."
    return f"{note}\n  wire logic unused_ok = &{{\n    1'b0{listed}\n  }};\n"
