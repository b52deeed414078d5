"""Cache of results on fake tensors, so that equal layers of a deep model run once.

Keys compare shapes, strides, dtypes and settings, never values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from chop.ir.node_arguments import is_plain


def key_of(argument: Any) -> Any:
    """Return a key that is equal for arguments with results of equal shape."""
    if isinstance(argument, Tensor):
        return (argument.shape, argument.stride(), argument.dtype)
    if isinstance(argument, tuple | list):
        return (type(argument), *map(key_of, argument))
    if isinstance(argument, dict):
        return tuple((name, key_of(value)) for name, value in argument.items())
    if isinstance(argument, slice):
        return (slice, argument.start, argument.stop, argument.step)
    return (type(argument), argument)


def module_key(module: nn.Module) -> Any:
    """Return a key that is equal for modules with results of equal shape, or None.

    Only single layers of torch with literal settings and without hooks have a key.
    """
    is_single = not module._modules and type(module).__module__.startswith("torch.nn.")
    settings = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    has_hooks = module._forward_hooks or module._forward_pre_hooks
    if not is_single or has_hooks or not is_plain(settings):
        return None
    return (type(module), key_of(settings), *(key_of(p) for p in module.parameters()))


def is_hashable(key: Any) -> bool:
    """Return True if `key` can be looked up."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class Blank:
    """Tensor without data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> Tensor:
        """Create a tensor of this kind, in the current (fake or real) mode."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class FakeResults:
    """Results of calls on fake tensors, by key."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, key: Any, run: Callable[[], Any]) -> Any:
        """Return `run()`, or new tensors like its cached result for the same key."""
        if not is_hashable(key):
            return run()
        if key in self._known:
            return _from_template(self._known[key])
        result = run()
        template = _template(result)
        if template is not None:
            self._known[key] = template
        return result


def _template(result: Any) -> Any:
    """Return `result` with blanks for fake tensors, or None if that would lose something."""
    if type(result) is FakeTensor and result.constant is None:
        return Blank(tuple(result.shape), result.stride(), result.dtype, result.device)
    if type(result) in (tuple, list) and result:
        parts = [_template(r) if r is not None else r for r in result]
        is_complete = all(p is not None or r is None for p, r in zip(parts, result, strict=True))
        return type(result)(parts) if is_complete else None
    return None


def _from_template(template: Any) -> Any:
    if isinstance(template, Blank):
        return template.make()
    if isinstance(template, tuple | list):
        return type(template)(_from_template(t) for t in template)
    return template
