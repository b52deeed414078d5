"""AXI wrapper of emitted designs: masters and slaves of cocotbext-axi drive its ports."""

from dataclasses import replace

import pytest
from axi_designs import NUMBER, one_beat, two_inputs
from covering import first_and_slow
from designs import mlp

from chop.actions.simulation import simulate
from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.folders import INTERFACES
from chop.hw.design.reload import ReloadPort
from chop.hw.design.stream import Stream
from chop.hw.interfaces.axi_wrapper import axi_files, emit_axi, run_axi_bench, transfer_bytes
from chop.hw.sim.emit import emit, require_ours, vector_files, write_files
from chop.hw.sim.simulate import random_inputs
from chop.hw.sim.verilate import lint

DESIGNS = {"two inputs": two_inputs, "mlp": lambda: mlp((4, 8), (4, 4)), "one beat": one_beat}


@pytest.fixture
def wrapped(tmp_path):
    """Return a function that emits a design with its wrapper."""

    def make(design, tensors=6):
        hardware = emit(design, tmp_path / "hardware")
        write_files(hardware, vector_files(design, random_inputs(design, tensors)))
        emit_axi(hardware)
        return hardware

    return make


@pytest.mark.sim("verilator", "iverilog", "cocotbext.axi")
@pytest.mark.parametrize("name", first_and_slow(DESIGNS))
def test_every_byte_and_register_is_right_under_random_pauses(wrapped, name):
    hardware = wrapped(DESIGNS[name]())
    require_ours(hardware, "top")
    assert lint(hardware, "top_axi", ("rtl", "axi")) == ""
    assert simulate(hardware.parent, simulator="axi").tests == 6


@pytest.mark.slow
@pytest.mark.sim("verilator", "cocotbext.axi")
def test_verilator_agrees(wrapped):
    assert run_axi_bench(wrapped(two_inputs()), "verilator").tests == 6


MUTANTS = {
    "TLAST of an output is one transfer late": (
        "axi_stream_out", "is_last      = count_q == LAST", "is_last      = count_q == '0"),
    "a stopped design takes transfers": (
        "axi_stream_in", "s_axis_tready = slice_ready && run", "s_axis_tready = slice_ready"),
    "a wrong TLAST is not seen": ("axi_stream_in", "s_axis_tlast != is_last", "1'b0"),
    "a byte that is not kept is not seen": ("axi_stream_in", "s_axis_tkeep != '1", "1'b0"),
    "wrong transfers are not counted": ("axi_lite_registers", "sum + 1'b1", "sum"),
    "refused accesses are not counted": ("axi_lite_registers", "COUNT'(is_refused)", "'0"),
    "a transfer is taken twice": ("axi_stream_in", "valid(taken)", "valid(s_axis_tvalid)"),
    "errors stay": ("axi_stream_in", "if (clear) begin", "if (1'b0) begin"),
    "tensors leave as they enter": ("axi_lite_registers", "left_q + COUNT'(ends)",
                                    "left_q + COUNT'(starts)"),
    "busy for ever": ("axi_lite_registers", "COUNT'(starts) - COUNT'(ends)", "COUNT'(starts)"),
    "every write is right": ("axi_lite_registers", "is_right ? OKAY", "1'b1 ? OKAY"),
    "every read is right": ("axi_lite_registers", "is_known ? OKAY", "1'b1 ? OKAY"),
    "run cannot be changed": ("axi_lite_registers", "run <= data_q[0]", "run <= 1'b1"),
    "the counters cannot be cleared": ("axi_lite_registers", "if (clear || !aresetn)",
                                       "if (!aresetn)"),
}  # fmt: skip


@pytest.mark.sim("iverilog", "cocotbext.axi")
@pytest.mark.parametrize("name", first_and_slow(MUTANTS))
def test_a_fault_of_the_wrapper_is_noticed(wrapped, name):
    hardware = wrapped(two_inputs(), tensors=3)
    module, old, new = MUTANTS[name]
    file = hardware / "axi" / f"{module}.sv"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(HardwareError, match="of 6 tests failed"):
        run_axi_bench(hardware)


def test_a_transfer_is_whole_bytes():
    sizes = {transfer_bytes(Stream((4,), lanes, Fixed(width, 0))) for lanes, width in
             ((1, 8), (2, 4), (4, 2), (1, 3))}  # fmt: skip
    assert sizes == {1} and transfer_bytes(Stream((3,), 3, NUMBER)) == 2


def test_modules_that_the_design_has_are_not_written_again():
    interface = two_inputs().interface()
    alone, beside = axi_files(interface), axi_files(interface, ["skid_buffer"])
    assert alone.keys() - beside.keys() == {"axi/skid_buffer.sv"}
    port = ReloadPort(3, 0)
    everything = axi_files(replace(interface, reload=port), ["skid_buffer"], clocks=2)
    assert beside.keys() < everything.keys()
    assert {f"axi/{path.name}" for path in INTERFACES.glob("*.sv")} <= everything.keys()


FORGED = {
    "a command in the wrapper": ("top_axi.sv", "endmodule", "initial $finish;\nendmodule"),
    "another module": ("axi_stream_in.sv", "count_q", "other_q"),
    "another test bench": ("test_axi.py", "PATIENCE_US = 100", "PATIENCE_US = 1"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_wrapper_that_was_changed_is_not_run(wrapped, name):
    hardware = wrapped(one_beat())
    file, old, new = FORGED[name]
    text = (hardware / "axi" / file).read_text().replace(old, new)
    write_files(hardware, {f"axi/{file}": text})  # a manifest that fits
    with pytest.raises(HardwareError, match=file):
        simulate(hardware.parent, simulator="axi")


def test_a_design_that_is_emitted_again_has_no_old_wrapper(wrapped):
    hardware = wrapped(two_inputs())
    emit(one_beat(), hardware)
    assert not list((hardware / "axi").iterdir())
    with pytest.raises(HardwareError, match="no AXI wrapper"):
        simulate(hardware.parent, simulator="axi")
