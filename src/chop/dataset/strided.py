"""Windows of running text that overlap: each token is predicted from many before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from chop.dataset.row_selection import IGNORED


class StridedRows:
    """Consecutive rows of running text, each with the tokens before it as context.

    A row has `length` tokens, fewer at the start of the text. Only the tokens of the row itself
    have labels, so that every token of the text counts once.
    """

    def __init__(self, rows: Any, length: int, indices: Iterable[int] | None = None) -> None:
        self.rows, self.length = rows, length
        self.indices = list(range(len(rows)) if indices is None else indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        index = self.indices[number]
        own = self._tokens(index)
        before: list[torch.Tensor] = []
        while index > 0 and len(own) + sum(map(len, before)) < self.length:
            index -= 1
            before.insert(0, self._tokens(index))
        context = torch.cat(before)[-(self.length - len(own)) :] if before else own[:0]
        ids = torch.cat([context, own])
        labels = torch.cat([torch.full_like(context, IGNORED), own])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    def _tokens(self, index: int) -> torch.Tensor:
        return torch.as_tensor(self.rows[index]["input_ids"]).long()

    def select(self, indices: Iterable[int]) -> StridedRows:
        """Return some of the rows; their context stays."""
        return StridedRows(self.rows, self.length, [self.indices[i] for i in indices])
