"""Weights from outside: a port for each layer, the same numbers, and cycles when they are late."""

import numpy as np
import pytest
import torch
from hardware_models import DigitsCnn, DigitsMlp, digits, fixed_graph, quantize
from mutants import Mutant, choose, with_mutants
from torch import nn

from chop.actions import simulate
from chop.actions.hardware import emit_hardware
from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream, to_bytes
from chop.hw.library.components import ExternalLinear, ExternalWeights, Linear
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, lint
from chop.hw.timing.cycles import Stalls, interval, simulate_control
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass

BYTE = Fixed(8, 4)


class TokenMlp(nn.Module):
    """Two layers on three tokens, a residual around them."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


def tokens(count, seed=0):
    return torch.randn(count, 3, 6, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    return fixed_graph(TokenMlp(), tokens(1))


@pytest.fixture(scope="module")
def lowered(graph):
    return lower(graph, Parallelism(2), weights="external")


def test_each_layer_has_a_port_and_only_the_bias_a_memory(graph, lowered):
    assert list(lowered.design.inputs) == ["data_in_0", "fc1_weight", "fc2_weight"]
    stream = lowered.design.inputs["fc1_weight"]  # tokens, output folds, input folds, lanes
    assert (stream.shape, stream.lanes, stream.format) == ((3, 4, 3, 4), 4, BYTE)
    memories = {s.name: [m.name for m in s.component.memories()] for s in lowered.design.stages}
    assert memories["fc1"] == ["bias"] and memories["fc2"] == []
    assert (
        lowered.design.cost().memory_bits < lower(graph, Parallelism(2)).design.cost().memory_bits
    )


def test_the_design_is_the_model(graph, lowered):
    x = tokens(16, seed=1)
    assert verify(graph, lowered, x).values == 80 * 18
    inside = lower(graph, Parallelism(2))
    found, known = (each.design.golden(each.encode(x)) for each in (lowered, inside))
    assert np.array_equal(found["data_out_0"], known["data_out_0"])
    assert interval(lowered.design) == interval(inside.design) == lowered.design.cycles()


def test_sums_are_as_wide_as_the_formats_want(graph):
    wide, narrow = (
        lower(graph, Parallelism(2), depths={}, weights=place).components["fc2"]
        for place in ("external", "memory")
    )
    # 8 products of at most 128 * 128 with a bit for the sign and half a step of the result
    assert wide.acc_width == (8 * 128 * 128 + 8).bit_length() + 1 > narrow.acc_width


def test_any_codes_of_the_format_may_come():
    number = Fixed(4, 0)
    layer = Linear(Stream((2,), 1, number), ExternalWeights(np.ones((2, 2), int), number), number)
    outer = ExternalLinear(Stream((2, 2), 1, number), layer.weights, Fixed(12, 0), 1)
    x, w = np.array([[[1, 2], [3, 4]]]), np.arange(8).reshape(1, 2, 2, 2, 1) - 4
    # each vector with the matrix that comes with it: [[-4, -3], [-2, -1]], [[0, 1], [2, 3]]
    assert outer.golden(x, w).tolist() == [[[-10, -4], [4, 18]]]


def test_what_a_view_repeats_becomes_the_same_bytes():
    stream = Stream((3, 2, 2, 4), 2, Fixed(5, 0))
    once = np.random.default_rng(0).integers(-16, 16, (2, 1, 2, 4))
    view = np.broadcast_to(once[:, None], (2, 3, 2, 2, 4))
    assert np.array_equal(to_bytes(view, stream), to_bytes(view.copy(), stream))


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ({"relu": "external"}, r"node 'relu' \(relu\): weights = 'external', and it takes none"),
        ({"fc3": "external"}, r"weights: no node 'fc3'. Did you mean 'fc"),
        ({"fc1": "extern"}, r"weights: 'fc1' is 'extern'. Did you mean 'external'"),
    ],
)
def test_what_cannot_be_is_refused(graph, weights, told):
    with pytest.raises((ConfigError, HardwareError), match=told):
        lower(graph, Parallelism(2), weights=weights)


def test_a_design_without_weights_is_refused():
    graph = fixed_graph(nn.Sequential(nn.ReLU()), torch.randn(1, 4))
    with pytest.raises(HardwareError, match=r"no layer takes weights .* Allowed: linear, conv1d"):
        lower(graph, Parallelism(2), weights="external")


def test_a_source_that_is_late_holds_the_layer_up(lowered):
    """The port of fc1 gives a beat in half of the cycles, and so the design takes twice as long."""
    slow = simulate_control(lowered.design, 8, Stalls(0.5, 1.0, 3)).cycles
    assert slow > 1.7 * simulate_control(lowered.design, 8).cycles


FAULTS = [
    Mutant("weights are not waited for", "fixed_linear", "weight_valid", "1'b1", "&& weight_valid"),
    Mutant("a beat is taken without an operand", "fixed_linear", "has_operand", "1'b1",
           "weight_ready    = has_operand"),
    Mutant("a beat is taken while it is held up", "fixed_linear", "enable", "1'b1",
           "weight_ready    = has_operand && enable"),
    Mutant("lanes are crossed", "top", "fc1_weight", "{fc1_weight[15:0], fc1_weight[31:16]}",
           ".weight          (fc1_weight)"),
    Mutant("ports are crossed", "top", "fc2_weight_valid", "fc1_weight_valid",
           ".weight_valid    (fc2_weight_valid)"),
]  # fmt: skip


@pytest.fixture(scope="module")
def simulator(lowered, tmp_path_factory):
    directory = emit(lowered.design, tmp_path_factory.mktemp("external"))
    assert lint(directory) == ""
    numbers = with_mutants(directory, FAULTS)
    assert len(numbers) == len(FAULTS)
    return Simulator(lowered.design, directory), numbers


@pytest.mark.sim
def test_the_rtl_is_exact_in_values_and_cycles_with_late_weights(lowered, simulator):
    choose(simulator[0].directory, 0)
    assert exercise(simulator[0], lowered.encode(tokens(6, seed=2))).is_exact


@pytest.mark.sim
@pytest.mark.parametrize("fault", [fault.what for fault in FAULTS])
def test_a_fault_is_noticed(lowered, simulator, fault):
    choose(simulator[0].directory, simulator[1][fault])
    with pytest.raises(HardwareError):
        exercise(simulator[0], lowered.encode(tokens(6, seed=2)))


@pytest.mark.sim
def test_weights_in_another_order_are_noticed(lowered, simulator):
    choose(simulator[0].directory, 0)
    codes = lowered.encode(tokens(4, seed=2))
    wanted = lowered.design.golden(codes)
    wrong = {**codes, "fc1_weight": np.swapaxes(codes["fc1_weight"], 3, 4).reshape(4, 3, 4, 3, 4)}
    assert simulator[0].run(wrong, expected=wanted).mismatches


@pytest.mark.slow
@pytest.mark.sim
def test_files_alone_are_enough_to_simulate(graph, tmp_path):
    args = {"max_parallelism": 2, "node_weights": {"fc1": "external"}}
    add_hardware_metadata_analysis_pass(graph, args)
    lowered, _ = emit_hardware(graph, tmp_path, inputs=tokens(5, seed=3))
    assert list(lowered.design.inputs) == ["data_in_0", "fc1_weight"]
    image = (tmp_path / "hardware/mem/fc1_weight.mem").read_text().split()
    inside, _ = lower(graph, Parallelism(2)).components["fc1"].memories()
    assert [int(word, 16) for word in image] == list(inside.words)
    assert not (tmp_path / "hardware/test/fc1_weight.mem").exists()
    assert simulate(tmp_path).is_exact


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("model", [DigitsMlp, lambda: DigitsCnn(4)])
def test_the_digits_are_exact_with_weights_from_outside(model, tmp_path):
    torch.manual_seed(0)
    images = digits().test_images[:16]
    graph = quantize(model().eval(), digits().train_images[:64])
    lowered = lower(graph, Parallelism(4), weights="external")
    verify(graph, lowered, images)
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert exercise(simulator, lowered.encode(images)).is_exact
