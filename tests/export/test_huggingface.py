"""Compressed models as folders of transformers: restored, compressed on load, plain when pruned."""

import json
import subprocess
import sys

import pytest
import torch
import transformers
import zoo
from export_models import GROUPS, IDS, MXFP4, MXINT4, MXINT8, graph_of, language_model, logits
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ExportError
from chop.export import MaseConfig, to_huggingface
from chop.export.huggingface import release_pages

FORMATS = {
    "scales by group": GROUPS,
    "mxint4": MXINT4,
    "mxfp4": MXFP4,
    "signs": {"name": "binary_residual"},
    "16 bits": {
        "name": "integer",
        "weight_width": 16,
        "weight_frac_width": 10,
        "data_in_width": 8,
        "data_in_frac_width": 4,
    },
    "inputs too": {**MXINT8, "data_in_width": 8},
}


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def said(model):
    with torch.no_grad():
        return model(IDS).logits


def pruned(settings):
    return passes.prune_transform_pass(
        graph_of("llama"), {"weight": {"sparsity": 0.5, **settings}}
    )[0]


def size(folder):
    return (folder / "model.safetensors").stat().st_size


QUICK = ("scales by group", "signs", "16 bits")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FORMATS]
)
def test_from_pretrained_restores_a_quantised_model_and_saves_it_again(name, tmp_path):
    mg = graph_of("llama", FORMATS[name])
    report = to_huggingface(mg, tmp_path / "a")
    model = load(tmp_path / "a")
    assert torch.equal(said(model), logits(mg))
    assert report.changed == []
    model.save_pretrained(tmp_path / "b")
    assert torch.equal(said(load(tmp_path / "b")), logits(mg))
    assert size(tmp_path / "b") <= 1.01 * size(tmp_path / "a")


def test_packed_layers_and_embeddings_come_back_as_their_bytes(tmp_path):
    mg, _ = passes.pack_weights_transform_pass(graph_of("llama"), {"format": "mxint4"})
    to_huggingface(mg, tmp_path / "m")
    model = load(tmp_path / "m")
    assert type(model.model.embed_tokens).__name__ == "QEmbeddingPacked"
    assert torch.equal(said(model), logits(mg))


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_a_tied_head_is_restored(family, tmp_path):
    mg = graph_of(family, MXINT4)
    to_huggingface(mg, tmp_path / "m")
    assert torch.equal(said(load(tmp_path / "m")), logits(mg))


@pytest.mark.slow
def test_a_restored_model_is_captured_and_exported_again(tmp_path):
    mg = graph_of("llama", MXINT4)
    to_huggingface(mg, tmp_path / "m")
    again = MaseGraph(load(tmp_path / "m"), dummy_in={"input_ids": IDS})
    assert torch.equal(logits(again), logits(mg))
    again.export(tmp_path / "checkpoint")
    back = MaseGraph.from_checkpoint(tmp_path / "checkpoint")
    assert torch.equal(logits(back), logits(mg))


def test_a_model_is_compressed_as_it_is_loaded(tmp_path):
    language_model("llama").save_pretrained(tmp_path / "float")
    model = load(tmp_path / "float", quantization_config=MaseConfig(GROUPS))
    rules = {"by": ["name", "type"], "lm_head": {"config": {"name": None}}}
    mg, _ = passes.quantize_transform_pass(
        graph_of("llama"), {**rules, "linear": {"config": GROUPS}}
    )
    assert torch.equal(said(model), logits(mg))
    kinds = [type(m).__name__ for m in model.modules()]
    assert kinds.count("CodedLinear") == 14 and type(model.lm_head) is nn.Linear
    model.save_pretrained(tmp_path / "small")
    assert torch.equal(said(load(tmp_path / "small")), logits(mg))
    assert size(tmp_path / "small") < 0.35 * size(tmp_path / "float")


PRUNED = {
    "channels": ({"granularity": "channel", "target_modules": ["gate_proj", "up_proj"]}, True),
    "heads": ({"granularity": "head"}, True),
    "uneven": (
        {"granularity": "channel", "scope": "global", "target_modules": ["gate_proj", "up_proj"]},
        False,
    ),
}


@pytest.mark.parametrize("name", PRUNED)
def test_pruned_models_are_plain_folders_where_the_config_can_say_their_sizes(name, tmp_path):
    settings, is_plain = PRUNED[name]
    mg, _ = passes.prune_transform_pass(
        graph_of("llama"), {"weight": {"sparsity": 0.5, **settings}}
    )
    to_huggingface(mg, tmp_path / "m")
    told = json.loads((tmp_path / "m" / "config.json").read_text())
    assert ("quantization_config" not in told) is is_plain
    assert torch.equal(said(load(tmp_path / "m")), logits(mg))


@pytest.mark.slow
def test_a_pruned_folder_loads_without_this_package(tmp_path):
    settings, _ = PRUNED["heads"]
    mg, _ = passes.prune_transform_pass(
        graph_of("llama"), {"weight": {"sparsity": 0.5, **settings}}
    )
    to_huggingface(mg, tmp_path / "m")
    program = (
        "import sys, torch, transformers\n"
        f"m = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'm')!r}).eval()\n"
        f"x = torch.arange(20).reshape(2, 10) * 4\n"
        "assert 'chop' not in sys.modules\n"
        "print(repr(m(x).logits.double().sum().item()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(logits(mg).double().sum().item(), rel=1e-6)


def test_what_has_no_place_in_a_folder_is_refused(tmp_path):
    plain = MaseGraph(nn.Linear(4, 4), dummy_in=torch.ones(1, 4))
    with pytest.raises(ExportError, match=r"to_huggingface: Linear has no Hugging Face config"):
        to_huggingface(plain, tmp_path / "m")
    adapted, _ = passes.insert_lora_adapter_transform_pass(graph_of("llama"), {"rank": 2})
    with pytest.raises(ExportError, match=r"has an adapter"):
        to_huggingface(adapted, tmp_path / "m")
    mg = graph_of("llama")
    add = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    mg, _ = passes.quantize_transform_pass(mg, {"add": {"config": add}})
    with pytest.raises(ExportError, match=r"rounds the operands of a function"):
        to_huggingface(mg, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: MaseConfig({"weight_width": 8}), r"config: key 'name' is missing"),
        (lambda: MaseConfig(schema=7), r"schema: 7. This release reads 1"),
        (lambda: MaseConfig(formats=1), r"quantization_config: unknown key 'formats'"),
    ],
)
def test_wrong_settings_are_told(call, words):
    with pytest.raises(ExportError, match=words):
        call()


@pytest.mark.parametrize(
    "edit, words",
    [
        (lambda s: s.update(kind="x"), r"layers.lm_head: kind 'x'. Allowed: coded, packed"),
        (lambda s: s["record"].update(bits=9), r"bits: expected 1 to 8, got 9"),
        (lambda s: s["parts"].update(codes=["uint8", [3]]), r"codes: shape \[3\], expected"),
        (lambda s: s.pop("config"), r"lm_head: not the description of a layer \(KeyError"),
    ],
)
def test_a_folder_that_was_edited_is_refused_with_the_place(edit, words, tmp_path):
    to_huggingface(graph_of("llama", MXINT4), tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    told = json.loads(file.read_text())
    edit(told["quantization_config"]["layers"]["lm_head"])
    file.write_text(json.dumps(told))
    with pytest.raises(ExportError, match=words):
        load(tmp_path / "m")


def test_memory_that_is_given_back_holds_what_it_held(tmp_path):
    values = torch.arange(100_000, dtype=torch.float32)
    save_file({"a": values}, tmp_path / "t.safetensors")
    with safe_open(tmp_path / "t.safetensors", "pt") as opened:
        mapped = opened.get_tensor("a")
        release_pages(mapped)
        assert torch.equal(mapped, values)
    own, view = values.clone(), values.clone()[::2]
    release_pages(own)
    release_pages(view)
    release_pages(own[:3])
    assert torch.equal(own, values) and torch.equal(view, values[::2])


@pytest.mark.slow
def test_a_model_whose_class_ties_its_head_is_restored(tmp_path):
    case = zoo.case("T5")
    mg = MaseGraph(case.model.eval(), case.hf_input_names, case.inputs)
    mg, _ = passes.quantize_transform_pass(mg, {"linear": {"config": MXINT4}})
    to_huggingface(mg, tmp_path / "t5")
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "t5").eval()
    with torch.no_grad():
        ours, theirs = mg.model(**case.inputs).logits, model(**case.inputs).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
