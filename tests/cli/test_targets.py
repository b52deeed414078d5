"""`mase quantize --bits` and `--for`: formats that the target runs."""

from __future__ import annotations

import pytest
import torch
from covering import first_and_slow
from transformers import LlamaConfig, LlamaForCausalLM

from chop import MaseGraph
from chop.actions.targets import TARGETS, check_target
from chop.errors import ConfigError
from chop.passes import pack_weights_transform_pass


def saved_llama(place, **config):
    """Save a tiny Llama with the rows of a table that real models have: zeros, and tiny values."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=96, **sizes | heads | config))
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 0  # the padding token
        model.model.embed_tokens.weight[1] *= 1e-7  # a token that no text had
    model.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return saved_llama(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Return a model whose rows are no multiples of 32."""
    sizes = {"hidden_size": 48, "intermediate_size": 80, "tie_word_embeddings": True}
    return saved_llama(tmp_path_factory.mktemp("uneven"), **sizes)


EXPORTS = {"gguf": "--to gguf", "vllm": "--to compressed-tensors", "onnx": "--to onnx"}


CASES = [
    ("gguf", 8, "llama"),
    ("vllm", 4, "tied"),
    ("onnx", 4, "llama"),
    ("gguf", 4, "tied"),
    ("vllm", 8, "uneven"),
    ("gguf", 8, "tied"),
    ("gguf", 4, "llama"),
    ("vllm", 8, "llama"),
    ("vllm", 4, "llama"),
    ("vllm", 8, "tied"),
    ("onnx", 8, "llama"),
    ("onnx", 4, "tied"),
    ("onnx", 8, "tied"),
    *((target, bits, "uneven") for target in ("vllm", "onnx") for bits in (4, 8)),
]
"""Targets, widths and models; the first five have every value of each."""


@pytest.mark.share(2)
@pytest.mark.parametrize(("target", "bits", "model"), first_and_slow([*dict.fromkeys(CASES)], 5))
def test_what_is_quantised_for_a_target_is_exported_exactly(
    mase, request, target, bits, model
) -> None:
    if target == "onnx":
        pytest.importorskip("onnxscript", reason="needs masegraph[export]")
    place = request.getfixturevalue(model)
    ran = mase(f"quantize {place} --bits {bits} --for {target} --out q")
    assert ran.code == 0, ran.err
    ran = mase(f"export q {EXPORTS[target]} --out e --json")
    assert ran.code == 0, ran.err
    assert ran.document["rounded"] == []


def test_a_target_that_takes_no_layer_of_the_model_is_refused(mase, uneven) -> None:
    ran = mase(f"quantize {uneven} --bits 8 --for gguf --out q")
    assert ran.code != 0 and "target gguf takes rows of a multiple of 32, and no layer" in ran.err


KERNELS = [("cpu", 4, "tied"), ("gpu", 8, "llama"), ("cpu", 8, "tied"), ("gpu", 4, "llama")]
KERNELS += [("cpu", 4, "llama"), ("gpu", 8, "tied"), ("cpu", 8, "llama"), ("gpu", 4, "tied")]


@pytest.mark.parametrize(("target", "bits", "model"), first_and_slow(KERNELS, 2))
def test_every_matrix_for_a_kernel_is_packed(mase, request, target, bits, model) -> None:
    place = request.getfixturevalue(model)
    assert mase(f"quantize {place} --bits {bits} --for {target} --out q").code == 0
    _, info = pack_weights_transform_pass(MaseGraph.from_checkpoint("q/graph"), {})
    kept = {row["module"] for row in info["modules"] if row["packed"] == "kept"}
    assert all("norm" in module or "rotary" in module for module in kept), kept


def test_four_bits_are_one_packable_format_and_8_bits_for_the_words(mase, llama) -> None:
    told = mase(f"quantize {llama} --bits 4 --out q --json").document["allocation"]["assignment"]
    assert set(told.values()) == {"mxint4/32", "mxint8/32"}
    assert {n for n, f in told.items() if f == "mxint8/32"} == {"model_embed_tokens", "lm_head"}
    graph = MaseGraph.from_checkpoint("q/graph")
    _, info = pack_weights_transform_pass(graph, {})
    assert {r["packed"] for r in info["modules"] if "proj" in r["module"]} == {"mxint4"}


def test_a_quantised_model_is_saved_packed(mase, llama, tmp_path) -> None:
    sizes = []
    for more in ("", "--keep-floats"):
        assert mase(f"quantize {llama} --bits 4 {more} --out q").code == 0
        sizes.append((tmp_path / "q" / "graph.safetensors").stat().st_size)
    assert sizes[0] < 0.4 * sizes[1]


def test_data_widens_the_layers_that_lose_most(mase, trained) -> None:
    data = "--dataset digits --calibration-rows 32"
    told = mase(f"quantize {trained} {data} --bits 4 --out q --json").document
    assert set(told["allocation"]["assignment"].values()) <= {"mxint4/32", "mxint8/32"}


def test_other_widths_are_asked_for_by_name(mase, trained) -> None:
    line = f"quantize {trained} --dataset digits --calibration-rows 32 --out q"
    ran = mase(f"{line} --bits 3")
    assert ran.code != 0 and "or give --widths (2,3,4,5,6,8)" in ran.err
    told = mase(f"{line} --bits 3 --widths 2,3,4 --json").document
    assert set(told["allocation"]["assignment"].values()) <= {"mxint2", "mxint3", "mxint4"}


WRONG = {
    "--for tpu": "argument --for: expected cpu, gpu, gguf",
    "--for gguf --format int4/32": "'int4/32' does not run on target 'gguf'. Allowed: mxint4/32",
    "--for gguf --width 4": "for chooses the formats of a target",
    "--widths 4,8": "widths are those to choose from for --bits",
}


@pytest.mark.parametrize("more", WRONG)
def test_wrong_targets_are_refused(mase, llama, more) -> None:
    ran = mase(f"quantize {llama} {more} --out q")
    assert ran.code != 0 and WRONG[more] in ran.err, ran.err


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_runs_its_own_formats_and_no_other(name) -> None:
    for text in TARGETS[name].formats.values():
        assert check_target(name, text) is TARGETS[name]
    with pytest.raises(ConfigError, match="does not run on target"):
        check_target(name, "fp8_e5m2")
