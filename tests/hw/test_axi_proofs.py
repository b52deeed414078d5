"""Proofs of the AXI4-Stream ports, for all inputs and all times, and faults that they refute."""

import pytest
from covering import first_and_slow

from chop.hw.design.claims import Edit, Proof
from chop.hw.design.folders import INTERFACES
from chop.hw.proofs import prove

SIZES = {
    "axi_stream_in": {"WIDTH": 3, "BYTES": 1, "BEATS": 3},
    "axi_stream_out": {"WIDTH": 3, "BYTES": 1, "BEATS": 3},
}
SINGLE = {"WIDTH": 2, "BYTES": 1, "BEATS": 1}
FAULTS = {
    "TLAST is late": Edit("axi_stream_out", "is_last      = count_q == LAST",
                          "is_last      = count_q == '0"),
    "a byte is not kept": Edit("axi_stream_out", "m_axis_tkeep = '1", "m_axis_tkeep = '0"),
    "a stopped design takes transfers": Edit(
        "axi_stream_in", "s_axis_tready = slice_ready && run", "s_axis_tready = slice_ready"),
    "an error is lost": Edit("axi_stream_in", "if (clear) begin", "if (1'b1) begin"),
    "an error stays": Edit("axi_stream_in", "if (clear) begin", "if (1'b0) begin"),
    "a transfer is taken twice": Edit("axi_stream_in", "valid(taken)", "valid(s_axis_tvalid)"),
}  # fmt: skip


def proof_of(module, sizes):
    return Proof(module, sizes, text=INTERFACES / f"{module}_laws.svh")


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("module", SIZES)
def test_the_laws_of_a_port_hold(module):
    verdicts = prove(proof_of(module, SIZES[module]))
    assert [v.is_proved for v in verdicts] == [True] * 3


@pytest.mark.slow
@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("module", SIZES)
def test_the_laws_hold_for_tensors_of_one_beat(module):
    assert all(v.is_proved for v in prove(proof_of(module, SINGLE)))


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("name", first_and_slow(FAULTS))
def test_a_fault_of_a_port_is_refuted(name):
    fault = FAULTS[name]
    proof = proof_of(fault.module, SIZES[fault.module]).with_fault(fault)
    assert not all(v.is_proved for v in prove(proof))
