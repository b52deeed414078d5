"""Small random Llamas for tests of the decode engine."""

from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from chop.hw.decode.decode_model import DecodeOptions, quantize_llama
from chop.hw.decode.llama_weights import read_llama

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def small_llama(seed=0, **sizes):
    """Return a random Llama whose activations have the spread of a trained one."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SMALL | sizes)).eval()
    for name, weight in model.named_parameters():
        scale = 1.0 if "norm" in name else 4.0
        weight.data.mul_(scale).add_(torch.randn_like(weight) * (0.1 if "norm" in name else 0.0))
    return model


def rounded_llama(number, **sizes):
    """Return a random Llama whose matrices are numbers of a format."""
    model = small_llama(**sizes)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = number.quantize(module.weight.data)
    return model


def integer_llama(seed=0, *, sizes=None, **options):
    """Return a small Llama in integers."""
    model = small_llama(seed, **(sizes or {}))
    tokens = torch.randint(0, model.config.vocab_size, (24,), generator=torch.manual_seed(seed))
    settings = DecodeOptions(**{"max_length": 64} | options)
    return quantize_llama(read_llama(model), tokens, settings)


def edge_llama(**options):
    """Return an integer Llama with tiny tokens, narrow vectors and equal rows of the head."""
    weights = read_llama(small_llama())
    embedding, head = weights.embedding.clone(), weights.head.clone()
    embedding[40:] *= 40.0
    embedding[1] *= 0.002
    head[1::2] = head[0::2]
    edge = replace(weights, embedding=embedding, head=head)
    model = quantize_llama(edge, torch.arange(8), DecodeOptions(**{"max_length": 32} | options))
    narrow = dict.fromkeys(("query", "value", "up", "middle"), 2)
    layers = tuple(
        replace(layer, fracs={n: f + narrow.get(n, 0) for n, f in layer.fracs.items()})
        for layer in model.layers
    )
    fracs = {name: frac + 2 * (name == "logits") for name, frac in model.fracs.items()}
    return replace(model, layers=layers, fracs=fracs)
