"""llama-imdb, prompts and held-out text, shared by the sections that measure tokens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from chop import MaseGraph
from chop.actions.language import measure_language
from chop.dataset.arrays import ArrayDataset

PROMPT, ROWS, WINDOW = 24, 8, 256
"""Tokens of a prompt; rows and tokens of a row on which perplexity is measured."""
BATCH = 100


class Subject:
    """The model in float32, prompts from text it was not trained on, and rows of that text."""

    def __init__(self, asked: argparse.Namespace) -> None:
        if not asked.model or not asked.data:
            sys.exit("tokens and cache need --model and --data: folders of llama-imdb and its text")
        self.device = asked.device
        self.new = asked.new
        made = transformers.LlamaForCausalLM.from_pretrained(asked.model, dtype=torch.float32)
        made.generation_config.eos_token_id = None  # every text is as long as asked for
        self.model = made.eval().to(asked.device)
        ids = np.load(Path(asked.data) / "held.npz")["ids"].astype(np.int64)
        stride = (len(ids) - PROMPT) // asked.prompts
        starts = [i * stride for i in range(asked.prompts)]
        picked = np.stack([ids[s : s + PROMPT] for s in starts])
        self.prompts = torch.from_numpy(picked).to(asked.device)
        rows = torch.from_numpy(ids[: ROWS * WINDOW].reshape(ROWS, WINDOW))
        self.rows = ArrayDataset({"input_ids": rows})

    def graph(self) -> MaseGraph:
        """The model as a graph with a cache."""
        example = {"input_ids": self.prompts[:2], "attention_mask": self.prompts[:2] * 0 + 1}
        return MaseGraph(self.model, dummy_in=example, cache=True)

    def tokens(self, model: Any, **options: Any) -> torch.Tensor:
        """Greedy tokens after every prompt; `past` makes the cache of each batch."""
        make_past = options.pop("past", None)
        found = []
        for batch in self.prompts.split(BATCH):
            past = {} if make_past is None else {"past_key_values": make_past()}
            result = model.generate(
                input_ids=batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=self.new,
                do_sample=False,
                **past,
                **options,
            )
            found.append(result[:, PROMPT:].cpu())
        return torch.cat(found)

    def perplexity(self, model: torch.nn.Module) -> float:
        """Of the held-out rows, without a cache."""
        return measure_language(model, self.rows, batch_size=8)["perplexity"]


def agreement(found: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """Tokens alike, texts alike, and how far texts are alike from their first token on."""
    same = found == expected
    until = same.long().cumprod(1).sum(1)
    return {
        "tokens": expected.numel(),
        "equal_tokens": float(same.float().mean()),
        "equal_texts": float(same.all(1).float().mean()),
        "tokens_until_they_part": float(until.float().mean()),
    }
