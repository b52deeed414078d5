"""Quantised parameters kept between calls, so that a frozen weight is quantised once.

A parameter is frozen while nothing can train it: it requires no gradient, or gradients are off.
What is kept lives outside the module, so that copies, pickles and state dicts never see it. It is
used again only while the parameter's storage, version and format are the ones it was made from;
a call that trains and a change of mode drop it. (Torch does not count edits made in place through
`.data` as versions; after one, outside training, call `eval()` or `train()`.)
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from chop.nn.quantizers import Quantizer


class _Kept(NamedTuple):
    source: Tensor  # an alias: keeps the storage alive, so that its address means this storage
    version: int
    quantizer: Quantizer
    result: Tensor

    def fits(self, value: Tensor, quantizer: Quantizer) -> bool:
        return (
            self.version == value._version
            and self.source.data_ptr() == value.data_ptr()
            and self.source.dtype == value.dtype
            and self.source.shape == value.shape
            and self.source.stride() == value.stride()
            and self.source.device == value.device
            and self.quantizer == quantizer
        )


_KEPT: WeakKeyDictionary[nn.Module, dict[str, _Kept]] = WeakKeyDictionary()


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
    trains = value.requires_grad and torch.is_grad_enabled()
    # a plain parameter: pruned, parametrised, sharded and traced weights are made anew each call
    plain = type(value) is nn.Parameter and not value.is_inference()
    return plain and not trains and not _is_random(quantizer)


def _is_random(quantizer: Quantizer) -> bool:
    rounding = getattr(quantizer, "rounding", None)
    return rounding == "stochastic" or bool(getattr(quantizer, "stochastic", False))


def _keep(module: nn.Module, name: str, value: Tensor, quantizer: Quantizer) -> Tensor:
    source = value.detach()
    with torch.inference_mode(False), torch.no_grad():  # usable later, where gradients are on
        result = quantizer(source)
    if type(result) is Tensor and result is not source:
        kept = _Kept(source, value._version, quantizer, result)
        _KEPT.setdefault(module, {})[name] = kept
    return result
