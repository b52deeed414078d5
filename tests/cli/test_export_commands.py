"""`mase export` and `mase import`."""

import numpy as np
import pytest
import torch

from chop import MaseGraph


@pytest.fixture
def language_model(tmp_path):
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "bos_token_id": 0}
    config = transformers.LlamaConfig(**sizes, **heads, eos_token_id=0)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_a_model_goes_to_gguf_and_comes_back(mase, language_model, tmp_path):
    line = f"export {language_model} --task causal-lm --to gguf --format Q4_0 --json"
    ran = mase(line, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert ran.document["file"] == "model.gguf" and ran.document["bits"] < 6
    assert (tmp_path / "out" / "tensors.csv").is_file()
    file = tmp_path / "out" / "model.gguf"
    assert mase(f"import {file} --no-pack", "--out", tmp_path / "in").code == 0
    graph = MaseGraph.from_checkpoint(tmp_path / "in" / "graph")
    assert type(graph.model.lm_head).__name__ == "LinearScaleInteger"


def test_a_cache_has_scales_from_a_dataset(mase, language_model, tmp_path):
    from safetensors.torch import load_file

    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 64, (400,), generator=draw).numpy()
    (tmp_path / "tokens").mkdir()
    for split in ("train", "test"):
        np.savez(tmp_path / "tokens" / f"{split}.npz", ids=ids)
    line = f"export {language_model} --task causal-lm --to compressed-tensors --cache fp8_e4m3"
    line += f" --dataset {tmp_path / 'tokens'} --max-token-len 16 --calibration-rows 4"
    ran = mase(line, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    stored = load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert float(stored["model.layers.0.self_attn.k_scale"]) > 0


@pytest.mark.parametrize(
    "line, words",
    [
        ("--to compressed-tensors --cache fp8_e4m3", "cache chooses scales from a dataset: give"),
        (
            "--to gguf --cache fp8_e4m3 --dataset digits",
            "cache: 'gguf' stores no format of a cache",
        ),
        (
            "--to compressed-tensors --cache fp8_e4m3 --dataset digits --calibration-rows 0",
            "calibration_rows must be at least 1, got 0",
        ),
    ],
)
def test_a_cache_without_a_place_or_data_is_refused(mase, line, words, tmp_path):
    ran = mase(f"export mlp {line}", "--out", tmp_path / "out")
    assert ran.code == 2 and words in ran.err


def test_what_a_target_lacks_is_told(mase, tmp_path):
    ran = mase("export mlp --to gguf", "--out", tmp_path / "out")
    assert ran.code != 0
    assert "Allowed: llama, qwen2, qwen3, gpt2" in ran.err
    ran = mase("import", "--out", tmp_path / "in")
    assert ran.code != 0 and "Give a GGUF or ONNX file, or a folder" in ran.err


def test_an_onnx_file_is_known_by_its_contents(mase, tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.eye(4, 8, dtype=np.float32), "fc.weight")
    node = helper.make_node("Gemm", ["x", "fc.weight"], ["y"], "fc", transB=1)
    ends = [value("x", TensorProto.FLOAT, ["n", 8])], [value("y", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph([node], "g", *ends, [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(made, tmp_path / "model.of_mine")
    ran = mase(f"import {tmp_path / 'model.of_mine'} --json", "--out", tmp_path / "in")
    assert ran.code == 0, ran.err
    assert ran.document["source"] == "onnx"
    back = MaseGraph.from_checkpoint(tmp_path / "in" / "graph")
    x = torch.arange(16.0).reshape(2, 8)
    assert torch.equal(back.model(x), x[:, :4])
    ran = mase(f"import {tmp_path / 'absent'}", "--out", tmp_path / "in")
    assert ran.code != 0 and "no such file or folder" in ran.err
