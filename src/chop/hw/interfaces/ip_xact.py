"""IP-XACT description (IEEE 1685-2014) of an AXI wrapper, and a Vivado script that packages it.

`component.xml` lists the ports, the bus interfaces with their clock and reset, the registers and
the files of `<top>_axi`. Bus definitions are those of Xilinx' catalogue, which other tools read as
well. Vivado's packager writes the 2009 edition of the standard, so `package_ip.tcl` packages the
same files with Vivado itself. Neither was ever read by a vendor's tool here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias
from xml.etree import ElementTree as ET

from chop.hw.design.design import Interface

COMPONENT = "component.xml"
SCRIPT = "axi/package_ip.tcl"
VENDOR, LIBRARY, VERSION = "masegraph", "designs", "1.0"
NAMESPACE = "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"
BUSES = {
    "axis": ("xilinx.com", "interface", "1.0"),
    "aximm": ("xilinx.com", "interface", "1.0"),
    "clock": ("xilinx.com", "signal", "1.0"),
    "reset": ("xilinx.com", "signal", "1.0"),
}
"""Bus definition -> vendor, library and version; its ports are those of `<name>_rtl`."""
CONTROL, RESET = "s_axil", "aresetn"
CONTROL_BYTES = 256
"""Address range of the control port."""
EXAMPLE_PART = "xc7a35ticsg324-1L"
"""Part for which the script builds an instance, unless it gets another one."""
Port: TypeAlias = tuple[int, bool]


class Register(NamedTuple):
    """A word of `axi_lite_registers.sv`."""

    name: str
    offset: int
    access: str
    text: str
    is_reload: bool = False
    """True if only designs whose weights can be written have it."""


_READ, _BOTH = "read-only", "read-write"
REGISTERS = (
    Register("identification", 0x00, _READ, "0x4553414d"),
    Register("control", 0x04, _BOTH, "bit 0: run; bit 1: clear; bits 2, 3: begin, end a reload"),
    Register("status", 0x08, _READ, "busy, errors of TLAST and TKEEP, state of a reload"),
    Register("entered", 0x0C, _READ, "tensors that entered"),
    Register("left", 0x10, _READ, "tensors that left"),
    Register("busy_low", 0x14, _READ, "busy cycles, low word"),
    Register("busy_high", 0x18, _READ, "busy cycles, high word"),
    Register("wrong", 0x1C, _READ, "transfers with a wrong TLAST, and with a wrong TKEEP"),
    Register("refused", 0x20, _READ, "accesses answered with SLVERR"),
    Register("weights", 0x24, _BOTH, "next piece of the weights; pieces taken", True),
    Register("checksum", 0x28, _READ, "checksum of the weights inside", True),
)


def ip_files(
    interface: Interface, ports: Mapping[str, Port], sources: Iterable[str]
) -> dict[str, str]:
    """Return `component.xml` and the script.

    `ports`: ports of the wrapper, bits and True for an input. `sources`: paths of all files from
    the hardware directory.
    """
    return {
        COMPONENT: component_text(interface, ports, sources),
        SCRIPT: script_text(interface, ports),
    }


# -- IP-XACT ---------------------------------------------------------------------------------------


def component_text(interface: Interface, ports: Mapping[str, Port], sources: Iterable[str]) -> str:
    """Return the IP-XACT component of the wrapper."""
    top = f"{interface.name}_axi"
    root = _node(
        "component",
        *_vlnv(VENDOR, LIBRARY, top, VERSION),
        _node("busInterfaces", *_bus_interfaces(interface, ports)),
        _node("memoryMaps", _memory_map(interface)),
        _model(top, ports),
        _file_sets(sources),
        _node("description", f"Quantised network '{interface.name}' with AXI ports."),
    )
    root.set("xmlns:ipxact", NAMESPACE)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _node(tag: str, *content: ET.Element | str, **attributes: str) -> ET.Element:
    """Return an element with text or children."""
    element = ET.Element(f"ipxact:{tag}", attributes)
    for each in content:
        if isinstance(each, str):
            element.text = each
        else:
            element.append(each)
    return element


def _vlnv(*fields: str) -> Iterator[ET.Element]:
    for tag, text in zip(("vendor", "library", "name", "version"), fields, strict=True):
        yield _node(tag, text)


def _bus_interfaces(interface: Interface, ports: Mapping[str, Port]) -> Iterator[ET.Element]:
    for name, kind, is_target in _buses(interface):
        logical = {port[len(name) + 1 :].upper(): port for port in ports if _is_of(port, name)}
        target = _node("slave" if is_target else "master")
        if name == CONTROL:
            target.append(_node("memoryMapRef", memoryMapRef=CONTROL))
        more = {"PROTOCOL": "AXI4LITE"} if name == CONTROL else {}
        yield _bus_interface(name, kind, logical, target, more)
    for clock, buses in clock_domains(interface, ports).items():
        associated = {"ASSOCIATED_BUSIF": ":".join(buses), "ASSOCIATED_RESET": RESET}
        yield _bus_interface(clock, "clock", {"CLK": clock}, _node("slave"), associated)
    polarity = {"POLARITY": "ACTIVE_LOW"}
    yield _bus_interface(RESET, "reset", {"RST": RESET}, _node("slave"), polarity)


def _buses(interface: Interface) -> Iterator[tuple[str, str, bool]]:
    """Yield name, bus and True for a target, of the control port and of every stream."""
    yield CONTROL, "aximm", True
    yield from ((f"s_axis_{name}", "axis", True) for name in interface.inputs)
    yield from ((f"m_axis_{name}", "axis", False) for name in interface.outputs)


_ENDS = ("tdata", "tkeep", "tlast", "tvalid", "tready")


def _is_of(port: str, bus: str) -> bool:
    """Return whether a port belongs to a bus; a stream may have the name of another as prefix."""
    end = port.removeprefix(f"{bus}_")
    return end != port and (bus == CONTROL or end in _ENDS)


def clock_domains(interface: Interface, ports: Mapping[str, Port]) -> dict[str, list[str]]:
    """Return the buses of each clock."""
    streams = [name for name, kind, _ in _buses(interface) if kind == "axis"]
    if "axis_aclk" in ports:
        return {"aclk": [CONTROL], "axis_aclk": streams}
    return {"aclk": [CONTROL, *streams]}


def _bus_interface(
    name: str,
    kind: str,
    logical: Mapping[str, str],
    role: ET.Element,
    parameters: Mapping[str, str],
) -> ET.Element:
    vendor, library, version = BUSES[kind]
    facts = {"vendor": vendor, "library": library, "version": version}
    maps = [
        _node(
            "portMap",
            _node("logicalPort", _node("name", signal)),
            _node("physicalPort", _node("name", port)),
        )
        for signal, port in logical.items()
    ]
    abstraction = _node(
        "abstractionType",
        _node("abstractionRef", **facts, name=f"{kind}_rtl"),
        _node("portMaps", *maps),
    )
    content = [
        _node("name", name),
        _node("busType", **facts, name=kind),
        _node("abstractionTypes", abstraction),
        role,
    ]
    listed = [
        _node("parameter", _node("name", key), _node("value", value), parameterId=f"{name}.{key}")
        for key, value in parameters.items()
    ]
    return _node("busInterface", *content, *([_node("parameters", *listed)] if listed else []))


def _memory_map(interface: Interface) -> ET.Element:
    registers = [
        _node(
            "register",
            _node("name", register.name),
            _node("description", register.text),
            _node("addressOffset", f"'h{register.offset:x}"),
            _node("size", "32"),
            _node("access", register.access),
            _node(
                "field",
                _node("name", "value"),
                _node("bitOffset", "0"),
                _node("bitWidth", "32"),
            ),
        )
        for register in REGISTERS
        if interface.reload or not register.is_reload
    ]
    block = _node(
        "addressBlock",
        _node("name", "registers"),
        _node("baseAddress", "0"),
        _node("range", str(CONTROL_BYTES)),
        _node("width", "32"),
        _node("usage", "register"),
        *registers,
    )
    return _node("memoryMap", _node("name", CONTROL), block, _node("addressUnitBits", "8"))


def _model(top: str, ports: Mapping[str, Port]) -> ET.Element:
    view = _node(
        "view",
        _node("name", "rtl"),
        _node("envIdentifier", ":*Synthesis:"),
        _node("envIdentifier", ":*Simulation:"),
        _node("componentInstantiationRef", "rtl"),
    )
    instance = _node(
        "componentInstantiation",
        _node("name", "rtl"),
        _node("language", "SystemVerilog"),
        _node("moduleName", top),
        _node("fileSetRef", _node("localName", "rtl")),
    )
    listed = (_port(name, *facts) for name, facts in ports.items())
    return _node(
        "model",
        _node("views", view),
        _node("instantiations", instance),
        _node("ports", *listed),
    )


def _port(name: str, bits: int, is_input: bool) -> ET.Element:
    wire = _node("wire", _node("direction", "in" if is_input else "out"))
    if is_vector(name, bits):
        ends = (_node("left", str(bits - 1)), _node("right", "0"))
        wire.append(_node("vectors", _node("vector", *ends)))
    return _node("port", _node("name", name), wire)


def is_vector(name: str, bits: int) -> bool:
    """Return whether a port is a vector; data and bytes of a stream are, also of one bit."""
    return bits > 1 or name.endswith(("tdata", "tkeep"))


def _file_sets(sources: Iterable[str]) -> ET.Element:
    files = [_node("file", _node("name", path), _file_type(path)) for path in sorted(sources)]
    return _node("fileSets", _node("fileSet", _node("name", "rtl"), *files))


def _file_type(path: str) -> ET.Element:
    if path.endswith(".sv"):
        return _node("fileType", "systemVerilogSource")
    return _node("fileType", "user", user="mem")


# -- Vivado ----------------------------------------------------------------------------------------


def script_text(interface: Interface, ports: Mapping[str, Port]) -> str:
    """Return the Vivado script that packages the wrapper and synthesises an instance of it."""
    domains = clock_domains(interface, ports).items()
    lines = [
        f"ipx::associate_bus_interfaces -busif {bus} -clock {clock} $core"
        for clock, buses in domains
        for bus in buses
    ]
    values = {
        "TOP": f"{interface.name}_axi",
        "PART": EXAMPLE_PART,
        "VENDOR": VENDOR,
        "LIBRARY": LIBRARY,
        "VERSION": VERSION,
        "ASSOCIATE": "\n".join(lines),
    }
    text = _SCRIPT
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


_SCRIPT = """# IP core of @TOP@, with Vivado; run in the folder above:
#
#   vivado -mode batch -source axi/package_ip.tcl -tclargs PART
#
# The core is written to build/ip. Then an instance of it is synthesised for PART, by default
# @PART@. Memories are read from the folder mem, which is named from where Vivado runs.
set part [expr {[llength $argv] ? [lindex $argv 0] : "@PART@"}]
file mkdir build
create_project -force package_ip build/package_ip -part $part
add_files [glob rtl/*.sv axi/*.sv]
foreach memory [glob -nocomplain mem/*.mem] { add_files $memory }
set_property top @TOP@ [current_fileset]
update_compile_order -fileset sources_1
ipx::package_project -root_dir build/ip -vendor @VENDOR@ -library @LIBRARY@ \\
    -taxonomy /UserIP -import_files -force
set core [ipx::current_core]
set_property name @TOP@ $core
set_property version @VERSION@ $core
@ASSOCIATE@
ipx::check_integrity $core
ipx::save_core $core
close_project

create_project -in_memory -part $part
set_property ip_repo_paths [file normalize build/ip] [current_project]
update_ip_catalog -rebuild
create_ip -vlnv @VENDOR@:@LIBRARY@:@TOP@:@VERSION@ -module_name @TOP@_0 -dir build
generate_target all [get_ips @TOP@_0]
synth_ip [get_ips @TOP@_0]
"""
