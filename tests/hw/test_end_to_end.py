"""Trained models through RTL: the accuracy in hardware is the quantised model's, image by image."""

import pytest
import torch
from hardware_models import DigitsCnn, DigitsMlp, SmallMlp, digits, fixed_graph, train

from chop.hw.cycles import Stalls, simulate_control
from chop.hw.emit import emit
from chop.hw.lower import Parallelism, lower
from chop.hw.reference import run_reference
from chop.hw.simulate import Simulator, lint

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("lanes", [(1, 1), (2, 4), (4, 2), (4, 8)])
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
    ("make", "most"), [(DigitsMlp, 4), (lambda: DigitsCnn(4), 4)], ids=["mlp", "residual-cnn"]
)
def test_accuracy_in_rtl_equals_the_quantised_models_on_all_test_images(make, most, tmp_path):
    model = train(make())
    _, images, _, labels = digits()
    assert len(images) == 360
    graph = fixed_graph(model, images[:2], precision=(8, 5))
    lowered = lower(graph, Parallelism(most))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    verdict = simulator.run(lowered.encode(images)).require_exact()
    (outputs,) = lowered.decode(verdict.outputs)
    wanted = run_reference(graph, images)
    assert torch.equal(outputs, wanted)
    right = (outputs.argmax(1) == labels).float().mean().item()
    assert right == (wanted.argmax(1) == labels).float().mean().item() > 0.85
    assert simulator.run(lowered.encode(images[:40]), Stalls(0.6, 0.6, 4)).is_exact
