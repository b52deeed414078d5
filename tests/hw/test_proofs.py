"""The proofs hold, and each of them can fail: faults in the RTL are refuted with a trace."""

import json
import re
from dataclasses import replace

import pytest
from proof_ledger import COMMAND, FIRST, fast_proofs, line, read_ledger, verdict

from chop.cli.main import main
from chop.errors import HardwareError
from chop.hw.design.folders import component_folders, rtl_sources
from chop.hw.proofs import LAWS, PROOFS, Edit, Proof, Trace, prove
from chop.hw.proofs.aiger import Aig
from chop.hw.proofs.catalogue import proof_faults
from chop.hw.proofs.harness_maker import SHARED, harness_text
from chop.hw.proofs.prover import fingerprint, verdicts
from chop.hw.proofs.question import question_files

FAULTS = proof_faults()
LOST = Edit("skid_buffer", "assign data_in_0_ready  = ready_q;", "assign data_in_0_ready = 1'b1;")
STUCK = Edit(
    "skid_buffer",
    "out_valid_q <= !ready_q || data_in_0_valid;",
    "out_valid_q <= !ready_q;",
)
FAST = fast_proofs()
LEDGER = read_ledger()
SLOW = [p for p in PROOFS if p.is_slow]
SLOW_MODULES = [
    pytest.param(module, marks=pytest.mark.slow)
    for module in sorted(FAULTS)
    if FIRST[module].is_slow
]


def broken(proof: Proof) -> dict[str, Trace]:
    return {v.law: v.trace for v in prove(proof) if not v.is_proved}


def expected(name: str) -> str:
    """Return the line of the ledger that the proof `name` must have."""
    return line(name, FAST[name], "refuted" if name.endswith("with a fault") else "proved")


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("name", FAST)
def test_every_proof_is_in_the_ledger_or_holds_today(name):
    """A proof whose RTL, laws, sizes or settings changed is repeated here."""
    if expected(name) not in LEDGER:
        assert line(name, FAST[name], verdict(FAST[name])) == expected(name)


def test_the_ledger_has_every_proof_and_no_other():
    stale = LEDGER ^ {expected(name) for name in FAST}
    assert not stale, f"the proofs changed: run `{COMMAND}` and commit what it writes"


@pytest.mark.sim("pyosys")
@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_the_ledger_is_right(name):
    assert line(name, FAST[name], verdict(FAST[name])) in LEDGER


@pytest.mark.sim("pyosys")
@pytest.mark.slow
@pytest.mark.parametrize("proof", SLOW, ids=str)
def test_the_laws_are_proved_where_it_takes_longer(proof):
    answers = prove(proof, limit=1200)
    assert [(v.law, v.is_proved) for v in answers] == [(x, True) for x in proof.laws]


BUFFER = FIRST["skid_buffer"]


@pytest.mark.parametrize(
    "changed",
    [
        replace(BUFFER, sizes={**BUFFER.sizes, "SLOTS": 99}),
        replace(BUFFER, laws=("order",)),
        replace(BUFFER, files={"table.mem": [1]}),
        replace(BUFFER, edits=(LOST,)),
        replace(FIRST["fifo"], edits=()),
    ],
    ids=["sizes", "laws", "memories", "RTL", "module"],
)
def test_a_change_of_a_proof_changes_its_fingerprint(changed):
    assert fingerprint(changed) != fingerprint(BUFFER)


def test_a_change_of_a_module_below_changes_the_fingerprint():
    below = replace(FIRST["fixed_batch_norm"], edits=(LOST,))
    assert "skid_buffer.sv" in question_files(below)
    assert fingerprint(below) != fingerprint(FIRST["fixed_batch_norm"])


def test_comments_and_unused_modules_are_no_part_of_a_proof():
    noted = Edit("skid_buffer", LOST.old, f"{LOST.old}  // a note")
    unused = Edit("fifo", "count_q <= '0;", "count_q <= '1;")
    assert fingerprint(replace(BUFFER, edits=(noted, unused))) == fingerprint(BUFFER)


def test_the_laws_of_every_proof_are_in_the_folder_of_its_component():
    folders = {folder.name: folder for folder in component_folders().values()}
    assert {str(p) for p in PROOFS if p.text != folders[p.module] / "laws.svh"} == set()
    assert [path.name for path in SHARED.glob("prove_*")] == []


def test_an_input_that_the_laws_drive_is_not_free():
    text = harness_text(FIRST["fixed_matmul"], rtl_sources()["fixed_matmul"].read_text())
    free = set(re.findall(r"^input wire logic .*?(\w+),$", text, re.M))
    assert {"data_in_0", "data_in_1_valid"} <= free
    assert "data_in_1" not in free


def test_every_proof_has_a_fault_that_it_is_tried_with():
    assert set(FAULTS) == {proof.module for proof in PROOFS}


def first_broken(proof: Proof) -> tuple[str, Trace] | None:
    """Return the first law that is broken, with its trace; the laws after it are not checked."""
    answers = verdicts(proof)
    return next(((v.law, v.trace) for v in answers if not v.is_proved), None)


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("module", ["skid_buffer", *SLOW_MODULES])
def test_the_trace_of_a_fault_ends_where_a_law_is_broken(module):
    found = first_broken(FIRST[module].with_fault(FAULTS[module]))
    assert found is not None
    law, trace = found
    assert trace.cycles[-1]["broken"] >> LAWS.index(law) & 1


@pytest.mark.sim("pyosys")
def test_each_law_finds_its_own_kind_of_fault():
    proof = FIRST["skid_buffer"]
    assert "order" in broken(proof.with_fault(LOST))
    assert set(broken(proof.with_fault(STUCK))) == {"progress", "order"}
    flicker = Edit(
        "skid_buffer",
        "data_out_0_valid = out_valid_q",
        "data_out_0_valid = out_valid_q && !data_in_0_valid",
    )
    assert "stable" in broken(proof.with_fault(flicker))


@pytest.mark.sim("pyosys")
def test_a_register_that_reset_forgets_is_found():
    assert "order" in broken(FIRST["fifo"].with_fault(Edit("fifo", "      count_q <= '0;\n", "")))


def test_a_fault_whose_place_is_gone_is_an_error():
    with pytest.raises(HardwareError, match="is there 0 times, expected once"):
        Edit("fifo", "no such text", "").apply("module fifo; endmodule")


def test_a_graph_is_read_run_and_written():
    # one input, one latch that toggles with it, and the output: both at once
    data = b"aig 5 1 1 1 3\n11\n6\n" + bytes([2, 2, 5, 2, 1, 2])
    aig = Aig.read(data)
    assert aig.write() == data
    assert len(list(aig.gates())) == 3
    assert [state for state, _ in aig.run([[1], [0]])][:1] == [[0]]


@pytest.mark.sim("pyosys")
def test_the_command_tells_and_writes(tmp_path, capsys):
    assert main(["prove", "skid_buffer", "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["law"] for row in told["verdicts"]] == list(LAWS)
    assert all(row["verdict"] == "proved" for row in told["verdicts"])


def test_the_command_knows_the_modules(capsys, tmp_path):
    assert main(["prove", "skid_bufer", "--out", str(tmp_path / "out")]) != 0
    assert "Did you mean 'skid_buffer'" in capsys.readouterr().err


@pytest.mark.sim("pyosys")
def test_a_counterexample_is_a_table_and_waves():
    trace = broken(FIRST["skid_buffer"].with_fault(LOST))["order"]
    assert "data_out_0_valid" in trace.table().splitlines()[0]
    assert len(trace.table().splitlines()) == len(trace.cycles) + 1
    assert "$enddefinitions" in trace.vcd()


SHIFT_ADD_FAULTS = (
    ("late_q <= (KEPT * WIDTH)'({late_q, now});", "late_q <= {KEPT{now}};"),
    ("{sum, a[SHIFT-1:0]}", "{sum, {SHIFT{1'b0}}}"),
    ("TOLD[22] ? HIGH - a", "TOLD[22] ? HIGH + a"),
    ("{sum, START[SHIFT-1:0]}", "{sum, {SHIFT{1'b0}}}"),
    ("data_in_0_valid (valid_q[STAGES])", "data_in_0_valid (valid_q[STAGES-1])"),
    ("if (rst) valid_q <= '0;", ""),
    ("if (enable) now <= value;", "now <= value;"),
)


@pytest.mark.slow
@pytest.mark.sim("pyosys")
@pytest.mark.parametrize("old, new", SHIFT_ADD_FAULTS)
def test_faults_of_a_network_of_additions_are_refuted(old, new):
    fault = Edit("fixed_shift_add", old, new)
    proofs = [proof for proof in PROOFS if proof.module == "fixed_shift_add"]
    assert any(broken(proof.with_fault(fault)) for proof in proofs)


OPTION_FAULTS = (
    ("fixed_leaky_relu", "HAS_WEIGHT", "assign data_in_0_ready = enable && has_slope;",
     "assign data_in_0_ready = enable;"),
    ("fixed_leaky_relu", "HAS_WEIGHT", "valid_q  <= data_in_0_valid && has_slope;",
     "valid_q  <= data_in_0_valid;"),
    pytest.param("fixed_linear", "IN_EXPONENT", "<< dot_tag[AT+:SHIFT_WIDTH]",
                 "<< tag[AT+:SHIFT_WIDTH]", marks=pytest.mark.slow),
    pytest.param("fixed_linear", "IN_EXPONENT", "if (enable) shifted_tag_q <=",
                 "shifted_tag_q <=", marks=pytest.mark.slow),
)  # fmt: skip
"""Faults that only a proof with this option can refute: a text and what it becomes."""


@pytest.mark.sim("pyosys")
@pytest.mark.parametrize(("module", "option", "old", "new"), OPTION_FAULTS)
def test_a_fault_of_an_option_is_refuted(module, option, old, new):
    (proof,) = [p for p in PROOFS if p.module == module and option in p.parameters]
    assert first_broken(proof.with_fault(Edit(module, old, new))) is not None
