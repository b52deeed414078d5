"""GPT-2's Conv1D layers: quantised, pruned, adapted and packed as the linear layers they are."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from passes.graphs import annotated
from torch import nn
from traced_zoo import same
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.nn.modules import LoRALinear, Masked
from chop.nn.quantized import QuantizedModule
from chop.passes.rewrite.lift_layers import lift_products

GPT2 = "GPT-2, sdpa"
BLOCK = "transformer.h.0"
PRODUCTS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
MXINT8 = {"by": "type", "linear": {"config": {"name": "mxint", "weight_width": 8}}}


def products(graph):
    return [graph.model.get_submodule(f"{BLOCK}.{name}") for name in PRODUCTS]


def outputs(graph):
    with torch.no_grad():
        return graph.model(**case(GPT2).inputs)


def test_lifting_changes_no_bit_and_shares_the_memory():
    graph = annotated(GPT2)
    before, memory = (
        outputs(graph),
        graph.model.get_parameter(f"{BLOCK}.mlp.c_fc.weight").data_ptr(),
    )
    assert len(lift_products(graph)) == 8
    assert same(outputs(graph), before)
    layer = graph.model.get_submodule(f"{BLOCK}.mlp.c_fc")
    assert isinstance(layer, nn.Linear) and layer.weight.data_ptr() == memory
    assert lift_products(graph) == []


def test_quantising_takes_them():
    graph = annotated(GPT2)
    _, info = passes.quantize_transform_pass(graph, MXINT8)
    assert all(isinstance(layer, QuantizedModule) for layer in products(graph))
    assert "transformer_h_0_attn_c_attn" in info["quantized"]


def test_quantising_the_plain_module_gives_the_values_of_the_graph():
    graph, model = annotated(GPT2), copy.deepcopy(case(GPT2).model)
    passes.quantize_transform_pass(graph, MXINT8)
    passes.quantize_transform_pass(model, MXINT8)
    with torch.no_grad():
        assert same(model(**case(GPT2).inputs).logits, outputs(graph).logits)


def test_pruning_takes_them():
    graph = annotated(GPT2)
    _, info = passes.prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    assert all(isinstance(layer, Masked) for layer in products(graph))
    assert info["layers"][f"{BLOCK}.attn.c_attn"] == 0.5


def test_adapters_go_beside_them_and_fuse_back():
    graph = annotated(GPT2)
    before = outputs(graph)
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    assert all(isinstance(layer, LoRALinear) for layer in products(graph))
    assert same(outputs(graph), before)
    passes.fuse_lora_weights_transform_pass(graph)
    assert same(outputs(graph), before)


def test_a_product_whose_weight_is_tied_is_left_alone():
    model = copy.deepcopy(case(GPT2).model)
    first, second = (model.transformer.h[i].mlp.c_fc for i in (0, 1))
    second.weight = first.weight
    graph = MaseGraph(model, case(GPT2).hf_input_names, case(GPT2).inputs)
    lifted = lift_products(graph)
    assert len(lifted) == 6 and f"{BLOCK}.mlp.c_fc" not in lifted


NOTHING = {
    "quantize_transform_pass": (
        {"by": "type", "default": {"config": {"name": None}}},
        "nothing was quantised",
    ),
    "prune_transform_pass": ({"weight": {"sparsity": 0.0}}, "no weight was pruned"),
    "fuse_lora_weights_transform_pass": ({}, "has no adapters"),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_request_that_changes_nothing_is_told_so(name, caplog):
    arguments, words = NOTHING[name]
    with caplog.at_level(logging.WARNING):
        passes.PASSES[name](annotated("MLP"), arguments)
    assert words in caplog.text


def test_a_second_insertion_of_adapters_is_told_that_they_are_there(caplog):
    graph = annotated("MLP")
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    with caplog.at_level(logging.WARNING):
        passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    assert "has an adapter already" in caplog.text
