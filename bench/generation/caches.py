"""llama-imdb with its cache in number formats: capacity, agreement, perplexity.

`equal_tokens` compares texts that each go on from their own tokens: after a first difference they
are different texts. `agreement` is the share of the tokens that the float cache wrote which this
one chooses too, after the same tokens before. `capacity` is measured in bytes, against 16 bits for
each number.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from subject import BATCH, PROMPT, Subject, agreement

from chop.kernels.cache import PackedCache

FORMATS: dict[str, Any] = {
    "float": "float",
    "int8": "int8",
    "mxint8": "mxint8",
    "mxfp8": "mxfp8",
    "int4": "int4",
    "mxint4": "mxint4",
    "mxfp4": "mxfp4",
    "mxint4, first and last layer mxint8": {"default": "mxint4", 0: "mxint8", 5: "mxint8"},
}


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per format."""
    subject = Subject(asked)
    truth = subject.tokens(subject.model)
    texts = torch.cat([subject.prompts.cpu(), truth], 1)
    graph = subject.graph()
    for name, formats in FORMATS.items():
        caches: list[PackedCache] = []

        def past(formats: Any = formats, caches: list[PackedCache] = caches) -> PackedCache:
            caches.append(PackedCache(subject.model.config, formats))
            return caches[-1]

        found = subject.tokens(graph, past=past)
        own = forced(subject, graph.model, texts, formats)[0][:, PROMPT - 1 :]
        rows = torch.stack([row["input_ids"] for row in subject.rows])
        yield {
            "cache": name,
            "capacity": caches[0].capacity(),
            "bytes_per_token": caches[0].nbytes / BATCH / caches[0].get_seq_length(),
            "agreement": float((own == truth).float().mean()),
            **agreement(found, truth),
            "perplexity": forced(subject, graph.model, rows, formats)[1],
        }


@torch.no_grad()
def forced(
    subject: Subject, model: torch.nn.Module, texts: torch.Tensor, formats: Any
) -> tuple[torch.Tensor, float]:
    """The next token chosen at each place of texts, and their perplexity, through the cache."""
    chosen, surprise = [], 0.0
    for batch in texts.split(8):
        ids = batch.to(subject.device)
        past = PackedCache(subject.model.config, formats)
        scores = model(input_ids=ids, past_key_values=past).logits[:, :-1].float()
        surprise += float(
            F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        )
        chosen.append(scores.argmax(-1).cpu())
    return torch.cat(chosen), math.exp(surprise / (texts.shape[0] * (texts.shape[1] - 1)))
