"""Guards: conditions on input sizes under which a captured graph equals its model.

If the model's Python code branched on a size, the graph contains one branch. A guard is plain
data that a checkpoint stores: nested tuples such as `(">", ("size", ("input_ids",), 1), 6)`.
Guards are checked once for every new set of sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from chop.errors import CheckpointError, SizeError
from chop.files import shown

Tree = Any
"""A number, `("size", path, dim)`, `("rank", path)`, or `(operation, tree, …)`."""
Path = tuple[str | int, ...]
"""Name of an input, and the keys to a tensor inside it if it is nested."""

RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": lambda *terms: sum(terms),
    "*": lambda *factors: math.prod(factors),
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "min": min,
    "max": max,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "trunc": math.trunc,
    "round": round,
    "float": float,
}
LEAVES = {"size": 3, "rank": 2}
"""Kind of a leaf -> the length of its tuple."""
MOST_POWER = 64
"""Largest power of a size in a guard from a file."""
MOST_FACTORS = 4096
"""Most numbers that a guard from a file multiplies or adds: its value has at most 32 KiB."""
LARGEST_CONSTANT = 2**64
"""Largest constant in a guard from a file."""


def evaluate(tree: Tree, tensors: Mapping[Path, torch.Size]) -> Any:
    """Return the value of a tree for these input shapes."""
    if not isinstance(tree, tuple):
        return tree
    if tree[0] == "size":
        return tensors[tree[1]][tree[2]]
    if tree[0] == "rank":
        return len(tensors[tree[1]])
    return OPERATIONS[tree[0]](*(evaluate(part, tensors) for part in tree[1:]))


def leaves(tree: Tree) -> Iterator[tuple[Any, ...]]:
    """Yield the sizes and ranks in a tree."""
    if isinstance(tree, tuple) and tree[0] in LEAVES:
        yield tree
    elif isinstance(tree, tuple):
        for part in tree[1:]:
            yield from leaves(part)


def text(tree: Tree) -> str:
    """Return a tree as Python source: `input_ids.size(1) > 6`."""
    if not isinstance(tree, tuple):
        return str(tree)
    if tree[0] == "size":
        return f"{path_text(tree[1])}.size({tree[2]})"
    if tree[0] == "rank":
        return f"{path_text(tree[1])}.dim()"
    parts = [text(part) for part in tree[1:]]
    if tree[0] in RELATIONS:
        return f" {tree[0]} ".join(parts)
    if tree[0].isalpha():
        return f"{tree[0]}({', '.join(parts)})"
    return "(" + f" {tree[0]} ".join(parts) + ")"


def path_text(path: Path) -> str:
    """Return a path as Python source: `pair[1]['x']`."""
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


@dataclass(frozen=True)
class Guard:
    """Condition that held during the capture, and the line of code that depends on it."""

    condition: Tree
    where: str

    def holds(self, tensors: Mapping[Path, torch.Size]) -> bool:
        """Return True if the condition holds; an index out of range means another rank."""
        relation, left, right = self.condition
        try:
            return bool(RELATIONS[relation](evaluate(left, tensors), evaluate(right, tensors)))
        except (IndexError, ZeroDivisionError):
            return False

    def paths(self) -> set[Path]:
        """Return the inputs in the condition."""
        return {leaf[1] for leaf in leaves(self.condition)}

    def pins(self) -> tuple[Path, int] | None:
        """Return the size that this guard pins, or None."""
        relation, left, right = self.condition
        is_size = isinstance(left, tuple) and left[0] == "size" and not isinstance(right, tuple)
        return (left[1], left[2]) if relation == "==" and is_size else None


@dataclass
class Guards:
    """All guards of a graph, with the shapes of the capture.

    As a forward pre-hook it raises a `SizeError` for inputs that violate a guard.
    """

    guards: tuple[Guard, ...]
    captured: dict[Path, tuple[int, ...]]
    _checked: set[Any] = field(default_factory=set, repr=False, compare=False)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check the inputs of a call, as a forward pre-hook."""
        if self.guards:
            self.check(bound(module, args, kwargs), type(module).__name__)

    def check(self, inputs: Mapping[str, Any], model: str = "the model") -> None:
        """Raise if these inputs violate a guard."""
        broken = self.broken(inputs)
        if broken is not None:
            raise SizeError(self._message(broken, shapes_in(inputs), model))

    def broken(self, inputs: Mapping[str, Any]) -> Guard | None:
        """Return the first guard that these inputs violate, or None."""
        shapes = shapes_in(inputs)
        is_recorded = torch._C._len_torch_function_stack() > 0  # a capture of an outer model
        if is_recorded or torch.compiler.is_compiling():  # a set would fix symbolic sizes
            return self._first_broken(shapes)
        key = tuple(shapes.items())
        broken = None if key in self._checked else self._first_broken(shapes)
        if broken is None:
            self._checked.add(key)
        return broken

    def _first_broken(self, shapes: Mapping[Path, torch.Size]) -> Guard | None:
        for guard in self.guards:
            if all(path in shapes for path in guard.paths()) and not guard.holds(shapes):
                return guard
        return None

    def _message(self, guard: Guard, actual: Mapping[Path, torch.Size], model: str) -> str:
        def values(shapes: Mapping[Path, Any]) -> str:
            unique = dict.fromkeys(leaves(guard.condition))
            return ", ".join(f"{text(leaf)} = {_leaf_value(leaf, shapes)}" for leaf in unique)

        return (
            f"{model} was captured with {values(self.captured)} and is given {values(actual)}. "
            f"Its code goes by this at {guard.where}. Allowed: {text(guard.condition)}. "
            "Capture it at this size too, or let that be done: MaseGraph(model, …, recapture=True)."
        )

    def openness(self) -> dict[str, list[str]]:
        """Return `free`, `pinned` or the conditions of every size of every input."""
        return {
            path_text(path): [self._openness(path, dim) for dim in range(len(shape))]
            for path, shape in self.captured.items()
        }

    def _openness(self, path: Path, dim: int) -> str:
        leaf = ("size", path, dim)
        about = [g for g in self.guards if leaf in leaves(g.condition)]
        if any(g.pins() == (path, dim) for g in about):
            return "pinned"
        return " and ".join(text(g.condition) for g in about) or "free"

    def restricted(self, names: Iterable[str]) -> Guards:
        """Return the guards of a part of the graph with these inputs."""
        inputs = set(names)
        guards = (g for g in self.guards if all(p[0] in inputs for p in g.paths()))
        captured = {p: s for p, s in self.captured.items() if p[0] in inputs}
        return Guards(tuple(guards), captured)

    def pinning(self, shapes: Mapping[str, tuple[int, ...]], reason: Guard) -> Guards:
        """Return these guards and pins of the inputs `shapes`, with the line of `reason`."""
        pins = (
            Guard(("==", ("size", (name,), dim), size), reason.where)
            for name, shape in shapes.items()
            for dim, size in enumerate(shape)
        )
        captured = self.captured | {(name,): shape for name, shape in shapes.items()}
        return Guards((*self.guards, *pins), captured)

    def attach(self, module: nn.Module) -> None:
        """Check every call of `module`."""
        module.register_forward_pre_hook(self, with_kwargs=True, prepend=True)

    def to_data(self) -> Any:
        """Return everything as lists, numbers and strings."""
        return {
            "guards": [[_as_list(g.condition), g.where] for g in self.guards],
            "captured": [[list(path), list(shape)] for path, shape in self.captured.items()],
        }

    @classmethod
    def from_data(cls, data: Any) -> Guards:
        """Restore the result of `to_data`; raise a CheckpointError for other data."""
        try:
            guards = tuple(Guard(_condition(tree), _text(where)) for tree, where in data["guards"])
            captured = {_path(path): tuple(map(_whole, shape)) for path, shape in data["captured"]}
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"guards: expected conditions and shapes as a checkpoint writes them ({error!r})."
            ) from error
        return cls(guards, captured)

    def __deepcopy__(self, memo: dict[int, Any]) -> Guards:
        return Guards(self.guards, dict(self.captured))


def guards_of(module: nn.Module) -> Guards | None:
    """Return the guards attached to `module`, if any."""
    return next((h for h in module._forward_pre_hooks.values() if isinstance(h, Guards)), None)


def replace_guards(module: nn.Module, guards: Guards) -> None:
    """Replace the guards of `module`."""
    hooks = module._forward_pre_hooks
    for key in [k for k, hook in hooks.items() if isinstance(hook, Guards)]:
        del hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
    guards.attach(module)


def bound(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of `module` by the names of its inputs."""
    return {**dict(zip(module.input_names, args, strict=False)), **kwargs}


def shapes_in(inputs: Mapping[str, Any]) -> dict[Path, torch.Size]:
    """Return the shape of every tensor in the inputs, by path."""
    return {path: tensor.shape for path, tensor in tensors_in(inputs, ())}


def tensors_in(value: Any, path: Path) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield every tensor in a nested value, with its path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping | tuple | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in items:
            yield from tensors_in(part, (*path, key))


def _leaf_value(leaf: tuple[Any, ...], shapes: Mapping[Path, Any]) -> Any:
    shape = shapes[leaf[1]]
    if leaf[0] == "rank":
        return len(shape)
    return shape[leaf[2]] if leaf[2] < len(shape) else "none"


def _as_list(tree: Tree) -> Any:
    return [_as_list(part) for part in tree] if isinstance(tree, tuple) else tree


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise TypeError(f"a line of code is text, not {type(data).__name__}")
    return data


def _whole(data: Any) -> int:
    if type(data) is not int:
        raise TypeError(f"a size is a whole number, not {data!r:.40}")
    return data


def _path(data: Any) -> Path:
    is_path = isinstance(data, list) and bool(data) and isinstance(data[0], str)
    if not is_path or any(type(key) not in (str, int) for key in data):
        raise TypeError(f"an input is a list of names, not {data!r:.40}")
    return tuple(data)


def _condition(data: Any) -> Tree:
    relation, left, right = data
    if not isinstance(relation, str) or relation not in RELATIONS:
        raise CheckpointError(f"guard: unknown relation {shown(relation)}.")
    condition = relation, _tree(left), _tree(right)
    if _degree(condition) > MOST_FACTORS:
        raise CheckpointError(
            f"guard: it multiplies or adds more than {MOST_FACTORS} numbers, powers counted as "
            "products."
        )
    return condition


def _tree(data: Any) -> Tree:
    """Return a tree from lists; allow only operations of the table and sizes of inputs."""
    if isinstance(data, int | float) and not isinstance(data, bool):
        if abs(data) > LARGEST_CONSTANT:
            raise CheckpointError(f"guard: {shown(data)}. Allowed: at most {LARGEST_CONSTANT}.")
        return data
    if not isinstance(data, list) or not data:
        raise CheckpointError(f"guard: {shown(data)} is not an expression.")
    kind, *parts = data
    if not isinstance(kind, str):
        raise CheckpointError(f"guard: unknown operation {shown(kind)}.")
    if kind in LEAVES and len(data) == LEAVES[kind]:
        return kind, _path(parts[0]), *map(_whole, parts[1:])
    if kind not in OPERATIONS:
        raise CheckpointError(f"guard: unknown operation '{kind}'. Known: {', '.join(OPERATIONS)}.")
    is_small_power = len(parts) == 2 and type(parts[1]) is int and abs(parts[1]) <= MOST_POWER
    if kind == "**" and not is_small_power:
        raise CheckpointError(
            f"guard: power {shown(parts)}. Allowed: a whole power up to {MOST_POWER}."
        )
    return kind, *map(_tree, parts)


def _degree(tree: Tree) -> int:
    """Return the largest number of sizes and constants that a tree multiplies."""
    if not isinstance(tree, tuple) or tree[0] in LEAVES:
        return 1
    inner = [_degree(part) for part in tree[1:]] or [1]
    if tree[0] == "**":
        return inner[0] * abs(tree[2])
    return sum(inner) if tree[0] in ("*", "+") else max(inner)
