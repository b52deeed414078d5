"""The recipe of CONTRIBUTING: an op from outside the package, in one file, used everywhere."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.distributed.program import program_of
from chop.errors import RegistryError
from chop.ir.ops import OPS, Op, find_op, register_op, table

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(monkeypatch):
    """The names that the recipe defines; the table is as it was after the test."""
    monkeypatch.setattr(OPS, "_things", dict(OPS._things))
    for name in ("_BY_MODULE", "_BY_MODULE_NAME", "FUNCTION_OPS", "METHOD_OPS"):
        monkeypatch.setattr(table, name, dict(getattr(table, name)))
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Add an op")[1]
    names = {}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], names)
    return names


@pytest.fixture
def graph(own):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), own["SquaredReLU"](), nn.Linear(8, 2)).eval()
    made = MaseGraph(model, dummy_in={"input": torch.ones(4, 4)})
    made, _ = passes.init_metadata_analysis_pass(made)
    return passes.add_common_metadata_analysis_pass(made)[0]


def test_it_is_captured_and_costed(graph):
    node = graph.fx_graph.find_nodes(op="call_module", target="1")[0]
    assert find_op(node) is OPS["squared_relu"]
    common = node.meta["mase"]["common"]
    assert (common["mase_op"], common["mase_type"]) == ("squared_relu", "module")
    _, info = passes.summarize_graph_analysis_pass(graph)
    (row,) = [row for row in info["table"] if row["op"] == "squared_relu"]
    assert row["flops"] == 2 * 4 * 8


def test_channels_are_pruned_through_it(graph):
    settings = {"weight": {"sparsity": 0.5, "granularity": "channel"}}
    graph, _ = passes.prune_transform_pass(graph, settings)
    shapes = [tuple(graph.model.get_submodule(name).weight.shape) for name in ("0", "2")]
    assert shapes == [(4, 4), (2, 4)]
    assert graph.model(torch.ones(3, 4)).shape == (3, 2)


def test_it_is_sharded_with_its_operand(graph):
    values = {value.name: value for value in program_of(graph).values}
    ways = {way.name: way.result for way in values["_1"].layouts(2)}
    assert ways == {"replicate": "R", "split 0": "S0", "split 1": "S1"}


def test_a_target_that_is_taken_is_refused(own):
    with pytest.raises(RegistryError, match=r"op 'mine': 'ReLU' stands for op 'relu' already"):
        register_op(Op("mine", "module", modules=(nn.ReLU,)))
    with pytest.raises(RegistryError, match=r"op 'squared_relu' is already registered"):
        register_op(Op("squared_relu", "module"))
    assert "mine" not in OPS
