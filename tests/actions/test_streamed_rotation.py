"""Rotation of folders of safetensors, one decoder layer at a time."""

import json

import pytest
import torch
import transformers
from covering import first_and_slow
from safetensors.torch import load_file

from chop import MaseGraph
from chop.actions import streamed_rotation
from chop.actions.post_training import quantize_with_data
from chop.actions.stream_memory import check_memory, predict
from chop.actions.streamed_quantization import (
    WEIGHT_ALONE,
    StreamRequest,
    plan_stream,
    quantize_stream,
)
from chop.actions.streamed_rotation import rotate_folder
from chop.errors import ConfigError
from chop.export import to_compressed_tensors
from chop.nn.quantizers.formats import spelled_settings
from chop.passes import rotate_transform_pass

SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,  # four times twelve: no power of two
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
FAMILIES = ["llama", "qwen2", "qwen3", "gemma"]
FAST = {"gptq": {"rounds": 0, "order": "importance"}}


def model_of(family, **more):
    torch.manual_seed(0)
    sizes = SIZES | {"tie_word_embeddings": family in ("qwen2", "gemma")} | more
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A function that returns the folder of a small model, in several shards."""
    places = {}

    def folder(family="llama", **more):
        key = (family, *more)
        if key not in places:
            places[key] = tmp_path_factory.mktemp("source") / family
            model_of(family, **more).save_pretrained(places[key], max_shard_size="60KB")
        return places[key]

    return folder


def batches():
    draw = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 96, (3, 20), generator=draw)} for _ in range(2)]


def plan_of(folder, *methods, text="mxint4/16", **options):
    return plan_stream(StreamRequest(folder, text, ("rotate", *methods), options), batches())


def tensors_of(folder):
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def rotated_graph(family, **options):
    """The graph of a model in memory, rotated by the pass."""
    graph = MaseGraph(model_of(family), dummy_in={"input_ids": batches()[0]["input_ids"]})
    return rotate_transform_pass(graph, options)[0]


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("family", first_and_slow(FAMILIES, 1))
def test_the_rotated_folder_is_the_same_model(family, source, tmp_path):
    ids = batches()[1]["input_ids"]
    rotate_folder(plan_of(source(family)).rotation, tmp_path, lambda *_: None)
    rotated = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = logits(model_of(family), ids)
    assert torch.allclose(logits(rotated, ids), expected, atol=2e-5 * float(expected.abs().max()))
    before, after = tensors_of(source(family)), tensors_of(tmp_path)
    assert before.keys() | {"lm_head.weight"} == after.keys()
    assert all(not torch.equal(before[n], after[n]) for n in before if before[n].dim() > 1)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"kind": "random", "seed": 3}, {"heads": False}])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_weights_are_those_of_the_pass_on_the_whole_model(family, options, source, tmp_path):
    plan = plan_of(source(family), rotate=options)
    records = rotate_folder(plan.rotation, tmp_path, lambda *_: None)
    graph = rotated_graph(family, **options)
    ours, theirs = tensors_of(tmp_path), dict(graph.model.named_parameters())
    matrices = [name for name, value in theirs.items() if value.dim() > 1]
    assert len(matrices) == 2 * 7 + 2
    for name in matrices:
        assert torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-6)
    assert [row["streams"] for row in records] == [[48], [48]]
    assert [row["heads"] for row in records] == [[16] * options.get("heads", True)] * 2


@pytest.mark.parametrize("method", first_and_slow(["nearest", "gptq"]))
def test_rounding_follows_as_in_memory(method, source, tmp_path):
    options = FAST if method == "gptq" else {}
    report = quantize_stream(plan_of(source(), method, text="int4/16", **options), tmp_path / "out")
    assert {row["method"] for row in report.records} | {"nearest"} == {"rotate", "nearest", method}
    form, settings = spelled_settings("int4/16", "format")
    weight = {f"weight_{key}": value for key, value in settings.items()}
    rules = {r"model\.layers\..*proj": {"config": {"name": form.name, **weight, **WEIGHT_ALONE}}}
    graph = rotated_graph("llama")
    quantize_with_data(graph, {"by": "regex_name", **rules}, batches(), method, options)
    to_compressed_tensors(graph, tmp_path / "memory", fallback="float")
    ours, theirs = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "memory")
    packed = [name for name in theirs if name.endswith("weight_packed")]
    assert len(packed) == 14
    equal = [(ours[name] == theirs[name]).double().mean() for name in packed]
    assert min(equal) > 0.97  # sums over other roundings of the same activations
    assert not list((tmp_path / "out").glob(".*"))


def test_an_interrupted_rotation_goes_on_at_the_layer_it_was_in(source, tmp_path):
    plan, seen = plan_of(source()), []

    def stop(step, number, count):
        seen.append((step, number))
        if number == 2 and len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_stream(plan, tmp_path / "cut", progress=stop)
    quantize_stream(plan, tmp_path / "cut", progress=stop)
    assert seen[:3] == [("rotate: layer", 1), ("rotate: layer", 2), ("rotate: layer", 2)]
    quantize_stream(plan, tmp_path / "whole")
    ours, theirs = tensors_of(tmp_path / "cut"), tensors_of(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_tensors_keep_their_types_except_for_matrices_of_layers(tmp_path):
    model_of("llama").bfloat16().save_pretrained(tmp_path / "in")
    plan = plan_of(tmp_path / "in")
    rotate_folder(plan.rotation, tmp_path, lambda *_: None)
    types = {name: tensor.dtype for name, tensor in tensors_of(tmp_path).items()}
    wide = {name for name, dtype in types.items() if dtype == torch.float32}
    assert wide == {name for name in types if "_proj" in name}
    assert set(types.values()) == {torch.float32, torch.bfloat16}


def test_models_that_a_folder_cannot_hold_rotated_are_refused(source):
    with pytest.raises(ConfigError, match=r"rotate.online: true. Allowed with max_memory: false"):
        plan_of(source(), rotate={"online": True})
    with pytest.raises(ConfigError, match=r"rotates dense layers, and 'model.layers.0' has expe"):
        plan_of(source("mixtral", num_local_experts=4, head_dim=12))
    words = r"it has model.norm.weight, model.norm.bias outside of its layers. Allowed with"
    with pytest.raises(ConfigError, match=words):
        plan_of(source("stablelm"))


@pytest.mark.slow
def test_layers_whose_stream_has_norms_behind_it_are_refused_by_name(source, tmp_path):
    plan = plan_of(source("gemma2"))
    with pytest.raises(ConfigError, match=r"rotate: .*"):
        rotate_folder(plan.rotation, tmp_path, lambda *_: None)


def test_rotated_parameters_are_compared_with_the_layer(source, tmp_path, monkeypatch):
    monkeypatch.setattr(streamed_rotation, "NEUTRAL", (2.0,))
    words = r"'model.layers.0': the rotated parameters do not fit LlamaDecoderLayer"
    with pytest.raises(ConfigError, match=words):
        rotate_folder(plan_of(source()).rotation, tmp_path, lambda *_: None)


def test_the_memory_of_a_rotation_is_predicted(source):
    plan = plan_of(source())
    predicted = predict(plan, 0)
    assert predicted.rotation > 2 * plan.stream.layer_bytes(0)
    assert "; rotation 0.00" in str(predicted)
    with pytest.raises(ConfigError, match=r"max_memory: 0.00 GiB, .* No setting fits"):
        check_memory(plan, 0, 1000, 8)


def test_the_folder_is_marked_as_untied(source, tmp_path):
    rotate_folder(plan_of(source("qwen2")).rotation, tmp_path, lambda *_: None)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
