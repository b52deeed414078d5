"""A key-value cache in number formats, decoded when it is read.

Each token of each head is one row of codes (`chop.kernels.row_codecs`), so a cache is sliced,
reordered and joined as bytes. Some channels of keys are large in every token. The codes are
therefore differences to the mean of the first tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from chop.errors import ConfigError
from chop.kernels.row_codecs import FLOAT, Codec, FloatCodec, Parts, codec_of
from chop.nn.quantizers import Quantizer

DEFAULT = "default"


class PackedLayer(CacheLayerMixin):
    """Keys and values of one layer as codes; a `window` limits them to the last tokens.

    With `is_centred` the codes are differences to the mean of the first tokens.
    """

    is_croppable = True

    def __init__(self, codec: Codec, window: int | None = None, *, is_centred: bool = True) -> None:
        self.codec = codec
        self.is_centred = is_centred and not isinstance(codec, FloatCodec)
        self._means: dict[str, Tensor] = {}
        self.window = window
        self.is_sliding = window is not None
        self._parts: dict[str, Parts] = {}
        self._columns: dict[str, int] = {}
        super().__init__()
        self.cumulative_length = 0

    @property
    def keys(self) -> Any:
        """Decoded keys; None before the first."""
        return self._values("key")

    @keys.setter
    def keys(self, value: Any) -> None:
        assert value is None, "keys are kept as codes"

    @property
    def values(self) -> Any:
        """Decoded values; None before the first."""
        return self._values("value")

    @values.setter
    def values(self, value: Any) -> None:
        assert value is None, "values are kept as codes"

    @property
    def rows(self) -> int:
        """Rows of the batch; 0 before the first token."""
        return next((parts[0].shape[0] for parts in self._parts.values()), 0)

    def _values(self, name: str) -> Any:
        parts = self._parts.get(name)
        return None if parts is None else self._decoded(name, parts)

    def _decoded(self, name: str, parts: Parts) -> Tensor:
        values = self.codec.decode(parts, self._columns[name], self.dtype)
        mean = self._means.get(name)
        return values if mean is None else values + mean.to(values.dtype)

    def _encoded(self, name: str, states: Tensor) -> Parts:
        if self.is_centred and name not in self._means:
            self._means[name] = states.float().mean(-2, keepdim=True).bfloat16()
        mean = self._means.get(name)
        return self.codec.encode(states if mean is None else states - mean.to(states.dtype))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Store the dtype, device and sizes of the values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._columns = {"key": key_states.shape[-1], "value": value_states.shape[-1]}
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the codes of new tokens; return the decoded keys and values of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        full = {
            name: _joined(self._parts.get(name), self._encoded(name, states))
            for name, states in (("key", key_states), ("value", value_states))
        }
        first = None if self.window is None else 1 - self.window
        self._parts = {name: tuple(p[:, :, first:] for p in parts) for name, parts in full.items()}
        return self._decoded("key", full["key"]), self._decoded("value", full["value"])

    def get_seq_length(self) -> int:
        """Return the number of tokens so far."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """Return the window, -1 without one."""
        return -1 if self.window is None else self.window

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys for the next queries, and the position of the first."""
        dropped = 0 if self.window is None else max(self.cumulative_length - self.window + 1, 0)
        return self.cumulative_length - dropped + query_length, dropped

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and means."""
        means = sum(mean.nbytes for mean in self._means.values())
        return means + sum(part.nbytes for parts in self._parts.values() for part in parts)

    @property
    def elements(self) -> int:
        """Number of stored elements."""
        parts = self._parts.items()
        return sum(self._columns[name] * part[0].shape[:-1].numel() for name, part in parts)

    def _change(self, change: Any) -> None:
        self._parts = {name: tuple(map(change, parts)) for name, parts in self._parts.items()}

    def _change_rows(self, change: Any) -> None:
        self._change(change)
        self._means = {name: change(mean) for name, mean in self._means.items()}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows of the batch."""
        self._change_rows(lambda part: part.index_select(0, beam_idx.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        self._change_rows(lambda part: part.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        self._change_rows(lambda part: part[indices])

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last tokens; the number is negative in transformers."""
        if tokens_to_remove == 0 or not self.is_initialized:
            return
        if self.window is not None and self.cumulative_length >= self.window:
            raise ConfigError("cache: tokens that left the window of a layer cannot come back.")
        removed = abs(tokens_to_remove)
        self._change(lambda part: part[:, :, :-removed])
        self.cumulative_length -= removed

    def reset(self) -> None:
        """Clear the layer."""
        self._means = {}
        self._parts, self.cumulative_length, self.is_initialized = {}, 0, False

    def offload(self) -> None:
        """Move the codes to the CPU."""
        self._change_rows(lambda part: part.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move the codes back to the device."""
        self._change_rows(lambda part: part.to(self.device, non_blocking=True))


def _joined(old: Parts | None, new: Parts) -> Parts:
    """Append the new tokens, in the old type if that is exact; else `torch.cat` widens both."""
    if old is None:
        return new
    pairs = [(a, b, b.to(a.dtype)) for a, b in zip(old, new, strict=True)]
    return tuple(torch.cat([a, c if torch.equal(c.to(b.dtype), b) else b], -2) for a, b, c in pairs)


class PackedCache(DynamicCache):
    """A language model's cache in number formats, for `past_key_values` of `generate`.

    `formats` is one format for all layers, or a mapping from layers to formats with "default" for
    the others. A format is a name (mxint8, mxint4, mxfp8, mxfp4, int8, int4, float, or any of the
    registry) or its config. `config` is the model's; sliding windows stay. With `is_centred` the
    codes are differences to the mean of the prompt: finer, but dependent on the prompt.

        mg.generate(**inputs, past_key_values=PackedCache(mg.model.config, "mxint8"))
    """

    def __init__(
        self,
        config: Any,
        formats: str | Mapping[Any, Any] | Quantizer = "mxint8",
        *,
        is_centred: bool = True,
    ) -> None:
        plain = DynamicCache(config=config).layers
        layers: list[Any] = []
        for i, form in enumerate(formats_by_layer(formats, len(plain))):
            codec = codec_of(form, f"cache, layer {i}")
            layers.append(PackedLayer(codec, _window(plain[i], i), is_centred=is_centred))
        Cache.__init__(self, layers=layers)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales of all layers."""
        return sum(layer.nbytes for layer in self._packed())

    def _packed(self) -> list[Any]:
        return list(self.layers)

    def capacity(self, bits: int = 16) -> float:
        """Return how many times more tokens fit than as `bits`-bit numbers."""
        elements = sum(layer.elements for layer in self._packed())
        return elements * bits / 8 / self.nbytes if self.nbytes else 1.0


def _window(layer: Any, index: int) -> int | None:
    if not hasattr(layer, "update") or not hasattr(layer, "is_sliding"):
        raise ConfigError(f"cache, layer {index}: {type(layer).__name__} keeps no keys and values.")
    return int(layer.sliding_window) if layer.is_sliding else None


def formats_by_layer(formats: Any, layers: int) -> list[Any]:
    """Return the format of each layer.

    >>> formats_by_layer({"default": "mxint4", 0: "mxint8"}, 2)
    ['mxint8', 'mxint4']
    """
    if not isinstance(formats, Mapping) or "name" in formats:
        return [formats] * layers
    rest = formats.get(DEFAULT, FLOAT)
    for key in formats:
        if key != DEFAULT and not (isinstance(key, int) and 0 <= key < layers):
            raise ConfigError(
                f"cache: no layer {key!r}. Allowed: 0 to {layers - 1}, and '{DEFAULT}'."
            )
    return [formats.get(i, rest) for i in range(layers)]
