"""Cache of a batch in pages: sequences join and leave without a copy.

To a captured graph it is a batch with padding on the left, as `BatchCache` is: it takes a mask and
positions. A native decode step reads the pages themselves, so no padding takes memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from chop.kernels.cache_pages import PAGE, PagedLayer, PagedSequence, PagePool
from chop.serve.batch_cache import padded_inputs


class PagedBatch(Cache):
    """Cache of a batch whose rows are `sequences` of one pool."""

    def __init__(self, pool: PagePool, sequences: Sequence[PagedSequence] = ()) -> None:
        self.sequences = list(sequences)
        layers = [PagedLayer(self, stored, pool) for stored in pool.layers]
        super().__init__(layers=layers)  # type: ignore[arg-type]
        self._table: tuple[Any, Any] = (None, None)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [sequence.length for sequence in self.sequences]

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths, default=0)

    @property
    def tokens_of_memory(self) -> int:
        """Tokens that the memory of the rows has room for."""
        return PAGE * sum(len(sequence.pages) for sequence in self.sequences)

    def inputs(self, tokens: Tensor) -> dict[str, Any]:
        """Return the model's inputs for `tokens`, and take pages for them."""
        lengths = self.lengths
        for sequence in self.sequences:
            sequence.grow(tokens.shape[1])
        return {**padded_inputs(tokens, lengths), "past_key_values": self}

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows of the batch; the pages of the others return to the pool."""
        staying = [self.sequences[row] for row in rows]
        for sequence in self.sequences:
            if sequence not in staying:
                sequence.release()
        self.sequences = staying
        self._count_tokens()

    def join(self, other: PagedBatch) -> None:
        """Append the rows of `other` to the batch."""
        self.sequences += other.sequences
        other.sequences = []
        for own, more in zip(self._paged_layers(), other._paged_layers(), strict=True):
            own.begin_as(more)
        self._count_tokens()

    def _count_tokens(self) -> None:
        for layer in self._paged_layers():
            layer.cumulative_length = self.width

    def page_table(self) -> tuple[Any, int]:
        """Return the pages of all rows as an array, and its entries per row."""
        form = [(id(sequence), len(sequence.pages)) for sequence in self.sequences]
        most = max((count for _, count in form), default=0)
        if self._table[0] != form:
            rows = [[*s.pages, *[0] * (most - len(s.pages))] for s in self.sequences]
            numbers = [page for row in rows for page in row]
            self._table = (form, (ctypes.c_int64 * len(numbers))(*numbers))
        return self._table[1], most

    def _paged_layers(self) -> list[Any]:
        return list(self.layers)
