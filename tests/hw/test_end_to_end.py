"""Trained models through RTL: the accuracy in hardware is the quantised model's, image by image."""

import pytest
import torch
from hardware_models import (
    DigitsCnn,
    DigitsMlp,
    SmallMlp,
    digits,
    fixed_graph,
    quantize,
    run_reference,
    train,
)

from chop.hw.lower import Parallelism, lower
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator, lint
from chop.hw.timing.cycles import Stalls, simulate_control

pytestmark = pytest.mark.sim


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "lanes",
    [(1, 1), (2, 4), *(pytest.param(lanes, marks=pytest.mark.slow) for lanes in ((4, 2), (4, 8)))],
)
def test_small_mlp_is_exact_at_every_parallelism(lanes, tmp_path):
    x = 4 * torch.randn(50, 4)
    graph = fixed_graph(SmallMlp(), x, precision=(8, 3))
    lowered = lower(graph, Parallelism(4, {"fc1": lanes}))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    for stalls in (Stalls(), Stalls(0.5, 0.5, 9)):
        verdict = simulator.run(lowered.encode(x), stalls).require_exact()
        assert torch.equal(lowered.decode(verdict.outputs)[0], run_reference(graph, x))
        assert verdict.cycles == simulate_control(lowered.design, 50, stalls).cycles


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(DigitsMlp, id="mlp"),
        pytest.param(lambda: DigitsCnn(4), id="residual-cnn", marks=pytest.mark.slow),
    ],
)
def test_accuracy_in_rtl_equals_the_quantised_models_on_all_test_images(make, tmp_path):
    data = digits()
    assert len(data.test_images) == 360
    graph = quantize(train(make(), data), data.test_images[:2])
    lowered = lower(graph, Parallelism(4))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    verdict = simulator.run(lowered.encode(data.test_images)).require_exact()
    (outputs,) = lowered.decode(verdict.outputs)
    with torch.no_grad():
        software = graph.model(data.test_images)
    assert torch.equal(outputs.float(), software)
    right = (outputs.argmax(1) == data.test_labels).float().mean().item()
    assert right == (software.argmax(1) == data.test_labels).float().mean().item() > 0.85
    assert simulator.run(lowered.encode(data.test_images[:40]), Stalls(0.6, 0.6, 4)).is_exact
