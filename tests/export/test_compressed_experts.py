"""Experts in folders of compressed-tensors: a matrix each, which transformers stacks again."""

import copy
import functools
import json

import pytest
import torch
import transformers
from covering import first_and_slow
from export_models import IDS, LLAMA
from safetensors.torch import load_file, save_file

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ExportError
from chop.export import from_compressed_tensors, to_compressed_tensors
from chop.export.checkpoint_names import StoredPart, stored_parts

WEIGHTS = {"data_in_name": "NA", "bias_name": "NA"}
GROUPS = {"weight_width": 4, "weight_granularity": "group", "weight_group_size": 16}
FORMATS = {
    "groups": {"name": "scale_integer", **GROUPS, **WEIGHTS},
    "mxint": {"name": "mxint", "weight_width": 4, **WEIGHTS},
    "channels": {"name": "scale_integer", "weight_granularity": "channel", **WEIGHTS},
    "nvfp4": {"name": "nvfp4", **WEIGHTS},
    "mxfp": {"name": "mxfp", "weight_element": "e2m1", "weight_block_size": 32, **WEIGHTS},
    "tiles": {"name": "fp8_block", "weight_block_size": [16, 32], **WEIGHTS},
}
EXPERTS = r".*\.experts\..*_proj"
ONE_BY_ONE = rf"{EXPERTS}\.\d"
FAMILIES = {
    "mixtral": {"num_local_experts": 3},
    "qwen3_moe": {"num_experts": 3, "moe_intermediate_size": 32},
    "qwen2_moe": {"num_experts": 3, "moe_intermediate_size": 32, "head_dim": 16},
}


@functools.cache
def captured(family):
    torch.manual_seed(0)
    sizes = LLAMA | {"num_hidden_layers": 1, "num_experts_per_tok": 2} | FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **sizes, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return MaseGraph(model, dummy_in={"input_ids": IDS})


def graph_of(family, rule, form):
    graph = copy.deepcopy(captured(family))
    rules = {"by": "regex_name", rule: {"config": FORMATS[form]}}
    passes.quantize_transform_pass(graph, rules)
    return graph


def logits(model):
    with torch.no_grad():
        return model(IDS).logits.float()


CASES = [
    ("mixtral", ONE_BY_ONE, "groups"),
    *((family, rule, "mxint") for family in FAMILIES for rule in (EXPERTS, ONE_BY_ONE)),
    *(("qwen3_moe", EXPERTS, form) for form in FORMATS if form != "mxint"),
]


@pytest.mark.parametrize("family, rule, form", first_and_slow(CASES, 2))
def test_experts_are_read_again_and_by_transformers(family, rule, form, tmp_path):
    pytest.importorskip("compressed_tensors", reason="needs masegraph[export]")
    graph = graph_of(family, rule, form)
    report = to_compressed_tensors(graph, tmp_path / "m")
    matrices = [r for r in report.records if "experts" in r.name and "bits" in r.written]
    assert len(matrices) == 9
    back = from_compressed_tensors(tmp_path / "m")
    assert torch.allclose(logits(back.model), logits(graph.model), atol=1e-6)
    says = any("transformers reads no experts in nvfp4" in note for note in report.dropped)
    assert says == (form == "nvfp4")
    if form in ("groups", "mxint", "channels"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
        assert torch.equal(logits(theirs), logits(graph.model))


def test_names_are_those_of_files_that_transformers_writes(tmp_path):
    model = captured("mixtral").original
    model.save_pretrained(tmp_path / "float")
    to_compressed_tensors(graph_of("mixtral", EXPERTS, "groups"), tmp_path / "m")
    files = {
        p: {n.rpartition(".")[0] for n in load_file(tmp_path / p / "model.safetensors")}
        for p in ("float", "m")
    }
    assert files["float"] == files["m"]
    parts = stored_parts(model)["model.layers.0.mlp.experts.gate_up_proj"]
    inner = LLAMA["intermediate_size"]
    name = "model.layers.0.block_sparse_moe.experts.1.w3.weight"
    assert StoredPart(name, 1, inner, 2 * inner) in parts and len(parts) == 6


def test_experts_without_a_format_stay_one_tensor(tmp_path):
    graph = graph_of("mixtral", r".*self_attn.*", "groups")
    to_compressed_tensors(graph, tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert stored["model.layers.0.mlp.experts.down_proj"].dim() == 3
    back = from_compressed_tensors(tmp_path / "m")
    assert torch.allclose(logits(back.model), logits(graph.model), atol=1e-6)


def test_several_schemes_of_experts_are_noted(tmp_path):
    graph = graph_of("mixtral", rf"{EXPERTS}\.[01]", "groups")
    eight = FORMATS["groups"] | {"weight_width": 8}
    rules = {"by": "regex_name", rf"{EXPERTS}\.2": {"config": eight}}
    passes.quantize_transform_pass(graph, rules)
    report = to_compressed_tensors(graph, tmp_path / "m")
    assert "transformers reads one scheme for all experts; these have several" in report.dropped
    back = from_compressed_tensors(tmp_path / "m")
    assert torch.allclose(logits(back.model), logits(graph.model), atol=1e-6)


def test_a_missing_or_misshapen_expert_is_named(tmp_path):
    to_compressed_tensors(graph_of("mixtral", rf"{EXPERTS}\.[01]", "groups"), tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    stored = load_file(file)
    name = next(n for n in stored if "experts.2.w1.weight" in n)
    save_file({n: t for n, t in stored.items() if n != name}, file)
    with pytest.raises(ExportError, match=f"tensor '{name}' is missing"):
        from_compressed_tensors(tmp_path / "m")
    save_file({**stored, name: stored[name][:4].clone()}, file)
    with pytest.raises(ExportError, match=rf"tensor '{name}' has shape \[4, 64\]"):
        from_compressed_tensors(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert any("experts.2.w1" in each for each in config["ignore"])
