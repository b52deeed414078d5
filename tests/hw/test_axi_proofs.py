"""Proofs of the AXI ports and of the queue between two clocks; faults are refuted."""

import pytest
from covering import first_and_slow

from chop.hw.design.claims import Edit, Proof
from chop.hw.design.folders import INTERFACES
from chop.hw.proofs import prove

SIZES = {
    "axi_stream_in": {"WIDTH": 3, "BYTES": 1, "BEATS": 3},
    "axi_stream_out": {"WIDTH": 3, "BYTES": 1, "BEATS": 3},
}
CROSSING = {"DATA_WIDTH": 1, "DEPTH_BITS": 1}
"""Size of the queue between two clocks: two beats."""
SINGLE = {"WIDTH": 2, "BYTES": 1, "BEATS": 1}
FAULTS = {
    "TLAST is late": Edit("axi_stream_out", "is_last      = count_q == LAST",
                          "is_last      = count_q == '0"),
    "a byte is not kept": Edit("axi_stream_out", "m_axis_tkeep = '1", "m_axis_tkeep = '0"),
    "a stopped design takes transfers": Edit(
        "axi_stream_in", "s_axis_tready = slice_ready && run", "s_axis_tready = slice_ready"),
    "a wrong TLAST gives no pulse": Edit("axi_stream_in", "last_wrong    = taken &&",
                                         "last_wrong    = 1'b0 &&"),
    "an error is lost": Edit("axi_stream_in", "if (clear) begin", "if (1'b1) begin"),
    "an error stays": Edit("axi_stream_in", "if (clear) begin", "if (1'b0) begin"),
    "a transfer is taken twice": Edit("axi_stream_in", "valid(taken)", "valid(s_axis_tvalid)"),
}  # fmt: skip


def proof_of(module, sizes):
    return Proof(module, sizes, text=INTERFACES / f"{module}_laws.svh")


def any_bit(side, taken, gray):
    """A count that is sampled as it changes: each changed bit is old or new."""
    changed = f"({side}_gray_q ^ {gray.replace('side', side)})"
    return f"{side}_gray_q ^ (mixed_{side} & {{COUNT{{{side}_edge && {taken}}}}} & {changed});"


def two_clocks(gray="side_next ^ (side_next >> 1)"):
    """Return the queue on one clock with an enable for each side: edges in any order, and both."""
    sides = (
        ("write", "read", "data_out_0_valid && data_out_0_ready"),
        ("read", "write", "data_in_0_valid && data_in_0_ready"),
    )
    for side, other, taken in sides:
        port = f"input  wire logic                  {side}_clk,"
        more = f"input wire logic {side}_edge, input wire logic [DEPTH_BITS:0] mixed_{side},"
        yield port, more + "\n    input wire logic clk," * (side == "write")
        block = f"always_ff @(posedge {side}_clk) begin"
        yield block, f"always_ff @(posedge clk) if ({side}_edge) begin"
        yield (
            f"{other}_early_q <= {other}_gray_q;",
            f"{other}_early_q <= {any_bit(other, taken, gray)}",
        )


BINARY = (
    ("write_next ^ (write_next >> 1);", "write_next;"),
    ("read_next ^ (read_next >> 1);", "read_next;"),
    ("COUNT'(3) << (COUNT - 2)", "COUNT'(1) << (COUNT - 1)"),
)
"""The queue with binary counts: right if several bits of a count could be sampled at once."""
CROSSING_FAULTS = {
    "a full queue takes more": ("write_gray_q != (read_seen_q ^ WHOLE);", "1'b1;"),
    "an empty queue gives": ("= read_gray_q != write_seen_q;", "= 1'b1;"),
    "the writer is never seen": ("write_seen_q  <= write_early_q;", "write_seen_q <= '0;"),
    "a slot is never free": ("read_seen_q  <= read_early_q;", "read_seen_q <= read_seen_q;"),
}  # fmt: skip


def crossing(sizes=CROSSING, faults=(), **settings):
    """Return the proof of the queue between two clocks."""
    edits = tuple(Edit("async_fifo", *edit) for edit in (*two_clocks(**settings), *faults))
    return Proof("async_fifo", sizes, edits=edits, text=INTERFACES / "async_fifo_laws.svh")


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


@pytest.mark.sim("pyosys")
def test_a_queue_between_two_clocks_keeps_every_beat():
    assert [v.is_proved for v in prove(crossing())] == [True] * 3


@pytest.mark.slow
@pytest.mark.sim("pyosys")
def test_a_deeper_queue_between_two_clocks_keeps_every_beat():
    assert all(v.is_proved for v in prove(crossing({"DATA_WIDTH": 1, "DEPTH_BITS": 2}), 600))


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("name", first_and_slow(CROSSING_FAULTS))
def test_a_fault_of_the_queue_is_refuted(name):
    assert not all(v.is_proved for v in prove(crossing(faults=[CROSSING_FAULTS[name]])))


@pytest.mark.sim("pyosys")
def test_binary_counts_are_refuted_because_bits_change_one_by_one():
    assert not all(v.is_proved for v in prove(crossing(faults=BINARY, gray="side_next")))


@pytest.mark.slow
@pytest.mark.sim("pyosys")
def test_binary_counts_are_right_if_all_bits_change_at_once():
    """So it is the mixed bits that refute them."""
    at_once = tuple((f"mixed_{side} & ", "") for side in ("read", "write"))
    proof = crossing(faults=(*BINARY, *at_once), gray="side_next")
    assert all(v.is_proved for v in prove(proof))


LITE = {"INPUTS": 1, "COUNT": 2}
"""Counters of two bits: they wrap and stay at their largest values soon."""
LITE_FAULTS = {
    "an answer is not kept": ("if (s_axil_bready) s_axil_bvalid <= 1'b0;",
                              "s_axil_bvalid <= 1'b0;"),
    "a read answer is not kept": ("if (s_axil_rready) s_axil_rvalid <= 1'b0;",
                                  "s_axil_rvalid <= 1'b0;"),
    "data alone is a write": ("= has_address_q && has_data_q", "= has_data_q"),
    "a write is done twice": ("      has_data_q    <= 1'b0;\n      s_axil_bvalid <= 1'b1;",
                              "      s_axil_bvalid <= 1'b1;"),
    "a wrong write is right": ("is_right ? OKAY", "1'b1 ? OKAY"),
    "a wrong read is right": ("is_known ? OKAY", "1'b1 ? OKAY"),
    "a byte that is left out is written": (" && strobe_q[0];", ";"),
    "a piece may have a byte left out": (" && strobe_q == '1;", ";"),
    "an end of a reload begins one": (" && data_q[2] && !data_q[3];", " && data_q[2];"),
    "the high word is that of now": ("if (wanted == 6'd5) high_q", "high_q"),
    "a count wraps": ("wrongs[k] && sum != '1 ?", "wrongs[k] ?"),
    "a read of no word is not counted": ("COUNT'(is_read && !is_known)", "'0"),
    "an address channel stays closed": ("      has_address_q <= 1'b0;\n      has_data_q    <= 1'b0;"
                                        "\n      s_axil_bvalid <= 1'b1;",
                                        "      has_data_q <= 1'b0; s_axil_bvalid <= 1'b1;"),
}  # fmt: skip


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("has_reload", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_laws_of_the_control_port_hold(has_reload):
    verdicts = prove(proof_of("axi_lite_registers", {**LITE, "HAS_RELOAD": has_reload}))
    assert [v.is_proved for v in verdicts] == [True] * 3


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("name", first_and_slow(LITE_FAULTS))
def test_a_fault_of_the_control_port_is_refuted(name):
    proof = proof_of("axi_lite_registers", {**LITE, "HAS_RELOAD": 1})
    fault = Edit("axi_lite_registers", *LITE_FAULTS[name])
    assert not all(v.is_proved for v in prove(proof.with_fault(fault)))
