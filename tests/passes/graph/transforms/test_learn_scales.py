"""Scales of integers train beside the weights, from where calibration put them."""

import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions.post_training import quantize_with_data
from chop.errors import ConfigError
from chop.passes import learn_scales_transform_pass, quantize_transform_pass

CONFIG = {
    "name": "scale_integer",
    "weight_width": 3,
    "weight_granularity": "channel",
    "data_in_width": 4,
    "data_in_is_signed": False,
    "bias_width": "NA",
}


def task():
    torch.manual_seed(0)
    x = torch.randn(128, 12)
    return x, (x @ torch.randn(12, 4)).argmax(1)


def trained(model, x, y, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def graph_with_scales(model, x, observer="mse"):
    graph = MaseGraph(model, dummy_in=x)
    quantize_with_data(graph, {"linear": {"config": CONFIG}}, [x], observer=observer)
    return graph


def test_scales_begin_at_calibration_train_and_are_kept(tmp_path):
    x, y = task()
    graph = graph_with_scales(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)), x)
    before = graph.model(x)
    _, info = learn_scales_transform_pass(graph)
    names = [
        f"{i}.{n}" for i in (0, 2) for n in ("data_in_scale", "data_in_zero_point", "weight_scale")
    ]
    assert sorted(info["parameters"]) == sorted(names)
    assert torch.equal(graph.model(x), before)
    start = {n: p.detach().clone() for n, p in graph.model.named_parameters() if n in names}
    fixed = copy.deepcopy(graph)
    for name, parameter in fixed.model.named_parameters():
        parameter.requires_grad_(name not in names)
    losses, without = trained(graph.model, x, y, 60), trained(fixed.model, x, y, 60)
    assert losses[-1] < losses[0] and losses[-1] < without[-1]
    now = dict(graph.model.named_parameters())
    assert all(not torch.equal(now[n], v) for n, v in start.items() if n.endswith("scale"))
    graph.model.eval()
    graph.export(tmp_path / "learned")
    loaded = MaseGraph.from_checkpoint(tmp_path / "learned")
    assert torch.equal(loaded.model(x), graph.model(x))
    assert set(dict(loaded.model.named_parameters())) == set(now)


def test_there_must_be_scales_to_learn():
    x, _ = task()
    graph = MaseGraph(nn.Sequential(nn.Linear(12, 4)), dummy_in=x)
    quantize_transform_pass(graph, {"linear": {"config": {"name": "scale_integer"}}})
    with pytest.raises(ConfigError, match=r"learn_scales: no layer has a scale .* Run calibrate"):
        learn_scales_transform_pass(graph)


def test_batch_norms_are_folded_before_training_and_evaluation_is_the_folded_model():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
    x = torch.randn(16, 3, 6, 6) * 3 + 1
    for _ in range(5):
        model(x)  # running statistics of its own
    config = {"name": "scale_integer", "weight_granularity": "channel", "bias_width": "NA"}
    graph = MaseGraph(model, dummy_in=x)
    found = quantize_with_data(
        graph, {"conv2d": {"config": config}}, [x], "fold_batch_norm", observer="mse"
    )
    assert len(found["folded"]) == 1
    assert not any(isinstance(m, nn.BatchNorm2d) for m in graph.model.modules())
    expected = model.eval()(x)
    error = (graph.model.eval()(x) - expected).norm() / expected.norm()
    assert error < 0.02
    learn_scales_transform_pass(graph)
    graph.model.train()
    graph.model(x).square().mean().backward()
    assert graph.modules["0"].weight_scale.grad is not None
    # nothing hangs on the mode: what trains is what is evaluated and built
    assert torch.equal(graph.model.train()(x), graph.model.eval()(x))
