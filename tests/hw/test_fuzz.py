"""Random models to RTL: PyTorch = exact reference = golden integers = RTL for every timing at the
ports, or a refusal that names the node and what is allowed.

The same in thousands: bench/right.py.
"""

import hardware_fuzz
import pytest
from branching_models import branching_case
from covering import first_and_slow
from hardware_fuzz import counts, fuzz, is_refusal
from random_models import (
    CONSTRUCTS,
    KINDS,
    LAYERS,
    REFUSED,
    ROUNDS,
    ROW_LAYERS,
    construct_case,
    kind_of,
    layer_case,
    refused_case,
    row_case,
)

from chop.errors import HardwareError
from chop.hw.lower import lower
from chop.hw.lower.verify import verify

PARTS = (range(5), range(5, 20), *(range(first, first + 20) for first in range(20, 120, 20)))
"""Seeds of random models: `make test` tries the first part, `make slow` all of them."""
SOME, FIRST = 5, 1
"""Rounds in which every layer meets every range and every rounding, if not every pair of them; and
of these, those that are quick."""


@pytest.fixture
def programs(monkeypatch):
    """How many designs each simulator holds that is built."""
    built = []
    run_batch = hardware_fuzz.run_batch

    def counted(jobs, folder):
        built.append(len(jobs))
        return run_batch(jobs, folder)

    monkeypatch.setattr(hardware_fuzz, "run_batch", counted)
    return built


@pytest.mark.no_cover  # measuring would cost more than what it runs
@pytest.mark.sim("verilator", "g++")
@pytest.mark.parametrize("part", first_and_slow(PARTS), ids=str)
def test_random_models_are_right_in_rtl_or_refused(part, tmp_path, programs):
    found = counts(fuzz(part, tmp_path))
    assert found["wrong_seeds"] == found["deadlock_seeds"] == {}
    assert programs == [found["equal"]]  # one holds them all: one each takes four times as long
    assert found["models"] == len(part)
    assert found["equal"] >= 0.75 * len(part), found["refused_by_reason"]


FOUND = 91
"""A branching model that deadlocks in RTL if FIFOs are sized at full rate alone."""


@pytest.mark.slow
@pytest.mark.sim("verilator", "g++")
def test_a_design_with_fifos_for_full_rate_alone_is_counted_as_a_deadlock(tmp_path, monkeypatch):
    monkeypatch.setattr("chop.hw.timing.cycles.is_live", lambda design, queues: True)
    (finding,) = fuzz([FOUND], tmp_path, make=branching_case)
    assert finding.outcome == "deadlock" and "data_in_0_fork" in finding.reason
    monkeypatch.setattr("chop.hw.sim.emit.check_live", lambda design: None)
    monkeypatch.setattr(hardware_fuzz, "waiting_stages", lambda design: [])
    found = counts(fuzz([FOUND], tmp_path, make=branching_case))
    assert (found["deadlocks"], found["wrong"], found["built"]) == (1, 0, 1)
    assert found["deadlock_seeds"][str(FOUND)].startswith("RTL with ")


def test_branching_models_have_forks_blocks_and_shared_layers():
    cases = [branching_case(seed) for seed in range(12)]
    shared = [case.share_layers for case in cases]
    targets = {str(node.target) for case in cases for node in case.graph.fx_graph.nodes}
    assert 0 < sum(map(bool, shared)) < len(cases)
    assert any("matmul_mxint" in target for target in targets)
    assert any("matmul_integer" in target for target in targets)


@pytest.mark.no_cover  # measuring would cost more than what it runs
@pytest.mark.sim("verilator", "g++")
@pytest.mark.parametrize(
    "rounds",
    [range(FIRST), pytest.param(range(FIRST, ROUNDS), marks=pytest.mark.slow)],
    ids=["some", "the-rest"],
)
def test_every_layer_is_right_in_rtl_in_every_kind_of_format(rounds, tmp_path):
    indices = range(rounds.start * len(LAYERS), rounds.stop * len(LAYERS))
    found = counts(fuzz(indices, tmp_path, make=layer_case))
    assert found["wrong_seeds"] == found["deadlock_seeds"] == {}
    assert found["models"] == len(indices)
    assert found["equal"] >= 0.9 * len(indices), found["refused_by_reason"]


CONSTRUCT_CASES = (range(len(CONSTRUCTS)), range(len(CONSTRUCTS), 4 * len(CONSTRUCTS)))
"""Each construct once, and in three more sizes and formats."""


@pytest.mark.no_cover  # measuring would cost more than what it runs
@pytest.mark.sim("verilator", "g++")
@pytest.mark.parametrize("seeds", first_and_slow(CONSTRUCT_CASES), ids=str)
def test_constructs_that_were_refused_are_right_in_rtl(seeds, tmp_path):
    found = counts(fuzz(seeds, tmp_path, make=construct_case))
    assert found["wrong_seeds"] == {}
    assert found["equal"] >= 0.75 * found["models"], found["refused_by_reason"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_is_refused_by_its_node(name):
    case = refused_case(name)
    with pytest.raises(HardwareError, match=REFUSED[name][2]) as refusal:
        verify(case.graph, lower(case.graph, case.parallelism))
    assert is_refusal(str(refusal.value))


def test_references_that_disagree_are_no_refusal():
    told = (
        "node 'mul' (mul): the design differs from the PyTorch model in 1 of 2 values. Allowed: x."
    )
    assert not is_refusal(told)
    assert is_refusal("node 'mul' (mul): the number inf. Allowed: finite numbers.")


@pytest.mark.parametrize("layer", range(len(LAYERS)), ids=list(LAYERS))
def test_a_layer_meets_every_kind_of_format(layer):
    met = [kind_of(layer, number) for number in range(ROUNDS)]
    assert all(kind in met for kind in KINDS) and len(KINDS) == ROUNDS == 20
    spans, roundings = zip(*met[:SOME], strict=True)
    assert all(span in spans for span, _ in KINDS) and len(set(roundings)) == 4


@pytest.mark.slow
@pytest.mark.no_cover  # measuring would cost more than what it runs
@pytest.mark.sim("verilator", "g++")
def test_every_layer_of_integers_is_right_in_rtl_in_every_kind_of_format(tmp_path):
    indices = range(ROUNDS * len(ROW_LAYERS))
    found = counts(fuzz(indices, tmp_path, make=row_case))
    assert found["wrong_seeds"] == found["deadlock_seeds"] == {}
    assert found["equal"] == found["models"] == len(indices)
