"""`mase hw --decode`: a decode engine of a Llama, from the command line."""

import json

import numpy as np
import pytest
import torch
from served_models import tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from chop.cli.main import main
from chop.nn.quantizers.mxint import MXInt

SIZES = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Llama with a tokenizer of bytes."""
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer()), **SIZES, bos_token_id=None, eos_token_id=0)
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_the_engine_of_a_folder_generates_the_tokens_of_pytorch(folder, tmp_path, capsys):
    out = tmp_path / "out"
    line = ["hw", str(folder), "--decode", "--prompt", "The", "--new-tokens", "3"]
    assert main([*line, "--memory", "ddr4", "--out", str(out)]) == 0
    assert "logits of the RTL equal those of PyTorch" in capsys.readouterr().out
    result = json.loads((out / "result.json").read_text())
    assert result["logits_compared"] == 4 * len(tokenizer())
    assert len(result["tokens"]) == 3
    assert 0 < result["bandwidth_share"] < 1
    assert {"gate_up", "head", "scores"} <= set(result["phases"])
    report = (out / result["report"]).read_text()
    assert "Memory ddr4, 128 bits, engine clock 100 MHz (assumed, not routed)." in report
    assert (out / "decoder" / "memory.bin").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_the_engine_of_a_part_is_as_wide_as_the_memory_needs(folder, tmp_path, capsys):
    out = tmp_path / "out"
    line = ["hw", str(folder), "--decode", "--prompt", "The", "--new-tokens", "2"]
    line += ["--memory", "ddr3-800", "--engine-mhz", "200", "--part", "ecp5-85k"]
    assert main([*line, "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["memory_width"] == 64  # 1.6 GB/s at 200 MHz
    assert f"{result['cells']['lut']} of 83640 LUT" in " ".join(capsys.readouterr().out.split())
    report = (out / result["report"]).read_text()
    assert "| cells | estimate | ecp5-85k |" in report
    assert f"| DSP | {result['cells']['dsp']} | 156 |" in report
    assert "limited by the engine" in report


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_the_engine_packs_the_weights_of_a_quantised_checkpoint(folder, tmp_path):
    rounded, out = tmp_path / "rounded", tmp_path / "out"
    line = ["quantize", str(folder), "--format", "mxint4", "--type", "linear"]
    assert main([*line, "--out", str(rounded)]) == 0
    line = ["hw", str(rounded), "--decode", "--prompt", "The", "--new-tokens", "2"]
    line += ["--cache-bits", "4"]
    assert main([*line, "--out", str(out)]) == 0
    assert "Weights MXINT4, cache MXINT4 for 256" in (out / "decoder" / "report.md").read_text()
    assert len(json.loads((out / "result.json").read_text())["tokens"]) == 2
    weight = LlamaForCausalLM.from_pretrained(folder).model.layers[0].mlp.down_proj.weight
    expected = MXInt(4).quantize(weight.detach().double())
    design = json.loads((out / "decoder" / "design.json").read_text())
    address, _ = design["regions"]["0.down"]
    image = np.fromfile(out / "decoder" / "memory.bin", dtype=np.uint8)[16 * address :]
    exponents, packed = image[: expected.numel() // 32], image[16:]
    values = mxint4_values(packed[: 16 * 16], exponents[:16])
    scale = expected.flatten()[:512] / torch.from_numpy(values)
    assert len(set(scale[~scale.isnan()].tolist())) == 1  # one power of two for all weights


def mxint4_values(packed, exponents):
    """Return the integers of blocks of 32 packed mantissas."""
    nibbles = np.stack((packed & 15, packed >> 4), 1).reshape(-1, 32).astype(np.int64)
    return (((nibbles ^ 8) - 8) << exponents[:, None].astype(np.int64)).reshape(-1)


WRONG = {
    "no memory 'ddr5'. Did you mean 'ddr4'?": ["--decode", "--memory", "ddr5"],
    "weight_width must be one of (4, 8), got 3": ["--decode", "--weight-bits", "3"],
    "cache_width must be one of (4, 8), got 5": ["--decode", "--cache-bits", "5"],
    "no weight format 'fixed'. Known: integer, mxint": ["--decode", "--weight-format", "fixed"],
    "residual_width must lie in 16 … 24, got 12": ["--decode", "--residual-bits", "12"],
    "max_length must lie in 1 … 16384, got 0": ["--decode", "--cache-tokens", "0"],
    "new_tokens must be 1 or more, got 0": ["--decode", "--new-tokens", "0"],
    "prompt: the text has no tokens": ["--decode", "--prompt", ""],
    "need a cache of 17 tokens, got 16": [
        "--decode",
        "--prompt",
        "The prompt",
        "--cache-tokens",
        "16",
    ],
    "engine_mhz must be above 0, got 0": ["--decode", "--engine-mhz", "0"],
    "memory: this option is for a decode engine: give --decode too": ["--memory", "ddr4"],
    "part: this option is for a decode engine: give --decode too": ["--part", "ecp5-85k"],
    "unknown part 'ecp5-86k'. Did you mean 'ecp5-85k'?": ["--decode", "--part", "ecp5-86k"],
    "device: the FPGA of a decode engine is --part": ["--decode", "--device", "ecp5-85k"],
    "ice40-hx1k has 1280. It fits with --part ecp5-": ["--decode", "--part", "ice40-hx1k"],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_are_named(folder, tmp_path, capsys, message):
    assert main(["hw", str(folder), *WRONG[message], "--out", str(tmp_path / "out")]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_dry_run_builds_nothing(folder, tmp_path):
    out = tmp_path / "out"
    assert main(["hw", str(folder), "--decode", "--dry-run", "--out", str(out)]) == 0
    assert not (out / "decoder").exists()


def test_other_models_have_no_decode_engine(tmp_path, capsys):
    config = GPT2Config(vocab_size=len(tokenizer()), n_embd=32, n_layer=1, n_head=2, n_positions=32)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    line = ["hw", str(tmp_path / "gpt"), "--decode", "--out", str(tmp_path / "out")]
    assert main(line) != 0
    assert "model_type must be 'llama', got 'gpt2'" in capsys.readouterr().err
    assert main(["hw", "mlp", *line[2:]]) != 0
    assert "model 'mlp' is no Hugging Face Llama" in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_is_refused(folder, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((folder / name).read_bytes())
    assert main(["hw", str(bare), "--decode", "--out", str(tmp_path / "out")]) != 0
    assert "tokenizer" in capsys.readouterr().err
