"""A custom autograd function as something a graph can call, copy and name."""

from __future__ import annotations

from typing import Any

import torch

from chop.errors import CheckpointError


class AppliedFunction:
    """`cls.apply`: two of one class are equal, and torch.fx does not take it for torch's own."""

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
        """The name it is found by again; a class made inside a function has none."""
        if "<locals>" in self.__qualname__:
            raise CheckpointError(
                f"autograd function '{self.cls.__qualname__}' of {self.__module__} is defined "
                "inside a function, where it cannot be found again. Define it at the top of a "
                "module to save graphs that call it."
            )
        return f"{self.__module__}.{self.__qualname__}"


def applied(found: Any) -> Any:
    """`found`, as an AppliedFunction where it is the `apply` of an autograd function."""
    owner = getattr(found, "__self__", None)
    is_one = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
    return AppliedFunction(owner) if is_one else found  # type: ignore[arg-type]
