"""No design deadlocks, whatever the timing at its ports; and one that could is not emitted."""

import pytest
import torch
from branching_models import branching_case
from covering import first_and_slow
from designs import mlp, residual
from test_mxint import graph_of, mxint
from torch import nn

from chop.errors import HardwareError
from chop.hw.design.component import COMPONENTS
from chop.hw.design.cycle_model import Queue
from chop.hw.design.design import Wire
from chop.hw.design.process import Machine, Process, take
from chop.hw.library.fixed_relu import Relu
from chop.hw.lower import Parallelism, lower
from chop.hw.sim.component_check import bench_design
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import SLOW_TENSORS, exercise
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.timing.cycles import (
    NO_STALLS,
    Stalls,
    balanced,
    simulate_control,
    size_fifos,
    with_fifos,
)
from chop.hw.timing.liveness import check_live, is_live, waiting_stages

NAMES = sorted(name for name, cls in COMPONENTS.items() if cls.__module__.startswith("chop."))
SLOW = (
    Stalls(),
    Stalls(0.5),
    Stalls(0.1),
    Stalls(0.1, 0.1),
    Stalls(1.0, 0.1),
    Stalls(0.3, burst=7),
)
"""Sources and sinks from full rate to one beat in ten cycles."""
FORK = Wire("data_in_0_fork")


class Attention(nn.Module):
    """One input for a rectifier, a transposed operand of an MXINT product and an RMS norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(4, 0.1)

    def forward(self, x):
        y = torch.matmul(torch.relu(x), x.transpose(1, 2))
        return torch.matmul(y, y.transpose(1, 2)), self.norm(x)


NORM = {"name": "integer", "arithmetic": "integer"}
for role in ("data_in", "weight", "data_out"):
    NORM |= {f"{role}_width": 6, f"{role}_frac_width": 4}
CONFIGS = {
    "matmul": mxint(4, 4, weight_axis=-2, data_out=True, data_out_block_size=3),
    "matmul_1": mxint(4, 1, weight_axis=-2),
    "norm": NORM,
}


@pytest.fixture(scope="module")
def graph():
    return graph_of(Attention(), torch.zeros(2, 5, 4), CONFIGS, precision=(4, 1))


@pytest.fixture(scope="module")
def lowered(graph):
    return lower(graph, Parallelism(2, multiplier={"*": "tables"}, adders_per_stage=1))


def runs(design, stalls, seeds=4):
    """Return whether `design` passes 3 tensors for each of the seeds."""
    try:
        for seed in range(1, seeds + 1):
            drawn = Stalls(stalls.valid, stalls.ready, seed, burst=stalls.burst)
            simulate_control(design, 3 * design.in_flight, drawn)
    except HardwareError as error:
        assert "deadlocks in cycle" in str(error)
        return False
    return True


# -- why timing matters ----------------------------------------------------------------------------


def most_held(gap):
    """Return the beats that 3 registers and a queue hold, fed every `gap` cycles, with no sink."""
    machine = Machine(Process((take(),), latency=3))
    held = 0
    for cycle in range(100):
        offered = cycle % gap == 0
        taken = offered and machine.takes([True])[0]
        machine.step([taken], [False])
        held += taken
    return held


def test_a_pipeline_that_is_fed_slowly_holds_fewer_beats():
    assert most_held(gap=1) == 5  # 3 registers and a queue of 2
    assert most_held(gap=2) == 3
    assert most_held(gap=4) == 2  # the registers hold gaps
    assert Process((take(),), latency=3).without_pipeline() == Process((take(),))


# -- the proof -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stalls", SLOW, ids=str)
def test_a_fork_into_a_transposed_product_and_a_norm_never_stops(lowered, stalls):
    assert runs(lowered.design, stalls, seeds=12)


def test_the_depths_of_full_rate_alone_are_not_enough(graph, lowered):
    assert FORK in lowered.depths
    depths = {wire: depth for wire, depth in lowered.depths.items() if wire != FORK}
    design = lower(graph, Parallelism(2), depths=depths).design
    assert runs(design, Stalls()) and not runs(design, Stalls(0.1))
    assert "data_in_0_fork" in waiting_stages(design)


@pytest.mark.parametrize("name", NAMES)
def test_every_component_returns_to_the_state_in_which_it_began(name):
    cases = COMPONENTS[name].cases()
    check_live(bench_design(cases[:: max(1, len(cases) // 4)]))


def test_the_proof_holds_and_is_tight_for_a_residual():
    """Every depth: where the proof says so nothing stops, and where not, some timing stops it."""
    design = residual(size=16)
    depths = size_fifos(design)
    (wire,) = (wire for wire in depths if wire.stage == "data_in_0_fork")
    for depth in range(1, depths[wire] + 1):
        each = with_fifos(design, {**depths, wire: depth})
        assert is_live(each) == all(runs(each, stalls) for stalls in SLOW)


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", first_and_slow([23, 35, 91, *range(10)], 6))
def test_random_designs_with_fifos_never_stop(seed):
    case = branching_case(seed)
    design = lower(case.graph, case.parallelism, share_layers=case.share_layers).design
    check_live(design)
    assert all(runs(design, stalls, seeds=1) for stalls in SLOW)


class RecordingSimulator(Simulator):
    """A simulator that keeps the number of tensors and the stalls of its runs."""

    def run(self, inputs, stalls=NO_STALLS, **options):
        self.runs = [*getattr(self, "runs", []), (len(inputs["data_in_0"]), stalls)]
        return super().run(inputs, stalls, **options)


@pytest.mark.slow
@pytest.mark.sim
def test_the_rtl_of_the_fork_passes_the_standard_run_with_slow_sources(lowered, tmp_path):
    design = lowered.design
    simulator = RecordingSimulator(design, emit(design, tmp_path))
    assert exercise(simulator, random_inputs(design, 2)).is_exact
    slow = [tensors for tensors, stalls in simulator.runs if stalls.valid <= 0.1]
    assert slow == [SLOW_TENSORS]
    for seed in range(1, 5):
        simulator.run(random_inputs(design, 4), Stalls(0.1, 1.0, seed)).require_exact()


# -- what is refused -------------------------------------------------------------------------------


def test_a_design_that_can_deadlock_is_not_emitted(graph, tmp_path):
    design = lower(graph, Parallelism(2), depths={}).design
    with pytest.raises(HardwareError, match=r"deadlocks for some timing.*data_in_0_fork.*FIFO"):
        emit(design, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class OwnStep(Queue):
    """A queue that moves by its own `step`."""

    def step(self, taken, given):
        super().step(taken, given)


class OwnRelu(Relu):
    """A rectifier whose cycle model is not declared."""

    def twins(self):
        return [OwnStep(2)]


def with_own_relu(design, name):
    """Return `design` with an `OwnRelu` instead of the rectifier `name`."""
    stages = [
        type(s)(s.name, OwnRelu(s.component.source, s.component.format), s.sources)
        if s.name == name
        else s
        for s in design.stages
    ]
    return type(design)(design.name, design.inputs, tuple(stages), design.outputs)


def test_an_undeclared_model_on_one_of_two_paths_is_refused():
    design = with_own_relu(balanced(residual()), "relu")
    with pytest.raises(HardwareError, match=r"cannot be shown.*'relu'.*its own `step`.*`process`"):
        check_live(design)
    check_live(with_own_relu(mlp((4, 8, 4), (2, 2, 2)), "relu1"))
