"""Repeated layers in one block: the same numbers, in as many cycles as the model says."""

import copy

import numpy as np
import pytest
import torch
from mutants import SHARED_MODULES, Mutant, choose, mutants_of, with_mutants
from test_row_layers import LAYER, ROW, quantised
from torch import nn

from chop.actions import simulate
from chop.actions.hardware import emit_hardware
from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.component import COMPONENTS
from chop.hw.design.stream import Stream
from chop.hw.design.switched import Switched
from chop.hw.flow.explore import for_budget, for_target
from chop.hw.flow.hardware_report import stage_rows
from chop.hw.library.fixed_linear import Linear, sample_weights
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.design_cache import attached_design
from chop.hw.lower.verify import verify
from chop.hw.sim.component_check import check_components
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, lint
from chop.hw.timing.cycles import Stalls, interval, patience, simulate_control
from chop.hw.timing.network import ReferenceRun, TwinNetwork
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass

TOKENS, SIZE = 3, 6
RESULT = {"data_out_width": 8, "data_out_frac_width": 4}
OTHER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, **RESULT}
RULES = {
    "by": "type",
    "linear": {"config": LAYER | RESULT},
    "layer_norm": {"config": ROW},
    **{op: {"config": OTHER} for op in ("mul", "add")},
}


class Layer(nn.Module):
    """A gate that all layers share, two products behind a norm, a residual."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 8), nn.Linear(8, SIZE)

    def forward(self, x, gate):
        return x + self.down(torch.relu(self.up(self.norm(x) * gate)))


class Layers(nn.Module):
    """Layers between two others."""

    def __init__(self, count=2):
        super().__init__()
        self.first, self.last = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 2)
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x, gate):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, gate)
        return self.last(x)


def tokens(count, seed=0, length=TOKENS):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, length, SIZE, generator=generator) for _ in range(2))


def made(count=2, length=TOKENS):
    torch.manual_seed(0)
    return quantised(Layers(count), tokens(1, length=length), RULES)


@pytest.fixture(scope="module")
def graph():
    return made()


@pytest.fixture(scope="module")
def lowered(graph):
    return lower(graph, Parallelism(2), share_layers=2)


def test_one_block_computes_what_the_layers_do(graph, lowered):
    apart = lower(graph, Parallelism(2))
    assert verify(graph, lowered, tokens(8, seed=1)).values == 72 * TOKENS * 2
    names = {stage.name for stage in lowered.design.stages}
    assert "layers_0_up" in names and "layers_1_up" not in names
    first, again = (lowered.components[f"layers_{k}_up"] for k in (0, 1))
    assert first is again and isinstance(first, Switched)
    multipliers = lowered.design.cost().multipliers
    assert multipliers < 0.6 * apart.design.cost().multipliers
    weights = {m.name: m for m in first.memories()}["weight"]
    assert (weights.banks, weights.repeats) == (2, 2 * TOKENS)


@pytest.mark.parametrize(("count", "weights"), [(3, "memory"), (2, "external")])
def test_each_number_of_layers_is_the_model(count, weights):
    graph = made(count)
    lowered = lower(graph, Parallelism(2), weights=weights, share_layers=1)
    assert lowered.design.passes == count
    assert verify(graph, lowered, tokens(4, seed=2)).tensors > 4
    if weights == "external":
        assert lowered.design.inputs["layers_0_up_weight"].shape[:2] == (count, TOKENS)
        assert "layers_1_up_weight" not in lowered.design.inputs


@pytest.mark.parametrize(("length", "enough"), [(TOKENS, 3), (2 * TOKENS, 2)])
def test_tensors_that_go_together_keep_the_block_busy(length, enough):
    """One alone waits for itself; as many as the block's latency is long leave no gap."""
    graph = made(length=length)
    found = [interval(lower(graph, Parallelism(2), share_layers=n).design) for n in (1, enough, 4)]
    bound = lower(graph, Parallelism(2), share_layers=1, depths={}).design.cycles()
    assert found[0] > found[1] == found[2] == bound


def test_the_pace_of_all_passes_is_told(lowered):
    rows = {row.stage: row for row in stage_rows(lowered.design)}
    component = lowered.components["layers_0_up"]
    assert rows["layers_0_up"].cycles == 2 * component.cycles() == lowered.design.cycles()


def test_layers_of_other_formats_are_refused_with_what_differs():
    graph = made()
    node = next(n for n in graph.fx_graph.nodes if n.name == "layers_1_up")
    node.meta["mase"].common.args["weight"]["precision"] = [6, 3]
    told = r"'layers_0_up' and 'layers_1_up': WEIGHT_PRECISION_0 is 8 and 6; WEIGHT_PRECISION_1"
    with pytest.raises(HardwareError, match=told):
        lower(graph, Parallelism(2), share_layers=1)


def test_a_design_without_repeated_layers_is_refused():
    graph = quantised(nn.Sequential(nn.Linear(4, 2)), torch.randn(1, 4), {"by": "type",
                      "linear": RULES["linear"]})  # fmt: skip
    with pytest.raises(HardwareError, match="no layers are repeated"):
        lower(graph, Parallelism(2), share_layers=1)


def test_weights_from_outside_come_for_one_tensor_at_a_time(graph):
    with pytest.raises(HardwareError, match=r"in_flight is 2. Allowed: 1, where weights"):
        lower(graph, Parallelism(2), weights="external", share_layers=2)


def test_tensors_that_do_not_fill_a_flight_are_refused(lowered):
    with pytest.raises(HardwareError, match="deadlocks"):
        simulate_control(lowered.design, 3)


def test_a_budget_that_layers_apart_exceed_is_kept_by_one_block(graph):
    apart, shared = (for_target(graph, 10**6, share_layers=s).multipliers for s in (False, True))
    assert shared < apart
    chosen = for_budget(graph, apart - 1)
    assert chosen.share_layers and shared <= chosen.multipliers <= apart - 1
    assert not for_budget(graph, apart).share_layers
    with pytest.raises(HardwareError, match=rf"needs {apart}, and {shared} with repeated layers"):
        for_budget(graph, shared - 1)


def test_a_copied_graph_keeps_the_choice(graph):
    add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 2, "share_layers": 2})
    again = attached_design(copy.deepcopy(graph)).design
    assert (again.passes, again.in_flight) == (2, 2)


def test_the_model_in_python_says_the_same(lowered):
    """The compiled model and the reference agree where beats go round."""
    design = lowered.design
    for stalls in (Stalls(), Stalls(0.6, 0.7, 3, burst=2)):
        wanted = ([4 * s.beats for s in design.inputs.values()],
                  [4 * s.beats for s in design.output_streams().values()])  # fmt: skip
        told = ReferenceRun(TwinNetwork(design, {}, ()), stalls, *wanted)
        found = told.run(patience(design.cycles(), stalls), None)
        known = simulate_control(design, 4, stalls)
        assert list(found.outputs[0]) == [int(t) for t in known.outputs["data_out_0"]]


LOOP = Mutant(
    "what comes back is not waited for",
    "stream_concat",
    "data_in_1_valid",
    "1'b1",
    "is_one ? data_in_1_valid",
)
FAULTS = [*mutants_of(*SHARED_MODULES), LOOP]


@pytest.fixture(scope="module")
def simulator(lowered, tmp_path_factory):
    directory = emit(lowered.design, tmp_path_factory.mktemp("shared"))
    assert lint(directory) == ""
    numbers = with_mutants(directory, FAULTS)
    assert sorted(numbers) == sorted(fault.what for fault in FAULTS)
    return Simulator(lowered.design, directory), numbers


@pytest.mark.sim
def test_the_rtl_is_exact_in_values_and_cycles(lowered, simulator):
    choose(simulator[0].directory, 0)
    assert exercise(simulator[0], lowered.encode(*tokens(7, seed=2))).is_exact


@pytest.mark.sim
@pytest.mark.parametrize("fault", [fault.what for fault in FAULTS])
def test_a_fault_is_noticed(lowered, simulator, fault):
    choose(simulator[0].directory, simulator[1][fault])
    with pytest.raises(HardwareError):
        exercise(simulator[0], lowered.encode(*tokens(7, seed=2)))


class Norms(nn.Module):
    """Sixteen norms in a row: a small block with a long latency."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.LayerNorm(2) for _ in range(16))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.sim
def test_ports_may_rest_while_a_short_tensor_passes_all_layers(tmp_path):
    rules = {key: RULES[key] for key in ("by", "layer_norm")}
    graph = quantised(Norms(), torch.randn(1, 1, 2), rules)
    # a pass takes 1 cycle, and a tensor about 900 for all of them
    design = lower(graph, Parallelism(64), share_layers=1).design
    assert (design.passes, design.cycles()) == (16, 16)
    simulator = Simulator(design, emit(design, tmp_path))
    inputs = {n: np.zeros((2, *s.shape), dtype=np.int64) for n, s in design.inputs.items()}
    assert simulator.run(inputs).is_exact


@pytest.mark.sim
def test_one_too_few_is_refused(lowered, simulator):
    with pytest.raises(HardwareError, match="3 tensors, of which 2 go through"):
        simulator[0].run(lowered.encode(*tokens(3)))


@pytest.mark.slow
@pytest.mark.sim
def test_files_alone_are_enough_to_simulate(graph, tmp_path):
    args = {"max_parallelism": 2, "weights": "external", "share_layers": 1}
    add_hardware_metadata_analysis_pass(graph, args)
    emit_hardware(graph, tmp_path, inputs=tokens(5, seed=3))
    assert simulate(tmp_path).is_exact


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_switched_layers_are_exact_alone(in_flight, tmp_path):
    number = Fixed(8, 4)
    source = Stream((3, 4), 2, number)
    layers = [Linear(source, sample_weights(6, 4), number, 3)]
    other = sample_weights(6, 4)
    layers.append(Linear(source, type(other)(-other.weight // 2, number, other.bias, number),
                         number, 3))  # fmt: skip
    switched = Switched(tuple(layers), in_flight)
    x = np.ones((4 * in_flight, 3, 4), dtype=np.int64)
    assert np.array_equal(switched.golden(x)[:in_flight], layers[0].golden(x[:in_flight]))
    for verdict in check_components([switched], tmp_path, tensors=4 * in_flight):
        assert verdict.is_exact


def test_unlike_components_are_not_one():
    source, weights = Stream((4,), 2, Fixed(8, 4)), sample_weights(2, 4)
    layers = [Linear(source, weights, Fixed(width, 4), 1) for width in (8, 9)]
    with pytest.raises(ConfigError, match="fixed_linear: DATA_OUT_0_PRECISION_0 is 8 and 9"):
        Switched(tuple(layers))


STREAMED = [
    (case, memory)
    for cls in COMPONENTS.values()
    if cls.__module__.startswith("chop.")
    for case in cls.cases()[:2]
    for memory in case.memories()
    if memory.is_streamed
]


@pytest.mark.parametrize(("case", "memory"), STREAMED)
def test_a_tensor_takes_whole_memories(case, memory):
    """Whose words come as often as a step, an output beat or a tensor does."""
    taken = case.reads(memory) * len(memory.words)
    assert taken in (case.cycles(), case.output.beats, len(memory.words)) and taken
