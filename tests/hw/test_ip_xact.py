"""IP-XACT of an AXI wrapper: every port of its SystemVerilog, every file, every register."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from axi_designs import NUMBER, one_beat, two_inputs
from board_designs import emitted as on_board
from designs import mlp

from chop.hw.design.folders import INTERFACES
from chop.hw.design.stream import Stream
from chop.hw.interfaces.axi_wrapper import emit_axi
from chop.hw.interfaces.ip_xact import EXAMPLE_PART, NAMESPACE, REGISTERS
from chop.hw.library.components import Relu
from chop.hw.sim.emit import emit, require_ours
from chop.hw.streams.builder import Builder

PREFIX = {"ipxact": NAMESPACE}
HEADER = re.compile(
    r"^    (input  wire|output     ) logic (?:\[(\d+):0\] )?(\w+),?$", re.MULTILINE
)  # a port of an emitted wrapper


def reloaded():
    design = mlp((4, 8), (4, 4))
    return replace(design, reloaded=(design.stages[0].name,))


def nested_names():
    """Two inputs, of which one has the name of the other as its prefix."""
    builder = Builder("top")
    for name in ("data", "data_more"):
        x = builder.input(name, Stream((2,), 1, NUMBER))
        relu = Relu(builder.stream(x), NUMBER)
        builder.output(f"{name}_out", builder.add(f"{name}_relu", relu, x))
    return builder.build()


DESIGNS = {
    "one beat": one_beat,
    "two inputs": two_inputs,
    "memories": lambda: mlp((4, 8), (4, 4)),
    "nested names": nested_names,
}
EACH = pytest.mark.parametrize(
    ("name", "clocks"), [(name, clocks) for name in DESIGNS for clocks in (1, 2)]
)


def wrapped(design, folder, clocks=1):
    hardware = emit(design, folder / "hardware")
    emit_axi(hardware, clocks=clocks)
    return hardware, ET.parse(hardware / "component.xml").getroot()


def texts(root, path):
    return [each.text for each in root.iterfind(path, PREFIX)]


def header_ports(hardware):
    """Return direction and bits of every port in the wrapper's SystemVerilog; None for a scalar."""
    head = (hardware / "axi" / "top_axi.sv").read_text().partition("\n);\n")[0]
    return {
        name: ("in" if "input" in side else "out", int(left) + 1 if left else None)
        for side, left, name in HEADER.findall(head)
    }


def described_ports(root):
    ports = {}
    for port in root.iterfind("ipxact:model/ipxact:ports/ipxact:port", PREFIX):
        (name,), (side,) = texts(port, "ipxact:name"), texts(port, "ipxact:wire/ipxact:direction")
        ends = [texts(port, f".//ipxact:vector/ipxact:{end}") for end in ("left", "right")]
        assert ends == [[], []] or ends[1] == ["0"]
        ports[name] = (side, int(ends[0][0]) + 1 if ends[0] else None)
    return ports


@EACH
def test_every_port_of_the_header_is_described_with_its_direction_and_width(tmp_path, name, clocks):
    hardware, root = wrapped(DESIGNS[name](), tmp_path, clocks)
    expected = header_ports(hardware)
    assert len(expected) >= 29 + (clocks == 2)
    assert described_ports(root) == expected


@EACH
def test_every_port_belongs_to_one_bus_and_every_bus_to_one_clock(tmp_path, name, clocks):
    hardware, root = wrapped(DESIGNS[name](), tmp_path, clocks)
    mapped, associated = [], []
    for bus in root.iterfind("ipxact:busInterfaces/ipxact:busInterface", PREFIX):
        mapped += texts(bus, ".//ipxact:physicalPort/ipxact:name")
        for parameter in bus.iterfind("ipxact:parameters/ipxact:parameter", PREFIX):
            if texts(parameter, "ipxact:name") == ["ASSOCIATED_BUSIF"]:
                (listed,) = texts(parameter, "ipxact:value")
                associated += listed.split(":")
    assert sorted(mapped) == sorted(header_ports(hardware))
    buses = texts(root, "ipxact:busInterfaces/ipxact:busInterface/ipxact:name")
    clock_names = {"aclk", "axis_aclk"} & set(header_ports(hardware))
    assert len(clock_names) == clocks
    assert sorted(associated) == sorted(set(buses) - clock_names - {"aresetn"})


@EACH
def test_a_bus_has_the_signals_of_its_standard_and_the_side_of_its_data(tmp_path, name, clocks):
    _, root = wrapped(DESIGNS[name](), tmp_path, clocks)
    kinds = {}
    for bus in root.iterfind("ipxact:busInterfaces/ipxact:busInterface", PREFIX):
        (own,) = texts(bus, "ipxact:name")
        kind = bus.find("ipxact:busType", PREFIX).get("name")
        kinds[own] = kind
        assert bus.find("ipxact:master", PREFIX) is None or own.startswith("m_axis_")
        if kind == "axis":
            logical = set(texts(bus, ".//ipxact:logicalPort/ipxact:name"))
            assert logical == {"TDATA", "TKEEP", "TLAST", "TVALID", "TREADY"}
        if own == "s_axil":
            assert (
                kind == "aximm" and bus.find("ipxact:slave/ipxact:memoryMapRef", PREFIX) is not None
            )
    assert list(kinds.values()).count("clock") == clocks


@EACH
def test_every_file_of_the_core_exists_and_none_is_missing(tmp_path, name, clocks):
    hardware, root = wrapped(DESIGNS[name](), tmp_path, clocks)
    files = texts(root, "ipxact:fileSets/ipxact:fileSet/ipxact:file/ipxact:name")
    needed = [*hardware.glob("rtl/*.sv"), *hardware.glob("axi/*.sv"), *hardware.glob("mem/*.mem")]
    assert sorted(files) == sorted(str(path.relative_to(hardware)) for path in needed)
    assert bool(list(hardware.glob("mem/*.mem"))) == (name == "memories")


def test_the_registers_are_those_of_the_control_port():
    head = (INTERFACES / "axi_lite_registers.sv").read_text().partition("`default_nettype")[0]
    documented = {
        int(offset, 16): access
        for offset, access in re.findall(r"^//   0x(\w+)  (read, write|read)", head, re.MULTILINE)
    }
    access = {"read-only": "read", "read-write": "read, write"}
    assert {each.offset: access[each.access] for each in REGISTERS} == documented


@pytest.mark.parametrize(("design", "count"), [(one_beat, 9), (reloaded, 11)])
def test_registers_of_a_reload_are_described_only_where_they_are(tmp_path, design, count):
    _, root = wrapped(design(), tmp_path)
    assert len(texts(root, ".//ipxact:register/ipxact:name")) == count


def test_the_parts_of_a_component_are_in_the_order_of_the_standard(tmp_path):
    _, root = wrapped(one_beat(), tmp_path)
    order = [each.tag.rpartition("}")[2] for each in root]
    assert order == [
        "vendor", "library", "name", "version", "busInterfaces", "memoryMaps", "model",
        "fileSets", "description",
    ]  # fmt: skip


@pytest.mark.parametrize("clocks", [1, 2])
def test_the_script_names_the_core_and_gives_every_bus_its_clock(tmp_path, clocks):
    hardware, _ = wrapped(two_inputs(), tmp_path, clocks)
    text = (hardware / "axi" / "package_ip.tcl").read_text()
    assert "@" not in text and text.count("{") == text.count("}") and "top_axi_0" in text
    pairs = re.findall(r"-busif (\w+) -clock (\w+) \$core", text)
    streams = "aclk" if clocks == 1 else "axis_aclk"
    names = ("s_axis_data_in_0", "s_axis_data_in_1", "m_axis_data_out_0")
    assert dict(pairs) == {"s_axil": "aclk", **dict.fromkeys(names, streams)}


def test_the_description_is_sealed_and_leaves_with_its_design(tmp_path):
    hardware, _ = wrapped(two_inputs(), tmp_path)
    require_ours(hardware, "top")
    emit(one_beat(), hardware)
    assert not (hardware / "component.xml").exists()
    require_ours(hardware, "top")


def test_a_vivado_project_has_the_core_too(tmp_path):
    hardware = on_board(one_beat(), tmp_path, board="basys3")
    assert {path.name for path in hardware.glob("board/*.tcl")} == {"vivado.tcl"}
    assert (hardware / "component.xml").is_file() and (hardware / "axi/package_ip.tcl").is_file()


@pytest.mark.parametrize("part", ["", "xc7k325tffg900-2"])
def test_the_script_runs_in_plain_tcl_and_reads_every_file(tmp_path, part):
    """Vivado is not here: a plain Tcl records the commands that it would get."""
    tkinter = pytest.importorskip("tkinter", reason="needs Tcl")
    hardware, root = wrapped(mlp((4, 8), (4, 4)), tmp_path)
    commands, interpreter = [], tkinter.Tcl()
    interpreter.createcommand("unknown", lambda *words: commands.append(words) or "")
    interpreter.eval(f"cd {{{hardware}}}; set argv {{{part}}}")
    interpreter.eval((hardware / "axi/package_ip.tcl").read_text())
    added = {path for name, *paths in commands if name == "add_files" for path in paths}
    files = texts(root, "ipxact:fileSets/ipxact:fileSet/ipxact:file/ipxact:name")
    assert {path for paths in added for path in str(paths).split()} == set(files)
    made = [words for words in commands if words[0] == "create_project"]
    assert all(words[-1] == (part or EXAMPLE_PART) for words in made) and len(made) == 2
    names = [words[0] for words in commands]
    assert names.index("ipx::package_project") < names.index("create_ip") < names.index("synth_ip")
