"""AXI wrapper of an emitted design: `axi/<top>_axi.sv`, its parts and a cocotb test bench.

Each port of the design becomes an AXI4-Stream port: `s_axis_<input>` or `m_axis_<output>`. A beat
is one transfer, lane 0 in the low bits, zeros above the last lane up to a whole byte. TLAST marks
the last beat of a tensor. `s_axil` is the AXI4-Lite port of `axi_lite_registers.sv`, which lists
its words. All ports share `aclk` and `aresetn`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from chop.errors import HardwareError
from chop.hw.design.design import Interface
from chop.hw.design.folders import INTERFACES
from chop.hw.design.memories import Files
from chop.hw.design.stream import Stream
from chop.hw.sim.cocotb_run import AXI_BENCH, CocotbResult, run_cocotb
from chop.hw.sim.emit import component_sources, read_interface, used_components, write_files

FOLDER = "axi"
BENCH = f"{FOLDER}/test_axi.py"
PARTS = ("axi_lite_registers", "axi_stream_in", "axi_stream_out")
LITE_PORTS = {
    "awaddr": (8, True), "awprot": (3, True), "awvalid": (1, True), "awready": (1, False),
    "wdata": (32, True), "wstrb": (4, True), "wvalid": (1, True), "wready": (1, False),
    "bresp": (2, False), "bvalid": (1, False), "bready": (1, True),
    "araddr": (8, True), "arprot": (3, True), "arvalid": (1, True), "arready": (1, False),
    "rdata": (32, False), "rresp": (2, False), "rvalid": (1, False), "rready": (1, True),
}  # fmt: skip
"""Signals of AXI4-Lite: bits, and True for an input of the wrapper."""


def emit_axi(directory: Path) -> list[str]:
    """Write the AXI wrapper of the design emitted in `directory`; return the names of its files."""
    present = {path.stem for path in (directory / "rtl").glob("*.sv")}
    files = axi_files(read_interface(directory), present)
    write_files(directory, files)
    return sorted(files)


def run_axi_bench(directory: Path, simulator: str = "icarus") -> CocotbResult:
    """Run the AXI test bench of a hardware directory; raise unless every test passed."""
    if not (directory / BENCH).is_file():
        raise HardwareError(
            f"{directory}: no AXI wrapper. Write one: mase emit … --axi, or emit_axi(directory)."
        )
    top = f"{read_interface(directory).name}_axi"
    return run_cocotb(directory, top=top, simulator=simulator, bench=BENCH)


def axi_files(interface: Interface, present: Iterable[str] = ()) -> Files:
    """Return the wrapper, its parts but for the modules that are `present`, and the test bench."""
    parts = {name: (INTERFACES / f"{name}.sv").read_text() for name in PARTS}
    used = used_components("\n".join(parts.values()))
    sources = component_sources([name for name in used if name not in set(present)])
    texts = {f"{interface.name}_axi": wrapper_text(interface), **parts, **sources}
    files = {f"{FOLDER}/{name}.sv": text for name, text in texts.items()}
    return {**files, BENCH: AXI_BENCH.read_text()}


def transfer_bytes(stream: Stream) -> int:
    """Return the bytes of one AXI4-Stream transfer of a stream."""
    return -(-stream.beat_width // 8)


def wrapper_text(interface: Interface) -> str:
    """Return the wrapper module."""
    blocks = [
        f"// AXI wrapper of `{interface.name}`: AXI4-Stream for data, AXI4-Lite for control.",
        "`default_nettype none\n",
        _module_line(interface),
        _signals(interface),
        _design(interface),
        *(_stream_in(name, stream) for name, stream in interface.inputs.items()),
        *(_stream_out(name, stream) for name, stream in interface.outputs.items()),
        _registers(interface),
        _unused(interface),
        "endmodule\n\n`default_nettype wire\n",
    ]
    return "\n".join(block for block in blocks if block)


def _module_line(interface: Interface) -> str:
    ports = [_port("aclk", 1, True), _port("aresetn", 1, True)]
    ports += [_port(f"s_axil_{name}", *facts) for name, facts in LITE_PORTS.items()]
    for name, stream in interface.inputs.items():
        ports += _axis_ports(f"s_axis_{name}", stream, True)
    for name, stream in interface.outputs.items():
        ports += _axis_ports(f"m_axis_{name}", stream, False)
    return f"module {interface.name}_axi (\n" + ",\n".join(ports) + "\n);\n"


def _axis_ports(prefix: str, stream: Stream, is_input: bool) -> list[str]:
    size = transfer_bytes(stream)
    bits = {"tdata": 8 * size, "tkeep": size, "tlast": 1, "tvalid": 1}
    forward = [_port(f"{prefix}_{end}", width, is_input) for end, width in bits.items()]
    return [*forward, _port(f"{prefix}_tready", 1, not is_input)]


def _port(name: str, bits: int, is_input: bool) -> str:
    kind = "input  wire logic" if is_input else "output      logic"
    return f"    {kind} {_range(name, bits)}{name}"


def _range(name: str, bits: int) -> str:
    is_vector = bits > 1 or name.endswith(("tdata", "tkeep"))
    return f"[{bits - 1}:0] " if is_vector else ""


def _signals(interface: Interface) -> str:
    lines = ["  logic rst, run, clear;"]
    for name, stream in {**interface.inputs, **interface.outputs}.items():
        lines += [f"  logic [{stream.beat_width - 1}:0] {name};"]
        lines += [f"  logic {name}_valid, {name}_ready;"]
    lines += [f"  logic {name}_ends;" for name in interface.outputs]
    for name in interface.inputs:
        lines += [f"  logic {name}_starts, {name}_last_error, {name}_keep_error;"]
    return "\n".join(lines) + "\n"


def _design(interface: Interface) -> str:
    names = [*interface.inputs, *interface.outputs]
    pins = {"clk": "aclk", "rst": "rst"} | {
        f"{name}{end}": f"{name}{end}" for name in names for end in ("", "_valid", "_ready")
    }
    return instance_text(interface.name, "u_design", {}, pins)


def _stream_in(name: str, stream: Stream) -> str:
    own = {"starts": f"{name}_starts"}
    own |= {f"{fault}_error_q": f"{name}_{fault}_error" for fault in ("last", "keep")}
    pins = {"run": "run", "clear": "clear", **_axis_pins("s_axis", name), **_beat_pins(name), **own}
    return instance_text("axi_stream_in", f"u_{name}", _sizes(stream), _CLOCK | pins)


def _stream_out(name: str, stream: Stream) -> str:
    pins = {**_axis_pins("m_axis", name), **_beat_pins(name), "ends": f"{name}_ends"}
    return instance_text("axi_stream_out", f"u_{name}", _sizes(stream), _CLOCK | pins)


def _registers(interface: Interface) -> str:
    """Return the control port; the first input and the first output count tensors."""
    lite = {f"s_axil_{name}": f"s_axil_{name}" for name in LITE_PORTS}
    first, last = next(iter(interface.inputs)), next(iter(interface.outputs))
    errors = {
        f"{fault}_errors": "{"
        + ", ".join(f"{name}_{fault}_error" for name in interface.inputs)
        + "}"
        for fault in ("last", "keep")
    }
    counted = {"starts": f"{first}_starts", "ends": f"{last}_ends"}
    pins = _CLOCK | lite | counted | errors | {"run": "run", "clear": "clear", "rst": "rst"}
    return instance_text("axi_lite_registers", "u_control", {"INPUTS": len(interface.inputs)}, pins)


def _unused(interface: Interface) -> str:
    """Return a signal that names what only the first input and output need."""
    names = [f"{name}_starts" for name in list(interface.inputs)[1:]]
    names += [f"{name}_ends" for name in list(interface.outputs)[1:]]
    return f"  wire logic unused_ok = &{{1'b0, {', '.join(names)}}};\n" if names else ""


_CLOCK = {"aclk": "aclk", "aresetn": "aresetn"}


def _sizes(stream: Stream) -> dict[str, int]:
    sizes = {"WIDTH": stream.beat_width, "BYTES": transfer_bytes(stream)}
    return sizes | {"BEATS": stream.beats}


def _axis_pins(side: str, name: str) -> dict[str, str]:
    ends = ("tdata", "tkeep", "tlast", "tvalid", "tready")
    return {f"{side}_{end}": f"{side}_{name}_{end}" for end in ends}


def _beat_pins(name: str) -> dict[str, str]:
    return {f"data{end}": f"{name}{end}" for end in ("", "_valid", "_ready")}


def instance_text(
    module: str, name: str, parameters: Mapping[str, object], pins: Mapping[str, str]
) -> str:
    """Return an instance of `module` called `name`, with connections by name."""
    sizes = ", ".join(f".{key}({value})" for key, value in parameters.items())
    wired = ",\n".join(f"      .{key}({value})" for key, value in pins.items())
    return f"  {module} {f'#({sizes}) ' if sizes else ''}{name} (\n{wired}\n  );\n"
