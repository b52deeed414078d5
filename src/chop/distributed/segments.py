"""Segments of a program: runs of values between two places where at most one value is live.

They depend on the program alone. A segment is what is recomputed as a whole, and the window in
which the gathers and gradient reductions of its parameters overlap with its arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from chop.distributed.program import Program, ProgramValue

MANY_READERS = 6
"""Readers from which a value may cross segments, such as the encoder's output in every decoder."""


def segments_of(program: Program) -> list[list[ProgramValue]]:
    """Return the segments of a program in order; each has something to recompute."""
    readers = program.readers()
    last = {name: each[-1] for name, each in readers.items() if each}
    live: set[str] = set()
    groups: list[list[ProgramValue]] = [[]]
    for value in program.values:
        groups[-1].append(value)
        live |= {value.name} if _can_be_live(value, readers) else set()
        live -= {r.value for r in value.references if last[r.value] == value.name}
        if len(live) <= 1 and not value.is_parameter and _is_full(groups[-1]):
            groups.append([])
    return _joined(groups)


def entering(segment: Iterable[ProgramValue]) -> list[str]:
    """Return the values of other segments that a segment reads, each once."""
    segment = list(segment)
    inside = {value.name for value in segment}
    names = dict.fromkeys(r.value for value in segment for r in value.references)
    return [name for name in names if name not in inside]


def _joined(groups: list[list[ProgramValue]]) -> list[list[ProgramValue]]:
    """Return the groups with what remains at the end in the last one."""
    if groups[-1] and _is_full(groups[-1]):
        return groups
    tail = groups.pop()
    return [*groups[:-1], [*groups[-1], *tail]] if groups else [tail]


def _can_be_live(value: ProgramValue, readers: Mapping[str, Sequence[str]]) -> bool:
    """Return True if the layout of `value` is a choice that its readers depend on."""
    count = len(readers[value.name])
    is_choice = not value.is_fixed and not value.is_parameter
    return is_choice and 0 < count < MANY_READERS


def _is_full(group: Iterable[ProgramValue]) -> bool:
    """Return True if a segment has a parameter and two values that training stores."""
    group = list(group)
    stored = [v for v in group if not v.is_view and not v.is_fixed and not v.is_parameter]
    return any(v.is_parameter for v in group) and len(stored) > 1


def operands_by_source(value: ProgramValue) -> dict[str, tuple[str, ...]]:
    """Return the operands of a value by the value that they read."""
    operands: dict[str, tuple[str, ...]] = {}
    for reference in value.references:
        operands[reference.value] = (*operands.get(reference.value, ()), reference.operand)
    return operands
