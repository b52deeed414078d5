"""Whole models with packed weights: what they compute, weigh, and say of themselves."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from passes.graphs import annotated, graph_of
from torch import nn
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError
from chop.kernels import QEmbeddingPacked, QLinearInt8, QLinearPacked
from chop.log import get_report_logger
from chop.passes.graph.transforms.pack_weights import KEPT, memory_table

BERT = "BERT classification"


def packed_graph(name, **arguments):
    given = case(name)
    model = copy.deepcopy(given.model)
    graph = MaseGraph(model, given.hf_input_names, given.inputs, **given.options)
    return passes.pack_weights_transform_pass(graph, arguments)


def size(model):
    tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return sum(t.nbytes for t in tensors.values())


@pytest.mark.parametrize("name", [BERT, "GPT-2", "Llama", "BERT masked LM"])
def test_a_whole_model_is_packed_saved_loaded_and_near_the_float_one(name, tmp_path):
    given = case(name)
    graph, info = packed_graph(name)
    with torch.no_grad():
        y, expected = graph.model(**given.inputs).logits, given.model(**given.inputs).logits
        graph.export(tmp_path / "packed")
        again = MaseGraph.from_checkpoint(tmp_path / "packed").model(**given.inputs).logits
    assert (y - expected).norm() < 0.03 * expected.norm()
    assert torch.equal(again, y)
    assert info["ratio"] < 0.31


def test_the_table_accounts_for_every_byte():
    graph, info = packed_graph(BERT)
    assert info["before"] == size(case(BERT).model)
    assert info["after"] == size(graph.model) == sum(r["after"] for r in info["modules"])
    assert sum(r["share"] for r in info["modules"]) == pytest.approx(1.0)
    assert info["kept"] == sum(r["after"] for r in info["modules"] if r["packed"] == KEPT)


def test_the_table_says_what_is_kept_and_why():
    _, info = packed_graph(BERT, embeddings=False, skip=["classifier"])
    reasons = {r["module"]: r["reason"] for r in info["modules"] if r["packed"] == KEPT}
    assert reasons["classifier"] == "in skip"
    assert reasons["bert.embeddings.word_embeddings"] == "embeddings = false"
    assert reasons["bert.embeddings.LayerNorm"] == "no packed layer for LayerNorm"
    text = memory_table(info)
    assert "MiB after" in text and "all packed it would" in text


def test_embeddings_are_most_of_what_leaving_them_costs():
    _, whole = packed_graph(BERT)
    _, without = packed_graph(BERT, embeddings=False)
    assert without["after"] > 1.5 * whole["after"]


@pytest.mark.parametrize("format", ["mxint4", "mxfp4"])
def test_four_bits_weigh_half_of_eight(format):
    assert packed_graph("Llama", format=format)[1]["ratio"] < 0.16


def test_tied_weights_share_their_bytes():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids))

    graph = graph_of(Tied(), {"ids": torch.tensor([1, 2])})
    _, info = passes.pack_weights_transform_pass(graph)
    assert graph.model.table.codes is graph.model.head.codes
    assert info["after"] == 16 * 32 + 16


def test_a_quantised_layer_keeps_its_format_and_its_values():
    graph = annotated(BERT)
    config = {"name": "mxint", "weight_width": 4, "weight_block_size": 16}
    arguments = {"default": {"config": {"name": None}}, "linear": {"config": config}}
    passes.quantize_transform_pass(graph, {"by": "type", **arguments})
    given = case(BERT).inputs
    expected = graph.model(**given).logits
    _, info = passes.pack_weights_transform_pass(graph, {"embeddings": False})
    assert info["modules"][0]["packed"] in ("mxint4", KEPT)
    assert graph.model.classifier.format == "mxint4" and graph.model.classifier.group_size == 16
    assert torch.allclose(graph.model(**given).logits, expected, atol=1e-6)


def test_a_format_that_cannot_be_packed_is_kept_and_named():
    graph = annotated("MLP")
    config = {f"{role}_width": 8 for role in ("data_in", "weight", "bias")}
    config |= {f"{role}_frac_width": 4 for role in ("data_in", "weight", "bias")}
    arguments = {"by": "type", "default": {"config": {"name": "integer", **config}}}
    passes.quantize_transform_pass(graph, arguments)
    _, info = passes.pack_weights_transform_pass(graph)
    assert "no packed format holds weights in Integer" in info["modules"][0]["reason"]


@pytest.mark.parametrize("format", ["int8", "int8_dynamic"])
def test_int8_layers_are_offered_on_the_same_interface(format):
    graph, info = packed_graph(BERT, format=format)
    layers = [m for m in graph.model.modules() if isinstance(m, QLinearInt8)]
    assert layers and all(m.quantize_input == (format == "int8_dynamic") for m in layers)
    assert any("has no embedding" in r["reason"] for r in info["modules"])


def test_metadata_follows_the_packed_layers():
    graph = annotated(BERT)
    passes.pack_weights_transform_pass(graph)
    ops = {n.name: n.meta["mase"]["common"]["mase_op"] for n in graph.nodes}
    assert ops["classifier"] == "packed_linear"
    assert ops["bert_embeddings_word_embeddings"] == "packed_embedding"
    kinds = (QLinearPacked, QEmbeddingPacked)
    assert all(
        isinstance(graph.modules[n], kinds)
        for n in ("classifier", "bert.embeddings.word_embeddings")
    )


def test_the_table_is_shown_on_demand(capsys, monkeypatch):
    monkeypatch.setattr(get_report_logger(), "level", logging.INFO)
    packed_graph(BERT, show_table=True)
    assert "bert.pooler.dense" in capsys.readouterr().out


def test_a_group_size_without_a_kernel_is_refused():
    with pytest.raises(ConfigError, match="group_size 48 is not allowed"):
        packed_graph(BERT, group_size=48)
