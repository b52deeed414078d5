"""Custom autograd function that a graph can call, copy and name."""

from __future__ import annotations

from typing import Any

import torch

from chop.errors import CheckpointError


class AppliedFunction:
    """Function `cls.apply`, equal for equal classes; torch.fx does not mistake it for torch's."""

    __name__ = "apply"

    def __init__(self, cls: type[torch.autograd.Function]) -> None:
        self.cls = cls
        self.__module__ = cls.__module__
        self.__qualname__ = f"{cls.__qualname__}.apply"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.cls.apply(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AppliedFunction) and other.cls is self.cls

    def __hash__(self) -> int:
        return hash(self.cls)

    def __repr__(self) -> str:
        return f"{self.__module__}.{self.__qualname__}"

    def stored_name(self) -> str:
        """Return its dotted path; raise for a class that is defined inside a function."""
        if "<locals>" in self.__qualname__:
            raise CheckpointError(
                f"autograd function '{self.cls.__qualname__}' of {self.__module__} is defined "
                "inside a function, where it cannot be found again. Define it at the top of a "
                "module to save graphs that call it."
            )
        return f"{self.__module__}.{self.__qualname__}"


def applied(function: Any) -> Any:
    """Wrap the `apply` of an autograd function; return other functions unchanged."""
    owner = getattr(function, "__self__", None)
    is_apply = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
    return AppliedFunction(owner) if is_apply else function  # type: ignore[arg-type]
