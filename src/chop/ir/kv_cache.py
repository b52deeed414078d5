"""What a graph with a cache asks of the keys and values of the tokens before.

Each function is one node. `past` is a cache of transformers, or None for a run that keeps nothing:
the same graph does both. To capture another use of the cache, add a function here and its row to
`chop.ir.ops.past`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def past_length(past: Any, layer: int = 0) -> Any:
    """How many tokens the cache has seen: an int, or a tensor where the cache counts in one."""
    if past is None:
        return 0
    length = past.get_seq_length(layer)
    return length.clone() if isinstance(length, Tensor) else length  # update counts on in place


def update_past(past: Any, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of all tokens so far, after those of the new ones are kept."""
    past = _own(past)
    return (key, value) if past is None else past.update(key, value, layer)


def update_cross(past: Any, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the encoder: those given the first time, those kept from then on."""
    if past is None:
        return key, value
    if past.is_updated.get(layer):
        kept = past.cross_attention_cache.layers[layer]
        return kept.keys, kept.values
    past.is_updated[layer] = True
    found: tuple[Tensor, Tensor] = past.cross_attention_cache.update(key, value, layer)
    return found


def cross_source(states: Tensor, past: Any) -> Tensor:
    """What the encoder gave; a single position of it once its keys and values are kept.

    They are computed from it at every step and not used then: at one position that costs little.
    """
    is_kept = past is not None and bool(past.is_updated) and all(past.is_updated.values())
    return states[:, :1] if is_kept else states


def positions(given: Tensor | None, tokens: Tensor, past: Any, counted_by: Any = None) -> Tensor:
    """The positions given, or those the model itself takes: counted on from the cache.

    `counted_by`: the mask of a model that counts the tokens which its mask lets through.
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
    """Which keys each query sees: those before it, within `window`, that `mask` lets through.

    `mask` is one number for each token, a finished mask of four dimensions, finished masks by
    layer type, or None. The result is boolean, or with `is_additive` zeros and the least number.
    """
    if isinstance(mask, Mapping):
        mask = mask["full_attention" if window is None else "sliding_attention"]
    if mask is not None and mask.dim() == 4:
        return mask
    queries, start, keys, first = _sizes(states.shape[1], _own(past), window is not None)
    device = states.device
    row = (torch.arange(queries, device=device) + start)[:, None]
    column = (torch.arange(keys, device=device) + first)[None, :]
    visible = column <= row
    if window is not None:
        visible = visible & (column > row - window)
    visible = visible[None, None]
    if mask is not None:
        seen = mask.to(device=device, dtype=torch.bool)
        seen = seen if past is None else _of_keys(seen, first, keys)
        visible = visible & seen[:, None, None, :]
    return _additive(visible, states.dtype) if is_additive else visible


def bidirectional_mask(mask: Tensor | None, states: Tensor, is_additive: bool = False) -> Tensor:
    """Which keys are seen, the same for all queries: what `mask` lets through, all without it."""
    if mask is not None and mask.dim() == 4:
        return mask
    if mask is None:
        visible = torch.ones(states.shape[0], 1, 1, 1, dtype=torch.bool, device=states.device)
    else:
        visible = mask.to(device=states.device, dtype=torch.bool)[:, None, None, :]
    return _additive(visible, states.dtype) if is_additive else visible


def _own(past: Any) -> Any:
    """The cache of the decoder's own tokens, in a pair of caches."""
    return getattr(past, "self_attention_cache", past)


def _sizes(queries: int, past: Any, is_sliding: bool) -> tuple[int, Any, int, int]:
    """Number of queries, position of the first, number of keys, position of the first."""
    if past is None:
        return queries, 0, queries, 0
    kinds = list(past.is_sliding)
    layer = kinds.index(is_sliding) if is_sliding in kinds else 0
    keys, first = past.get_mask_sizes(queries, layer)
    return queries, past_length(past, layer), keys, first


def _of_keys(mask: Tensor, first: int, keys: int) -> Tensor:
    """The part of `mask` that is about these keys; what it does not reach is not seen."""
    missing = max(first + keys - mask.shape[1], 0)
    return torch.nn.functional.pad(mask, (0, missing))[:, first : first + keys]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    least = torch.finfo(dtype).min
    return torch.zeros((), dtype=dtype, device=visible.device).where(visible, least)
