"""Random accesses and transfers at the ports of an AXI wrapper; faults of it are noticed."""

import pytest
from axi_designs import one_beat, two_inputs
from covering import first_and_slow
from designs import mlp

from chop.errors import HardwareError
from chop.hw.interfaces.axi_fuzz import fuzz_ports
from chop.hw.interfaces.axi_wrapper import emit_axi
from chop.hw.sim.emit import emit, require_ours, vector_files, write_files
from chop.hw.sim.simulate import random_inputs

DESIGNS = {"two inputs": two_inputs, "mlp": lambda: mlp((4, 8), (4, 4)), "one beat": one_beat}


@pytest.fixture
def wrapped(tmp_path):
    """Return a function that emits a design with its wrapper."""

    def make(design, **settings):
        hardware = emit(design, tmp_path / "hardware")
        write_files(hardware, vector_files(design, random_inputs(design, 16)))
        emit_axi(hardware, **settings)
        return hardware

    return make


@pytest.mark.sim("iverilog", "cocotb")
@pytest.mark.parametrize("name", first_and_slow(DESIGNS))
def test_random_accesses_and_transfers_are_right(wrapped, name):
    hardware = wrapped(DESIGNS[name]())
    counts = fuzz_ports(hardware, 400)
    assert counts["reads"] + counts["writes"] >= 400
    for fault in ("refused reads", "refused writes", "wrong last"):
        assert counts[fault] > 0, counts
    assert counts["entered"] == counts["left"] > 0
    require_ours(hardware, "top")  # the bench is taken away again


@pytest.mark.slow
@pytest.mark.sim("iverilog", "cocotb")
@pytest.mark.parametrize("name", DESIGNS)
def test_many_random_accesses_are_right(wrapped, name):
    counts = fuzz_ports(wrapped(DESIGNS[name]()), 5_000, seed=1)
    assert counts["rounds"] == 3


FAULTS = {
    "an answer is not kept": ("axi_lite_registers", "if (s_axil_bready) s_axil_bvalid <= 1'b0;",
                              "s_axil_bvalid <= 1'b0;"),
    "a wrong read is right": ("axi_lite_registers", "is_known ? OKAY", "1'b1 ? OKAY"),
    "refused writes are not counted": ("axi_lite_registers", "COUNT'(is_refused)", "'0"),
    "an address channel stays closed": ("axi_lite_registers", "s_axil_awready = !has_address_q",
                                        "s_axil_awready = 1'b0"),
    "a transfer is lost": ("axi_stream_in", "valid(taken)", "valid(taken && !s_axis_tlast)"),
    "wrong transfers are not counted": ("axi_stream_in", "last_wrong    = taken &&",
                                        "last_wrong    = 1'b0 &&"),
    "an output changes while it waits": ("axi_stream_out", "(8 * BYTES)'(beat)",
                                         "(8 * BYTES)'(m_axis_tready ? beat : ~beat)"),
}  # fmt: skip


@pytest.mark.sim("iverilog", "cocotb")
@pytest.mark.parametrize("name", first_and_slow(FAULTS))
def test_fuzzing_finds_a_fault(wrapped, name):
    hardware = wrapped(two_inputs())
    module, old, new = FAULTS[name]
    file = hardware / "axi" / f"{module}.sv"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(HardwareError, match="1 of 1 tests failed"):
        fuzz_ports(hardware, 1_000)


def test_other_wrappers_are_refused(wrapped):
    with pytest.raises(HardwareError, match="only wrappers with one clock and without --weights"):
        fuzz_ports(wrapped(one_beat(), clocks=2), 100)
