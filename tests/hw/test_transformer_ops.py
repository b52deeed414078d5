"""What transformers add to the graph: products of activations, and moves of tokens and heads."""

import pytest
import torch
from hardware_models import fixed_graph
from torch import nn

from chop.errors import HardwareError
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator
from chop.hw.timing.cycles import interval
from chop.ir.graph import MaseGraph
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

TOKENS, HEADS, SIZE = 6, 2, 4


class Call(nn.Module):
    """A function as a module, with what it needs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *x):
        return self.function(self, *x)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(x):
    return x.view(x.shape[0], TOKENS, HEADS, SIZE // HEADS).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).reshape(x.shape[0], TOKENS, SIZE)


TENSOR = (3, TOKENS, SIZE)
CALLS = {
    "a matrix times its transpose": (lambda m, x: x @ x.transpose(1, 2), (TENSOR,)),
    "two inputs": (
        lambda m, x, y: torch.matmul(x, y),
        (TENSOR, (3, SIZE, 8)),
    ),
    "bmm": (lambda m, x, y: torch.bmm(x, y), ((3, 2, SIZE), (3, SIZE, 2))),
    "heads": (
        lambda m, x: merged((heads(x) @ heads(x).transpose(-1, -2)) @ heads(x)),
        (TENSOR,),
    ),
}


WIDE = (3, TOKENS, 3 * SIZE)
MOVES = {
    "the first token": (lambda m, x: x[:, 0], (TENSOR,)),
    "the first token by slices": (lambda m, x: torch.relu(x[:, 0:1, :]), (TENSOR,)),
    "the last tokens": (lambda m, x: x[:, 2:], (TENSOR,)),
    "a select": (lambda m, x: x.select(1, 3), (TENSOR,)),
    "a narrow": (lambda m, x: x.narrow(2, 1, 2), (TENSOR,)),
    "every other token": (lambda m, x: x[:, ::2], (TENSOR,)),
    "three parts": (lambda m, x: (lambda q, k, v: q + k - v)(*x.chunk(3, dim=-1)), (WIDE,)),
    "parts of unlike size": (lambda m, x: x.split([1, 5], dim=1)[1], (TENSOR,)),
    "parts unbound": (
        lambda m, x: (lambda q, k: q - k)(*x.view(x.size(0), TOKENS, 2, -1).unbind(2)),
        (TENSOR,),
    ),
    "all heads at once": (
        lambda m, x: x.reshape(x.shape[0], TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)[1],
        (WIDE,),
    ),
    "broadcast": (lambda m, x, y: x + y, (TENSOR, (3, 1, SIZE))),
    "broadcast within a row": (lambda m, x, y: x * y, (TENSOR, (3, TOKENS, 1))),
    "expanded": (lambda m, x: torch.relu(x).expand(-1, TOKENS, -1), ((3, 1, SIZE),)),
    "position codes": (
        lambda m, x: x + m.codes,
        (TENSOR,),
        lambda: {"codes": nn.Parameter(draw(1, TOKENS, SIZE, seed=7))},
    ),
    "a row for all": (
        lambda m, x: m.row * x,
        (TENSOR,),
        lambda: {"row": nn.Parameter(draw(SIZE, seed=7))},
    ),
    "a scale": (lambda m, x: x * 0.375, (TENSOR,)),
    "a shift on the left": (lambda m, x: 1.5 + x, (TENSOR,)),
    "less a number": (lambda m, x: x - 0.25, (TENSOR,)),
    "over a power of two": (lambda m, x: x / 8, (TENSOR,)),
    "over a small power of two": (lambda m, x: x / 0.25, (TENSOR,)),
    "a mean of tokens": (lambda m, x: x.mean(dim=1), (TENSOR,)),
    "a mean of rows": (lambda m, x: torch.mean(x, -1, keepdim=True), (TENSOR,)),
    "a mean of all": (lambda m, x: x.mean((1, 2)), (TENSOR,)),
    "tokens together": (lambda m, x, y: torch.cat([x, y], dim=1), (TENSOR, (3, 2, SIZE))),
    "rows together": (lambda m, x: torch.cat((x, torch.relu(x)), dim=-1), (TENSOR,)),
    "three together": (lambda m, x: torch.cat([x, x[:, :1], x], 1), (TENSOR,)),
    "a class token": (
        lambda m, x: torch.cat([m.token.expand(x.shape[0], -1, -1), x], dim=1),
        (TENSOR,),
        lambda: {"token": nn.Parameter(draw(1, 1, SIZE, seed=7))},
    ),
    "a token behind": (
        lambda m, x: torch.cat([x, m.token.expand(x.size(0), -1, -1)], dim=1),
        (TENSOR,),
        lambda: {"token": nn.Parameter(draw(1, 1, SIZE, seed=7))},
    ),
}


def graph_of(name, calls=CALLS):
    torch.manual_seed(0)
    function, shapes, *parts = calls[name]
    inputs = tuple(2 * draw(*shape, seed=k) for k, shape in enumerate(shapes))
    model = Call(function, **(parts[0]() if parts else {}))
    dummy = inputs if len(inputs) > 1 else inputs[0]
    return fixed_graph(model, dummy, precision=(8, 3)), inputs


def require_same(name, lanes, calls=CALLS):
    graph, inputs = graph_of(name, calls)
    lowered = lower(graph, Parallelism(lanes))
    assert verify(graph, lowered, inputs if len(inputs) > 1 else inputs[0]).values
    return lowered, inputs


SLOW = pytest.mark.slow
LANES = (2, pytest.param(1, marks=SLOW), pytest.param(4, marks=SLOW))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", CALLS)
def test_products_are_the_models(name, lanes):
    require_same(name, lanes)


@pytest.mark.share(2)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", MOVES)
def test_moves_are_the_models(name, lanes):
    require_same(name, lanes, MOVES)


def test_a_transposed_operand_is_read_so_and_not_moved():
    lowered, _ = require_same("a matrix times its transpose", 2)
    assert not [s for s in lowered.design.stages if "reorder" in s.name]
    assert lowered.design.stage("matmul").component.is_transposed


def test_products_of_unlike_heads_are_refused():
    calls = {"unlike": (lambda m, x, y: x @ y, ((3, 2, TOKENS, SIZE), (3, 1, SIZE, 8)))}
    graph, _ = graph_of("unlike", calls)
    with pytest.raises(HardwareError, match=r"'matmul' \(matmul\): operands of shape .*leading"):
        lower(graph, Parallelism(2))


def simulated(lowered, inputs, directory):
    codes = lowered.encode(*inputs)
    return exercise(Simulator(lowered.design, emit(lowered.design, directory)), codes)


@pytest.mark.slow
@pytest.mark.sim
def test_heads_are_exact_in_rtl(tmp_path):
    lowered, inputs = require_same("heads", 2)
    assert simulated(lowered, inputs, tmp_path).is_exact


class Block(nn.Module):
    """Attention without softmax, a class token, position codes: everything that moves in a ViT."""

    def __init__(self, tokens=3, size=4, heads=2):
        super().__init__()
        self.heads, self.size = heads, size
        self.token = nn.Parameter(draw(1, 1, size, seed=1))
        self.codes = nn.Parameter(draw(1, tokens + 1, size, seed=2))
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.head = nn.Linear(size, 2)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.codes
        shape = (x.shape[0], x.shape[1], 3, self.heads, self.size // self.heads)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = ((q @ k.transpose(-2, -1)) * 0.5) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return self.head(x[:, 0])


@pytest.mark.slow
@pytest.mark.sim
def test_a_block_of_attention_is_exact_in_rtl_and_runs_at_its_bound(tmp_path):
    torch.manual_seed(0)
    x = draw(3, 3, 4)
    graph = fixed_graph(Block(), x, precision=(8, 4))
    lowered = lower(graph, Parallelism(2))
    assert verify(graph, lowered, x).values
    assert interval(lowered.design) == lowered.design.cycles()
    assert simulated(lowered, [x], tmp_path).is_exact


def test_words_of_a_vocabulary_are_rows_of_a_memory():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 2))
    numbers = torch.randint(0, 11, (5, TOKENS), generator=torch.Generator().manual_seed(1))
    graph = MaseGraph(model.eval(), dummy_in=numbers)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    formats = {f"{role}_{key}": n for role in ("data_in", "weight", "bias")
               for key, n in (("width", 8), ("frac_width", 5))}  # fmt: skip
    rows = {k: v for k, v in formats.items() if k.startswith("weight")}
    rules = {"linear": {"config": {"name": "integer", **formats}},
             "embedding": {"config": {"name": "integer", **rows}}}  # fmt: skip
    quantize_transform_pass(graph, {"by": "type", **rules})
    lowered = lower(graph, Parallelism(2))
    assert str(lowered.design.inputs["data_in_0"].format) == "UQ4.0"
    assert verify(graph, lowered, numbers).values
