"""Folders of compressed-tensors: what transformers loads with the package, and what we read."""

import json

import pytest
import torch
import transformers
from export_models import GROUPS, IDS, INTEGER8, MXFP4, MXINT4, MXINT8, graph_of, logits
from safetensors.torch import load_file, save_file

import chop.passes as passes
from chop.errors import ExportError
from chop.export import from_compressed_tensors, to_compressed_tensors

CHANNEL = {**MXINT8, "name": "scale_integer", "weight_granularity": "channel"}
FP8 = {
    "name": "fp8",
    "weight_element": "e4m3",
    "data_in_element": "NA",
    "bias_element": "NA",
}
MXFP8 = {**MXFP4, "weight_element": "e4m3"}
NVFP4 = {"name": "nvfp4", "data_in_name": "NA", "bias_name": "NA"}
FP8_TILES = {**NVFP4, "name": "fp8_block", "weight_block_size": [24, 40]}
SCHEMES = {
    "int4 groups": (GROUPS, {}, "pack-quantized"),
    "int8 channels": (CHANNEL, {}, "pack-quantized"),
    "int8 naive": (CHANNEL, {"layout": "naive"}, "naive-quantized"),
    "mxint4": (MXINT4, {}, "pack-quantized"),
    "integer": (INTEGER8, {}, "pack-quantized"),
    "fp8": (FP8, {}, "float-quantized"),
    "mxfp4": (MXFP4, {}, "mxfp4-pack-quantized"),
    "mxfp8": (MXFP8, {}, "mxfp8-quantized"),
    "mxfp6": ({**MXFP4, "weight_element": "e2m3"}, {}, "mxfp6-pack-quantized"),
    "fp8 tiles": (FP8_TILES, {}, "float-quantized"),
    "fp8 tiles of 128": ({**FP8_TILES, "weight_block_size": [128, 128]}, {}, "float-quantized"),
    "nvfp4": (NVFP4, {}, "nvfp4-pack-quantized"),
}


def loaded(folder):
    pytest.importorskip("compressed_tensors", reason="needs masegraph[export]")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model(IDS)  # the package unpacks weights at the first call
    return model.eval()


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SCHEMES)
def test_transformers_loads_the_same_weights(name, tmp_path):
    config, options, kind = SCHEMES[name]
    mg = graph_of("llama", config)
    report = to_compressed_tensors(mg, tmp_path / "m", **options)
    written = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert written["format"] == kind and report.changed == []
    model = loaded(tmp_path / "m")
    for path, layer in mg.model.named_modules():
        if hasattr(layer, "stored_values"):
            theirs = model.get_submodule(path).weight.float()
            ours = layer.stored_values()["weight"].values
            if name == "nvfp4":  # the package rounds scales and values to bfloat16
                torch.testing.assert_close(theirs, ours, rtol=2**-7, atol=0)
            else:
                assert torch.equal(theirs, ours), path
    if not name.startswith(("mxfp", "nvfp4")):
        with torch.no_grad():
            assert torch.equal(model(IDS).logits, logits(mg))


@pytest.mark.parametrize(
    "name", ["int4 groups", *(pytest.param(n, marks=pytest.mark.slow) for n in SCHEMES)]
)
def test_what_was_written_is_read(name, tmp_path):
    config, options, _ = SCHEMES[name]
    mg = graph_of("llama", config)
    to_compressed_tensors(mg, tmp_path / "m", **options)
    back = from_compressed_tensors(tmp_path / "m")
    with torch.no_grad():
        if name == "nvfp4":  # the file has the inverse of the tensor's scale
            torch.testing.assert_close(back.model(IDS).logits, logits(mg), rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(back.model(IDS).logits, logits(mg))
    assert (type(back.model.lm_head).__name__ == "Linear") == (name == "fp8")


@pytest.mark.parametrize("name", ["nvfp4", "fp8 tiles"])
def test_blocks_that_were_read_have_the_codes_that_were_written(name, tmp_path):
    config, options, _ = SCHEMES[name]
    to_compressed_tensors(graph_of("llama", config), tmp_path / "m", **options)
    to_compressed_tensors(from_compressed_tensors(tmp_path / "m"), tmp_path / "again")
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("m", "again"))
    assert first.keys() == second.keys()
    for key in first:
        if not key.endswith("_global_scale"):
            parts = (t.contiguous().view(torch.uint8) for t in (first[key], second[key]))
            assert torch.equal(*parts), key


def test_scales_by_another_rule_are_kept(tmp_path):
    to_compressed_tensors(graph_of("llama", NVFP4), tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    scales = tensors["lm_head.weight_scale"]
    tensors["lm_head.weight_packed"] &= 0b0101_0101  # no element is the largest
    save_file(tensors, file, metadata={"format": "pt"})
    layer = from_compressed_tensors(tmp_path / "m").model.lm_head
    whole = 1 / tensors["lm_head.weight_global_scale"]
    by = (scales.float() * whole).repeat_interleave(16, 1)
    steps = layer.stored_values()["weight"].values / by
    assert torch.equal(steps.round(decimals=2).unique(), torch.tensor([0.0, 0.5, 2.0, 3.0]))


def test_layers_may_have_schemes_of_their_own_and_none(tmp_path):
    mg = graph_of("llama")
    rules = {"by": "regex_name", r".*q_proj": {"config": GROUPS}, r".*up_proj": {"config": CHANNEL}}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    to_compressed_tensors(mg, tmp_path / "m")
    told = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert len(told["config_groups"]) == 2 and "lm_head" in told["ignore"]
    with torch.no_grad():
        assert torch.equal(loaded(tmp_path / "m")(IDS).logits, logits(mg))


def test_a_head_that_was_the_table_and_is_rounded_is_not_tied_to_it_again(tmp_path):
    mg = graph_of("qwen2", GROUPS)
    to_compressed_tensors(mg, tmp_path / "m")
    assert not json.loads((tmp_path / "m" / "config.json").read_text())["tie_word_embeddings"]
    with torch.no_grad():
        assert torch.equal(loaded(tmp_path / "m")(IDS).logits, logits(mg))


def test_a_format_that_the_target_lacks_is_refused_with_the_nearest(tmp_path):
    mg = graph_of("llama", {**MXFP4, "weight_element": "e3m2"})
    words = r"weight' is in mxfp6: compressed-tensors has .* Nearest: int8"
    with pytest.raises(ExportError, match=words):
        to_compressed_tensors(mg, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    report = to_compressed_tensors(mg, tmp_path / "m", fallback="float")
    assert {r.note for r in report.records if r.format != "float"} == {"dequantised"}
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    with torch.no_grad():
        assert torch.equal(plain(IDS).logits, logits(mg))


def test_quantised_embeddings_are_refused(tmp_path):
    mg = graph_of("llama")
    mg, _ = passes.quantize_transform_pass(
        mg, {"embedding": {"config": {"name": "mxint", "weight_width": 8}}}
    )
    with pytest.raises(ExportError, match=r"'model.embed_tokens.weight'.* for linear layers alone"):
        to_compressed_tensors(mg, tmp_path / "m")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"layout": "x"}, r"layout is 'x'. Allowed: packed, naive"),
        ({"fallback": "nearest"}, r"fallback is 'nearest'. Allowed: None, 'float'"),
    ],
)
def test_wrong_calls_are_told(options, words, tmp_path):
    with pytest.raises(ExportError, match=words):
        to_compressed_tensors(graph_of("llama"), tmp_path / "m", **options)


def test_damaged_folders_are_refused_in_words(tmp_path):
    folder = tmp_path / "m"
    with pytest.raises(ExportError, match=r"m: no such folder"):
        from_compressed_tensors(folder)
    to_compressed_tensors(graph_of("llama", GROUPS), folder)
    config, tensors = (folder / "config.json").read_text(), folder / "model.safetensors"
    edits = {
        r"no group of config_groups has layer 'lm_head'": ('"lm_head"', '"other"'),
        r"num_bits 5, type 'int'.* Allowed: int of 4": ('"num_bits": 4', '"num_bits": 5'),
        r"'LlamaForX' is not a model of transformers": ("LlamaForCausalLM", "LlamaForX"),
        r"is not of compressed-tensors": ("compressed-tensors", "other"),
    }
    for words, (old, new) in edits.items():
        (folder / "config.json").write_text(config.replace(old, new))
        with pytest.raises(ExportError, match=words):
            from_compressed_tensors(folder)
    to_compressed_tensors(graph_of("llama", FP8_TILES), tmp_path / "tiles")
    file = tmp_path / "tiles" / "config.json"
    text = json.loads(file.read_text())
    group = text["quantization_config"]["config_groups"]["group_0"]
    group["weights"]["block_structure"] = [24, 0]
    file.write_text(json.dumps(text))
    with pytest.raises(ExportError, match=r"block_structure \[24, 0\]. Allowed: rows and columns"):
        from_compressed_tensors(tmp_path / "tiles")
    (folder / "config.json").write_text(config)
    tensors.write_bytes(tensors.read_bytes()[:-5])
    with pytest.raises(ExportError, match=r"model.safetensors: damaged safetensors file"):
        from_compressed_tensors(folder)
