"""An encoder layer of a transformer, with padding: PyTorch = definition = integers = RTL."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_row_layers import LAYER, PART, ROW, quantised
from torch import nn

from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, lint

TOKENS, HEADS, SIZE = 4, 2, 8
RESULT = {"data_out_width": 8, "data_out_frac_width": 4}
OTHER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, **RESULT}
RULES = {
    "by": "type",
    "linear": {"config": LAYER | RESULT},
    "layer_norm": {"config": ROW},
    "gelu": {"config": ROW},
    "softmax": {"config": PART},
    **{op: {"config": OTHER} for op in ("matmul", "mul", "add")},
}


class Encoder(nn.Module):
    """Self-attention and two linear layers, each behind a norm and beside a residual."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.query, self.key, self.value, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.up, self.down = nn.Linear(SIZE, 16), nn.Linear(16, SIZE)

    def forward(self, x, is_padding):
        x = x + self.out(self.attention(self.norm1(x), is_padding))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attention(self, x, is_padding):
        shape = (x.shape[0], TOKENS, HEADS, SIZE // HEADS)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) * 0.5
        weights = F.softmax(scores.masked_fill(is_padding[:, None, None], -math.inf), dim=-1)
        return (weights @ v).transpose(1, 2).reshape(x.shape[0], TOKENS, SIZE)


@pytest.fixture(scope="module")
def encoder():
    return quantised(Encoder(), tokens(1), RULES)


def tokens(count, seed=0):
    """Tokens and whether each is padding; in one of the sentences all are."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, TOKENS + 1, (count, 1), generator=generator)
    return torch.randn(count, TOKENS, SIZE, generator=generator), torch.arange(TOKENS) >= lengths


def test_the_model_is_the_design_is_the_definition(encoder):
    x = tokens(24, seed=1)
    lowered = lower(encoder, Parallelism(4))
    assert bool(x[1].all(1).any()) and verify(encoder, lowered, x).values == 88 * TOKENS * SIZE
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(*x)))
    with torch.no_grad():
        assert torch.equal(found.float(), encoder.model(*x))


@pytest.mark.slow
@pytest.mark.sim
def test_the_rtl_is_exact_in_values_and_cycles(encoder, tmp_path):
    lowered = lower(encoder, Parallelism(4))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    assert exercise(simulator, lowered.encode(*tokens(8, seed=2))).is_exact
