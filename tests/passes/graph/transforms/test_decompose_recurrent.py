"""Cells written out compute what the cells compute."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.passes.graph.transforms import (
    decompose_recurrent_transform_pass,
    quantize_transform_pass,
)


class Step(nn.Module):
    """One step of a cell, with its states as inputs and outputs."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell


class OneState(Step):
    def forward(self, x, hidden):
        return self.cell(x, hidden)


class TwoStates(Step):
    def forward(self, x, hidden, state):
        return self.cell(x, (hidden, state))


class NoState(Step):
    def forward(self, x):
        return self.cell(x)


def graph_of(model, *inputs):
    names = ("x", "hidden", "state")
    graph = MaseGraph(model, dummy_in=dict(zip(names, inputs, strict=False)))
    graph, _ = init_metadata_analysis_pass(graph)
    return add_common_metadata_analysis_pass(graph)[0]


CELLS = {
    "lstm": lambda: TwoStates(nn.LSTMCell(5, 4)),
    "lstm without bias": lambda: TwoStates(nn.LSTMCell(5, 4, bias=False)),
    "gru": lambda: OneState(nn.GRUCell(5, 4)),
    "tanh": lambda: OneState(nn.RNNCell(5, 4)),
    "relu": lambda: OneState(nn.RNNCell(5, 4, nonlinearity="relu")),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_decomposed_cell_has_the_same_states_for_several_steps(name):
    torch.manual_seed(0)
    model = CELLS[name]()
    states = torch.randn(2 if isinstance(model, TwoStates) else 1, 3, 4).unbind(0)
    graph, info = decompose_recurrent_transform_pass(graph_of(model, torch.randn(3, 5), *states))
    assert info["decomposed"] == 1
    assert not any(isinstance(m, nn.RNNCellBase) for m in graph.model.modules())
    for _ in range(4):
        x = torch.randn(3, 5)
        expected, found = model(x, *states), graph.model(x, *states)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        states = expected if isinstance(expected, tuple) else (expected,)


def test_a_cell_without_a_state_stays_and_the_reason_is_recorded():
    _, info = decompose_recurrent_transform_pass(
        graph_of(NoState(nn.GRUCell(5, 4)), torch.randn(3, 5))
    )
    assert info["decomposed"] == 0
    assert "no given state" in info["sites"][0]["reason"]


def test_a_quantised_cell_stays_and_the_reason_is_recorded():
    graph = graph_of(OneState(nn.GRUCell(5, 4)), torch.randn(3, 5), torch.randn(3, 4))
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 6}
    config |= {
        f"{k}_{w}": v for k in ("weight", "bias") for w, v in (("width", 8), ("frac_width", 6))
    }
    rules = {"by": "type", "default": {"config": {"name": None}}, "gru_cell": {"config": config}}
    graph, _ = quantize_transform_pass(graph, rules)
    _, info = decompose_recurrent_transform_pass(graph)
    assert "quantised" in info["sites"][0]["reason"]
