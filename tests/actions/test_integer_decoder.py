"""Graph of an integer Llama: `generate` gives the tokens and logits of the engine's definition."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from chop import MaseGraph
from chop.actions.decoder_build import DecoderOptions, build_decoder
from chop.actions.integer_decoder import decoder_graph, integer_decoder
from chop.errors import ConfigError
from chop.hw.decode.decode_model import DecodeOptions, quantize_llama
from chop.hw.decode.integer_llama import generate
from chop.hw.decode.llama_weights import read_llama
from chop.passes import quantize_transform_pass

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
CALIBRATION = torch.arange(24)[None]
PROMPTS = [[3, 1, 4], [1, 5, 9]]


def llama():
    """Return a random Llama that does not repeat one token."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    for name, weight in model.named_parameters():
        weight.data.mul_(1.0 if "norm" in name else 6.0)
    return model


def integer_pair(**options):
    """Return an integer Llama and its graph."""
    model = llama()
    settings = DecodeOptions(**{"max_length": 32} | options)
    codes = quantize_llama(read_llama(model), CALIBRATION, settings)
    return codes, integer_decoder(model, CALIBRATION, settings)


@pytest.mark.parametrize("options", [{}, {"cache_width": 4}, {"weight_format": "integer"}])
def test_generate_gives_the_tokens_and_logits_of_the_engine(options):
    codes, graph = integer_pair(**options)
    for prompt in PROMPTS:
        expected = generate(codes, prompt, 6)
        result = graph.generate(
            torch.tensor([prompt]), max_new_tokens=6, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        assert result.sequences[0].tolist() == prompt + expected.tokens
        logits = torch.cat(result.logits).double() * 2.0 ** codes.fracs["logits"]
        assert torch.equal(logits, expected.logits.double())
    assert len(set(expected.tokens)) > 1


def test_rows_of_prompts_do_not_change_each_other():
    codes, graph = integer_pair()
    rows = graph.generate(torch.tensor(PROMPTS), max_new_tokens=4, do_sample=False)
    assert rows.tolist() == [prompt + generate(codes, prompt, 4).tokens for prompt in PROMPTS]


def test_a_cache_continues_a_sequence():
    _, graph = integer_pair()
    tokens, past = torch.tensor(PROMPTS), DynamicCache()
    whole = graph.model(input_ids=tokens).logits
    first = graph.model(input_ids=tokens[:, :2], past_key_values=past)
    assert first.past_key_values is past
    last = graph.model(input_ids=tokens[:, 2:], past_key_values=past, logits_to_keep=1).logits
    assert torch.equal(torch.cat((first.logits, last), 1), whole)
    assert past.get_seq_length() == 3


def test_the_graph_may_be_that_of_a_quantised_model():
    config = {"name": "mxint", "weight_width": 4, "data_in_width": 8}
    graph = MaseGraph(llama(), hf_input_names=["input_ids"])
    rounded, _ = quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    tokens = torch.tensor(PROMPTS)
    options = DecodeOptions(max_length=32)
    expected = integer_decoder(llama(), CALIBRATION, options).model(input_ids=tokens).logits
    logits = integer_decoder(rounded, CALIBRATION, options).model(input_ids=tokens).logits
    assert logits.shape == expected.shape
    assert torch.nn.functional.cosine_similarity(logits, expected, dim=-1).min() > 0.99


def test_sampling_and_beams_are_those_of_transformers():
    _, graph = integer_pair()
    tokens = torch.tensor(PROMPTS)
    sampled = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        sampled.append(graph.generate(tokens, max_new_tokens=5, do_sample=True, top_k=0))
    assert torch.equal(sampled[0], sampled[1])
    assert not torch.equal(sampled[0], sampled[2])
    assert graph.generate(tokens, max_new_tokens=3, num_beams=2).shape == (2, 6)


def test_padded_prompts_and_other_caches_are_refused():
    _, graph = integer_pair()
    tokens = torch.tensor(PROMPTS)
    for more in ({"attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])},
                 {"position_ids": torch.tensor([[0, 0, 1]])}):  # fmt: skip
        with pytest.raises(ConfigError, match="the rows of input_ids are padded"):
            graph.model(input_ids=tokens, **more)
    cache = StaticCache(config=graph.model.config, max_cache_len=8)
    with pytest.raises(ConfigError, match=r"is a StaticCache\. Allowed: a DynamicCache"):
        graph.model(input_ids=tokens, past_key_values=cache)


def test_a_cache_that_is_full_is_refused():
    graph = decoder_graph(integer_pair(max_length=4)[0], llama().config)
    with pytest.raises(ConfigError, match="the cache holds 4 tokens, and it is full"):
        graph.generate(torch.tensor(PROMPTS), max_new_tokens=3, do_sample=False)


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_generate_gives_the_tokens_of_the_rtl(tmp_path):
    options = DecoderOptions(cache_tokens=32, new_tokens=6, cache_bits=4)
    built = build_decoder(llama(), PROMPTS[0], tmp_path, options)
    tokens = built.graph().generate(torch.tensor(PROMPTS[:1]), max_new_tokens=6, do_sample=False)
    assert tokens[0].tolist() == PROMPTS[0] + built.tokens
