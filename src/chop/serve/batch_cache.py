"""Key-value cache of a batch whose sequences join and leave between steps.

The rows of a batch end at the same column, as in a batch with padding on the left: a captured
graph takes such a batch with a mask and positions, whatever its kind of attention. Each layer has
spare columns on the right, so a step writes its tokens without copying the older ones. A batch
holds `rows × longest row` tokens. It serves GPUs and caches in number formats, whose attention
reads one tensor per layer; floats on a CPU lie in pages (`chop.serve.paged_batch`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import Cache

from chop.kernels.cache import PackedLayer, formats_by_layer
from chop.kernels.row_codecs import FLOAT, Codec, Parts, codec_of

SPARE = 64
"""Columns that a layer allocates beyond those in use: one copy of the cache per 64 steps."""


class BatchLayer(PackedLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer for all rows of a batch, as codes of a number format."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the codes of new tokens; return the decoded keys and values of all columns."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.cumulative_length
        self.cumulative_length += key_states.shape[-2]
        for name, states in (("key", key_states), ("value", value_states)):
            new = self._encoded(name, states)
            old = self._parts.get(name) or (None,) * len(new)
            pairs = zip(old, new, strict=True)
            self._parts[name] = tuple(_written(buffer, part, start) for buffer, part in pairs)
        return self.keys, self.values

    def begin(self, key: Tensor, value: Tensor) -> None:
        """Make the empty layer hold no tokens, in buffers for states such as `key` and `value`."""
        self.lazy_initialization(key, value)
        for name, states in (("key", key), ("value", value)):
            parts = self._encoded(name, states[:, :, :0])
            self._parts[name] = tuple(_with_room(part, 0) for part in parts)

    def room_for(self, count: int) -> tuple[Tensor, ...]:
        """Return the buffers of unchanged keys and values, with columns for `count` tokens."""
        for name, (buffer,) in self._parts.items():
            if self.cumulative_length + count > buffer.shape[2]:
                self._parts[name] = (pad(buffer, (0, 0, 0, count + SPARE)),)
        return self._parts["key"][0], self._parts["value"][0]

    def _values(self, name: str) -> Any:
        parts = self._parts.get(name)
        return None if parts is None else self._decoded(name, self._used(parts))

    def _used(self, parts: Parts, first: int = 0) -> Parts:
        return tuple(part[:, :, first : self.cumulative_length] for part in parts)

    def keep(self, rows: Sequence[int], first: int) -> None:
        """Keep these rows of the batch, and the columns from `first`."""
        for name, parts in self._parts.items():
            used = self._used(parts, first)
            self._parts[name] = tuple(_with_room(part[list(rows)], 0) for part in used)
        self._means = {name: mean[list(rows)] for name, mean in self._means.items()}
        self.cumulative_length -= first

    def join(self, other: BatchLayer) -> None:
        """Append the rows of `other`; the shorter of both starts at a later column."""
        width = max(self.cumulative_length, other.cumulative_length)
        for name, parts in self._parts.items():
            sides = [
                [_with_room(part, width - layer.cumulative_length) for part in layer._used(of)]
                for layer, of in ((self, parts), (other, other._parts[name]))
            ]
            self._parts[name] = tuple(torch.cat(pair) for pair in zip(*sides, strict=True))
        self._means = {n: torch.cat([mean, other._means[n]]) for n, mean in self._means.items()}
        self.cumulative_length = width


def padded_inputs(tokens: Tensor, stored: Sequence[int]) -> dict[str, Any]:
    """Return the inputs for new `tokens` of rows with padding on the left.

    `stored`: the number of tokens that the cache of each row has.
    """
    count, lengths = tokens.shape[1], torch.tensor(stored)[:, None]
    width = int(lengths.max()) + count
    mask = torch.arange(width)[None, :] >= width - count - lengths
    return {
        "input_ids": tokens,
        "attention_mask": mask.long().to(tokens.device),
        "position_ids": (lengths + torch.arange(count)).to(tokens.device),
        "logits_to_keep": 1,
    }


def _with_room(part: Tensor, left: int) -> Tensor:
    """Return a copy of `part` with `left` zero columns before it and spare columns behind it."""
    return pad(part, (0, 0, left, SPARE))


def _written(buffer: Tensor | None, part: Tensor, start: int) -> Tensor:
    """Write `part` into `buffer` from the column `start`; return the buffer, larger if needed."""
    if buffer is None:
        return _with_room(part, 0)
    end = start + part.shape[2]
    if end > buffer.shape[2]:
        buffer = pad(buffer[:, :, :start], (0, 0, 0, end - start + SPARE))
    if buffer.dtype != part.dtype:  # formats whose values need a wider type from now on
        buffer = buffer.to(torch.promote_types(buffer.dtype, part.dtype))
    buffer[:, :, start:end] = part
    return buffer


class BatchCache(Cache):
    """Cache of a batch: `lengths` has the number of tokens of each row.

    `formats`: a number format, or formats by layer, as in `PackedCache`. A new cache is for one
    row. A sliding window of the model limits the mask, and not the stored tokens.
    """

    def __init__(self, config: Any, formats: str | Mapping[Any, Any] = FLOAT) -> None:
        count = len(DynamicCache(config=config).layers)
        chosen = formats_by_layer(formats, count)
        layers = [BatchLayer(codec_of(form, f"cache, layer {i}")) for i, form in enumerate(chosen)]
        super().__init__(layers=layers)  # type: ignore[arg-type]
        self.lengths = [0]

    @property
    def width(self) -> int:
        """Columns in use: tokens of the longest row."""
        return max(self.lengths, default=0)

    @property
    def tokens_of_memory(self) -> int:
        """Columns in use, times rows."""
        return self.width * len(self.lengths)

    def inputs(self, tokens: Tensor) -> dict[str, Any]:
        """Return the model's inputs for `tokens`, and count them as stored."""
        lengths = self.lengths
        self.lengths = [length + tokens.shape[1] for length in lengths]
        return {**padded_inputs(tokens, lengths), "past_key_values": self}

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows of the batch."""
        lengths = [self.lengths[row] for row in rows]
        first = self.width - max(lengths, default=0)
        for layer in self._batch_layers():
            layer.keep(rows, first)
        self.lengths = lengths

    def join(self, other: BatchCache) -> None:
        """Append the rows of `other` to the batch."""
        for own, more in zip(self._batch_layers(), other._batch_layers(), strict=True):
            own.join(more)
        self.lengths += other.lengths

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and means, with the spare columns."""
        return sum(layer.nbytes for layer in self._batch_layers())

    def _batch_layers(self) -> list[Any]:
        return list(self.layers)
