"""AXI wrapper of an emitted design: `axi/<top>_axi.sv`, its parts and a cocotb test bench.

With `component.xml`, its IP-XACT description, and a Vivado script (`ip_xact`).

Each port of the design becomes an AXI4-Stream port: `s_axis_<input>` or `m_axis_<output>`. A beat
is one transfer, lane 0 in the low bits, zeros above the last lane up to a whole byte. TLAST marks
the last beat of a tensor. `s_axil` is the AXI4-Lite port of `axi_lite_registers.sv`, which lists
its words. All ports share `aclk` and `aresetn`. If the design has weights that can be written at
run time, `weight_loader.sv` writes them. With two clocks, the streams belong to `axis_aclk`, and a
queue (`async_fifo.sv`) in each carries the transfers between the clocks; design and control port
stay in the domain of `aclk`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from chop.errors import HardwareError
from chop.hw.design.design import Interface
from chop.hw.design.folders import INTERFACES
from chop.hw.design.memories import Files
from chop.hw.design.reload import PORT
from chop.hw.design.stream import Stream
from chop.hw.interfaces.ip_xact import ip_files, is_vector
from chop.hw.sim.cocotb_run import (
    AXI_BENCH,
    CLOCK_PROGRAM,
    HOST_PROGRAM,
    RELOAD_PROGRAM,
    CocotbResult,
    run_cocotb,
)
from chop.hw.sim.emit import (
    component_sources,
    read_interface,
    remove_stale,
    used_components,
    write_files,
)

FOLDER = "axi"
BENCH = f"{FOLDER}/test_axi.py"
HOST = f"{FOLDER}/reload_host.py"
RELOAD_BENCH = f"{FOLDER}/test_reload.py"
CLOCK_BENCH = f"{FOLDER}/test_clocks.py"
BENCHES = (BENCH, RELOAD_BENCH, CLOCK_BENCH)
"""Test benches of a wrapper, as far as it has them."""
PARTS = ("axi_lite_registers", "axi_stream_in", "axi_stream_out")
LOADER = ("weight_loader", "crc32_word")
"""Modules that write weights at run time."""
LITE_PORTS = {
    "awaddr": (8, True), "awprot": (3, True), "awvalid": (1, True), "awready": (1, False),
    "wdata": (32, True), "wstrb": (4, True), "wvalid": (1, True), "wready": (1, False),
    "bresp": (2, False), "bvalid": (1, False), "bready": (1, True),
    "araddr": (8, True), "arprot": (3, True), "arvalid": (1, True), "arready": (1, False),
    "rdata": (32, False), "rresp": (2, False), "rvalid": (1, False), "rready": (1, True),
}  # fmt: skip
"""Signals of AXI4-Lite: bits, and True for an input of the wrapper."""
AXIS_ENDS = ("tdata", "tkeep", "tlast", "tvalid", "tready")
Port: TypeAlias = tuple[int, bool]
"""Bits of a port, and True for an input."""


CROSSING = ("async_fifo", "reset_crossing")
"""Modules between two clocks."""
CLOCKS = (1, 2)
CROSSING_BITS = 4
"""A queue between two clocks has two to this power of transfers: more than its latency."""


def emit_axi(directory: Path, *, clocks: int = 1) -> list[str]:
    """Write the AXI wrapper of the design emitted in `directory`; return the names of its files.

    `clocks`: 2 gives the streams a clock of their own.
    """
    present = {path.stem for path in (directory / "rtl").glob("*.sv")}
    interface = read_interface(directory)
    files = axi_files(interface, present, clocks=clocks)
    ports = wrapper_ports(interface, has_crossing=clocks == 2)
    files |= ip_files(interface, ports, _sources(directory, files))
    write_files(directory, files)
    remove_stale(directory, f"{FOLDER}/*.*", files)
    return sorted(files)


def _sources(directory: Path, files: Files) -> list[str]:
    """Return the paths of all modules and memories of a design and its wrapper."""
    paths = (path for pattern in ("rtl/*.sv", "mem/*.mem") for path in directory.glob(pattern))
    modules = [name for name in files if name.endswith(".sv")]
    return [*(str(path.relative_to(directory)) for path in paths), *modules]


def run_axi_bench(directory: Path, simulator: str = "icarus") -> CocotbResult:
    """Run the AXI test bench of a hardware directory; raise unless every test passed."""
    if not (directory / BENCH).is_file():
        raise HardwareError(
            f"{directory}: no AXI wrapper. Write one: mase emit … --axi, or emit_axi(directory)."
        )
    top = f"{read_interface(directory).name}_axi"
    benches = [name for name in BENCHES if (directory / name).is_file()]
    runs = [run_cocotb(directory, top=top, simulator=simulator, bench=name) for name in benches]
    return CocotbResult(simulator, sum(run.tests for run in runs), ())


def axi_files(interface: Interface, present: Iterable[str] = (), *, clocks: int = 1) -> Files:
    """Return the wrapper, its parts but for the modules that are `present`, and the test bench."""
    if clocks not in CLOCKS:
        raise HardwareError(
            f"axi: clocks = {clocks}. Allowed: 1, or 2 with a clock of the streams."
        )
    names = (*PARTS, *(LOADER if interface.reload else ()), *(CROSSING if clocks == 2 else ()))
    parts = {name: (INTERFACES / f"{name}.sv").read_text() for name in names}
    used = used_components("\n".join(parts.values()))
    sources = component_sources([name for name in used if name not in set(present)])
    texts = {f"{interface.name}_axi": wrapper_text(interface, clocks), **parts, **sources}
    files = {f"{FOLDER}/{name}.sv": text for name, text in texts.items()}
    more = {HOST: HOST_PROGRAM, RELOAD_BENCH: RELOAD_PROGRAM} if interface.reload else {}
    more |= {CLOCK_BENCH: CLOCK_PROGRAM} if clocks == 2 else {}
    texts = {name: path.read_text() for name, path in more.items()}
    return {**files, **texts, BENCH: AXI_BENCH.read_text()}


def transfer_bytes(stream: Stream) -> int:
    """Return the bytes of one AXI4-Stream transfer of a stream."""
    return -(-stream.beat_width // 8)


def wrapper_text(interface: Interface, clocks: int = 1) -> str:
    """Return the wrapper module."""
    has_crossing = clocks == 2
    blocks = [
        f"// AXI wrapper of `{interface.name}`: AXI4-Stream for data, AXI4-Lite for control.",
        "`default_nettype none\n",
        _module_line(interface, has_crossing),
        _signals(interface),
        *(_crossings(interface) if has_crossing else ()),
        _design(interface),
        *(
            _stream_in(
                name, stream, f"takes[{number}]" if interface.reload else "run", has_crossing
            )
            for number, (name, stream) in enumerate(interface.inputs.items())
        ),
        *(_stream_out(name, stream, has_crossing) for name, stream in interface.outputs.items()),
        _registers(interface),
        _loader(interface),
        _unused(interface),
        "endmodule\n\n`default_nettype wire\n",
    ]
    return "\n".join(block for block in blocks if block)


def wrapper_ports(interface: Interface, *, has_crossing: bool = False) -> dict[str, Port]:
    """Return the ports of the wrapper by name: bits, and True for an input."""
    clocks = ("aclk", "aresetn", *(("axis_aclk",) if has_crossing else ()))
    ports = dict.fromkeys(clocks, (1, True))
    ports |= {f"s_axil_{name}": facts for name, facts in LITE_PORTS.items()}
    for side, streams in (("s_axis", interface.inputs), ("m_axis", interface.outputs)):
        for name, stream in streams.items():
            ports |= _axis_ports(f"{side}_{name}", stream, side == "s_axis")
    return ports


def _module_line(interface: Interface, has_crossing: bool) -> str:
    ports = wrapper_ports(interface, has_crossing=has_crossing)
    lines = [_port(name, *facts) for name, facts in ports.items()]
    return f"module {interface.name}_axi (\n" + ",\n".join(lines) + "\n);\n"


def _axis_ports(prefix: str, stream: Stream, is_input: bool) -> dict[str, Port]:
    size = transfer_bytes(stream)
    bits = {"tdata": 8 * size, "tkeep": size, "tlast": 1, "tvalid": 1}
    forward = {f"{prefix}_{end}": (width, is_input) for end, width in bits.items()}
    return {**forward, f"{prefix}_tready": (1, not is_input)}


def _port(name: str, bits: int, is_input: bool) -> str:
    kind = "input  wire logic" if is_input else "output      logic"
    return f"    {kind} {_range(name, bits)}{name}"


def _range(name: str, bits: int) -> str:
    """Return the range of a vector; empty for a scalar."""
    return f"[{bits - 1}:0] " if is_vector(name, bits) else ""


def _signals(interface: Interface) -> str:
    lines = ["  logic rst, run, clear;"]
    for name, stream in {**interface.inputs, **interface.outputs}.items():
        lines += [f"  logic [{stream.beat_width - 1}:0] {name};"]
        lines += [f"  logic {name}_valid, {name}_ready;"]
    lines += [f"  logic {name}_ends;" for name in interface.outputs]
    for name in interface.inputs:
        lines += [f"  logic {', '.join(f'{name}_{end}' for end in _INPUT_ENDS)};"]
    if interface.reload:
        lines += [f"  logic {_range(end, bits)}{end};" for end, bits in _LOADER_SIGNALS.items()]
        lines += [f"  logic [{interface.reload.index_width - 1}:0] piece_index;"]
        lines += [f"  logic [{len(interface.inputs) - 1}:0] takes;"]
    else:
        lines += [f"  logic {end};" for end in _LOADER_OUTPUTS]
        lines += ["  logic [31:0] load_data;"]
    return "\n".join(lines) + "\n"


_INPUT_ENDS = ("starts", "between", "last_wrong", "keep_wrong", "last_error", "keep_error")
_LOADER_OUTPUTS = ("load_begin", "load_abort", "load_write")
_LOADER_SIGNALS = {
    **dict.fromkeys((*_LOADER_OUTPUTS, "load_ready", "load_busy", "load_rst", "piece_valid"), 1),
    **dict.fromkeys(("load_data", "load_count", "load_crc", "piece"), 32),
    "load_state": 4,
}
_LOADER_INPUTS = ("load_ready", "load_busy", "load_rst", "load_state", "load_count", "load_crc")
"""Signals from the loader to the registers."""


def _design(interface: Interface) -> str:
    names = [*interface.inputs, *interface.outputs]
    pins = {"clk": "aclk", "rst": "rst"} | {
        f"{name}{end}": f"{name}{end}" for name in names for end in ("", "_valid", "_ready")
    }
    if interface.reload:
        pieces = {"valid": "piece_valid", "index": "piece_index", "word": "piece"}
        pins |= {f"{PORT}_{end}": signal for end, signal in pieces.items()}
    return instance_text(interface.name, "u_design", {}, pins)


def _stream_in(name: str, stream: Stream, run: str, has_crossing: bool) -> str:
    own = {end: f"{name}_{end}" for end in _INPUT_ENDS[:4]}
    own |= {f"{fault}_error_q": f"{name}_{fault}_error" for fault in ("last", "keep")}
    pins = {"run": run, "clear": "clear", **_axis_pins("s_axis", name, has_crossing)}
    pins |= {**_beat_pins(name), **own}
    return instance_text("axi_stream_in", f"u_{name}", _sizes(stream), _CLOCK | pins)


def _stream_out(name: str, stream: Stream, has_crossing: bool) -> str:
    pins = {**_axis_pins("m_axis", name, has_crossing), **_beat_pins(name), "ends": f"{name}_ends"}
    return instance_text("axi_stream_out", f"u_{name}", _sizes(stream), _CLOCK | pins)


def _registers(interface: Interface) -> str:
    """Return the control port; the first input and the first output count tensors."""
    lite = {f"s_axil_{name}": f"s_axil_{name}" for name in LITE_PORTS}
    first, last = next(iter(interface.inputs)), next(iter(interface.outputs))
    faults = [f"{fault}_{kind}" for fault in ("last", "keep") for kind in ("error", "wrong")]
    errors = {f"{fault}s": _joined(interface.inputs, fault) for fault in faults}
    counted = {"starts": f"{first}_starts", "ends": f"{last}_ends"}
    loads = {name: name if interface.reload else _no(name) for name in _LOADER_INPUTS}
    loads |= {name: name for name in (*_LOADER_OUTPUTS, "load_data")}
    pins = _CLOCK | lite | counted | errors | loads
    pins |= {"run": "run", "clear": "clear", "design_rst": "rst"}
    sizes: dict[str, object] = {"INPUTS": len(interface.inputs)}
    sizes |= {"HAS_RELOAD": "1'b1"} if interface.reload else {}
    return instance_text("axi_lite_registers", "u_control", sizes, pins)


def _no(name: str) -> str:
    return f"{_LOADER_SIGNALS[name]}'b0"


def _joined(names: Iterable[str], end: str) -> str:
    """Return the signals `end` of all streams as a vector, the first stream in bit 0."""
    return "{" + ", ".join(f"{name}_{end}" for name in reversed(list(names))) + "}"


def _loader(interface: Interface) -> str:
    """Return the loader of weights; nothing if they cannot be written."""
    port = interface.reload
    if port is None:
        return ""
    sizes = {
        "INPUTS": len(interface.inputs),
        "OUTPUTS": len(interface.outputs),
        "FLIGHT": interface.in_flight,
        "PIECES": port.pieces,
        "INDEX_WIDTH": port.index_width,
        "FIRST_CRC": f"32'h{port.crc:08x}",
    }
    signals = (*_LOADER_SIGNALS, "piece_index", "run", "takes")
    pins = _CLOCK | {name: name for name in signals}
    pins |= {end: _joined(interface.inputs, end) for end in ("starts", "between")}
    pins |= {"ends": _joined(interface.outputs, "ends")}
    return instance_text("weight_loader", "u_loader", sizes, pins)


def _unused(interface: Interface) -> str:
    """Return a signal that names what the control port does not need."""
    if interface.reload:
        return ""
    names = [f"{name}_starts" for name in list(interface.inputs)[1:]]
    names += [f"{name}_ends" for name in list(interface.outputs)[1:]]
    names += [f"{name}_between" for name in interface.inputs]
    names += [*_LOADER_OUTPUTS, "load_data"]
    return f"  wire logic unused_ok = &{{1'b0, {', '.join(names)}}};\n"


_CLOCK = {"aclk": "aclk", "aresetn": "aresetn"}


def _sizes(stream: Stream) -> dict[str, int]:
    sizes = {"WIDTH": stream.beat_width, "BYTES": transfer_bytes(stream)}
    return sizes | {"BEATS": stream.beats}


def _axis_pins(side: str, name: str, has_crossing: bool) -> dict[str, str]:
    """Return the pins of a stream: its ports, or the signals on this side of its queue."""
    wire = f"{name}_here" if has_crossing else f"{side}_{name}"
    return {f"{side}_{end}": f"{wire}_{end}" for end in AXIS_ENDS}


def _crossings(interface: Interface) -> Iterator[str]:
    """Yield the signals and queues between the clocks."""
    for side, streams in (("s_axis", interface.inputs), ("m_axis", interface.outputs)):
        for name, stream in streams.items():
            for end, (bits, _) in _axis_ports(f"{name}_here", stream, True).items():
                yield f"  logic {_range(end, bits)}{end};"
            yield _crossing(side, name, stream)
    yield "  logic here_rst, axis_rst;\n"
    pins = _CLOCK | {"axis_aclk": "axis_aclk", "rst": "here_rst", "axis_rst": "axis_rst"}
    yield instance_text("reset_crossing", "u_reset", {}, pins)


def _crossing(side: str, name: str, stream: Stream) -> str:
    """Return the queue of a stream; the writer of an input is the outside."""
    outside, inside = (
        (f"{side}_{name}", "axis_aclk", "axis_rst"),
        (f"{name}_here", "aclk", "here_rst"),
    )
    ways = (outside, inside) if side == "s_axis" else (inside, outside)
    pins: dict[str, str] = {}
    for (wire, clock, reset), way, data in zip(
        ways, ("write", "read"), ("data_in_0", "data_out_0"), strict=True
    ):
        joined = ", ".join(f"{wire}_{end}" for end in ("tlast", "tkeep", "tdata"))
        pins |= {f"{way}_clk": clock, f"{way}_rst": reset, data: f"{{{joined}}}"}
        pins |= {f"{data}_{end}": f"{wire}_t{end}" for end in ("valid", "ready")}
    sizes = {"DATA_WIDTH": 9 * transfer_bytes(stream) + 1, "DEPTH_BITS": CROSSING_BITS}
    return instance_text("async_fifo", f"u_{name}_crossing", sizes, pins)


def _beat_pins(name: str) -> dict[str, str]:
    return {f"data{end}": f"{name}{end}" for end in ("", "_valid", "_ready")}


def instance_text(
    module: str, name: str, parameters: Mapping[str, object], pins: Mapping[str, str]
) -> str:
    """Return an instance of `module` called `name`, with connections by name."""
    sizes = ", ".join(f".{key}({value})" for key, value in parameters.items())
    wired = ",\n".join(f"      .{key}({value})" for key, value in pins.items())
    return f"  {module} {f'#({sizes}) ' if sizes else ''}{name} (\n{wired}\n  );\n"
