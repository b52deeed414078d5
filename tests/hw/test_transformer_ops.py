"""What transformers add to the graph: products of activations, and moves of tokens and heads."""

import pytest
import torch
from hardware_models import fixed_graph
from torch import nn

from chop.errors import HardwareError
from chop.hw.emit import emit
from chop.hw.exercise import exercise
from chop.hw.lower import Parallelism, lower
from chop.hw.simulate import Simulator
from chop.hw.verify import verify

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


CALLS = {
    "a matrix times its transpose": (lambda m, x: x @ x.transpose(1, 2), ((3, TOKENS, SIZE),)),
    "two inputs": (
        lambda m, x, y: torch.matmul(x, y),
        ((3, TOKENS, SIZE), (3, SIZE, 8)),
    ),
    "bmm": (lambda m, x, y: torch.bmm(x, y), ((3, 2, SIZE), (3, SIZE, 2))),
    "heads": (
        lambda m, x: merged((heads(x) @ heads(x).transpose(-1, -2)) @ heads(x)),
        ((3, TOKENS, SIZE),),
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


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("name", CALLS)
def test_products_are_the_models(name, lanes):
    require_same(name, lanes)


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


@pytest.mark.sim
def test_heads_are_exact_in_rtl(tmp_path):
    lowered, inputs = require_same("heads", 2)
    assert simulated(lowered, inputs, tmp_path).is_exact
