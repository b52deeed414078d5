import pytest
import torch
from compression_models import INTEGER, bert_batch, bert_graph, mlp_graph

from chop.nn.quantized.layer import QuantizedModule
from chop.pipelines import AutoPipeline, CompressionPipeline

QUANTIZE = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {"config": INTEGER},
}
PRUNE = {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}}
ARGS = {"quantize_transform_pass": QUANTIZE, "prune_transform_pass": PRUNE}
PRUNE_FIRST = AutoPipeline(
    [*CompressionPipeline.STEPS[:2], *reversed(CompressionPipeline.STEPS[2:])]
)


def linear_layers(graph):
    return {n: m for n, m in graph.modules.items() if isinstance(m, torch.nn.Linear)}


def test_a_model_built_from_a_config_alone_is_quantised_and_pruned():
    pipe = CompressionPipeline()
    mg, info = pipe(bert_graph(), pass_args=ARGS)
    assert all(isinstance(m, QuantizedModule) for m in linear_layers(mg).values())
    assert info["prune_transform_pass"]["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert mg.model(**bert_batch())["logits"].isfinite().all()


@pytest.mark.parametrize("pipe", [CompressionPipeline(), PRUNE_FIRST], ids=["quantise", "prune"])
@pytest.mark.parametrize("name", ["integer", "binary", "mxint"])
def test_either_order_keeps_zeros_and_formats(pipe, name):
    config = INTEGER if name == "integer" else {"name": name, **_widths(name)}
    args = {**ARGS, "quantize_transform_pass": {"by": "type", "linear": {"config": config}}}
    mg, _ = pipe(mlp_graph(), pass_args=args)
    for layer in linear_layers(mg).values():
        weight = layer.quantized_parameters()[0]
        assert layer.format.name == name
        assert (weight == 0).float().mean() >= 0.49


def _widths(name):
    operands = ("data_in", "weight", "bias")
    return {f"{operand}_width": 8 for operand in operands} if name == "mxint" else {}


def test_both_orders_give_the_same_weights():
    first, _ = CompressionPipeline()(mlp_graph(), pass_args=ARGS)
    second, _ = PRUNE_FIRST(mlp_graph(), pass_args=ARGS)
    x = torch.randn(3, 8)
    assert torch.equal(first.model(x=x), second.model(x=x))


def test_either_pass_may_be_left_out():
    _, info = CompressionPipeline()(mlp_graph(), {"prune_transform_pass": PRUNE})
    assert "quantize_transform_pass" not in info
    assert info["prune_transform_pass"]["layers"].keys() == {"fc1", "fc2", "head"}
