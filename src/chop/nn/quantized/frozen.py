"""Quantised parameters kept between calls, so that a frozen weight is quantised once.

A parameter is frozen while nothing can train it: it requires no gradient, or gradients are off.
What is kept is a second copy of the weight, so there is a limit to it: over all layers together at
most `cache_limit()` bytes, 512 MiB unless `set_cache_limit` says otherwise (0: keep nothing). What
does not fit beside the rest is quantised at each call. `clear_caches()` frees all of it.

What is kept lives outside the module, so that copies, pickles and state dicts never see it. It is
used again only while the parameter's storage, version and format are the ones it was made from;
a call that trains and a change of mode drop it. (Torch does not count edits made in place through
`.data` as versions; after one, outside training, call `eval()` or `train()`.)
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from chop.errors import ConfigError
from chop.nn.quantizers import Quantizer


@dataclass(frozen=True)
class _Kept:
    storage: StorageWeakRef  # while it lives, no other storage is taken for this one
    address: int
    version: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    quantizer: Quantizer
    result: Tensor

    def fits(self, value: Tensor, quantizer: Quantizer) -> bool:
        return (
            self.version == value._version
            and self.address == value.data_ptr()
            and self.dtype == value.dtype
            and self.shape == value.shape
            and self.stride == value.stride()
            and self.quantizer == quantizer
            and self.storage.cdata == value.untyped_storage()._cdata
        )


@dataclass
class _Budget:
    """How many bytes may be kept, and how many are: a tensor counts until it is freed."""

    limit: int = 512 * 2**20
    used: int = 0

    def take(self, tensor: Tensor) -> bool:
        """Count `tensor`, if it fits."""
        if self.used + tensor.nbytes > self.limit:
            return False
        self.used += tensor.nbytes
        weakref.finalize(tensor, self._give_back, tensor.nbytes).atexit = False
        return True

    def _give_back(self, size: int) -> None:
        self.used -= size


_KEPT: WeakKeyDictionary[nn.Module, dict[str, _Kept]] = WeakKeyDictionary()
_BUDGET = _Budget()


def cache_limit() -> int:
    """The most bytes that quantised weights kept between calls may take together."""
    return _BUDGET.limit


def set_cache_limit(limit: int) -> None:
    """Let quantised weights kept between calls take `limit` bytes together; 0 keeps none.

    Where more is kept already, all of it is freed.
    """
    if limit < 0:
        raise ConfigError(f"set_cache_limit: limit must be at least 0 bytes, got {limit}.")
    _BUDGET.limit = limit
    if _BUDGET.used > limit:
        clear_caches()


def cached_bytes() -> int:
    """The bytes that quantised weights kept between calls take."""
    return _BUDGET.used


def clear_caches() -> None:
    """Free every quantised weight that is kept; the next calls make them anew."""
    _KEPT.clear()


def quantize_parameter(module: nn.Module, name: str, value: Tensor, quantizer: Quantizer) -> Tensor:
    """`quantizer(value)`, from the last call where `value` is frozen and has not changed."""
    if torch.compiler.is_compiling():
        return quantizer(value)
    if not _is_frozen(value, quantizer):
        forget(module)
        return quantizer(value)
    kept = _KEPT.get(module, {}).get(name)
    if kept is not None and kept.fits(value, quantizer):
        return kept.result
    return _keep(module, name, value, quantizer)


def forget(module: nn.Module) -> None:
    """Drop what is kept for `module`."""
    _KEPT.pop(module, None)


def _is_frozen(value: Tensor, quantizer: Quantizer) -> bool:
    scale_trains = bool(getattr(quantizer, "trains", False))
    trains = scale_trains or (value.requires_grad and torch.is_grad_enabled())
    # a plain parameter: pruned, parametrised, sharded and traced weights are made anew each call
    plain = type(value) is nn.Parameter and not value.is_inference()
    return plain and not trains and not is_random(quantizer)


def is_random(quantizer: Quantizer) -> bool:
    """Whether the values of one tensor differ from call to call."""
    rounding = getattr(quantizer, "rounding", None)
    return rounding == "stochastic" or bool(getattr(quantizer, "stochastic", False))


def _keep(module: nn.Module, name: str, value: Tensor, quantizer: Quantizer) -> Tensor:
    _KEPT.get(module, {}).pop(name, None)  # freed before the new one is made
    source = value.detach()
    with torch.inference_mode(False), torch.no_grad():  # usable later, where gradients are on
        result = quantizer(source)
    if type(result) is Tensor and result is not source and _BUDGET.take(result):
        _KEPT.setdefault(module, {})[name] = _Kept(
            StorageWeakRef(value.untyped_storage()),  # type: ignore[no-untyped-call]
            value.data_ptr(),
            value._version,
            value.dtype,
            value.shape,
            value.stride(),
            quantizer,
            result,
        )
    return result
