"""Registries: tables by name that reject duplicates and suggest the nearest name."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from chop.errors import RegistryError

T = TypeVar("T")
Thing = TypeVar("Thing")


def suggest(name: object, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known name and a list of all.

    >>> suggest("intger", ["integer", "log"])
    "Did you mean 'integer'? Known: integer, log."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return f"{hint}Known: {', '.join(names)}."


class Registry(Mapping[str, T], Generic[T]):
    """Mapping from names to objects of a kind ("format", "pass" …), which its errors name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, thing: T, aliases: Iterable[str] = ()) -> T:
        """Add `thing` under `name` and `aliases`; raise if a name is registered already.

        A notebook cell that runs again replaces its previous registration.
        """
        if _is_same_cell(self._things.get(name), thing):
            self.forget(name)
        for each in (name, *aliases):
            if not isinstance(each, str) or not each:
                raise RegistryError(f"A {self.kind} is registered by its name, got {each!r}.")
            if each in self._things or each in self._aliases:
                raise RegistryError(f"{self.kind} '{each}' is already registered.")
        self._things[name] = thing
        self._aliases.update(dict.fromkeys(aliases, name))
        return thing

    def entry(self, name: str, *aliases: str) -> Callable[[Thing], Thing]:
        """Return a decorator that registers an object and returns it unchanged.

        >>> models = Registry("model")
        >>> @models.entry("double")
        ... def double(x):
        ...     return 2 * x
        >>> models["double"](4)
        8
        """

        def add(thing: Thing) -> Thing:
            self.register(name, thing, aliases)  # type: ignore[arg-type]
            return thing

        return add

    def forget(self, name: str) -> None:
        """Remove `name` and its aliases, for tests and notebooks."""
        canonical = self.canonical(name)
        del self._things[canonical]
        self._aliases = {a: n for a, n in self._aliases.items() if n != canonical}

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Remove registrations of the context afterwards, for tests."""
        before = dict(self._things), dict(self._aliases)
        try:
            yield
        finally:
            self._things, self._aliases = before

    def ending(self, suffix: str) -> tuple[str, ...]:
        """Return the names that end in `suffix`, in order of registration."""
        return tuple(name for name in self._things if name.endswith(suffix))

    def canonical(self, name: str) -> str:
        """Return the registered name for `name`, which may be an alias."""
        canonical = self._aliases.get(name, name)
        if canonical not in self._things:
            raise RegistryError(f"Unknown {self.kind} '{name}'. {suggest(name, self._things)}")
        return canonical

    def check(self, names: Iterable[str], table: str) -> None:
        """Raise if one of the `names` in `table` is not registered."""
        for name in names:
            if name not in self:
                hint = suggest(name, self._things)
                raise RegistryError(f"{table}: unknown {self.kind} '{name}'. {hint}")

    def __getitem__(self, name: str) -> T:
        return self._things[self.canonical(name)]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the object `name`, or `default` without a suggestion."""
        return self._things.get(self._aliases.get(name, name), default)

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)


def _is_same_cell(old: Any, new: Any) -> bool:
    """Return True if both are the same definition in a notebook or interactive session."""
    names = [(getattr(t, "__module__", None), getattr(t, "__qualname__", None)) for t in (old, new)]
    return names[0] == names[1] and names[0][0] == "__main__"
