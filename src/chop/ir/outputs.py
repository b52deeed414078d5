"""Gives a graph's plain dicts the output classes of the model it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn


@dataclasses.dataclass(frozen=True)
class OutputTemplate:
    """The classes of a nested output: `kind` is rebuilt from a dict whose parts are `parts`.

    Attached to a module as a forward hook it turns {"loss": …, "logits": …} back into the
    SequenceClassifierOutput that the model returns, so `out.logits` works on the graph.
    """

    kind: type | None
    parts: dict[Any, OutputTemplate]

    @classmethod
    def of(cls, value: Any) -> OutputTemplate:
        """The template of what a model returned."""
        fields = _fields(value)
        if fields is None:
            return cls(None, {})
        parts = {key: cls.of(item) for key, item in fields.items()}
        kind = type(value) if type(value) not in (dict, tuple, list) else None
        return cls(kind, {k: p for k, p in parts.items() if p.kind or p.parts})

    def plain(self, value: Any) -> Any:
        """`value` as nested dicts, tuples and lists."""
        if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
            fields = _fields(value) or {}
            return {k: self.plain(v) for k, v in fields.items()}
        if isinstance(value, tuple | list):
            return type(value)(self.plain(v) for v in value) if _is_plain(value) else tuple(value)
        return value

    def restore(self, value: Any) -> Any:
        """`value` with its classes back."""
        if isinstance(value, Mapping):
            value = {k: self._part(k, v) for k, v in value.items()}
            return self.kind(**value) if self.kind else value
        if isinstance(value, tuple | list):
            items = [self._part(i, v) for i, v in enumerate(value)]
            if self.kind is not None and hasattr(self.kind, "_fields"):
                return self.kind(*items)
            return type(value)(items)
        return value

    def _part(self, key: Any, value: Any) -> Any:
        return self.parts[key].restore(value) if key in self.parts else value

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """As a forward hook: the restored output."""
        return self.restore(output)

    def attach(self, module: nn.Module) -> None:
        """Make `module` return the classes of this template; nothing where there are none."""
        if self.kind is not None or self.parts:
            module.register_forward_hook(self)


def template_of(module: nn.Module) -> OutputTemplate | None:
    """The template attached to `module`, if any."""
    hooks = [h for h in module._forward_hooks.values() if isinstance(h, OutputTemplate)]
    return hooks[0] if hooks else None


def _is_plain(value: Any) -> bool:
    return type(value) in (tuple, list)


def _fields(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return None
