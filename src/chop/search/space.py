"""Search spaces: named, typed dimensions, their products, and their TOML form.

>>> space = Space({"width": Choice((4, 8)), "lr": Real(1e-5, 1e-2, log=True)})
>>> (Space({"depth": Integer(1, 4)}) * Space({"width": Choice((4, 8))})).size
8
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chop.arguments import MANY, MAPPING, check
from chop.config import check_fields, convert, parse
from chop.errors import ConfigError
from chop.registry import Registry, suggest
from chop.search import submodule

ParameterValue: TypeAlias = str | int | float | bool | None
"""Value of a dimension: anything that JSON stores unchanged."""


@dataclass(frozen=True)
class Choice:
    """Unordered set of values."""

    values: tuple[ParameterValue, ...]

    def __post_init__(self) -> None:
        check("Choice: values", MANY, self.values)
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values:
            raise ConfigError("Choice: there is nothing to choose from.")
        for value in self.values:
            if not isinstance(value, str | int | float | bool | None):
                raise ConfigError(
                    f"Choice: {value!r} ({type(value).__name__}) is not plain data. "
                    "Allowed: str, int, float, bool, None."
                )
        if len(set(self.values)) < len(self.values):  # 1, 1.0 and True are one value in storage
            raise ConfigError(f"Choice: two of {list(self.values)} are equal.")

    @property
    def points(self) -> Sequence[ParameterValue] | None:
        """Every value."""
        return self.values

    def suggest(self, name: str, trial: Any) -> ParameterValue:
        """Return the value that `trial`'s sampler chooses."""
        return trial.suggest_categorical(name, self.values)  # type: ignore[no-any-return]

    def __contains__(self, value: object) -> bool:
        return value in self.values


@dataclass(frozen=True)
class Integer:
    """Integers from `low` to `high`, both included, in steps of `step`."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        _check_bounds(self.low, self.high, self.log, type(self).__name__)
        if self.step < 1 or (self.log and self.step != 1):
            raise ConfigError(
                f"Integer: step is {self.step}. Allowed: at least 1, and 1 when log is set."
            )
        object.__setattr__(self, "high", self.points[-1])

    @property
    def points(self) -> Sequence[int]:
        """Every value."""
        return range(self.low, self.high + 1, self.step)

    def suggest(self, name: str, trial: Any) -> int:
        """Return the value that `trial`'s sampler chooses."""
        return int(trial.suggest_int(name, self.low, self.high, step=self.step, log=self.log))

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value in self.points


@dataclass(frozen=True)
class Real:
    """Numbers from `low` to `high`; `log`: uniform in the logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        _check_bounds(self.low, self.high, self.log, type(self).__name__)

    @property
    def points(self) -> Sequence[float] | None:
        """None: a range has no list of values, unless both bounds are equal."""
        return (self.low,) if self.low == self.high else None

    def suggest(self, name: str, trial: Any) -> float:
        """Return the value that `trial`'s sampler chooses."""
        return float(trial.suggest_float(name, self.low, self.high, log=self.log))

    def __contains__(self, value: object) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high  # type: ignore[operator]


Dimension: TypeAlias = Choice | Integer | Real


def _check_bounds(low: float, high: float, log: bool, kind: str) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ConfigError(f"{kind}: low is {low} and high is {high}. Allowed: low <= high.")
    if log and low <= 0:
        raise ConfigError(f"{kind}: low is {low}. Allowed with log: greater than 0.")


class Space:
    """Named dimensions; a point has one value for each.

    A subclass may override `suggest`, to skip dimensions that do not apply to a point, and `size`.
    """

    def __init__(self, dimensions: Mapping[str, Dimension]) -> None:
        check("Space: dimensions", MAPPING, dimensions)
        for name, dimension in dimensions.items():
            if not isinstance(dimension, Choice | Integer | Real):
                raise ConfigError(
                    f"space: dimension '{name}' is {dimension!r}. Allowed: Choice, Integer, Real."
                )
        self._dimensions = dict(dimensions)

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        """Every dimension that `suggest` may use, by name."""
        return self._dimensions

    @property
    def size(self) -> int | None:
        """Number of points; None if a dimension is continuous."""
        points = [dimension.points for dimension in self.dimensions.values()]
        if any(each is None for each in points):
            return None
        return math.prod(len(each) for each in points if each is not None)

    def suggest(self, trial: Any) -> dict[str, ParameterValue]:
        """Return a point chosen by the sampler of `trial`, which is like an Optuna trial."""
        return {name: d.suggest(name, trial) for name, d in self.dimensions.items()}

    def check(self, point: Mapping[str, ParameterValue], where: str) -> None:
        """Raise if a point has a name or a value that this space does not have."""
        for name, value in point.items():
            if name not in self.dimensions:
                hint = suggest(name, self.dimensions)
                raise ConfigError(f"{where}: unknown dimension '{name}'. {hint}")
            if value not in self.dimensions[name]:
                raise ConfigError(f"{where}.{name}: {value!r} is not in {self.dimensions[name]}.")

    def __mul__(self, other: Space) -> Space:
        return Product(self, other)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name!r}: {d}" for name, d in self.dimensions.items())
        return f"{type(self).__name__}({{{inner}}})"

    @staticmethod
    def from_config(mapping: Mapping[str, Any], where: str, subject: Any = None) -> Space:
        """Return the product of the spaces in `mapping`, which has a table per kind in `SPACES`.

        `subject` is the model or graph to search, for the kinds that need one.
        """
        check(where, MAPPING, mapping)
        if not mapping:
            raise ConfigError(f"{where}: no space is given. {suggest('', SPACES)}")
        spaces = []
        for kind, table in mapping.items():
            if kind not in SPACES:
                raise ConfigError(
                    f"{where}: unknown kind of space '{kind}'. {suggest(kind, SPACES)}"
                )
            spaces.append(SPACES[kind](table, f"{where}.{kind}", subject))
        return spaces[0] if len(spaces) == 1 else Product(*spaces)


class Product(Space):
    """Product of spaces: a point has a point of each factor."""

    factors: tuple[Space, ...]

    def __init__(self, *factors: Space) -> None:
        nested = [f.factors if isinstance(f, Product) else (f,) for f in factors]
        self.factors = tuple(itertools.chain.from_iterable(nested))
        dimensions: dict[str, Dimension] = {}
        for factor in self.factors:
            for name, dimension in factor.dimensions.items():
                if name in dimensions:
                    raise ConfigError(f"space: dimension '{name}' is in two factors of a product.")
                dimensions[name] = dimension
        super().__init__(dimensions)

    @property
    def size(self) -> int | None:
        """Number of points; None if a factor is continuous."""
        sizes = [factor.size for factor in self.factors]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def suggest(self, trial: Any) -> dict[str, ParameterValue]:
        """Return a point of each factor, merged."""
        return {k: v for factor in self.factors for k, v in factor.suggest(trial).items()}


SpaceBuilder: TypeAlias = Callable[[Mapping[str, Any], str, Any], Space]
"""`(table, where, subject) -> Space`; `subject` is the model to search, or None."""
SPACES: Registry[SpaceBuilder] = Registry("kind of space")
"""Builders by kind. To add one: `SPACES.register("mine", build_mine)`, TOML `[space.mine]`."""


@dataclass(frozen=True)
class _Range:
    """TOML form of Integer and Real."""

    low: float
    high: float
    step: int | None = None
    log: bool = False


def read_dimension(value: Any, where: str) -> Dimension:
    """Read a dimension: a list of values, or a table with low and high."""
    if isinstance(value, Choice | Integer | Real):
        return value
    try:
        if isinstance(value, Mapping):
            return _read_range(value, where)
        return Choice(tuple(convert(value, list, where)))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(where) else f"{where}: {text}") from error


def _read_range(value: Mapping[str, Any], where: str) -> Dimension:
    table = parse(_Range, value, where)
    if isinstance(value["low"], int) and isinstance(value["high"], int):  # as written: 1, not 1.0
        step = 1 if table.step is None else table.step
        return Integer(int(table.low), int(table.high), step, table.log)
    if table.step is not None:
        raise ConfigError(f"{where}.step: {table.step}. Allowed with whole low and high alone.")
    return Real(table.low, table.high, table.log)


def read_values(mapping: Mapping[str, Any], where: str, subject: Any = None) -> Space:
    """Read the kind "values": `{name: [values] | {low, high, step, log}}`."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where}: expected a mapping, got {mapping!r}.")
    return Space({name: read_dimension(v, f"{where}.{name}") for name, v in mapping.items()})


def _model_space(module: str) -> SpaceBuilder:
    """Return the builder of a kind that needs a model; its module is imported lazily."""
    return lambda *args: submodule(module).read_space(*args)


SPACES.register("values", read_values)
for _kind in ("architecture", "precision", "compression", "training"):
    SPACES.register(_kind, _model_space(_kind))
SPACES.register("hardware", _model_space("hardware_space"))
