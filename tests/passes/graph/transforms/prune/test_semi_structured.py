"""2:4 weights packed: the same product, saved and loaded, and refusals with row and group."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import transformers
from compression_models import QUANTIZE
from torch import Tensor, nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError
from chop.export import to_huggingface
from chop.nn.modules.semi_structured import (
    SemiStructuredLinear,
    pack_two_of_four,
    two_of_four_fault,
    unpack_two_of_four,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 96)
        self.narrow = nn.Linear(96, 64, bias=False)
        self.square = nn.Linear(64, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.square(self.narrow(torch.relu(self.wide(x)))))


PACKED = ["wide", "square"]  # narrow has 96 inputs, head 5 outputs


def two_of_four(dtype: torch.dtype = torch.float32) -> MaseGraph:
    torch.manual_seed(0)
    model = Net().to(dtype).eval()
    graph = MaseGraph(model, dummy_in={"x": torch.randn(3, 64, dtype=dtype)})
    return passes.prune_transform_pass(graph, {"weight": {"granularity": "2:4"}})[0]


def packed(dtype: torch.dtype = torch.float32) -> tuple[MaseGraph, dict[str, Any]]:
    return passes.pack_semi_structured_transform_pass(two_of_four(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packing_takes_every_pattern_there_and_back(dtype: torch.dtype) -> None:
    patterns = [p for p in torch.cartesian_prod(*[torch.arange(2)] * 4) if p.sum() <= 2]
    assert len(patterns) == 11  # of none, of one and of two values
    groups = torch.stack(patterns * 64)[: 32 * 16].to(dtype)
    weight = (groups * torch.arange(1, groups.numel() + 1).reshape(groups.shape)).to(dtype)
    weight = weight.reshape(32, 64)
    values, indices = pack_two_of_four(weight)
    assert torch.equal(unpack_two_of_four(values, indices), weight)
    assert values.shape == (32, 32) and indices.shape == (32, 8) and indices.dtype == torch.uint8


def test_the_layout_is_two_bits_a_place_first_group_lower() -> None:
    weight = torch.zeros(32, 64)
    weight[0, [1, 3]], weight[0, [4, 6]] = torch.tensor([5.0, 6.0]), torch.tensor([7.0, 8.0])
    values, indices = pack_two_of_four(weight)
    assert values[0, :4].tolist() == [5.0, 6.0, 7.0, 8.0]
    assert indices[0, 0] == (1 | 3 << 2) | (0 | 2 << 2) << 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layers_compute_the_masked_product(dtype: torch.dtype) -> None:
    graph = two_of_four(dtype)
    x = torch.randn(2, 7, 64).to(dtype)
    before = graph.model(x)
    graph, info = passes.pack_semi_structured_transform_pass(graph)
    assert torch.equal(graph.model(x), before)
    assert info["packed"] == PACKED and set(info["kept"]) == {"narrow", "head"}
    size = 2 if dtype is torch.bfloat16 else 4
    assert info["before"] == size * (64 * 96 + 64 * 64)
    assert info["after"] == (64 * 96 + 64 * 64) * (size / 2 + 1 / 8)


def test_packed_graphs_are_saved_loaded_and_copied(tmp_path: Any) -> None:
    graph, _ = packed()
    x = torch.randn(2, 64)
    expected = graph.model(x)
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert isinstance(loaded.model.wide, SemiStructuredLinear)
    other = packed()[0].model
    other.load_state_dict(graph.model.state_dict())
    again = pickle.loads(pickle.dumps(graph.model.wide))
    assert torch.equal(again.float_weight(), graph.model.wide.float_weight())
    graph.export(tmp_path / "bits", save_format="packed")
    bits = MaseGraph.from_checkpoint(tmp_path / "bits")
    for model in (loaded.model, copy.deepcopy(graph).model, other, bits.model):
        assert torch.equal(model(x), expected)


def test_there_is_no_algorithm_to_choose_on_a_cpu() -> None:
    assert packed(torch.bfloat16)[0].model.wide.search(256) is None


def test_the_compiler_leaves_the_making_of_torchs_form_alone() -> None:
    layer = SemiStructuredLinear(*pack_two_of_four(torch.zeros(32, 64)), None)
    for each in (layer, pickle.loads(pickle.dumps(layer))):
        assert each._make_sparse._torchdynamo_disable


def test_gradients_reach_inputs_and_bias() -> None:
    graph = two_of_four()
    x = torch.randn(4, 64)
    plain, made = copy.deepcopy(graph.model), passes.pack_semi_structured_transform_pass(graph)[0]
    grads = []
    for model in (plain, made.model):
        given = x.clone().requires_grad_()
        model(given).square().sum().backward()
        grads.append((given.grad, model.wide.bias.grad))
    for first, second in zip(*grads, strict=True):
        assert torch.equal(first, second)


def test_packing_again_changes_nothing() -> None:
    graph, _ = packed()
    layer = graph.model.wide
    _, info = passes.pack_semi_structured_transform_pass(graph)
    assert graph.model.wide is layer and info["packed"] == []


def test_packed_layers_are_not_pruned_again() -> None:
    linear = nn.Linear(64, 32)
    graph = MaseGraph(nn.Sequential(linear).eval(), dummy_in=torch.randn(2, 64))
    passes.prune_transform_pass(graph, {"weight": {"granularity": "2:4"}})
    passes.pack_semi_structured_transform_pass(graph)
    with pytest.raises(PassError, match="Its layers are packed: prune before packing"):
        passes.prune_transform_pass(graph, {"weight": {"sparsity": 0.75}})


def test_a_weight_that_is_not_two_of_four_is_named_with_row_and_group() -> None:
    graph = two_of_four()
    graph, _ = passes.prune_detach_hook_transform_pass(graph)
    with torch.no_grad():
        graph.model.wide.weight[7, 20:23] = 1.0
        graph.model.wide.weight[7, 23] = 0.0
    message = r"'wide': row 7, group 5 \(columns 20 to 23\) has 3 values that are not zero"
    with pytest.raises(PassError, match=message):
        passes.pack_semi_structured_transform_pass(graph, {"target_modules": ["wide"]})
    _, info = passes.pack_semi_structured_transform_pass(graph)
    assert info["packed"] == ["square"] and "row 7, group 5" in info["kept"]["wide"]


def test_shapes_that_do_not_fit_are_named() -> None:
    message = r"'narrow': its weight is \[64, 96\]; outputs must be a multiple of 32 and inputs of"
    with pytest.raises(PassError, match=message):
        passes.pack_semi_structured_transform_pass(two_of_four(), {"target_modules": ["narrow"]})
    with pytest.raises(ConfigError, match="SemiStructuredLinear: row 0, group 0"):
        SemiStructuredLinear.from_linear(nn.Linear(64, 32))


def test_quantised_layers_are_refused() -> None:
    graph = two_of_four()
    passes.quantize_transform_pass(graph, QUANTIZE)
    with pytest.raises(PassError, match=r"'wide': .*Integer is no plain Linear"):
        passes.pack_semi_structured_transform_pass(graph, {"target_modules": ["wide"]})


def test_exports_write_the_weight_with_its_zeros(tmp_path: Any) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    ids = torch.arange(3, 13).reshape(1, -1)
    model = transformers.LlamaForCausalLM(config).eval()
    graph = MaseGraph(model, ["input_ids"], {"input_ids": ids})
    passes.prune_transform_pass(graph, {"weight": {"granularity": "2:4"}})
    expected = graph.model(input_ids=ids)["logits"]
    _, info = passes.pack_semi_structured_transform_pass(graph)
    assert len(info["packed"]) == 8
    to_huggingface(graph, tmp_path / "m")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    torch.testing.assert_close(loaded(ids).logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch's sparse product")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [(1,), (5, 7), (256,)])
def test_the_sparse_product_on_a_gpu_is_the_masked_one(
    dtype: torch.dtype, rows: tuple[int, ...]
) -> None:
    graph, _ = packed(dtype)
    layer = graph.model.wide.cuda()
    x = torch.randn(*rows, 64, device="cuda", dtype=dtype)
    with torch.no_grad():
        expected = nn.functional.linear(x.float(), layer.float_weight().float(), layer.bias.float())
        found = layer(x)
    assert two_of_four_fault(layer.float_weight()) is None and layer._sparse is not None
    layer.search(rows[-1])
    with torch.no_grad():
        torch.testing.assert_close(layer(x), found, rtol=0.02, atol=0.02)
    tolerance = 0.02 if dtype is torch.bfloat16 else 0.003  # one rounding of the result
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
    assert copy.deepcopy(layer)._sparse is None and layer.cpu()._sparse is None
