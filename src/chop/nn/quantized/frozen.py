"""Cache of quantised parameters, so that a frozen weight is quantised once.

A parameter is frozen if it requires no gradient or gradients are off. The cache is a second copy of
the weights. All layers together use at most `cache_limit()` bytes, 512 MiB by default; other
weights are quantised at each call.

The cache lives outside the modules: copies, pickles and state dicts do not contain it. An entry is
valid for one storage, version and format of the parameter. A training call or a change of mode
drops it. Torch does not count edits through `.data` as versions: call `eval()` or `train()` after.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from chop.errors import ConfigError
from chop.nn.quantizers import Quantizer


@dataclass(frozen=True)
class _Entry:
    storage: StorageWeakRef  # while it lives, no other storage has its address
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
    """Bytes allowed and bytes in use; a tensor counts until it is freed."""

    limit: int = 512 * 2**20
    used: int = 0

    def take(self, tensor: Tensor) -> bool:
        """Count `tensor` and return True if it fits."""
        if self.used + tensor.nbytes > self.limit:
            return False
        self.used += tensor.nbytes
        weakref.finalize(tensor, self._release, tensor.nbytes).atexit = False
        return True

    def _release(self, size: int) -> None:
        self.used -= size


_CACHE: WeakKeyDictionary[nn.Module, dict[str, _Entry]] = WeakKeyDictionary()
_BUDGET = _Budget()


def cache_limit() -> int:
    """Return the most bytes of the cache."""
    return _BUDGET.limit


def set_cache_limit(limit: int) -> None:
    """Limit the cache to `limit` bytes, 0 to disable it; a larger cache is cleared."""
    if limit < 0:
        raise ConfigError(f"set_cache_limit: limit must be at least 0 bytes, got {limit}.")
    _BUDGET.limit = limit
    if _BUDGET.used > limit:
        clear_caches()


@contextlib.contextmanager
def cache_limited(limit: int) -> Iterator[None]:
    """Limit the cache to `limit` bytes inside the context."""
    before = cache_limit()
    set_cache_limit(limit)
    try:
        yield
    finally:
        set_cache_limit(before)


def cached_bytes() -> int:
    """Return the bytes in the cache."""
    return _BUDGET.used


def clear_caches() -> None:
    """Clear the cache; the next calls quantise again."""
    _CACHE.clear()


def quantize_parameter(module: nn.Module, name: str, value: Tensor, quantizer: Quantizer) -> Tensor:
    """Return `quantizer(value)`, from the cache if `value` is frozen and has not changed."""
    if torch.compiler.is_compiling():
        return quantizer(value)
    if not _is_frozen(value, quantizer):
        forget(module)
        return quantizer(value)
    entry = _CACHE.get(module, {}).get(name)
    if entry is not None and entry.fits(value, quantizer):
        return entry.result
    return _store(module, name, value, quantizer)


def forget(module: nn.Module) -> None:
    """Drop the entries of `module`."""
    if _CACHE:
        _CACHE.pop(module, None)


def _is_frozen(value: Tensor, quantizer: Quantizer) -> bool:
    scale_trains = bool(getattr(quantizer, "trains", False))
    trains = scale_trains or (value.requires_grad and torch.is_grad_enabled())
    # a plain parameter: pruned, parametrised, sharded and traced weights differ at each call
    plain = type(value) is nn.Parameter and not value.is_inference()
    return plain and not trains and not is_random(quantizer)


def is_random(quantizer: Quantizer) -> bool:
    """Return True if results differ from call to call; an exporter's operator has no answer."""
    return bool(getattr(quantizer, "is_random", False))


def _store(module: nn.Module, name: str, value: Tensor, quantizer: Quantizer) -> Tensor:
    _CACHE.get(module, {}).pop(name, None)  # freed before the new one is created
    source = value.detach()
    with torch.inference_mode(False), torch.no_grad():  # usable later, where gradients are on
        result = quantizer(source)
    if type(result) is Tensor and result is not source and _BUDGET.take(result):
        _CACHE.setdefault(module, {})[name] = _Entry(
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
