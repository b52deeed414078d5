"""From what a model decided while it was recorded to guards on the sizes of its inputs.

A decision on a size inside the graph is followed back to the inputs. Where it cannot be, the sizes
of the inputs it may depend on are pinned to what they were.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx

from chop.ir.guards import OPPOSITES, Guard, Path, Tree, evaluate, leaves, tensors_in
from chop.ir.trace.decisions import Decision
from chop.ir.trace.environment import quiet
from chop.ir.trace.tracked import Expression, Tracked, plain
from chop.log import get_logger

if TYPE_CHECKING:
    from chop.ir.trace.symbolic import SymbolicSizes

logger = get_logger(__name__)

_NAMES = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_MEETING = "an operation that takes sizes that meet in it to be equal"


@dataclass(frozen=True)
class Recorded:
    """A run of a model: what it decided, on which inputs, and how its graph knows its tensors."""

    decisions: list[Decision]
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Any]
    node_of: Callable[[Tensor], fx.Node]


def shapes(inputs: Mapping[str, Any]) -> dict[Path, tuple[int, ...]]:
    """The shape of every tensor in the inputs, as plain numbers."""
    found = tensors_in(inputs, ())
    return {path: tuple(int(s) for s in tensor.shape) for path, tensor in found}


def find_guards(recorded: Recorded) -> tuple[Guard, ...]:
    """The guards under which the graph is the model."""
    ranks = [d for d in recorded.decisions if d.name == "rank"]
    guards = list(_rank_guards(recorded, ranks))
    decisions = (d for d in recorded.decisions if d.name != "rank")
    waiting = _distinct(d for d in decisions if not d.holds_either_way())
    with quiet("torch._subclasses.fake_tensor"):
        for hints in _hints(shapes(recorded.inputs)) if waiting else ():
            found, waiting = _followed(recorded, waiting, hints)
            guards += found
            if not waiting:
                break
    for decision in waiting:
        guards += _pins(recorded, decision)
    return simplified(guards)


def _distinct(decisions: Iterable[Decision]) -> list[Decision]:
    """Each decision once; those on one expression are alike on whatever line they are."""
    found: dict[Any, Decision] = {}
    for decision in decisions:
        parts = (id(o.expression) if isinstance(o, Tracked) else o for o in decision.operands)
        found.setdefault((decision.name, *parts), decision)
    return list(found.values())


def _followed(
    recorded: Recorded, decisions: list[Decision], hints: Mapping[tuple[Path, int], int]
) -> tuple[list[Guard], list[Decision]]:
    """Guards of the decisions that can be followed to the inputs, and those that cannot."""
    from chop.ir.trace.symbolic import NotFollowedError, SymbolicSizes

    symbolic = SymbolicSizes(recorded.attributes, recorded.inputs, hints, recorded.node_of)
    guards, left = [], []
    for decision in decisions:
        try:
            conditions = _conditions(symbolic, decision, shapes(recorded.inputs))
        except Exception as error:
            expected = isinstance(error, NotFollowedError)
            logger.debug("%s: %s%s", decision.line, "" if expected else "failed: ", error)
            left.append(decision)
            continue
        guards += [Guard(condition, f"{decision.line}") for condition in conditions]
    captured = shapes(recorded.inputs)
    fixed = symbolic.fixed_sizes()
    if any(captured[path][dim] != size for path, dim, size in fixed):
        return [], decisions  # what was found is about a size that is not the captured one
    pins = _fixed(recorded, [d for d in decisions if d not in left], fixed)
    return guards + pins + _meetings(symbolic, guards), left


def _fixed(
    recorded: Recorded, decisions: list[Decision], fixed: list[tuple[Path, int, int]]
) -> list[Guard]:
    """Pins of sizes that could not be left open, of inputs that some decision depends on."""
    found = []
    for decision in decisions if fixed else ():
        names = _inputs_of(list(_tensors_of(decision.operands)), recorded, set())
        for path, dim, size in [f for f in fixed if f[0][0] in names]:
            where = f"{decision.line} (which cannot be followed at other sizes)"
            found.append(Guard(("==", ("size", path, dim), size), where))
            fixed = [f for f in fixed if f[0] != path or f[1] != dim]
    return found


def _conditions(
    symbolic: SymbolicSizes, decision: Decision, captured: Mapping[Path, Any]
) -> list[Tree]:
    """What must hold for the decision to come out as it did; nothing where it always does."""
    from chop.ir.trace.size_relations import relations
    from chop.ir.trace.symbolic import NotFollowedError, to_tree

    sides = [symbolic.number(o) for o in decision.operands]
    values = [evaluate(to_tree(side, symbolic.sizes), captured) for side in sides]
    if values != [plain(o) for o in decision.operands]:
        raise NotFollowedError(f"{values} is not what was seen")
    name = _NAMES[decision.name]
    name = name if decision.outcome() else OPPOSITES[name]
    return [
        (name, *(to_tree(side, symbolic.sizes) for side in found))
        for name, *found in relations(name, *sides)
    ]


def _meetings(symbolic: SymbolicSizes, guards: list[Guard]) -> list[Guard]:
    """Sizes that were taken to be equal must be, where a guard is about one of them."""
    about = {leaf for guard in guards for leaf in leaves(guard.condition)}
    found = []
    for first, second in symbolic.equal_sizes():
        pair = [("size", *symbolic.sizes[s]) for s in (first, second)]
        if any(leaf in about for leaf in pair):
            found.append(Guard(("==", *pair), _MEETING))
    return found


def _hints(captured: Mapping[Path, tuple[int, ...]]) -> Iterator[dict[tuple[Path, int], int]]:
    """Sizes to follow a graph at: first such that unlike sizes differ, then those of the run."""
    given = {(path, dim): size for path, s in captured.items() for dim, size in enumerate(s)}
    chosen: dict[tuple[int, int], int] = {}
    for (_, dim), size in given.items():
        if (dim, size) not in chosen:
            multiples = (size * k for k in itertools.count(1))
            free = (n for n in multiples if n > 1 and n not in chosen.values())
            chosen[dim, size] = next(free) if size else 0
    apart = {key: chosen[key[1], size] for key, size in given.items()}
    if apart != given:
        yield apart
    yield given


# -- what cannot be followed ---------------------------------------------------------------------


def _rank_guards(recorded: Recorded, decisions: list[Decision]) -> Iterator[Guard]:
    seen: set[str] = set()
    known: set[fx.Node] = set()
    captured = shapes(recorded.inputs)
    for decision in decisions:
        for name in _inputs_of([decision.operands[0]], recorded, known) - seen:
            seen.add(name)
            for path in (p for p in captured if p[0] == name):
                condition = ("==", ("rank", path), len(captured[path]))
                yield Guard(condition, f"{decision.line}")


def _pins(recorded: Recorded, decision: Decision) -> Iterator[Guard]:
    """Every size of the inputs that the decision may depend on."""
    tensors = list(_tensors_of(decision.operands))
    for path, shape in shapes(recorded.inputs).items():
        if path[0] in _inputs_of(tensors, recorded, set()):
            for dim, size in enumerate(shape):
                condition = ("==", ("size", path, dim), size)
                yield Guard(condition, f"{decision.line} (which cannot be followed further)")


def _tensors_of(operands: Iterable[Any]) -> Iterator[Tensor]:
    waiting = list(operands)
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, Tracked):
            waiting.append(each.expression)
        elif isinstance(each, Expression):
            waiting.extend(each.args)


def _inputs_of(tensors: list[Tensor], recorded: Recorded, known: set[fx.Node]) -> set[str]:
    """The inputs of the graph that these tensors are computed from; `known` are left out."""
    found = set()
    waiting = [recorded.node_of(t) for t in tensors]
    while waiting:
        node = waiting.pop()
        if node in known:
            continue
        known.add(node)
        waiting.extend(node.all_input_nodes)
        if node.op == "placeholder":
            found.add(str(node.target))
    return found


# -- fewer guards --------------------------------------------------------------------------------


def simplified(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """The guards without those that others imply."""
    unique: dict[Any, Guard] = {}
    for guard in guards:
        unique.setdefault(guard.condition, guard)
    pinned = {("size", *pin) for g in unique.values() if (pin := g.pins()) is not None}
    kept = [
        g for g in unique.values() if g.pins() is not None or not set(leaves(g.condition)) <= pinned
    ]
    return tuple(g for g in kept if not any(_implies(other, g) for other in kept))


def _implies(one: Guard, other: Guard) -> bool:
    """Whether `one` is a tighter bound of the same size than `other`."""
    (first, size, bound), (second, same, limit) = one.condition, other.condition
    if one is other or size != same or isinstance(bound, tuple) or isinstance(limit, tuple):
        return False
    if first == second:
        return (first == ">=" and bound > limit) or (first == "<=" and bound < limit)
    return second == "!=" and (
        (first == ">=" and bound > limit) or (first == "<=" and bound < limit)
    )
