"""Files of a board project: `board/` of a hardware directory.

The top module and its parts, the constraints, a Makefile for the open tools or a Tcl script for the
vendor's, `board.json` and the host program. The vendors' tools were never run on these files here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from chop.hw.boards.board_table import BAUD, Board
from chop.hw.boards.board_top import Payloads, payloads, top_name, top_text
from chop.hw.design.design import Interface
from chop.hw.design.folders import BOARDS as BOARD_FOLDER
from chop.hw.design.memories import Files
from chop.hw.interfaces.axi_wrapper import emit_axi
from chop.hw.sim.emit import BOARD_FILES, read_interface, remove_stale, write_files

FOLDER = "board"
BUILD = "build"
"""Folder of the hardware directory for what `make` writes."""
RTL = BOARD_FOLDER / "rtl"
HOST = BOARD_FOLDER / "host.py"
SOURCES = ("rtl", "axi", FOLDER)
"""Folders with the SystemVerilog of a board project."""


def emit_board(directory: Path, board: Board, *, baud: int = BAUD) -> list[str]:
    """Write the project of the design emitted in `directory`; return the names of its files."""
    interface = read_interface(directory)
    payloads(interface)
    emit_axi(directory)
    files = board_files(interface, board, baud, design_identity(directory))
    write_files(directory, files)
    for pattern in BOARD_FILES:
        remove_stale(directory, pattern, files)
    return sorted(files)


def design_identity(directory: Path) -> int:
    """Return a number of 32 bits that tells designs apart: a hash of RTL and memories."""
    digest = hashlib.sha256((directory / "design.json").read_bytes())
    for folder, suffix in (("rtl", "sv"), ("mem", "mem")):
        for path in sorted((directory / folder).glob(f"*.{suffix}")):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big")


def board_files(interface: Interface, board: Board, baud: int, identity: int) -> Files:
    """Return all files of the project."""
    both = payloads(interface)
    texts = {f"{path.stem}.sv": path.read_text() for path in sorted(RTL.glob("*.sv"))}
    texts[f"{top_name(interface)}.sv"] = top_text(interface, board, baud, identity)
    texts["board.json"] = _facts(interface, board, baud, identity, both)
    texts["host.py"] = HOST.read_text()
    texts |= _TOOLS[board.tools](interface, board)
    return {f"{FOLDER}/{name}": text for name, text in texts.items()}


def _facts(interface: Interface, board: Board, baud: int, identity: int, both: Payloads) -> str:
    record = {
        "board": board.name,
        "part": board.part,
        "design": interface.name,
        "id": f"{identity:08x}",
        "baud": baud,
        "clock_mhz": board.clock_mhz,
        "clocks_per_bit": board.clocks_per_bit(baud),
        "halvings": board.halvings,
        "tensors": interface.in_flight,
        "request_bytes": both.request_bytes,
        "reply_bytes": both.reply_bytes,
        "requests": [asdict(segment) for segment in both.requests],
        "replies": [asdict(segment) for segment in both.replies],
    }
    return json.dumps(record, indent=2) + "\n"


# -- open tools ------------------------------------------------------------------------------------


def constraints_name(board: Board) -> str:
    """Return the name of the constraints file of a board."""
    part = board.open_part()
    if part is None:
        return f"{board.name}.{'xdc' if board.tools == 'vivado' else 'sdc'}"
    return f"{board.name}.{'lpf' if part.family.name == 'ecp5' else 'pcf'}"


def _all_pins(board: Board) -> dict[str, str]:
    return {**board.pins, **board.high}


def _lpf(board: Board) -> str:
    lines = [f"# {board.title}", "BLOCK RESETPATHS;", "BLOCK ASYNCPATHS;"]
    for port, pin in _all_pins(board).items():
        pull = "UP" if port == "uart_rx" else "NONE"
        lines.append(f'LOCATE COMP "{port}" SITE "{pin}";')
        lines.append(f'IOBUF PORT "{port}" PULLMODE={pull} IO_TYPE=LVCMOS33;')
    lines.append(f'FREQUENCY PORT "clk" {board.oscillator_mhz:g} MHZ;')
    return "\n".join(lines) + "\n"


def _pcf(board: Board) -> str:
    lines = [f"# {board.title}"]
    lines += [f"set_io {port} {pin}" for port, pin in _all_pins(board).items()]
    lines.append(f"set_frequency clk {board.oscillator_mhz:g}")
    return "\n".join(lines) + "\n"


def _open_files(interface: Interface, board: Board) -> Files:
    part = board.open_part()
    assert part is not None, "a row of the open tools names a part"
    is_ecp5 = part.family.name == "ecp5"
    text = _MAKEFILE if is_ecp5 else _MAKEFILE.replace("--lpf", "--pcf")
    routed, bits = (
        f"{BUILD}/{board.name}{suffix}"
        for suffix in (part.family.routed_suffix, part.family.bitstream_suffix)
    )
    pack = f"--compress --input {routed} --bit {bits}" if is_ecp5 else f"{routed} {bits}"
    values = {
        "BOARD": board.name,
        "TOP": top_name(interface),
        "SYNTH": part.family.synthesis.format(top=top_name(interface), more=part.synthesis),
        "NEXTPNR": part.family.package.removeprefix("yowasp_").replace("_", "-"),
        "PACKER": part.family.packer,
        "OPTIONS": " ".join((*part.options, "--freq", f"{board.clock_mhz:g}")),
        "CONSTRAINTS": constraints_name(board),
        "ROUTED": part.family.routed_suffix,
        "ROUTE_OPTION": part.family.routed_option,
        "SUFFIX": part.family.bitstream_suffix,
        "PACK_ARGUMENTS": pack,
        "PROGRAMMER": board.programmer,
    }
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return {"Makefile": text, constraints_name(board): _lpf(board) if is_ecp5 else _pcf(board)}


_MAKEFILE = """# Bitstream of @TOP@ for the board @BOARD@, with Yosys and nextpnr.
#
#   make                          write ../build/@BOARD@@SUFFIX@
#   make prog                     load it
#   make check PORT=/dev/ttyUSB0  send the test inputs and check the outputs
#
# The tools of the YoWASP packages on PyPI are used where others are not installed.
tool = $(firstword $(shell command -v $(1) || command -v yowasp-$(1)) $(1))
YOSYS   ?= $(call tool,yosys)
NEXTPNR ?= $(call tool,@NEXTPNR@)
PACKER  ?= $(call tool,@PACKER@)
PYTHON  ?= python3
PORT    ?= /dev/ttyUSB0
SOURCES := $(patsubst ../%,%,$(wildcard ../rtl/*.sv ../axi/*.sv ../board/*.sv))
BITSTREAM := ../build/@BOARD@@SUFFIX@

all: $(BITSTREAM)

../build/netlist.json: $(addprefix ../,$(SOURCES)) $(wildcard ../mem/*.mem)
\tmkdir -p ../build
\tcd .. && $(YOSYS) -q -p "read_verilog -sv -defer $(SOURCES); @SYNTH@ -json build/netlist.json"

../build/@BOARD@@ROUTED@: ../build/netlist.json @CONSTRAINTS@
\tcd .. && $(NEXTPNR) @OPTIONS@ --lpf board/@CONSTRAINTS@ \\
\t    --json build/netlist.json @ROUTE_OPTION@ build/@BOARD@@ROUTED@

$(BITSTREAM): ../build/@BOARD@@ROUTED@
\tcd .. && $(PACKER) @PACK_ARGUMENTS@

prog: $(BITSTREAM)
\t@PROGRAMMER@

check:
\t$(PYTHON) host.py $(PORT)

clean:
\trm -rf ../build

.PHONY: all prog check clean
"""


# -- vendors' tools --------------------------------------------------------------------------------


def _vivado_files(interface: Interface, board: Board) -> Files:
    lines = [f"# {board.title}"]
    for port, pin in _all_pins(board).items():
        lines.append(
            f"set_property -dict {{PACKAGE_PIN {pin} IOSTANDARD LVCMOS33}} [get_ports {{{port}}}]"
        )
    period = 1e3 / board.oscillator_mhz
    lines.append(f"create_clock -name clk -period {period:.3f} [get_ports {{clk}}]")
    if board.halvings:
        lines.append(
            f"create_generated_clock -name clock -source [get_ports {{clk}}] "
            f"-divide_by {2**board.halvings} [get_pins {{{_DIVIDED}[{board.halvings - 1}]/Q}}]"
        )
    text = _VIVADO.replace("@TOP@", top_name(interface)).replace("@PART@", board.part)
    text = text.replace("@BOARD@", board.name)
    return {"vivado.tcl": text, constraints_name(board): "\n".join(lines) + "\n"}


_DIVIDED = "u_clock/g_divide.divided_q_reg"
_VIVADO = """# Bitstream of @TOP@ for the board @BOARD@, with Vivado; run in the folder above:
#
#   vivado -mode batch -source board/vivado.tcl
#
# Memories are read from the folder mem, which is named from where Vivado runs.
create_project -in_memory -part @PART@
read_verilog -sv [glob rtl/*.sv axi/*.sv board/*.sv]
read_xdc board/@BOARD@.xdc
synth_design -top @TOP@ -part @PART@
opt_design
place_design
route_design
file mkdir build
report_utilization -file build/@BOARD@_utilization.rpt
report_timing_summary -file build/@BOARD@_timing.rpt
write_bitstream -force build/@BOARD@.bit
"""


def _quartus_files(interface: Interface, board: Board) -> Files:
    lines = [
        f"# Bitstream of {top_name(interface)} for the board {board.name}, with Quartus; run in "
        "the folder above:",
        "#",
        "#   quartus_sh -t board/quartus.tcl",
        "#",
        "# Memories are read from the folder mem, which is named from where Quartus runs.",
        "load_package flow",
        f"project_new -overwrite {board.name}",
        f"set_global_assignment -name DEVICE {board.part}",
        f"set_global_assignment -name TOP_LEVEL_ENTITY {top_name(interface)}",
        "foreach source [glob rtl/*.sv axi/*.sv board/*.sv] {",
        "  set_global_assignment -name SYSTEMVERILOG_FILE $source",
        "}",
        f"set_global_assignment -name SDC_FILE board/{board.name}.sdc",
        "set_global_assignment -name PROJECT_OUTPUT_DIRECTORY build",
    ]
    for port, pin in _all_pins(board).items():
        lines.append(f"set_location_assignment PIN_{pin} -to {port}")
        lines.append(f'set_instance_assignment -name IO_STANDARD "3.3-V LVTTL" -to {port}')
    lines += ["execute_flow -compile", "project_close"]
    period = 1e3 / board.oscillator_mhz
    clock = f"create_clock -name clk -period {period:.3f} [get_ports {{clk}}]\n"
    clock += "derive_clock_uncertainty\n"
    return {"quartus.tcl": "\n".join(lines) + "\n", constraints_name(board): clock}


_TOOLS = {"open": _open_files, "vivado": _vivado_files, "quartus": _quartus_files}
"""Tools of a board -> function that returns the files for them."""
