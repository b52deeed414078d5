"""Name -> thing tables that refuse duplicates and answer a miss with the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from chop.errors import RegistryError

T = TypeVar("T")


def suggest(name: object, known: Iterable[str]) -> str:
    """A sentence that names the nearest known name and lists the rest.

    >>> suggest("intger", ["integer", "log"])
    "Did you mean 'integer'? Known: integer, log."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return f"{hint}Known: {', '.join(names)}."


class Registry(Mapping[str, T], Generic[T]):
    """A read-mostly mapping with a kind ("format", "pass" …) that its errors speak of."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str, thing: T, aliases: Iterable[str] = ()) -> T:
        """Add `thing` under `name` (and `aliases`); a name already taken is an error."""
        for taken in (name, *aliases):
            if taken in self._things or taken in self._aliases:
                raise RegistryError(f"{self.kind} '{taken}' is already registered.")
        self._things[name] = thing
        self._aliases.update(dict.fromkeys(aliases, name))
        return thing

    def canonical(self, name: str) -> str:
        """The registered name that `name` (itself or an alias) stands for."""
        found = self._aliases.get(name, name)
        if found not in self._things:
            raise RegistryError(f"Unknown {self.kind} '{name}'. {suggest(name, self._things)}")
        return found

    def __getitem__(self, name: str) -> T:
        return self._things[self.canonical(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)
