"""Which layers make a quantised model worse, and what would help."""

import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.passes.graph.analysis.sensitivity import compared, outputs

GOOD = {"name": "mxint", "weight_width": 8, "data_in_width": 8, "bias_width": "NA"}
BAD = {"name": "mxint", "weight_width": 2, "data_in_width": 8, "bias_width": "NA"}


def deep():
    layers = [m for _ in range(7) for m in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(32, 5))


def graph_with(bad, model=None):
    """The bad layers round coarsely, all others finely; the model, its graph and data."""
    model = model or deep()
    data = [torch.randn(16, 32) for _ in range(3)]
    graph = MaseGraph(model, dummy_in=data[0])
    rules = {"by": ["name", "type"], "linear": {"config": GOOD}}
    rules |= {name: {"config": BAD} for name in bad}
    passes.quantize_transform_pass(graph, rules)
    return model, graph, data


def test_the_layers_that_cause_the_loss_are_found_by_halving():
    _, graph, data = graph_with(["4", "12"])
    state = copy.deepcopy(graph.model.state_dict())
    _, info = passes.explain_analysis_pass(graph, {"data": data, "times": False})
    assert {r["layer"] for r in info["layers"][:2]} == {"4", "12"}
    for record in info["layers"][:2]:
        assert max(record["operands"], key=record["operands"].get) == "weight"
        assert record["without"] < info["loss"]
        assert record["changes"][0]["loss"] < record["loss"] / 2
        assert any("weight_width = 4" in text for text in record["advice"])
        assert any("gptq_transform_pass" in text for text in record["advice"])
    assert info["runs"] < 30
    assert all(torch.equal(v, state[k]) for k, v in graph.model.state_dict().items())
    assert graph.modules["4"].quantizers["weight"].width == 2


def test_its_losses_are_those_of_graphs_quantised_so():
    model, graph, data = graph_with(["4"])
    _, info = passes.explain_analysis_pass(graph, {"data": data, "times": False})
    plain = MaseGraph(model, dummy_in=data[0])
    expected = list(outputs(plain, data, "here"))
    assert info["loss"] == pytest.approx(compared(graph, data, expected, "here")["loss"])
    alone = MaseGraph(copy.deepcopy(model), dummy_in=data[0])
    passes.quantize_transform_pass(alone, {"by": "name", "4": {"config": BAD}})
    (record,) = [r for r in info["layers"] if r["layer"] == "4"]
    assert record["loss"] == pytest.approx(compared(alone, data, expected, "here")["loss"])


@pytest.mark.slow
def test_weights_that_were_rounded_are_compared_with_the_reference():
    model, graph, data = graph_with(["4"])
    _, rounding = passes.gptq_transform_pass(graph, {"data": data})
    rounded = {record["module"] for record in rounding["layers"] if record["kept"] == "method"}
    _, alone = passes.explain_analysis_pass(graph, {"data": data, "times": False})
    arguments = {"data": data, "times": False, "reference": MaseGraph(model, dummy_in=data[0])}
    _, info = passes.explain_analysis_pass(graph, arguments)
    assert "4" in {r["layer"] for r in info["layers"][:2]}  # the next makes up for it
    expected = list(outputs(arguments["reference"], data, "here"))
    assert info["loss"] == pytest.approx(compared(graph, data, expected, "here")["loss"])
    # without a reference what was rounded stays rounded, and is no one's loss
    losses = {r["layer"]: r["operands"].get("weight", 0.0) for r in alone["layers"]}
    assert "4" in rounded and all(losses.get(layer, 0.0) < 1e-12 for layer in rounded)


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        return self.head((torch.matmul(x, x.transpose(1, 2)) @ x).mean(1))


def test_functions_packed_layers_and_adapters_take_part():
    model, data = Attends(), [torch.randn(4, 6, 8)]
    graph = MaseGraph(model, dummy_in=data[0])
    coarse = {"name": "integer", "data_in_width": 3, "data_in_frac_width": 0}
    passes.quantize_transform_pass(graph, {"matmul": {"config": coarse}})
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    passes.pack_weights_transform_pass(graph)
    with pytest.raises(ConfigError, match=r"explain.reference: 'first' is packed"):
        passes.explain_analysis_pass(graph, {"data": data})
    packed = MaseGraph(model, dummy_in=data[0])
    passes.quantize_transform_pass(packed, {"matmul": {"config": coarse}})
    passes.pack_weights_transform_pass(packed)
    _, info = passes.explain_analysis_pass(packed, {"data": data, "reference": model})
    assert info["layers"][0]["layer"].startswith("matmul")
    kinds = {k["layer"]: k for k in info["kernels"]}
    assert kinds["first"]["kernel"] == "packed mxint8"
    assert "simulation" in kinds["matmul"]["kernel"]
    assert all(k["ratio"] > 0 for k in info["kernels"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"share": 1.0}, r"explain.share: 1.0. Allowed"),
        ({"most": 0}, r"explain.most: 0. Allowed"),
        ({"reference": 3}, r"explain.reference: expected a MaseGraph or a module, got int"),
        ({"data": None}, r"explain.data: expected an iterable of batches"),
    ],
)
def test_wrong_arguments_are_told(arguments, words):
    _, graph, data = graph_with(["4"])
    with pytest.raises(ConfigError, match=words):
        passes.explain_analysis_pass(graph, {"data": data} | arguments)


def test_a_float_graph_has_nothing_to_explain():
    graph = MaseGraph(deep(), dummy_in=torch.randn(2, 32))
    with pytest.raises(ConfigError, match="nothing in the graph is quantised"):
        passes.explain_analysis_pass(graph, {"data": [torch.randn(2, 32)]})
