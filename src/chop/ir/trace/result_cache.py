"""Which calls give results of the same kind, so that one run on tensors without data serves all.

The layers of a deep model are alike: what a Linear(768, 768) makes of a float32[1, 128, 768] need
be found out once. Keys compare shapes, strides, dtypes and settings, never values.
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
    """A key equal for arguments that an op treats alike; hashable where they are."""
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
    """A key equal for modules that treat shapes alike; None where it cannot be known.

    It can for a single layer of torch's whose settings are literals, and which has no hooks.
    """
    is_single = not module._modules and type(module).__module__.startswith("torch.nn.")
    settings = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    if not is_single or _has_hooks(module) or not is_plain(settings):
        return None
    return (type(module), key_of(settings), *(key_of(p) for p in module.parameters()))


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def is_hashable(key: Any) -> bool:
    """Whether `key` can be looked up."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class Blank:
    """What a tensor is, without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> Tensor:
        """A new tensor of this kind, on the device (fake or real) in force."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class FakeResults:
    """Results of calls on fake tensors, by key: a call seen before is not run again."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, key: Any, run: Callable[[], Any]) -> Any:
        """`run()`, or tensors like those it gave for the same key."""
        if not is_hashable(key):
            return run()
        if key in self._known:
            return _made(self._known[key])
        result = run()
        template = _template(result)
        if template is not None:
            self._known[key] = template
        return result


def _template(result: Any) -> Any:
    """Blanks in the place of fake tensors; None where that would lose something."""
    if type(result) is FakeTensor and result.constant is None:
        return Blank(tuple(result.shape), result.stride(), result.dtype, result.device)
    if type(result) in (tuple, list) and result:
        parts = [_template(r) if r is not None else r for r in result]
        known = all(p is not None or r is None for p, r in zip(parts, result, strict=True))
        return type(result)(parts) if known else None
    return None


def _made(template: Any) -> Any:
    if isinstance(template, Blank):
        return template.make()
    if isinstance(template, tuple | list):
        return type(template)(_made(t) for t in template)
    return template
