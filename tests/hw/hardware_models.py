"""Models that become hardware in the tests, and their graphs with formats set by hand."""

import functools
import sys
from pathlib import Path

import torch
from torch import nn

from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_model import run_exact
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from digits_hardware import DigitsCnn, DigitsMlp, load, quantize, train

__all__ = [
    "DigitsCnn",
    "DigitsMlp",
    "SmallMlp",
    "digits",
    "fixed_graph",
    "quantize",
    "run_reference",
    "train",
]


@functools.cache
def digits():
    """Training and test images (360 of them) and labels of scikit-learn's digits."""
    return load()


def run_reference(graph, *inputs):
    """The output of the model in exact arithmetic, for batches of its inputs, as doubles."""
    found = run_exact(graph, [Exact.of(x.double().numpy()) for x in inputs])
    output = next(node for node in graph.fx_graph.nodes if node.op == "output")
    return torch.from_numpy(found[output].double())


def fixed_graph(model, x, precision=(8, 4), **formats):
    """The graph of `model` with every tensor of type fixed; `formats` by name of an argument."""
    graph = MaseGraph(model.eval(), dummy_in=x)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    for node in graph.fx_graph.nodes:
        common = node.meta["mase"]["common"]
        for name, value in (*common["args"].items(), *common["results"].items()):
            if value.is_tensor:
                value["type"] = "fixed"
                value["precision"] = list(formats.get(name, precision))
    return graph


class SmallMlp(nn.Module):
    """Linear(4, 8) and a rectifier."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)

    def forward(self, x):
        return torch.relu(self.fc1(x))
