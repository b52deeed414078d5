"""Keys and values in pages of a pool, which sequences of different lengths share.

A page holds `PAGE` tokens of one sequence in all layers. A sequence that grows takes another page,
and no token is ever copied. Pages are made, `SLAB` at a time, when they are first needed. A native
decode step reads them where they are; an op in PyTorch gets them side by side.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from chop.kernels.row_codecs import FloatCodec

PAGE, SLAB = 32, 32
"""Tokens of a page and pages of a slab, as in `step_ops.h`."""


def pages_for(tokens: int) -> int:
    """Return the number of pages that hold a number of tokens."""
    return -(-tokens // PAGE)


class PagePool:
    """Pages of all layers: at most `limit`, of which some are in use and some are reserved.

    A sequence reserves what it may need before it starts, so that it never waits for a page.
    """

    def __init__(self, limit: int, layers: int) -> None:
        self.limit, self.reserved = limit, 0
        self.layers = [LayerPages() for _ in range(layers)]
        self._free: list[int] = []
        self._made = 0

    @property
    def used(self) -> int:
        """Number of pages that hold tokens."""
        return self._made - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that were ever used: memory that is never written is not taken."""
        return self._made * sum(layer.page_bytes for layer in self.layers)

    def has_room(self, tokens: int) -> bool:
        """Return True if a sequence of that many tokens may start."""
        return self.reserved + pages_for(tokens) <= self.limit

    def take(self) -> int:
        """Return the number of a free page."""
        if self._free:
            return self._free.pop()
        assert self._made < self.limit, f"all {self.limit} pages are in use"
        self._made += 1
        return self._made - 1

    def give_back(self, pages: Sequence[int]) -> None:
        """Make pages free; those used last are taken first."""
        self._free.extend(pages)

    def slabs(self) -> int:
        """Return the number of slabs that the pages lie in."""
        return -(-self._made // SLAB)


class PagedSequence:
    """Pages of one sequence, in the order of its tokens; it may have up to `most` tokens."""

    def __init__(self, pool: PagePool, most: int) -> None:
        self.pages: list[int] = []
        self.length = 0
        self._pool, self._reserved = pool, pages_for(most)
        pool.reserved += self._reserved

    def grow(self, count: int) -> None:
        """Count new tokens, and take pages for them."""
        self.length += count
        while len(self.pages) < pages_for(self.length):
            assert len(self.pages) < self._reserved, "a sequence stays within its reservation"
            self.pages.append(self._pool.take())

    def release(self) -> None:
        """Return the pages to the pool."""
        self._pool.give_back(self.pages)
        self._pool.reserved -= self._reserved
        self.pages, self._reserved, self.length = [], 0, 0


class LayerPages:
    """Pages of one layer: slabs of keys and of values, of shape (pages, heads, tokens, size)."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.tables: tuple[Any, Any] = (None, None)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return sum(slabs[0].nbytes // SLAB for slabs in (self.keys, self.values) if slabs)

    def make(self, count: int, key: Tensor, value: Tensor) -> None:
        """Make slabs until there are `count`, for states such as `key` and `value`."""
        if len(self.keys) >= count:
            return
        for slabs, x in ((self.keys, key), (self.values, value)):
            while len(slabs) < count:
                slabs.append(x.new_empty(SLAB, x.shape[1], PAGE, x.shape[3]))
        array = ctypes.c_void_p * count
        keys, values = (array(*(x.data_ptr() for x in part)) for part in (self.keys, self.values))
        self.tables = (keys, values)

    def write(self, sequence: PagedSequence, first: int, key: Tensor, value: Tensor) -> None:
        """Write keys and values, of shape (heads, tokens, size), from token `first` on."""
        done, count = 0, key.shape[1]
        while done < count:
            page, at = sequence.pages[(first + done) // PAGE], (first + done) % PAGE
            n = min(PAGE - at, count - done)
            for slabs, x in ((self.keys, key), (self.values, value)):
                slabs[page // SLAB][page % SLAB, :, at : at + n] = x[:, done : done + n]
            done += n

    def read(self, sequence: PagedSequence, length: int) -> tuple[Tensor, Tensor]:
        """Return copies of the first keys and values side by side."""
        pages = sequence.pages[: pages_for(length)]
        key, value = (
            torch.cat([slabs[p // SLAB][p % SLAB] for p in pages], 1)[:, :length]
            for slabs in (self.keys, self.values)
        )
        return key, value


class PagedLayer(CacheLayerMixin):
    """One layer of the cache of a batch whose rows are sequences in pages.

    `batch` has the sequences; they may count tokens that this layer does not hold yet.
    """

    is_sliding = False

    def __init__(self, batch: Any, stored: LayerPages, pool: PagePool) -> None:
        self.codec = FloatCodec()  # as in other layers of unchanged values
        self.batch, self.stored, self.pool = batch, stored, pool
        self.cumulative_length = 0
        self._like: tuple[Tensor, Tensor] | None = None
        super().__init__()

    @property
    def keys(self) -> Any:
        """Keys side by side, with padding on the left; None before the first."""
        return self._side_by_side(0)

    @keys.setter
    def keys(self, value: Any) -> None:
        assert value is None, "keys are kept in pages"

    @property
    def values(self) -> Any:
        """Values side by side, with padding on the left; None before the first."""
        return self._side_by_side(1)

    @values.setter
    def values(self, value: Any) -> None:
        assert value is None, "values are kept in pages"

    def _side_by_side(self, part: int) -> Any:
        if self._like is None:
            return None
        like, width = self._like[part], self.cumulative_length
        firsts = self.firsts()
        out = like.new_zeros(len(firsts), like.shape[1], width, like.shape[3])
        for row, (sequence, length) in enumerate(zip(self.batch.sequences, firsts, strict=True)):
            if length:
                out[row, :, width - length :] = self.stored.read(sequence, length)[part]
        return out

    def firsts(self) -> list[int]:
        """Return the number of tokens of each row in this layer."""
        pending = self.batch.width - self.cumulative_length
        return [max(sequence.length - pending, 0) for sequence in self.batch.sequences]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Store the type and the sizes of keys and values."""
        self.begin(key_states, value_states)

    def begin(self, key: Tensor, value: Tensor) -> None:
        """Prepare the layer for states such as `key` and `value`."""
        self._like = (key[:, :, :0], value[:, :, :0])
        self.dtype, self.device, self.is_initialized = key.dtype, key.device, True

    def begin_as(self, other: PagedLayer) -> None:
        """Prepare the layer for states such as those of `other`, if that is prepared."""
        if other._like is not None and not self.is_initialized:
            self.begin(*other._like)

    def make_room(self) -> None:
        """Make the slabs of all pages in use."""
        assert self._like is not None, "begin comes first"
        self.stored.make(self.pool.slabs(), *self._like)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new tokens; return the keys and values of all."""
        if not self.is_initialized:
            self.begin(key_states, value_states)
        self.make_room()
        rows = zip(self.batch.sequences, self.firsts(), key_states, value_states, strict=True)
        for sequence, first, key, value in rows:
            self.stored.write(sequence, first, key, value)
        is_first = not self.cumulative_length
        self.cumulative_length += key_states.shape[-2]
        return (key_states, value_states) if is_first else (self.keys, self.values)

    def get_seq_length(self) -> int:
        """Return the number of tokens of the longest row."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """Return -1: only the pool limits the length."""
        return -1

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys for the next queries, and the position of the first."""
        return self.cumulative_length + query_length, 0
