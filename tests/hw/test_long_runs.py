"""Runs in several processes, and stages that sleep, tell what the ordinary run does."""

import re
from dataclasses import replace

import numpy as np
import pytest
from designs import residual

from chop.errors import HardwareError
from chop.hw.design.stream import Stream
from chop.hw.sim.emit import emit
from chop.hw.sim.parallel_runs import LEAD, RunPart, joined, split, worthwhile_jobs
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.sim.stage_clocks import clocked_top
from chop.hw.sim.verdict import Verdict
from chop.hw.timing.cycles import balanced
from chop.hw.timing.stalls import Stalls, Timing

TENSORS = 5 * LEAD


def _same(found, wanted):
    for side in ("inputs", "outputs"):
        for name, times in getattr(wanted.timing, side).items():
            assert np.array_equal(getattr(found.timing, side)[name], times), name
    for name, values in wanted.outputs.items():
        assert np.array_equal(found.outputs[name], values), name
    unlike = {"seconds": 0.0, "jobs": 1, "simulated_cycles": 0}
    fields = [
        {k: v for k, v in vars(replace(each, **unlike)).items() if np.ndim(v) == 0}
        for each in (found, wanted)
    ]
    for each in fields:
        del each["timing"], each["outputs"]
    assert fields[0] == fields[1]


def test_parts_cover_all_tensors_once_and_keep_groups_together():
    parts = split(102, 3, 3)
    own = [n for p in parts for n in range(p.start + p.lead, p.stop)]
    assert own == list(range(102))
    assert all(p.start % 3 == p.stop % 3 == 0 for p in parts)
    assert split(2 * LEAD - 1, 1, 8) == [RunPart(0, 2 * LEAD - 1, 0)]


def test_a_short_run_is_not_worth_a_second_process():
    assert worthwhile_jobs(100_000) == 1


def _verdict(times, tensors):
    values = np.zeros((tensors, 1), dtype=np.int64)
    timing = Timing({}, {"data_out_0": np.array(times, dtype=np.uint32)})
    empty = np.zeros((0, 1), dtype=np.uint8)
    return Verdict(tensors, tensors, 0, "", 0, 0, timing, {"data_out_0": values}, empty)


def test_parts_whose_shared_tensors_differ_in_pace_are_not_joined():
    parts = [RunPart(0, 4, 0), RunPart(0, 8, 4)]
    streams = {"data_out_0": Stream((1,), 1, None)}
    first = _verdict([9, 12, 15, 18], 4)
    later = _verdict([9, 13, 15, 18, 21, 24, 27, 30], 8)
    assert joined(parts, [first, later], streams).timing.outputs["data_out_0"].tolist() == [
        *(9, 12, 15, 18, 21, 24, 27, 30)
    ]
    uneven = _verdict([9, 12, 15, 19, 21, 24, 27, 30], 8)
    assert joined(parts, [first, uneven], streams) is None
    assert joined(parts, [first, replace(later, mismatches=1)], streams) is None


def test_the_top_with_clocks_is_the_emitted_one_but_for_them(tmp_path):
    text = (emit(balanced(residual()), tmp_path) / "rtl" / "top.sv").read_text()
    top = clocked_top(text)
    plain = top.text.replace(" /*verilator public_flat_rd*/", "")
    for domain in top.domains:
        plain = plain.replace(f",\n    input  wire logic {domain.clock}\n", "\n")
        plain = plain.replace(f",\n    input  wire logic {domain.clock},", ",")
        plain = plain.replace(f"({domain.clock})", "(clk)")
    assert plain == text
    names = [name for domain in top.domains for name in domain.instances]
    assert sorted(names) == sorted(re.findall(r"\bu_\w+", text))
    (fork,) = (d for d in top.domains if d.instances[0].endswith("_fork"))
    assert sum(net.endswith("_ready") for net in fork.inputs) == 2  # the port feeds it, no stage
    fifos = [d for d in top.domains if any("fifo" in name for name in d.instances)]
    assert fifos and all(len(d.instances) > 1 for d in fifos)
    assert not any({*d.inputs} & {*d.outputs} for d in top.domains)


@pytest.fixture(scope="module")
def simulators(tmp_path_factory):
    design = balanced(residual())
    folder = emit(design, tmp_path_factory.mktemp("built"))
    return Simulator(design, folder, long_runs=False), Simulator(design, folder, long_runs=True)


@pytest.mark.sim
def test_two_processes_tell_the_verdict_of_one(simulators):
    ordinary, _ = simulators
    inputs = random_inputs(ordinary.design, TENSORS)
    whole, spread = ordinary.run(inputs, jobs=1), ordinary.run(inputs, jobs=2)
    assert (whole.jobs, spread.jobs) == (1, 2)
    assert spread.is_exact and spread.simulated_cycles > whole.simulated_cycles == whole.cycles
    assert "2 processes" in spread.rate
    _same(spread, whole)


@pytest.mark.sim
def test_two_processes_tell_the_first_difference_of_one(simulators):
    ordinary, _ = simulators
    inputs = random_inputs(ordinary.design, TENSORS)
    expected = {k: v.copy() for k, v in ordinary.design.golden(inputs).items()}
    for tensor in (TENSORS - 1, TENSORS - 3):
        expected["data_out_0"][tensor, 1] += 1
    whole, spread = (ordinary.run(inputs, expected=expected, jobs=jobs) for jobs in (1, 2))
    assert whole.mismatches == 2 and f"data_out_0[{TENSORS - 3}, 1]" in whole.first_mismatch
    _same(spread, whole)


@pytest.mark.sim
def test_a_run_with_draws_stays_in_one_process(simulators):
    ordinary, _ = simulators
    inputs = random_inputs(ordinary.design, TENSORS)
    assert ordinary.run(inputs, Stalls(valid=0.7), jobs=2).jobs == 1
    with pytest.raises(HardwareError, match=r"jobs: 0\. Allowed: 1 or more"):
        ordinary.run(inputs, jobs=0)


@pytest.mark.share(3)
@pytest.mark.sim
@pytest.mark.parametrize("stalls", [Stalls(), Stalls(0.3, 0.4, 5), Stalls(0.9, 0.8, 3, resets=2)])
def test_stages_that_sleep_give_every_beat_in_its_cycle(simulators, stalls):
    ordinary, sleeping = simulators
    inputs = random_inputs(ordinary.design, 12)
    found = sleeping.run(inputs, stalls, jobs=1)
    assert sleeping._long_program.path != sleeping.program
    assert found.is_exact and found.pace.beats
    _same(found, ordinary.run(inputs, stalls, jobs=1))
