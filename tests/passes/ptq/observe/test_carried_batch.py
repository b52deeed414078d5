"""Batches that enter a model in the middle, and runs whose values are files."""

import pytest
import torch
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.passes.ptq.observe.carried_batch import CarriedBatch, changed_inputs, reference_of
from chop.passes.ptq.observe.curvature import row_importances
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun, PairedRun

CONFIG = {"name": "mxint", "weight_width": 4, "data_in_name": "NA", "bias_name": "NA"}


class Block(nn.Module):
    """Two layers and a residual."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x, mask=None):
        y = self.second(torch.relu(self.first(x)))
        return x + (y if mask is None else y * mask)


@pytest.fixture
def graph():
    torch.manual_seed(0)
    example = {"x": torch.randn(2, 5, 32), "mask": torch.ones(5, 1)}
    return MaseGraph(Block(), dummy_in=example)


def carried(spill=None, **more):
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(5, 1)

    def inputs():
        return {"x": torch.randn(3, 5, 32, generator=generator), "mask": mask}

    return [CarriedBatch(inputs(), inputs(), spill=spill, **more) for _ in range(2)]


def layers(graph):
    return [node for node in graph.fx_graph.nodes if node.op == "call_module"]


def test_values_on_disk_are_those_in_memory(graph, tmp_path):
    stops = {}
    for spill in (None, tmp_path):
        with LayerwiseRun(graph, carried(spill), "test") as run:
            stops[spill] = [x.clone() for node in layers(graph) for x in run.operands(node)]
            stops[spill] += [x.clone() for x in run.results()]
    assert len(stops[None]) == 6
    assert all(torch.equal(a, b) for a, b in zip(*stops.values(), strict=True))
    assert list(tmp_path.iterdir()) == []


def test_the_reference_runs_on_the_inputs_of_the_float_model(graph):
    batches = carried()
    with PairedRun(graph, batches, "test") as run:
        for number, (now, before) in enumerate(run.operands_of_calls(layers(graph)[:1])):
            assert torch.equal(now[0], batches[number]["x"])
            assert torch.equal(before[0], batches[number].before["x"])


def test_the_inputs_of_a_user_are_not_written_to(graph):
    batches = carried()
    copies = [batch["x"].clone() for batch in batches]
    passes.quantize_transform_pass(graph, {"linear": {"config": CONFIG}})
    passes.gptq_transform_pass(graph, {"data": batches, "rounds": 0})
    assert all(torch.equal(b["x"], c) for b, c in zip(batches, copies, strict=True))


def test_weights_of_rows_come_with_the_batches(graph):
    rows = {"first": torch.ones(15)}
    nodes = dict.fromkeys(layers(graph), nn.Identity())
    weights = row_importances(graph, nodes, carried(importances=rows), "test")
    assert {str(node.target): each for node, each in weights.items()} == {
        "first": [rows["first"]] * 2,
        "second": [None, None],
    }


def test_a_batch_from_the_start_is_its_own_reference():
    plain = {"x": torch.ones(1)}
    assert reference_of(plain) is plain and changed_inputs([plain]) == set()
    alone = CarriedBatch(plain, changed=("x",))
    assert reference_of(alone) is alone and changed_inputs([alone]) == {"x"}
    assert dict(alone) == plain and len(alone) == 1
