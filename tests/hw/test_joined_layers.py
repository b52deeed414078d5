"""Layers joined as in models of others: model = definition = integers = RTL."""

import math

import pytest
import torch
import torch.nn.functional as F
from hardware_models import run_reference
from test_row_layers import LAYER, RULES, quantised
from torch import nn

from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, lint

RESULT = {"data_out_width": 8, "data_out_frac_width": 4}
JOINED_RULES = RULES | {
    **{op: {"config": LAYER} for op in ("conv1d", "conv2d", "matmul")},
    **{op: {"config": LAYER | RESULT} for op in ("add", "mul")},
}


class CausalAttention(nn.Module):
    """Scores times a number, a mask with -inf added, softmax, values."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))

    def forward(self, x):
        x = self.values(x)
        scores = x @ x.transpose(1, 2) * 0.3535 + self.mask
        return F.softmax(scores, dim=-1) @ x


class Scaled(nn.Module):
    """A linear layer times a number that no short constant holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return self.layer(x) * 0.35


class UnevenPad(nn.Module):
    """Zeros on one side alone, as converters write a stride of 2 with padding SAME."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 2, 0)))


MODELS = {
    "uneven pad": (UnevenPad(), (2, 4, 6)),
    "uneven pad of rows": (nn.Sequential(nn.ZeroPad1d((2, 0)), nn.Conv1d(2, 3, 3)), (2, 5)),
    "flatten, layer norm": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2)),
        (1, 4, 4),
    ),
    "flatten, RMS norm": (nn.Sequential(nn.Flatten(), nn.RMSNorm(8)), (2, 2, 2)),
    "mask with -inf": (CausalAttention(), (3, 4)),
    "times a number": (Scaled(), (6,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_the_design_is_the_definition(name):
    model, shape = MODELS[name]
    graph = quantised(model, torch.randn(1, *shape), JOINED_RULES)
    lowered = lower(graph, Parallelism(2))
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(1))
    verify(graph, lowered, x)
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    assert torch.equal(found, run_reference(graph, x))


@pytest.mark.share(2)
@pytest.mark.sim
@pytest.mark.parametrize("name", MODELS)
def test_the_rtl_is_exact_in_values_and_cycles(name, tmp_path):
    model, shape = MODELS[name]
    graph = quantised(model, torch.randn(1, *shape), JOINED_RULES)
    lowered = lower(graph, Parallelism(2))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    x = 2 * torch.randn(6, *shape, generator=torch.Generator().manual_seed(2))
    assert exercise(simulator, lowered.encode(x)).is_exact


@pytest.mark.parametrize("multiplier", ["shift_add", "tables"])
def test_constant_products_of_uneven_windows_agree(multiplier):
    graph = quantised(UnevenPad(), torch.randn(1, 2, 4, 6), JOINED_RULES)
    lowered = lower(graph, Parallelism(2, multiplier={"conv": multiplier}))
    x = torch.randn(4, 2, 4, 6)
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    with torch.no_grad():
        assert torch.equal(found.float(), graph.model(x))
