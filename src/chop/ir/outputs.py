"""Conversion of a graph's plain outputs to the output classes of its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn


@dataclasses.dataclass(frozen=True)
class OutputTemplate:
    """Classes of a nested output: `kind` is created from a dict with the templates `parts`.

    As a forward hook it converts {"loss": …, "logits": …} to the SequenceClassifierOutput of the
    model, so that `out.logits` works on the graph.
    """

    kind: type | None
    parts: dict[Any, OutputTemplate]

    @classmethod
    def of(cls, value: Any) -> OutputTemplate:
        """Return the template of a model's output."""
        fields = _fields(value)
        if fields is None:
            return cls(None, {})
        parts = {key: cls.of(item) for key, item in fields.items()}
        kind = type(value) if type(value) not in (dict, tuple, list) else None
        return cls(kind, {k: p for k, p in parts.items() if p.kind or p.parts})

    def plain(self, value: Any) -> Any:
        """Return `value` as nested dicts, tuples and lists."""
        if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
            return {k: self.plain(v) for k, v in (_fields(value) or {}).items()}
        if type(value) in (tuple, list):
            return type(value)(self.plain(v) for v in value)
        return tuple(value) if isinstance(value, tuple | list) else value

    def restore(self, value: Any) -> Any:
        """Return `value` with its classes."""
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
        """Return the restored output, as a forward hook."""
        return self.restore(output)

    def attach(self, module: nn.Module) -> None:
        """Make `module` return the classes of this template, if it has any."""
        if self.kind is not None or self.parts:
            module.register_forward_hook(self)


def template_of(module: nn.Module) -> OutputTemplate | None:
    """Return the template attached to `module`, if any."""
    hooks = module._forward_hooks.values()
    return next((h for h in hooks if isinstance(h, OutputTemplate)), None)


def _fields(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    return None
