"""Text as tokens in flat arrays, read with NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from chop.dataset.npz import check_tokens, read_arrays
from chop.errors import DataError

KEYS = ("ids", "offsets", "labels")


class TokenArrays(Dataset[dict[str, Any]]):
    """Sequences of tokens: `i` is `ids[offsets[i]:offsets[i + 1]]`, its class `labels[i]`.

    A sequence longer than `max_token_len` keeps its last token, the separator.
    """

    column_names = ("input_ids", "attention_mask", "labels")

    def __init__(
        self,
        ids: np.ndarray,
        offsets: np.ndarray,
        labels: np.ndarray,
        max_token_len: int = 512,
        *,
        where: str = "TokenArrays",
    ) -> None:
        for name, array in zip(KEYS, (ids, offsets, labels), strict=True):
            if array.ndim != 1:
                raise DataError(f"{where}: {name} has {array.ndim} dimensions. Allowed: one.")
        end = offsets[-1] if len(offsets) else "nothing"
        if len(offsets) != len(labels) + 1 or end != len(ids):
            raise DataError(
                f"{where}: {len(labels)} labels need {len(labels) + 1} offsets that end at "
                f"{len(ids)}; got {len(offsets)} that end at {end}."
            )
        for name, array in (("ids", ids), ("labels", labels)):
            check_tokens(array, f"{where}: {name}")
        if offsets.dtype.kind not in "iu" or offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise DataError(f"{where}: offsets. Allowed: whole numbers that grow from 0 on.")
        self.ids, self.offsets, self.labels = ids, offsets, labels
        self.max_token_len = max_token_len

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence."""
        return np.minimum(np.diff(self.offsets), self.max_token_len)

    def tokens(self, index: int) -> np.ndarray:
        """Return the tokens of one sequence."""
        whole = self.ids[self.offsets[index] : self.offsets[index + 1]]
        if len(whole) <= self.max_token_len:
            return whole
        return np.append(whole[: self.max_token_len - 1], whole[-1])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"TokenArrays: row {index} of {len(self)}.")
        tokens = self.tokens(index % len(self)).tolist()
        label = int(self.labels[index])
        return {"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": label}

    def select(self, indices: Sequence[int] | range | np.ndarray) -> TokenArrays:
        """Return the sequences `indices`, in that order."""
        rows = [self.tokens(int(i)) for i in indices]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        ids = np.concatenate(rows) if rows else self.ids[:0]
        return TokenArrays(ids, offsets, self.labels[list(indices)], self.max_token_len)


def load_token_arrays(folder: str | Path, max_token_len: int = 512) -> dict[str, TokenArrays]:
    """Return the splits in `folder`: `<split>.npz` with `ids`, `offsets` and `labels`.

    The caller must know the tokenizer; the file does not name it.
    """
    files = sorted(Path(folder).glob("*.npz"))
    if not files:
        raise DataError(f"load_token_arrays: no .npz file in '{folder}'.")
    splits = {}
    for file in files:
        ids, offsets, labels = read_arrays(file, KEYS).values()
        splits[file.stem] = TokenArrays(ids, offsets, labels, max_token_len, where=str(file))
    return splits
