"""llama-imdb with its cache in number formats: capacity, agreement, perplexity.

`equal_tokens` compares texts that each go on from their own tokens: after a first difference they
are different texts. `agreement` is the share of the tokens that the float cache wrote which this
one chooses too, after the same tokens before. `capacity` is measured in bytes of a text of 512
tokens, against 16 bits for each number.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from subject import PROMPT, Subject, agreement

from chop.kernels.cache import PackedCache

FULL = 512
FORMATS: dict[str, Any] = {
    "float": "float",
    "int8": "int8",
    "mxint8": "mxint8",
    "mxint8, not centred": "mxint8",
    "mxint4": "mxint4",
    "mxint4, first and last layer mxint8": {"default": "mxint4", 0: "mxint8", 5: "mxint8"},
}


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per format."""
    subject = Subject(asked)
    truth = subject.tokens(subject.model)
    texts = torch.cat([subject.prompts.cpu(), truth], 1)
    graph = subject.graph()
    for name, formats in FORMATS.items():
        make = functools.partial(
            PackedCache, subject.model.config, formats, is_centred="not" not in name
        )
        found = subject.tokens(graph, past=make)
        own = forced(subject, graph.model, texts, make)[0][:, PROMPT - 1 :]
        filled = fill(make(), subject.model.config)
        rows = torch.stack([row["input_ids"] for row in subject.rows])
        yield {
            "cache": name,
            "capacity": filled.capacity(),
            "bytes_per_token": filled.nbytes / FULL,
            "agreement": float((own == truth).float().mean()),
            **agreement(found, truth),
            "perplexity": forced(subject, graph.model, rows, make)[1],
        }


def fill(cache: PackedCache, config: Any) -> PackedCache:
    """The cache after a text of as many tokens as the model takes."""
    states = torch.randn(1, config.num_key_value_heads, FULL, config.head_dim)
    for layer in range(config.num_hidden_layers):
        cache.update(states, states, layer)
    return cache


@torch.no_grad()
def forced(
    subject: Subject, model: torch.nn.Module, texts: torch.Tensor, make: Callable[[], PackedCache]
) -> tuple[torch.Tensor, float]:
    """The next token chosen at each place of texts, and their perplexity, through the cache."""
    chosen, surprise = [], 0.0
    for batch in texts.split(8):
        ids = batch.to(subject.device)
        scores = model(input_ids=ids, past_key_values=make()).logits[:, :-1].float()
        surprise += float(
            F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        )
        chosen.append(scores.argmax(-1).cpu())
    return torch.cat(chosen), math.exp(surprise / (texts.shape[0] * (texts.shape[1] - 1)))
