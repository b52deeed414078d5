"""Whole models with packed weights: what they compute, weigh, and say of themselves."""

from __future__ import annotations

import copy
import gc
import logging
import weakref

import pytest
import torch
from covering import first_and_slow
from passes.graphs import annotated, graph_of
from torch import nn
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError
from chop.kernels import QEmbeddingPacked, QLinearInt8, QLinearPacked
from chop.kernels.layers import unpacked_weight
from chop.log import get_report_logger
from chop.nn.modules.masked import with_mask
from chop.nn.quantizers import MXInt, ScaleInteger, parse_format
from chop.passes.graph.transforms.pack_weights import KEPT, memory_table
from chop.passes.ptq.sites.rounded_layers import store_scale

pytestmark = pytest.mark.share(2)

BERT = "BERT classification"


def packed_graph(name, **arguments):
    given = case(name)
    model = copy.deepcopy(given.model)
    graph = MaseGraph(model, given.hf_input_names, given.inputs, **given.options)
    return passes.pack_weights_transform_pass(graph, arguments)


def size(model):
    tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return sum(t.nbytes for t in tensors.values())


@pytest.mark.parametrize("name", first_and_slow(["GPT-2", "Llama", BERT, "BERT masked LM"], 2))
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
    assert "no packed format holds weights in fixed8.4" in info["modules"][0]["reason"]


CODED = [*(f"mxint{n}" for n in (2, 3, 5, 6, 7)), "mxfp6", "mxfp6_e2m3", "nvfp4", "fp8_block"]


@pytest.mark.parametrize("format", CODED)
def test_formats_without_a_kernel_are_stored_as_codes_and_decoded_exactly(format, tmp_path):
    form, x = parse_format(format), torch.randn(5, 96)
    layer = nn.Linear(96, 130)
    graph = MaseGraph(nn.Sequential(layer), dummy_in=x)
    _, info = passes.pack_weights_transform_pass(graph, {"format": format})
    packed = graph.model.get_submodule("0")
    assert info["modules"][0]["packed"] == packed.format == format
    assert torch.equal(packed.weight, form.quantize(layer.weight.detach()))
    table = packed.table.nbytes
    assert packed.codes.nbytes + packed.scales.nbytes <= form.bits * 96 * 130 / 8 + 64
    assert info["after"] == size(graph.model) <= form.bits * 96 * 130 / 8 + table + 130 * 4 + 64
    expected = nn.functional.linear(x, form.quantize(layer.weight), layer.bias)
    with torch.no_grad():
        assert torch.equal(graph.model(x), expected)
        graph.export(tmp_path / "m")
        assert torch.equal(MaseGraph.from_checkpoint(tmp_path / "m").model(x), expected)


@pytest.mark.parametrize("format", CODED)
def test_a_layer_quantised_without_a_kernel_keeps_its_values_as_codes(format):
    x = torch.randn(5, 96)
    graph = MaseGraph(nn.Sequential(nn.Linear(96, 130)), dummy_in=x)
    passes.quantize_transform_pass(graph, {"linear": {"config": {"name": format}}})
    with torch.no_grad():
        expected = graph.model(x)
        passes.pack_weights_transform_pass(graph)
        assert graph.model.get_submodule("0").format == format
        assert torch.equal(graph.model(x), expected)
    _, info = passes.pack_weights_transform_pass(graph)
    assert info["modules"][0]["packed"] == format


def test_values_without_codes_are_kept_and_named():
    layer = nn.Linear(96, 8)
    layer.weight.data[0, 0] = torch.inf
    graph = MaseGraph(nn.Sequential(layer), dummy_in=torch.randn(5, 96))
    _, info = passes.pack_weights_transform_pass(graph, {"format": "mxint3"})
    assert info["modules"][0]["reason"] == "values of the weight have no codes in mxint3"


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


class Stack(nn.Module):
    """Layers of one shape, so that a weight made for one call may lie where another's lay."""

    def __init__(self, depth=8):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(depth)))

    def forward(self, x):
        return self.layers(x)


MXINT8 = {"by": "type", "linear": {"config": {"name": "mxint", "weight_width": 8}}}


@pytest.mark.parametrize("quantised", [True, False])
def test_pruned_layers_are_packed_with_their_own_weights(quantised):
    graph = graph_of(Stack(), {"x": torch.randn(4, 32)})
    passes.prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    if quantised:
        passes.quantize_transform_pass(graph, MXINT8)
    expected = [layer.weight.detach().clone() for layer in graph.model.layers.children()]
    passes.pack_weights_transform_pass(graph)
    for layer, weight in zip(graph.model.layers.children(), expected, strict=True):
        assert torch.equal(unpacked_weight(layer), MXInt(width=8)(weight))
        assert ((unpacked_weight(layer) == 0) | (weight != 0)).all()


class Twice(nn.Module):
    """One parameter in two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = (nn.Linear(32, 32, bias=False) for _ in range(2))
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(x))


@pytest.mark.parametrize("moved", [False, True])
def test_one_parameter_is_packed_once_unless_a_mask_gives_it_two_values(moved):
    graph = graph_of(Twice(), {"x": torch.randn(4, 32)})
    graph.model.one = with_mask(graph.model.one, torch.rand(32, 32) > 0.5)
    if moved:  # as an optimiser may: the mask hides it in one layer, the other computes with it
        graph.model.other.weight.data.add_(1.0)
    passes.pack_weights_transform_pass(graph)
    one, other = graph.model.one, graph.model.other
    assert (one.codes is other.codes) != moved


class ReadsItsWeight(nn.Module):
    """Reads the place, or the values, of a layer's weight, as some models of transformers do."""

    def __init__(self, how):
        super().__init__()
        self.fc, self.head, self.how = nn.Linear(32, 32), nn.Linear(32, 32), how

    def forward(self, x):
        if self.how == "device":
            x = x.to(self.fc.weight.device)
        elif self.how == "values":
            x = x + self.fc.weight.sum()
        else:
            with torch.no_grad():
                self.fc.weight.div_(1)
        return self.head(self.fc(x))


class TiedToATable(nn.Module):
    """Looks words up by a function, in the very parameter that its head has (as BART does).

    It reads the table otherwise, too.
    """

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(40, 32), nn.Linear(32, 40, bias=False)
        self.fc = nn.Linear(32, 32)
        self.head.weight = self.table.weight

    def forward(self, x):
        found = nn.functional.embedding(x, self.table.weight) * self.table.weight.mean()
        return self.head(self.fc(found))


@pytest.mark.parametrize("adapted", [False, True])
def test_a_layer_whose_weight_the_graph_reads_by_another_name_is_kept(adapted):
    x = torch.arange(12).reshape(3, 4)
    graph = graph_of(TiedToATable(), {"x": x})
    if adapted:
        passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    _, info = passes.pack_weights_transform_pass(graph)
    reasons = {r["module"]: r["reason"] for r in info["modules"]}
    assert reasons["head"] == "the graph itself reads its weight" and reasons["fc"] == ""
    head = graph.model.head.base_layer if adapted else graph.model.head
    assert head.weight is graph.model.table.weight


@pytest.mark.parametrize("how", ["values", "in place"])
def test_a_layer_whose_weight_the_graph_reads_is_kept(how):
    x = torch.randn(4, 32)
    graph = graph_of(ReadsItsWeight(how), {"x": x})
    _, info = passes.pack_weights_transform_pass(graph)
    reasons = {r["module"]: r["reason"] for r in info["modules"]}
    assert reasons == {"fc": "the graph itself reads its weight", "head": ""}
    with torch.no_grad():
        assert graph.model(x).shape == (4, 32)


def test_a_frozen_bias_stays_frozen():
    graph = graph_of(nn.Sequential(nn.Linear(32, 32)), {"input": torch.randn(4, 32)})
    graph.model.get_parameter("0.bias").requires_grad_(False)
    passes.pack_weights_transform_pass(graph)
    assert not graph.model.get_parameter("0.bias").requires_grad


def test_packing_lets_go_of_the_float_model():
    model = Stack(2)
    gone = weakref.ref(model)
    graph = MaseGraph(model, dummy_in={"x": torch.randn(4, 32)})
    del model
    passes.pack_weights_transform_pass(graph)
    gc.collect()
    assert graph.original is None and gone() is None


def test_a_model_without_a_layer_to_pack_is_told_so(caplog):
    graph = graph_of(nn.Sequential(nn.LayerNorm(8)), {"input": torch.randn(4, 8)})
    with caplog.at_level(logging.WARNING):
        passes.pack_weights_transform_pass(graph)
    assert "no layer was packed" in caplog.text


def test_the_reasons_for_kept_layers_are_told_with_their_bytes(caplog):
    model = nn.Sequential(nn.Conv1d(4, 4, 3, bias=False), nn.Conv1d(4, 8, 1, bias=False))
    graph = MaseGraph(model, dummy_in=torch.randn(2, 4, 8))
    _, info = passes.pack_weights_transform_pass(graph)
    assert info["not_packed"] == "no packed layer for Conv1d (320 bytes)"
    assert "Reasons: no packed layer for Conv1d (320 bytes)." in caplog.text


def integers(**settings):
    config = {"name": "scale_integer", "data_in_width": "NA", "bias_width": "NA"}
    config |= {f"weight_{key}": value for key, value in settings.items()}
    return {"by": "type", "linear": {"config": config}}


INTEGERS = {
    "groups": {"width": 4, "granularity": "group", "group_size": 32},
    "odd groups": {"width": 4, "granularity": "group", "group_size": 48},
    "rows": {"width": 4, "granularity": "channel"},
    "whole": {"width": 8},
    "five bits": {"width": 5, "granularity": "group", "group_size": 16},
    "unsigned": {"width": 4, "is_signed": False, "zero_point": 8, "scale": 0.02},
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_with_real_scales_are_packed_with_their_values(name):
    torch.manual_seed(0)
    x, model = torch.randn(3, 96), nn.Sequential(nn.Linear(96, 40), nn.Linear(40, 7))
    graph = graph_of(model, {"input": x})
    passes.quantize_transform_pass(graph, integers(**INTEGERS[name]))
    expected = [layer.quantized_parameters()[0] for layer in graph.model.children()]
    with torch.no_grad():
        y = graph.model(x)
        _, info = passes.pack_weights_transform_pass(graph)
        again = graph.model(x)
    widths = {"whole": "int8_group", "five bits": "int8_group"}
    assert {r["packed"] for r in info["modules"]} == {widths.get(name, "int4")}
    for layer, weight in zip(graph.model.children(), expected, strict=True):
        assert torch.equal(unpacked_weight(layer), weight)
    assert torch.allclose(again, y, atol=1e-5)


@pytest.mark.parametrize("how", ["negative", "gptq", "inputs"])
def test_a_layer_with_stored_scales_is_packed_saved_and_loaded(how, tmp_path):
    torch.manual_seed(0)
    x, model = torch.randn(64, 64), nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8))
    graph = graph_of(model, {"input": x})
    passes.quantize_transform_pass(
        graph, integers(width=4, granularity="group", group_size=16, narrow=False)
    )
    first = graph.model.get_submodule("0")
    if how == "gptq":
        passes.gptq_transform_pass(graph, {"data": [x]})
    if how == "negative":
        store_scale(first, "weight", torch.where(torch.rand(32, 4) > 0.5, 0.05, -0.05))
    if how == "inputs":
        form = ScaleInteger(8)
        first.set_formats(first.config, {**first.quantizers, "data_in": form})
        store_scale(first, "data_in", torch.tensor(0.03))
    weights = [layer.quantized_parameters()[0] for layer in graph.model.children()]
    with torch.no_grad():
        expected = graph.model(x)
        _, info = passes.pack_weights_transform_pass(graph)
        y = graph.model(x)
    assert all(r["packed"] == "int4" for r in info["modules"])
    assert all(
        torch.equal(unpacked_weight(layer), weight)
        for layer, weight in zip(graph.model.children(), weights, strict=True)
    )
    assert torch.allclose(y, expected, atol=1e-5)
    graph.export(tmp_path / "packed")
    again = MaseGraph.from_checkpoint(tmp_path / "packed")
    with torch.no_grad():
        assert torch.equal(again.model(x), y)


REFUSED_INTEGERS = {
    "groups of 24 are no multiple of 16": {"granularity": "group", "group_size": 24},
    "has a scale for each input": {"granularity": "channel", "axis": 1},
    "no packed format holds weights in int10": {"width": 10},
}


@pytest.mark.parametrize("message", REFUSED_INTEGERS)
def test_integers_that_no_kernel_takes_are_kept_and_named(message):
    graph = graph_of(nn.Sequential(nn.Linear(64, 32)), {"input": torch.randn(2, 64)})
    passes.quantize_transform_pass(graph, integers(**{"width": 4, **REFUSED_INTEGERS[message]}))
    _, info = passes.pack_weights_transform_pass(graph)
    assert message in info["modules"][0]["reason"]


@pytest.mark.parametrize("format", ["int4", "int8_group"])
def test_float_layers_and_embeddings_pack_to_groups_of_integers(format):
    given = case("Llama")
    graph, info = packed_graph("Llama", format=format)
    with torch.no_grad():
        y, expected = graph.model(**given.inputs).logits, given.model(**given.inputs).logits
    assert info["ratio"] < (0.2 if format == "int4" else 0.33)
    assert (y - expected).norm() < (0.3 if format == "int4" else 0.03) * expected.norm()


class Scaled(nn.Embedding):
    """An embedding that does more than look up, as Gemma's."""

    def forward(self, ids):
        return super().forward(ids) * 3.0


class TiedScaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = Scaled(40, 32), nn.Linear(32, 40, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.table(x))


def test_a_table_that_is_looked_up_by_a_function_is_packed_with_its_head(tmp_path):
    x, model = torch.arange(12).reshape(3, 4), TiedScaled()
    graph = graph_of(model, {"x": x})
    _, info = passes.pack_weights_transform_pass(graph, {"format": "mxint8"})
    assert info["after"] == 40 * 32 + 40 and graph.model.head.format == "mxint8"
    weight = MXInt(8)(model.table.weight)
    with torch.no_grad():
        expected = nn.functional.linear(weight[x] * 3.0, weight)
        y = graph.model(x)
        graph.export(tmp_path / "packed")
        again = MaseGraph.from_checkpoint(tmp_path / "packed").model(x)
    assert torch.allclose(y, expected, atol=1e-5) and torch.equal(again, y)
    assert isinstance(model.table.weight, nn.Parameter)  # the user's model keeps its own


def test_the_experts_of_a_mixture_are_packed(tmp_path):
    given = case("Mixtral")
    graph, info = packed_graph("Mixtral", format="mxint4")
    kinds = {r["kind"] for r in info["modules"] if r["packed"] == "mxint4"}
    assert kinds == {"Linear", "Embedding", "Experts"}
    assert info["after"] == size(graph.model) and info["ratio"] < 0.17
    rounded, form = copy.deepcopy(given.model), MXInt(4)
    for name, parameter in rounded.named_parameters():
        if parameter.dim() == 3 or name.endswith(("proj.weight", "head.weight", "tokens.weight")):
            parameter.data = form(parameter.data)
    with torch.no_grad():
        y, expected = graph.model(**given.inputs).logits, rounded(**given.inputs).logits
        assert torch.allclose(y, expected, atol=1e-4)
        graph.export(tmp_path / "packed")
        again = MaseGraph.from_checkpoint(tmp_path / "packed").model(**given.inputs).logits
    assert torch.equal(again, y)


def test_a_plain_module_is_packed_in_place():
    given = case("GPT-2")
    graph, expected = packed_graph("GPT-2", format="mxint4")
    model = copy.deepcopy(given.model)
    packed, info = passes.pack_weights_transform_pass(model, {"format": "mxint4"})
    assert packed is model and info["before"] == size(given.model)
    assert info["after"] == size(model) == expected["after"]
    with torch.no_grad():
        y = model(**given.inputs).logits
        assert torch.allclose(y, graph.model(**given.inputs).logits, atol=1e-4)


def test_a_single_layer_gives_the_packed_one():
    layer, info = passes.pack_weights_transform_pass(nn.Linear(32, 8), {"format": "int4"})
    assert isinstance(layer, QLinearPacked) and info["modules"][0]["module"] == ""


def test_what_a_plain_module_keeps_is_named():
    model = nn.Sequential(nn.Linear(32, 8), nn.LayerNorm(8), TiedScaled())
    _, info = passes.pack_weights_transform_pass(model)
    reasons = {r["module"]: r["reason"] for r in info["modules"]}
    assert reasons["1"] == "no packed layer for LayerNorm"
    assert "Scaled may compute otherwise than Embedding" in reasons["2.table"]


WEIGHT_ONLY = {
    "mxint8": {"name": "mxint"},
    "mxint4": {"name": "mxint", "weight_width": 4},
    "mxfp8": {"name": "mxfp", "weight_element": "e4m3"},
    "mxfp4": {"name": "mxfp", "weight_element": "e2m1"},
    "int4": {"name": "scale_integer", "weight_width": 4, "weight_granularity": "group"},
}


@pytest.mark.parametrize("format", WEIGHT_ONLY)
def test_a_weight_only_config_packs_and_leaves_activations_alone(format):
    x = torch.randn(2, 64)
    graph = graph_of(nn.Sequential(nn.Linear(64, 8)), {"input": x})
    config = {**WEIGHT_ONLY[format], "data_in_name": "NA", "bias_name": "NA"}
    passes.quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    expected = graph.model(x)
    passes.pack_weights_transform_pass(graph)
    layer = graph.model.get_submodule("0")
    assert layer.format == format and not layer.quantizers
    assert torch.allclose(graph.model(x), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mxint", "scale_integer"])
def test_a_quantised_embedding_keeps_its_values(name):
    x, model = torch.arange(12).reshape(3, 4), nn.Sequential(nn.Embedding(40, 32))
    graph = graph_of(model, {"input": x})
    config = {"name": name, "weight_width": 4}
    passes.quantize_transform_pass(graph, {"by": "type", "embedding": {"config": config}})
    expected = graph.model(x)
    _, info = passes.pack_weights_transform_pass(graph, {"format": "mxint8"})
    assert info["modules"][0]["packed"] == ("mxint4" if name == "mxint" else "int4")
    assert torch.equal(graph.model(x), expected)


def test_an_embedding_that_rounds_its_results_is_kept_and_named():
    model = nn.Sequential(nn.Embedding(40, 32))
    graph = graph_of(model, {"input": torch.arange(12).reshape(3, 4)})
    config = {"name": "mxint", "data_out_width": 8}
    passes.quantize_transform_pass(graph, {"by": "type", "embedding": {"config": config}})
    _, info = passes.pack_weights_transform_pass(graph)
    assert info["modules"][0]["reason"] == "no packed embedding rounds its results"


@pytest.mark.parametrize(
    ("spelled", "named"),
    [
        ({"format": "mxint4/16"}, {"format": "mxint4", "group_size": 16}),
        ({"format": "int8/channel"}, {"format": "int8"}),
        ({"format": "int4/64"}, {"format": "int4", "group_size": 64}),
    ],
)
def test_a_spelling_packs_as_its_name_and_group_size_do(spelled, named):
    tables = []
    for arguments in (spelled, named):
        graph = graph_of(nn.Sequential(nn.Linear(64, 32)), {"input": torch.randn(2, 64)})
        tables.append(passes.pack_weights_transform_pass(graph, arguments)[1]["modules"])
    assert tables[0] == tables[1] and tables[0][0]["packed"] == named["format"]
