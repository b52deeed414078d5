"""Derivation of guards on input sizes from the decisions of a recorded model.

A decision by a size inside the graph is followed back to the inputs. If that fails, the sizes of
the inputs that it may depend on are pinned.
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
class RecordedRun:
    """Run of a model: its decisions, attributes and inputs, and the node of each tensor."""

    decisions: list[Decision]
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Any]
    node_of: Callable[[Tensor], fx.Node]


def shapes(inputs: Mapping[str, Any]) -> dict[Path, tuple[int, ...]]:
    """Return the shape of every tensor in the inputs, as plain numbers."""
    return {path: tuple(map(int, tensor.shape)) for path, tensor in tensors_in(inputs, ())}


def find_guards(recorded: RecordedRun) -> tuple[Guard, ...]:
    """Return the guards under which the graph computes the same as the model."""
    ranks = [d for d in recorded.decisions if d.name == "rank"]
    guards = list(_rank_guards(recorded, ranks))
    decisions = (d for d in recorded.decisions if d.name != "rank")
    waiting = _distinct(d for d in decisions if not d.holds_either_way())
    with quiet("torch._subclasses.fake_tensor"):
        early, late = _by_inputs(recorded, waiting)
        guards += _resolved(recorded, early, frozenset())
        pinned = frozenset(pin for guard in guards if (pin := guard.pins()) is not None)
        guards += _resolved(recorded, late, pinned)
    return simplified(guards)


def _by_inputs(
    recorded: RecordedRun, decisions: list[Decision]
) -> tuple[list[Decision], list[Decision]]:
    """Return the decisions on sizes of inputs alone, and the others."""
    early = [
        d
        for d in decisions
        if all(recorded.node_of(t).op == "placeholder" for t in _tensors_of(d.operands))
    ]
    return early, [d for d in decisions if d not in early]


def _resolved(
    recorded: RecordedRun, decisions: list[Decision], pinned: frozenset[tuple[Path, int]]
) -> list[Guard]:
    """Return the guards of these decisions; sizes in `pinned` have guards and are constants."""
    guards: list[Guard] = []
    for hints in _hints(shapes(recorded.inputs), pinned) if decisions else ():
        more, decisions = _followed(recorded, decisions, hints, pinned)
        guards += more
        if not decisions:
            break
    for decision in decisions:
        guards += _pins(recorded, decision)
    return guards


def _distinct(decisions: Iterable[Decision]) -> list[Decision]:
    """Return each decision once; decisions on the same expression are equal."""
    unique: dict[Any, Decision] = {}
    for decision in decisions:
        parts = (id(o.expression) if isinstance(o, Tracked) else o for o in decision.operands)
        unique.setdefault((decision.name, *parts), decision)
    return list(unique.values())


def _followed(
    recorded: RecordedRun,
    decisions: list[Decision],
    hints: Mapping[tuple[Path, int], int],
    pinned: frozenset[tuple[Path, int]],
) -> tuple[list[Guard], list[Decision]]:
    """Return the guards of decisions that can be followed to the inputs, and the others."""
    from chop.ir.trace.symbolic import NotFollowedError, SymbolicSizes

    run = (recorded.attributes, recorded.inputs, hints, recorded.node_of, pinned)
    symbolic = SymbolicSizes(*run)
    guards, unresolved = [], []
    for decision in decisions:
        try:
            conditions = _conditions(symbolic, decision, shapes(recorded.inputs))
        except Exception as error:
            expected = isinstance(error, NotFollowedError)
            logger.debug("%s: %s%s", decision.line, "" if expected else "failed: ", error)
            unresolved.append(decision)
            continue
        guards += [Guard(condition, f"{decision.line}") for condition in conditions]
    captured = shapes(recorded.inputs)
    fixed = symbolic.fixed_sizes()
    if any(captured[path][dim] != size for path, dim, size in fixed):
        return [], decisions  # the guards are about a size that was not captured
    pins = _fixed(recorded, [d for d in decisions if d not in unresolved], fixed)
    about = {leaf for guard in guards for leaf in leaves(guard.condition)}
    pairs = [[("size", *symbolic.sizes[s]) for s in pair] for pair in symbolic.equal_sizes()]
    meetings = [Guard(("==", *pair), _MEETING) for pair in pairs if not about.isdisjoint(pair)]
    return guards + pins + meetings, unresolved


def _fixed(
    recorded: RecordedRun, decisions: list[Decision], fixed: list[tuple[Path, int, int]]
) -> list[Guard]:
    """Return pins of fixed sizes, of inputs that some decision depends on."""
    pins = []
    for decision in decisions if fixed else ():
        names = _inputs_of(list(_tensors_of(decision.operands)), recorded, set())
        for path, dim, size in [f for f in fixed if f[0][0] in names]:
            where = f"{decision.line} (which cannot be followed at other sizes)"
            pins.append(Guard(("==", ("size", path, dim), size), where))
            fixed = [f for f in fixed if f[0] != path or f[1] != dim]
    return pins


def _conditions(
    symbolic: SymbolicSizes, decision: Decision, captured: Mapping[Path, Any]
) -> list[Tree]:
    """Return the conditions for the same outcome of a decision; none if it is constant."""
    from chop.ir.trace.size_relations import relations
    from chop.ir.trace.symbolic import NotFollowedError, to_tree

    sides = [symbolic.number(o) for o in decision.operands]
    values = [evaluate(to_tree(side, symbolic.sizes), captured) for side in sides]
    if values != [plain(o) for o in decision.operands]:
        raise NotFollowedError(f"{values} is not what was seen")
    name = _NAMES[decision.name]
    name = name if decision.outcome() else OPPOSITES[name]
    return [
        (relation, *(to_tree(side, symbolic.sizes) for side in pair))
        for relation, *pair in relations(name, *sides)
    ]


def _hints(
    captured: Mapping[Path, tuple[int, ...]], pinned: frozenset[tuple[Path, int]]
) -> Iterator[dict[tuple[Path, int], int]]:
    """Yield sizes to follow a graph at: first with all different sizes distinct, then the run's."""
    sizes = {(path, dim): size for path, s in captured.items() for dim, size in enumerate(s)}
    chosen: dict[tuple[int, int], int] = {}
    for (_, dim), size in sizes.items():
        if (dim, size) not in chosen:
            multiples = (size * k for k in itertools.count(1))
            free = (n for n in multiples if n > 1 and n not in chosen.values())
            chosen[dim, size] = next(free) if size else 0
    apart = {k: s if k in pinned else chosen[k[1], s] for k, s in sizes.items()}
    if apart != sizes:
        yield apart
    yield sizes


def _rank_guards(recorded: RecordedRun, decisions: list[Decision]) -> Iterator[Guard]:
    guarded: set[str] = set()
    visited: set[fx.Node] = set()
    captured = shapes(recorded.inputs)
    for decision in decisions:
        for name in _inputs_of([decision.operands[0]], recorded, visited) - guarded:
            guarded.add(name)
            for path in (p for p in captured if p[0] == name):
                condition = ("==", ("rank", path), len(captured[path]))
                yield Guard(condition, f"{decision.line}")


def _pins(recorded: RecordedRun, decision: Decision) -> Iterator[Guard]:
    """Yield pins of all sizes of the inputs that the decision may depend on."""
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


def _inputs_of(tensors: list[Tensor], recorded: RecordedRun, visited: set[fx.Node]) -> set[str]:
    """Return the inputs that these tensors are computed from; skip and extend `visited`."""
    names = set()
    waiting = [recorded.node_of(t) for t in tensors]
    while waiting:
        node = waiting.pop()
        if node in visited:
            continue
        visited.add(node)
        waiting.extend(node.all_input_nodes)
        if node.op == "placeholder":
            names.add(str(node.target))
    return names


def simplified(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return the guards without those that others imply."""
    unique: dict[Any, Guard] = {}
    for guard in guards:
        unique.setdefault(guard.condition, guard)
    pinned = {("size", *pin) for g in unique.values() if (pin := g.pins()) is not None}
    needed = [
        g for g in unique.values() if g.pins() is not None or not set(leaves(g.condition)) <= pinned
    ]
    return tuple(g for g in needed if not any(_implies(other, g) for other in needed))


def _implies(one: Guard, other: Guard) -> bool:
    """Return True if `one` is a tighter bound of the same size than `other`."""
    (first, size, bound), (second, same, limit) = one.condition, other.condition
    if one is other or size != same or isinstance(bound, tuple) or isinstance(limit, tuple):
        return False
    is_tighter = (first == ">=" and bound > limit) or (first == "<=" and bound < limit)
    return is_tighter and second in (first, "!=")
