"""Llama with the weights of a graph: rounded weights keep their values."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from chop import MaseGraph
from chop.actions.float_llama import float_llama
from chop.errors import ConfigError
from chop.nn.quantizers.mxint import MXInt
from chop.passes import quantize_transform_pass

SIZES = {
    "vocab_size": 32, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
}  # fmt: skip


def llama_graph():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    return MaseGraph(model, hf_input_names=["input_ids"])


def test_a_float_graph_keeps_its_weights():
    graph = llama_graph()
    expected = graph.model.state_dict()
    for name, value in float_llama(graph).named_parameters():
        assert torch.equal(value, expected[name])


def test_a_quantised_checkpoint_keeps_its_rounded_weights(tmp_path):
    graph = llama_graph()
    floats = {name: value.clone() for name, value in graph.model.state_dict().items()}
    config = {"name": "mxint", "weight_width": 4, "data_in_width": 8}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    graph.export(tmp_path / "graph")
    model = float_llama(MaseGraph.from_checkpoint(tmp_path / "graph"))
    for name, value in model.named_parameters():
        is_linear = name.endswith("proj.weight") or name == "lm_head.weight"
        expected = MXInt(4).quantize(floats[name]) if is_linear else floats[name]
        assert torch.equal(value, expected), name


def test_a_graph_without_the_layers_of_a_llama_is_refused():
    graph = llama_graph()
    del graph.model.model.layers
    with pytest.raises(ConfigError, match=r"the graph has no layer 'model\.layers\.0"):
        float_llama(graph)


@pytest.mark.slow
def test_a_graph_of_another_model_is_refused():
    config = GPT2Config(vocab_size=32, n_embd=32, n_layer=1, n_head=2, n_positions=16)
    graph = MaseGraph(GPT2LMHeadModel(config).eval(), hf_input_names=["input_ids"])
    with pytest.raises(ConfigError, match="model_type must be 'llama', got 'gpt2'"):
        float_llama(graph)
