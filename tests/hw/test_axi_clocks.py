"""AXI wrapper with two clocks: values at several ratios, faults of the crossing, and refusals."""

import pytest
from axi_designs import one_beat, two_inputs
from covering import first_and_slow
from designs import mlp

from chop.actions import simulate
from chop.cli.main import main
from chop.errors import HardwareError
from chop.hw.interfaces.axi_wrapper import CLOCK_BENCH, emit_axi
from chop.hw.sim.cocotb_run import run_cocotb
from chop.hw.sim.emit import emit, require_ours, vector_files, write_files
from chop.hw.sim.simulate import random_inputs
from chop.hw.sim.verilate import lint

DESIGNS = {"two inputs": two_inputs, "mlp": lambda: mlp((4, 8), (4, 4)), "one beat": one_beat}
RATIOS = 7
"""Ratios of the clocks in the bench; each at full rate and under random pauses."""


@pytest.fixture
def crossed(tmp_path):
    """Return a function that emits a design with a wrapper of two clocks."""

    def make(design, tensors=4):
        hardware = emit(design, tmp_path / "hardware")
        write_files(hardware, vector_files(design, random_inputs(design, tensors)))
        emit_axi(hardware, clocks=2)
        return hardware

    return make


@pytest.mark.sim("verilator", "iverilog", "cocotbext.axi")
@pytest.mark.parametrize("name", first_and_slow(DESIGNS))
def test_values_are_exact_at_every_ratio_of_the_clocks(crossed, name):
    hardware = crossed(DESIGNS[name]())
    require_ours(hardware, "top")
    assert lint(hardware, "top_axi", ("rtl", "axi")) == ""
    assert run_cocotb(hardware, top="top_axi", bench=CLOCK_BENCH).tests == 2 * RATIOS


@pytest.mark.slow
@pytest.mark.sim("iverilog", "cocotbext.axi")
def test_the_control_port_works_with_two_clocks(crossed):
    assert simulate(crossed(two_inputs()).parent, simulator="axi").tests == 6 + 2 * RATIOS


@pytest.mark.slow
@pytest.mark.sim("verilator", "cocotbext.axi")
def test_verilator_agrees_with_two_clocks(crossed):
    hardware = crossed(two_inputs())
    found = run_cocotb(hardware, top="top_axi", bench=CLOCK_BENCH, simulator="verilator")
    assert found.tests == 2 * RATIOS


FAULTS = {
    "a queue takes transfers in reset": ("!write_rst && ", ""),
    "a full queue takes more": ("write_gray_q != (read_seen_q ^ WHOLE)", "1'b1"),
    "the reader reads the next slot": ("slots[read_count_q[", "slots[read_next["),
}


@pytest.mark.slow
@pytest.mark.sim("iverilog", "cocotbext.axi")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_crossing_is_noticed(crossed, name):
    old, new = FAULTS[name]
    file = crossed(two_inputs(), tensors=12) / "axi" / "async_fifo.sv"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(HardwareError, match="tests failed"):
        run_cocotb(file.parents[1], top="top_axi", bench=CLOCK_BENCH)


def test_one_clock_leaves_no_crossing_behind(crossed):
    hardware = crossed(one_beat())
    assert (hardware / "axi" / "async_fifo.sv").exists()
    emit_axi(hardware)
    assert not (hardware / "axi" / "async_fifo.sv").exists()
    assert "axis_aclk" not in (hardware / "axi" / "top_axi.sv").read_text()
    require_ours(hardware, "top")


def test_other_numbers_of_clocks_are_refused(crossed, tmp_path, capsys):
    with pytest.raises(HardwareError, match=r"axi: clocks = 3. Allowed: 1, or 2 with a clock of"):
        emit_axi(crossed(one_beat()), clocks=3)
    for line in (["--clocks", "2"], ["--axi", "--clocks", "3"]):
        assert main(["emit", "mlp", *line, "--out", str(tmp_path / "out")]) != 0
        assert f"clocks: {line[-1]}. Allowed: 1, or 2 with --axi" in capsys.readouterr().err
