"""A cache of keys and values in number formats: codes in memory, values when they are read.

Every token of every head is one row of codes (`chop.kernels.row_codecs`), so a cache is cut,
reordered and joined as bytes. Keys have channels that are large in every token, which would leave
few codes to the others: what the first tokens have in common is kept once, beside the codes.
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
    """Keys and values of one layer, as codes; with a `window`, those of the last tokens alone.

    With `is_centred` codes are of the difference to the mean of the tokens that came first.
    """

    is_croppable = True

    def __init__(self, codec: Codec, window: int | None = None, *, is_centred: bool = True) -> None:
        self.codec = codec
        self.is_centred = is_centred and not isinstance(codec, FloatCodec)
        self._means: dict[str, Tensor] = {}
        self.window = window
        self.is_sliding = window is not None
        self._held: dict[str, Parts] = {}
        self._columns: dict[str, int] = {}
        super().__init__()
        self.cumulative_length = 0

    # -- values ----------------------------------------------------------------------------------

    @property
    def keys(self) -> Any:
        """The keys that are kept, as values; None before the first."""
        return self._values("key")

    @keys.setter
    def keys(self, value: Any) -> None:
        assert value is None, "keys are kept as codes"

    @property
    def values(self) -> Any:
        """The values that are kept; None before the first."""
        return self._values("value")

    @values.setter
    def values(self, value: Any) -> None:
        assert value is None, "values are kept as codes"

    def _values(self, name: str) -> Any:
        parts = self._held.get(name)
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
        """Remember what the values look like."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._columns = {"key": key_states.shape[-1], "value": value_states.shape[-1]}
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep the codes of new tokens; the values of all, new ones as they will be read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        full = {
            name: _joined(self._held.get(name), self._encoded(name, states))
            for name, states in (("key", key_states), ("value", value_states))
        }
        kept = None if self.window is None else 1 - self.window
        self._held = {name: tuple(p[:, :, kept:] for p in parts) for name, parts in full.items()}
        return self._decoded("key", full["key"]), self._decoded("value", full["value"])

    # -- sizes -----------------------------------------------------------------------------------

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """The window; -1 without one."""
        return -1 if self.window is None else self.window

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that the next queries meet, and the position of the first."""
        dropped = 0 if self.window is None else max(self.cumulative_length - self.window + 1, 0)
        return self.cumulative_length - dropped + query_length, dropped

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and means."""
        means = sum(mean.nbytes for mean in self._means.values())
        return means + sum(part.nbytes for parts in self._held.values() for part in parts)

    @property
    def elements(self) -> int:
        """Numbers that are kept."""
        held = [(self._columns[name], parts[0].shape[:-1]) for name, parts in self._held.items()]
        return sum(columns * shape.numel() for columns, shape in held)

    # -- rows and tokens -------------------------------------------------------------------------

    def _change(self, change: Any) -> None:
        self._held = {name: tuple(map(change, parts)) for name, parts in self._held.items()}

    def _change_rows(self, change: Any) -> None:
        self._change(change)
        self._means = {name: change(mean) for name, mean in self._means.items()}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take rows of the batch in another order."""
        self._change_rows(lambda part: part.index_select(0, beam_idx.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        self._change_rows(lambda part: part.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        self._change_rows(lambda part: part[indices])

    def crop(self, tokens_to_remove: int) -> None:
        """Forget as many of the last tokens; a negative number, as transformers has it."""
        if tokens_to_remove == 0 or not self.is_initialized:
            return
        if self.window is not None and self.cumulative_length >= self.window:
            raise ConfigError("cache: tokens that left the window of a layer cannot come back.")
        removed = abs(tokens_to_remove)
        self._change(lambda part: part[:, :, :-removed])
        self.cumulative_length -= removed

    def reset(self) -> None:
        """Forget everything."""
        self._means = {}
        self._held, self.cumulative_length, self.is_initialized = {}, 0, False

    def offload(self) -> None:
        """Move the codes to the CPU."""
        self._change_rows(lambda part: part.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Bring the codes back."""
        self._change_rows(lambda part: part.to(self.device, non_blocking=True))


def _joined(held: Parts | None, new: Parts) -> Parts:
    if held is None:
        return new
    pairs = zip(held, new, strict=True)
    return tuple(torch.cat([a, b.to(a.dtype) if _fits(b, a) else b], dim=-2) for a, b in pairs)


def _fits(new: Tensor, held: Tensor) -> bool:
    """Whether values of a wider type are exact in the narrower one; torch joins the others."""
    return new.dtype == held.dtype or torch.equal(new.to(held.dtype).to(new.dtype), new)


class PackedCache(DynamicCache):
    """The cache of a language model in number formats, for `past_key_values` of `generate`.

    `formats` is one format for all layers, or a mapping from layers to formats, with "default" for
    the others. A format is a name (mxint8, mxint4, mxfp8, mxfp4, int8, int4, float, or any of the
    registry) or its config. `config` is the model's; layers with a sliding window keep the window.
    `is_centred`: codes are of the difference to the mean of the prompt's tokens, which makes them
    finer; without, a token's values depend on nothing else.

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
        chosen = formats_by_layer(formats, len(plain))
        layers: list[Any] = [
            PackedLayer(
                codec_of(chosen[i], f"cache, layer {i}"), _window(layer, i), is_centred=is_centred
            )
            for i, layer in enumerate(plain)
        ]
        Cache.__init__(self, layers=layers)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales of all layers."""
        return sum(layer.nbytes for layer in self._packed())

    def _packed(self) -> list[Any]:
        return list(self.layers)

    def capacity(self, bits: int = 16) -> float:
        """How many times as many tokens fit as in numbers of `bits` bits, as measured in bytes."""
        elements = sum(layer.elements for layer in self._packed())
        return elements * bits / 8 / self.nbytes if self.nbytes else 1.0


def _window(layer: Any, index: int) -> int | None:
    if not hasattr(layer, "update") or not hasattr(layer, "is_sliding"):
        raise ConfigError(f"cache, layer {index}: {type(layer).__name__} keeps no keys and values.")
    return int(layer.sliding_window) if layer.is_sliding else None


def formats_by_layer(formats: Any, layers: int) -> list[Any]:
    """The format of each layer.

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
