"""Keys and values of a cache for a native decode step.

A cache of transformers joins old and new tokens by copying all of them at each step. Here its
layers become views of larger buffers; a layer that something else has changed is copied again. The
layers of a cache in number formats encode the new token themselves, in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from chop.kernels.cache import PackedLayer
from chop.kernels.cache_pages import PagedLayer
from chop.kernels.row_codecs import FloatCodec
from chop.kernels.step_code import LayerRecord, PastRecord, UnsupportedError

ROOM = 64
"""Least number of free tokens in a new buffer; a buffer has room for as many as it holds."""


class LayerAccess(Protocol):
    """Access of a native step to one layer of a cache."""

    def owns(self, layer: Any) -> bool:
        """Return True if the layer needs no further check before a step."""

    def open(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Fill in the record before the step; `count`: new tokens of a row."""

    def update(self, layer: Any, record: LayerRecord, key: Tensor, value: Tensor) -> None:
        """Add the new token during the step, if the record asks for it."""

    def close(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Make the layer hold the new tokens after the step."""

    def undo(self, layer: Any) -> None:
        """Restore the layer after a step that failed."""


class FloatBuffers:
    """Keys and values of one layer of transformers' dynamic cache.

    Addresses are computed when a buffer is allocated: in Python a slice takes as long as attention
    over some tokens.
    """

    def __init__(self) -> None:
        self._pair: tuple[Tensor, Tensor] | None = None
        self._views: tuple[Any, Any] = (None, None)
        self._addresses = (0, 0)
        self._steps = (0, 0)  # bytes per token
        self._start = self._room = 0

    def owns(self, layer: Any) -> bool:
        """Return True if the layer is as `close` left it."""
        keys, values = self._views
        return keys is not None and layer.keys is keys and layer.values is values

    def open(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Write the addresses of the buffers to `record`, with room for the new tokens."""
        used = layer.keys.shape[2]
        if not self.owns(layer) or self._start + used + count > self._room:
            self._allocate(layer.keys, layer.values, record)
        record.tokens = used + 1
        record.key = self._addresses[0] + self._start * self._steps[0]
        record.value = self._addresses[1] + self._start * self._steps[1]

    def _allocate(self, keys: Tensor, values: Tensor, record: LayerRecord) -> None:
        self._pair, self._start = (_with_room(keys), _with_room(values)), 0
        self._addresses = (self._pair[0].data_ptr(), self._pair[1].data_ptr())
        sizes = (keys.shape[3], values.shape[3])
        self._steps = (sizes[0] * keys.element_size(), sizes[1] * values.element_size())
        self._room = self._pair[0].shape[2]
        record.key_row, record.value_row = (x.stride(0) for x in self._pair)
        record.key_head, record.value_head = (x.stride(1) for x in self._pair)
        record.is_updated_by_caller = 0

    def update(self, layer: Any, record: LayerRecord, key: Tensor, value: Tensor) -> None:
        """Do nothing: the native code writes the new token."""

    def close(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Make the layer a view of the buffers, with the new tokens."""
        assert self._pair is not None, "close follows open"
        tokens = record.tokens + count - 1
        if type(layer) is DynamicSlidingWindowLayer:
            layer.cumulative_length += count
            dropped = max(tokens - (layer.sliding_window - 1), 0)
            self._start, tokens = self._start + dropped, tokens - dropped
        keys, values = (x.narrow(2, self._start, tokens) for x in self._pair)
        layer.keys, layer.values = self._views = (keys, values)

    def undo(self, layer: Any) -> None:
        """Do nothing: the layer changes when the step ends."""


class EncodedLayer:
    """Keys and values of a layer that encodes them: its own `update` runs during the step."""

    def __init__(self) -> None:
        self._decoded: tuple[Tensor, Tensor] | None = None
        self._before: dict[str, Any] = {}

    def owns(self, layer: Any) -> bool:
        """Return False: any code may change the layer."""
        return False

    def open(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Remember the state of the layer."""
        _check_single(count)
        self._before = {k: dict(v) if isinstance(v, dict) else v for k, v in vars(layer).items()}
        record.is_updated_by_caller = 1

    def update(self, layer: Any, record: LayerRecord, key: Tensor, value: Tensor) -> None:
        """Add the new token, and write the addresses of all decoded ones to `record`."""
        keys, values = (_in_rows(x) for x in layer.update(key, value))
        self._decoded = (keys, values)
        _fill(record, keys, values, keys.shape[2])

    def close(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Release the decoded values."""
        self._decoded = None

    def undo(self, layer: Any) -> None:
        """Restore the state before the step."""
        self._decoded = None
        vars(layer).update(self._before)


class RoomyLayer:
    """Keys and values of a layer whose own buffers have free columns (`room_for`)."""

    def owns(self, layer: Any) -> bool:
        """Return False: any code may change the layer."""
        return False

    def open(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Write the addresses of the layer's buffers to `record`."""
        keys, values = layer.room_for(count)
        _fill(record, keys, values, layer.cumulative_length + 1)
        record.is_updated_by_caller = 0

    def update(self, layer: Any, record: LayerRecord, key: Tensor, value: Tensor) -> None:
        """Do nothing: the native code writes the new token."""

    def close(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Count the new tokens."""
        layer.cumulative_length += count

    def undo(self, layer: Any) -> None:
        """Do nothing: the layer changes when the step ends."""


class PagedAccess:
    """Keys and values of a layer in pages, which the native code finds by their list."""

    def owns(self, layer: Any) -> bool:
        """Return False: rows may join and leave."""
        return False

    def open(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Write the addresses of the slabs to `record`."""
        layer.make_room()
        keys, values = layer.stored.tables
        record.key, record.value = ctypes.addressof(keys), ctypes.addressof(values)
        one, other = layer.stored.keys[0], layer.stored.values[0]
        record.key_row, record.key_head = one.stride(0), one.stride(1)
        record.value_row, record.value_head = other.stride(0), other.stride(1)
        record.tokens = layer.cumulative_length + 1
        record.is_updated_by_caller = 0

    def update(self, layer: Any, record: LayerRecord, key: Tensor, value: Tensor) -> None:
        """Do nothing: the native code writes the new token."""

    def close(self, layer: Any, record: LayerRecord, count: int = 1) -> None:
        """Count the new tokens."""
        layer.cumulative_length += count

    def undo(self, layer: Any) -> None:
        """Do nothing: the layer changes when the step ends."""


def add_pages(record: PastRecord, past: Any, starts: Sequence[int] | None) -> None:
    """Add the pages of a cache to the record of a step; raise if a mask hides one of its tokens.

    `starts`: the first token of each row by the mask, None if all rows have all tokens.
    """
    stored = past.layers[0].firsts()
    if [past.get_seq_length() - start for start in starts or [0] * len(stored)] != stored:
        raise UnsupportedError("a mask other than that of the sequences in pages")
    table, record.pages_step = past.page_table()
    record.pages, record.starts = table, None
    record.stored = (ctypes.c_int64 * len(stored))(*stored)


def kind_of(layer: Any) -> tuple[type, Any]:
    """Return what the access to a layer depends on: its class and its codec."""
    return type(layer), getattr(layer, "codec", None)


def access_to(layer: Any) -> LayerAccess:
    """Return a new access to a layer of this kind; raise UnsupportedError if there is none."""
    if isinstance(layer, PagedLayer):
        return PagedAccess()
    if isinstance(getattr(layer, "codec", None), FloatCodec) and hasattr(layer, "room_for"):
        return RoomyLayer()
    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
        return FloatBuffers()
    if isinstance(layer, PackedLayer):
        return EncodedLayer()
    raise UnsupportedError(f"a cache layer of class {type(layer).__name__}")


def check_layer(layer: Any, rows: int) -> None:
    """Raise UnsupportedError if a layer has no tokens yet, or not the form of a native step."""
    if isinstance(layer, PackedLayer):
        if not layer.is_initialized or layer.dtype != torch.float32 or layer.device.type != "cpu":
            raise UnsupportedError("a cache without tokens, or not of float32 on the CPU")
        if layer.rows != rows:
            raise UnsupportedError("a cache of other rows")
        return
    if isinstance(layer, PagedLayer):
        if not layer.is_initialized or layer.dtype != torch.float32 or layer.device.type != "cpu":
            raise UnsupportedError("a cache without tokens, or not of float32 on the CPU")
        if len(layer.batch.sequences) != rows:
            raise UnsupportedError("a cache of other rows")
        return
    keys, values = layer.keys, layer.values
    if keys is None or keys.dim() != 4 or len(keys) != rows:
        raise UnsupportedError("a cache without tokens, or of other rows")
    if not keys.dtype == values.dtype == torch.float32 or not keys.is_cpu:
        raise UnsupportedError(f"a cache of {keys.dtype} on {keys.device}")
    if getattr(layer, "record_past", False):
        raise UnsupportedError("a cache layer that records its past")


def _check_single(count: int) -> None:
    if count > 1:
        raise UnsupportedError("several tokens of a row for a cache that encodes them")


def _with_room(x: Tensor) -> Tensor:
    batch, heads, used, size = x.shape
    buffer = x.new_empty(batch, heads, used + max(used, ROOM), size)
    buffer[:, :, :used] = x
    return buffer


def _in_rows(x: Tensor) -> Tensor:
    """Return `x` with the tokens of each head side by side."""
    return x if x.stride(3) == 1 and x.stride(2) == x.shape[3] else x.contiguous()


def _fill(record: LayerRecord, keys: Tensor, values: Tensor, tokens: int) -> None:
    record.key, record.key_row, record.key_head = keys.data_ptr(), keys.stride(0), keys.stride(1)
    record.value = values.data_ptr()
    record.value_row, record.value_head = values.stride(0), values.stride(1)
    record.tokens = tokens
