"""Functions of a captured language model that read or update its key-value cache.

Each function is one node. `past` is a cache of transformers, or None for a run without a cache.
To capture another use of the cache, add a function here and its row to `chop.ir.ops.sequence_ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def past_length(past: Any, layer: int = 0) -> Any:
    """Return the number of tokens in the cache: an int, or a tensor if the cache uses one."""
    if past is None:
        return 0
    length = past.get_seq_length(layer)
    return length.clone() if isinstance(length, Tensor) else length  # update changes it in place


def update_past(past: Any, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Store the new keys and values; return those of all tokens so far."""
    past = _own(past)
    return (key, value) if past is None else past.update(key, value, layer)


def update_convolution(past: Any, states: Tensor, layer: int, kernel_size: int) -> Tensor:
    """Store the last inputs of a short convolution; return them with the new ones, `states`."""
    if past is None:
        return states
    every: Tensor = past.update_conv_state(states, layer, conv_kernel_size=kernel_size)
    return every


def update_cross(past: Any, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Return the encoder's keys and values: stored at the first call, read from the cache later."""
    if past is None:
        return key, value
    if past.is_updated.get(layer):
        stored = past.cross_attention_cache.layers[layer]
        return stored.keys, stored.values
    past.is_updated[layer] = True
    pair: tuple[Tensor, Tensor] = past.cross_attention_cache.update(key, value, layer)
    return pair


def cross_source(states: Tensor, past: Any) -> Tensor:
    """Return the encoder's states, or one position of them once its keys and values are cached.

    The graph computes keys and values at every step. Once cached they are not used, and computing
    them for one position costs little.
    """
    is_cached = past is not None and bool(past.is_updated) and all(past.is_updated.values())
    return states[:, :1] if is_cached else states


def positions(given: Tensor | None, tokens: Tensor, past: Any, counted_by: Any = None) -> Tensor:
    """Return `given`, or else the positions that follow those in the cache.

    `counted_by`: the mask of a model that counts only the tokens its mask admits.
    """
    if given is not None:
        return given
    length = tokens.shape[1]
    if isinstance(counted_by, Tensor) and counted_by.dim() == 2:
        counted = counted_by.cumsum(1) * counted_by - 1
        return counted[:, counted.shape[1] - length :].long()
    return (torch.arange(length, device=tokens.device) + past_length(past)).unsqueeze(0)


def causal_mask(
    mask: Any, states: Tensor, past: Any, window: int | None = None, is_additive: bool = False
) -> Tensor:
    """Return which keys each query attends to: those before it in `window` that `mask` admits.

    `mask` has one number per token, or is a complete mask with four dimensions, a mapping from
    layer type to such masks, or None. The result is boolean; with `is_additive` it has zeros and
    the least number of the dtype.
    """
    if isinstance(mask, Mapping):
        mask = mask["full_attention" if window is None else "sliding_attention"]
    if mask is not None and mask.dim() == 4:
        return mask
    queries, device = states.shape[1], states.device
    start, keys, first = _sizes(queries, _own(past), window is not None)
    row = (torch.arange(queries, device=device) + start)[:, None]
    column = (torch.arange(keys, device=device) + first)[None, :]
    visible = column <= row
    if window is not None:
        visible = visible & (column > row - window)
    visible = visible[None, None]
    if mask is not None:
        admitted = mask.to(device=device, dtype=torch.bool)
        if past is not None:  # keys beyond the mask are not visible
            missing = max(first + keys - admitted.shape[1], 0)
            admitted = torch.nn.functional.pad(admitted, (0, missing))[:, first : first + keys]
        visible = visible & admitted[:, None, None, :]
    return _additive(visible, states.dtype) if is_additive else visible


def bidirectional_mask(mask: Tensor | None, states: Tensor, is_additive: bool = False) -> Tensor:
    """Return which keys every query attends to: those that `mask` admits, or all."""
    if mask is not None and mask.dim() == 4:
        return mask
    if mask is None:
        visible = torch.ones(states.shape[0], 1, 1, 1, dtype=torch.bool, device=states.device)
    else:
        visible = mask.to(device=states.device, dtype=torch.bool)[:, None, None, :]
    return _additive(visible, states.dtype) if is_additive else visible


def other_states(config: Any) -> list[int]:
    """Return the layers of a model whose cache holds other states than keys and values."""
    from transformers import DynamicCache

    layers = DynamicCache(config=config).layers
    return [i for i, layer in enumerate(layers) if not hasattr(layer, "update")]


def recurrent_mask(mask: Any, states: Tensor) -> Tensor:
    """Return one number per token of `states`, 0 for padding, which leaves convolutions alone."""
    length = states.shape[1]
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return torch.ones(states.shape[:2], dtype=states.dtype, device=states.device)
    return mask[:, -length:].to(device=states.device, dtype=states.dtype)


def _own(past: Any) -> Any:
    """Return the decoder's cache of a pair of caches."""
    return getattr(past, "self_attention_cache", past)


def _sizes(queries: int, past: Any, is_sliding: bool) -> tuple[Any, int, int]:
    """Return the position of the first query, the number of keys and the first key's position."""
    if past is None:
        return 0, queries, 0
    kinds = list(past.is_sliding)
    layer = kinds.index(is_sliding) if is_sliding in kinds else 0
    keys, first = past.get_mask_sizes(queries, layer)
    return past_length(past, layer), keys, first


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    least = torch.finfo(dtype).min
    return torch.zeros((), dtype=dtype, device=visible.device).where(visible, least)
