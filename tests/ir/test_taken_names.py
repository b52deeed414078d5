"""Attributes of a model whose names a graph needs for itself are refused with words."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import TraceError
from chop.ir.trace.tracer import _names_of_graph_modules

KINDS = ("buffer", "parameter", "module")


class Named(nn.Module):
    """A layer and one more attribute, with a name to choose."""

    def __init__(self, name, kind):
        super().__init__()
        self.name, self.layer = name, nn.Linear(3, 3)
        if kind == "buffer":
            self.register_buffer(name, torch.ones(3))
        elif kind == "parameter":
            self.register_parameter(name, nn.Parameter(torch.ones(3)))
        else:
            self.add_module(name, nn.Linear(3, 3))

    def forward(self, x):
        own = getattr(self, self.name)
        return own(self.layer(x)) if isinstance(own, nn.Module) else self.layer(x) * own


class Inside(nn.Module):
    """The way out that the message names."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["graph", "code", "meta", "input_names", "_graph", "recompile"])
def test_a_taken_name_is_refused_and_a_part_may_have_it(name, kind):
    model, x = Named(name, kind), {"x": torch.ones(2, 3)}
    with pytest.raises(TraceError, match=f"module '{name}', and a graph has an attribute"):
        MaseGraph(model, dummy_in=x)
    assert torch.equal(MaseGraph(Inside(model), dummy_in=x).model(**x), model(**x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config", "nodes", "model", "tracer", "guards", "shape"])
def test_a_free_name_is_captured(name, kind):
    model, x = Named(name, kind), {"x": torch.ones(2, 3)}
    assert torch.equal(MaseGraph(model, dummy_in=x).model(**x), model(**x))


def test_names_of_every_module_are_not_among_the_taken():
    assert not {"training", "weight", "bias", "forward", "_parameters"} & _names_of_graph_modules()
