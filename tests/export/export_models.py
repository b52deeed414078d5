"""Small models of the families that targets run, and how to quantise them."""

from __future__ import annotations

import copy
import functools

import torch
import transformers

import chop.passes as passes
from chop import MaseGraph

LLAMA = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GPT2 = {
    "vocab_size": 96,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FAMILIES = {
    "llama": LLAMA | {"tie_word_embeddings": False},
    "qwen2": LLAMA | {"tie_word_embeddings": True, "head_dim": 16},
    "qwen3": LLAMA | {"tie_word_embeddings": False},
    "gpt2": GPT2,
}
IDS = torch.arange(20).reshape(2, 10) * 4
MXINT8 = {"name": "mxint", "weight_width": 8, "data_in_width": "NA", "bias_width": "NA"}
MXINT4 = {**MXINT8, "weight_width": 4}
MXFP4 = {
    "name": "mxfp",
    "weight_element": "e2m1",
    "data_in_element": "NA",
    "bias_element": "NA",
}
INTEGER8 = {**MXINT8, "name": "integer", "weight_frac_width": 7}
GROUPS = {
    **MXINT8,
    "name": "scale_integer",
    "weight_width": 4,
    "weight_granularity": "group",
    "weight_group_size": 32,
}


def language_model(family: str):
    """A language model with weights that are not all alike."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@functools.cache
def _captured(family: str) -> MaseGraph:
    return MaseGraph(language_model(family), dummy_in={"input_ids": IDS})


def graph_of(family: str, config=None) -> MaseGraph:
    """The model as a graph, its linear layers in the format of `config`."""
    mg = copy.deepcopy(_captured(family))
    if config is not None:
        mg, _ = passes.quantize_transform_pass(mg, {"linear": {"config": config}})
    return mg


def logits(mg: MaseGraph) -> torch.Tensor:
    """What the graph says of `IDS`."""
    with torch.no_grad():
        return mg.model(IDS).logits
