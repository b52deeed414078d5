"""llama-imdb in a decode engine: 32 tokens in RTL, and the same from `generate` in PyTorch."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chop.actions.decoder_build import DecoderOptions, build_decoder
from chop.hub import local_folder

TEXT, COUNT = "I watched this film because", 32


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_a_trained_llama_generates_the_same_tokens_in_rtl_and_in_pytorch(tmp_path):
    folder = local_folder("llama-imdb", "model")
    if folder is None:
        pytest.skip("set MASE_MODELS to a folder that holds 'llama-imdb'")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    options = DecoderOptions(cache_tokens=64, new_tokens=COUNT, residual_bits=16)
    built = build_decoder(model, prompt, tmp_path, options)  # raises if a logit differs
    assert built.facts.logits_compared == (1 + COUNT) * model.config.vocab_size
    assert built.facts.bandwidth_share > 0.9
    inputs = torch.tensor([prompt])
    tokens = built.graph().generate(inputs, max_new_tokens=COUNT, do_sample=False)[0].tolist()
    expected = prompt + built.tokens
    assert tokens == expected[: len(tokens)]
    assert tokens == expected or tokens[-1] == model.config.eos_token_id  # the engine goes on
