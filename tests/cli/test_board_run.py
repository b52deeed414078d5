"""`mase hw --board`: a project from the command line, and the lines that it refuses."""

import pytest

from chop.hw.boards.board_table import BOARDS

TOOLS = ("verilator", "g++")
WRONG = {
    "--board ulx4s": "unknown board 'ulx4s'. Did you mean 'ulx3s'?",
    "--board ulx3s --device ecp5-85k": "'ulx3s' has its own part: leave --device out",
    "--board ulx3s --decode": "'ulx3s' has its own part: leave --decode out",
    "--baud 9600": "baud: this option is for a board: give --board too",
    "--no-bitstream": "bitstream: this option is for a board: give --board too",
    "--board icebreaker --baud 5000000": "clock of 12 MHz cannot make 5000000 baud",
    "--board ulx3s --no-bitstream": "Quantise what reads it",
}
"""Options of `mase hw mlp` -> words of the message. The last ones are right for another model."""


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_line_is_refused_and_writes_nothing(mase, tmp_path, options):
    ran = mase(f"hw mlp {options} --out o")
    assert ran.code != 0 and WRONG[options] in ran.err
    assert not list((tmp_path / "o").glob("hardware"))


def test_a_model_has_no_board_to_simulate(mase):
    assert "`mase hw … --board NAME`" in mase("simulate mlp --simulator board").err


def test_list_names_every_board_with_its_tools(mase):
    told = mase("list boards").out
    assert all(name in told for name in BOARDS) and "built with Vivado" in told


@pytest.mark.slow
@pytest.mark.sim(*TOOLS)
@pytest.mark.parametrize("board", ["ulx3s", "de2-115"])
def test_a_project_is_written_simulated_and_simulated_again(mase, trained, tmp_path, board):
    assert mase(f"quantize {trained} --format integer --width 8 --out q").code == 0
    ran = mase(f"hw q --dataset digits --board {board} --no-bitstream --out o")
    assert ran.code == 0 and "8 of 8 inferences right over the UART" in ran.out + ran.err
    assert "python o/hardware/board/host.py" in ran.out + ran.err
    again = mase("simulate o --simulator board --out s")
    assert "360 of 360 inferences right" in again.out + again.err
