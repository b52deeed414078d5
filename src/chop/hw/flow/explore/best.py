"""The best design for a part: folding, arithmetic and sharing, by predicted cells and clock.

A state has, for each layer, its kind of multiplication and its lanes. Every state is lowered and
predicted as a whole, so that gearboxes, casts and everything between layers count. The search
starts from the cheapest state of each pace and of each preference. It changes one layer, or two
adjacent ones, while that improves the design. For large graphs it tries fewer states and changes
layers one after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chop.compat.old_names import lazy_names
from chop.errors import ConfigError, HardwareError
from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.design.component import Component
from chop.hw.design.design import Design, Stage
from chop.hw.design.stream import divisors
from chop.hw.flow.explore.folding import FoldingExplorer, channels
from chop.hw.flow.predict import Prediction, StagePrediction
from chop.hw.flow.predict.model import coefficients, family_of, predict_stage, whole_of
from chop.hw.flow.route.parts import PARTS, Part, get_part
from chop.hw.library.fixed_linear import PRODUCTS, Linear
from chop.hw.lower import DesignSpec, Lowerer
from chop.ir.graph import MaseGraph
from chop.registry import suggest

GOALS = ("fps", "lut", "energy")
"""The most frames per second; the fewest LUTs; the least energy of a frame."""
ENERGY = {"lut": 1.0, "ff": 0.5, "dsp": 16.0, "bram": 32.0}
"""Energy of a busy cell in a cycle, relative to a LUT: a proxy without unit."""
IDLE = 0.1
"""Energy of the clock of an idle flip-flop in a cycle."""
MOST_TARGETS = 48
"""Paces that a search starts from."""
Option = tuple[str, int, int]
"""Multiplication of a layer, and its input and output lanes."""
State = tuple[Option, ...]
Tell = Callable[[int, int, str], None]
"""Called with the designs tried, the most to try, and the last one in words."""


@dataclass(frozen=True)
class Wish:
    """Goal of the search on a part.

    `goal`: "fps", "lut" or "energy". `least_fps`: frames per second that every design must reach.
    `multipliers`: the allowed ways of forming products. `share_layers`: whether repeated layers are
    one block; None: whichever is better. `room`: the share of the part's LUTs and flip-flops that
    may be used; nextpnr needs the rest. `clock_mhz`: clock that registers are chosen for, see
    `chop.hw.design.clock`.
    """

    goal: str = "fps"
    least_fps: float = 0.0
    multipliers: tuple[str, ...] = ("array", "shift_add")
    share_layers: bool | None = None
    room: float = 0.8
    clock_mhz: float = DEFAULT_MHZ

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise ConfigError(f"explore: unknown goal '{self.goal}'. {suggest(self.goal, GOALS)}")
        unknown = [name for name in self.multipliers if name not in PRODUCTS]
        if unknown or not self.multipliers:
            raise ConfigError(
                f"explore: multipliers must be some of {', '.join(PRODUCTS)}, "
                f"got {self.multipliers}."
            )
        if not 0 < self.room <= 1:
            raise ConfigError(f"explore: room must lie above 0 and up to 1, got {self.room:g}.")
        if not 0 <= self.least_fps < math.inf:
            raise ConfigError(
                f"explore: least_fps must be a number from 0 upwards, got {self.least_fps:g}."
            )


@dataclass(frozen=True)
class DesignChoice:
    """A design for a part, with its prediction."""

    part: str
    spec: DesignSpec
    cycles: int
    predicted: Prediction
    energy: float
    """Energy of a frame, by the proxy `ENERGY`."""
    label: str = ""
    """Label of the graph, if there were several."""

    @property
    def parallelism(self) -> DesignSpec:
        """The settings of the design: another name of `spec`."""
        return self.spec

    @property
    def share_layers(self) -> bool:
        """True if repeated layers are one block."""
        return bool(self.spec.share_layers)

    @property
    def fps(self) -> float:
        """Predicted frames per second."""
        return self.predicted.mhz * 1e6 / self.cycles

    def __str__(self) -> str:
        return f"{self.part}: {self.fps:,.0f} frames per second, {self.predicted}"


def energy_of(design: Design, predicted: Prediction) -> float:
    """Return the energy of a frame: busy cells in busy cycles, and the clock of idle ones."""
    total, cycles = 0.0, design.cycles()
    for stage, row in zip(design.stages, predicted.stages, strict=True):
        busy = min(design.stage_cycles(stage), cycles)
        cells = sum(weight * getattr(row, kind) for kind, weight in ENERGY.items())
        total += busy * cells + (cycles - busy) * IDLE * row.ff
    return total


def modelled_parts() -> list[str]:
    """Return the parts that have a prediction model."""
    return [name for name, part in PARTS.items() if part.family.name in coefficients()]


def check_part(name: str, where: str = "explore") -> Part:
    """Return the part called `name`; raise if it has no prediction model."""
    modelled = modelled_parts()
    if name not in PARTS:
        raise ConfigError(f"{where}: unknown part '{name}'. {suggest(name, modelled)}")
    if name not in modelled:
        raise ConfigError(
            f"{where}: nothing is predicted of '{name}', so no design can be chosen for it. "
            f"Allowed: {', '.join(modelled)}."
        )
    return PARTS[name]


def best(
    graph: MaseGraph, part: str, wish: Wish | None = None, *, tell: Tell | None = None
) -> DesignChoice:
    """Return the best design of `graph` for the part called `part`, as far as predicted.

    `tell` is called with the progress.
    """
    goal, device = wish or Wish(), check_part(part)
    shares = (False, True) if goal.share_layers is None else (goal.share_layers,)
    choices: list[DesignChoice] = []
    problems: list[str] = []
    for share in shares:
        try:
            choices.append(Search(graph, device, goal, share, tell).run())
        except HardwareError as error:
            problems.append(str(error))
    if not choices:
        raise HardwareError(problems[0])
    return min(choices, key=lambda choice: rank(choice, device, goal))


def best_of(
    graphs: Mapping[str, MaseGraph],
    part: str,
    wish: Wish | None = None,
    *,
    accuracy: Callable[[MaseGraph], float] | None = None,
    least_accuracy: float = -math.inf,
) -> DesignChoice:
    """Return the best of several graphs, such as one model in several word lengths, with its label.

    Graphs whose `accuracy` is below `least_accuracy` are left out.
    """
    accurate = {
        label: graph
        for label, graph in graphs.items()
        if accuracy is None or accuracy(graph) >= least_accuracy
    }
    if not accurate:
        raise HardwareError(f"explore: no graph of {len(graphs)} reaches {least_accuracy:g}.")
    goal, device = wish or Wish(), get_part(part)
    choices = [replace(best(graph, part, goal), label=label) for label, graph in accurate.items()]
    return min(choices, key=lambda choice: rank(choice, device, goal))


def rank(choice: DesignChoice, part: Part, wish: Wish) -> tuple[float, ...]:
    """Return a sort key, smaller is better: excess cells, missing speed, goal, LUTs, DSPs."""
    used, has = choice.predicted.takes(), part.has()
    limits = {k: n * (wish.room if k in ("lut", "ff") else 1) for k, n in has.items()}
    too_much = sum(max(0.0, used[k] / max(limits[k], 1e-9) - 1) for k in used if used[k])
    too_slow = max(0.0, wish.least_fps / choice.fps - 1)
    goal = {"fps": -choice.fps, "lut": used["lut"], "energy": choice.energy}[wish.goal]
    return (too_much, too_slow, goal, used["lut"], used["dsp"], used["bram"], used["ff"])


@dataclass
class Search:
    """States of one graph on one part, with those that were tried."""

    graph: MaseGraph
    part: Part
    wish: Wish
    share_layers: bool
    tell: Tell | None = None
    tried: dict[State, DesignChoice | None] = field(default_factory=dict)
    predicted: dict[tuple[Any, ...], StagePrediction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.family = family_of(self.part.name)
        self.explorer = FoldingExplorer(self.graph, self.share_layers)
        self.layers = self.explorer.layers
        self.most = max(LEAST_TRIES, MOST_STAGES // max(len(self.explorer.base.design.stages), 1))
        self.luts: dict[tuple[str, str], int] = {}
        self.options = {name: self._options(name) for name in self.layers}

    def run(self) -> DesignChoice:
        """Return the best state; raise if none fits."""
        starts = sorted((state for state in self._starts() if self.choice(state)), key=self._rank)
        ends = [self._climb(state) for state in starts[:CLIMBS]]
        if not ends:
            raise HardwareError(
                f"explore: no design of the graph can be made for {self.part.name}."
            )
        chosen = self.choice(min(ends, key=self._rank))
        assert chosen is not None, "only states that can be made are ranked"
        self._require(chosen)
        return chosen

    def _require(self, choice: DesignChoice) -> None:
        too_much, too_slow, *_ = rank(choice, self.part, self.wish)
        if too_much:
            raise HardwareError(
                f"{self.part.name}: the smallest design found is {choice.predicted}; the part has "
                f"{self.part.label}. Take a larger part, or fewer bits."
            )
        if too_slow:
            raise HardwareError(
                f"{self.part.name}: the fastest design found is predicted to give "
                f"{choice.fps:,.0f} frames per second, {self.wish.least_fps:,.0f} are wanted."
            )

    def _options(self, name: str) -> list[Option]:
        """Return the options of a layer."""
        inputs, outputs = channels(self.layers[name])
        pairs = itertools.product(divisors(inputs), divisors(outputs))
        options: list[Option] = [("array", i, o) for i, o in pairs]
        if "array" not in self.wish.multipliers and self._others(name):
            options = []
        return options + [(how, inputs, outputs) for how in self._others(name)]

    def _others(self, name: str) -> list[str]:
        """Return the ways besides an array that the graph allows for a layer."""
        component = self.layers[name]
        ways = [how for how in self.wish.multipliers if how != "array"]
        return [how for how in ways if self._is_made(name, how)] if is_constant(component) else []

    def _is_made(self, name: str, how: str) -> bool:
        """Return whether a layer can be made so; store its LUTs."""
        self._report(f"{name}: {how}")
        try:
            design = Lowerer(self.graph, self._spec({}, {name: how})).run().design
        except (HardwareError, ConfigError):
            return False
        self.luts[name, how] = next(
            (self._stage(stage).lut for stage in design.stages if stage.name == name), 0
        )
        return True

    def _starts(self) -> Iterator[State]:
        """Yield, for each pace, the cheapest options by two preferences, and a mixture of both."""
        everything = self.explorer.targets()
        step = max(1, len(everything) // MOST_TARGETS)
        for cycles in everything[::step]:
            array, other = (
                [self._cheapest(name, cycles, prefers) for name in self.layers]
                for prefers in ("array", "other")
            )
            for state in (array, self._mixed(array, other), other):
                if all(option is not None for option in state):
                    yield tuple(option for option in state if option is not None)

    def _mixed(
        self, array: Sequence[Option | None], other: Sequence[Option | None]
    ) -> list[Option | None]:
        """Return arrays, except where another way costs the fewest LUTs per multiplier saved."""
        names, mixed = list(self.layers), list(array)
        lanes = [option[1] * option[2] if option else 0 for option in array]

        def price(k: int) -> float:
            option = other[k]
            return self.luts[names[k], option[0]] / max(lanes[k], 1) if option else math.inf

        can = [k for k, (a, b) in enumerate(zip(array, other, strict=True)) if b and a != b]
        left = self._multipliers(array, sum(lanes)) - self.part.has()["dsp"]
        for k in sorted(can, key=price):
            if left <= 0:
                break
            mixed[k], left = other[k], left - lanes[k]
        return mixed

    def _multipliers(self, state: Sequence[Option | None], lanes: int) -> int:
        choice = self.choice(tuple(o for o in state if o)) if all(state) else None
        return lanes if choice is None else choice.predicted.dsp

    def _cheapest(self, name: str, cycles: int, prefers: str) -> Option | None:
        """Return the option of a layer with the fewest lanes that keeps a pace."""
        layer = self.layers[name]
        whole = layer.products() * self.explorer.passes(name)
        enough = [o for o in self.options[name] if whole <= cycles * o[1] * o[2]]
        other = [o for o in enough if o[0] != "array"]
        if other and (prefers == "other" or len(other) == len(enough)):
            return other[0]
        return min(
            (o for o in enough if o[0] == "array"),
            key=lambda o: (o[1] * o[2], abs(o[1] - o[2]), o),
            default=None,
        )

    def _rank(self, state: State) -> tuple[float, ...]:
        choice = self.choice(state)
        return (math.inf,) if choice is None else rank(choice, self.part, self.wish)

    def _climb(self, state: State) -> State:
        """Return the first state that no change improves."""
        if sum(1 for _ in self._near(state)) > self.most // CLIMBS:
            return self._descend(state)
        while True:
            better = min(self._near(state), key=self._rank, default=state)
            if self._rank(better) >= self._rank(state):
                return state
            state = better

    def _descend(self, state: State) -> State:
        """Improve layer by layer while a round makes the state better."""
        while True:
            before = state
            for k, name in enumerate(self.layers):
                near = [o for o in self._moves(name, state[k]) if _is_beside(o, state[k], 2)]
                moves = (_with(state, {k: option}) for option in near)
                state = min((state, *moves), key=self._rank)
            if state == before:
                return state

    def _near(self, state: State) -> Iterator[State]:
        """Yield states that differ in one layer or, in small graphs, in two adjacent ones."""
        names = list(self.layers)
        for k, name in enumerate(names):
            yield from (_with(state, {k: option}) for option in self._moves(name, state[k]))
        for k, (a, b) in enumerate(itertools.pairwise(names)):
            first, second = self._moves(a, state[k]), self._moves(b, state[k + 1])
            if len(first) * len(second) <= MOST_PAIRS:
                pairs = itertools.product(first, second)
                yield from (_with(state, {k: x, k + 1: y}) for x, y in pairs)

    def _moves(self, name: str, now: Option) -> list[Option]:
        """Return all options of a small layer; of a large one those near `now`."""
        options = self.options[name]
        if len(options) <= SMALL:
            return options
        return [o for o in options if _is_beside(o, now)]

    def choice(self, state: State) -> DesignChoice | None:
        """Return the predicted design of a state; None if it cannot be made or tries ran out."""
        if state not in self.tried:
            if len(self.tried) >= self.most:
                return None
            self.tried[state] = choice = self._make(state)
            self._report(str(choice or ""))
        return self.tried[state]

    def _report(self, text: str) -> None:
        if self.tell is not None:
            self.tell(len(self.tried), self.most, text)

    def _make(self, state: State) -> DesignChoice | None:
        lanes = {name: (i, o) for name, (_, i, o) in zip(self.layers, state, strict=True)}
        how = {n: h for n, (h, _, _) in zip(self.layers, state, strict=True) if h != "array"}
        try:
            spec = self._spec(lanes | self._ports(lanes), how)
            design = Lowerer(self.graph, spec).run().design
        except (HardwareError, ConfigError):
            return None
        predicted = whole_of(self.family, [self._stage(stage) for stage in design.stages])
        return DesignChoice(
            self.part.name,
            spec,
            design.cycles(),
            predicted,
            energy_of(design, predicted),
        )

    def _stage(self, stage: Stage) -> StagePrediction:
        """Return the prediction of a stage; those of layers are cached."""
        part = stage.component
        key = (stage.name, type(part), part.inputs, part.outputs)
        if stage.name not in self.layers:
            return predict_stage(stage.name, part, self.family)
        if key not in self.predicted:
            self.predicted[key] = predict_stage(stage.name, part, self.family)
        return self.predicted[key]

    def _ports(self, lanes: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Return lanes of the inputs: those of the first layer, so that no input waits."""
        slowest = max(
            self.explorer.passes(name)
            * -(-layer.products() // (lanes[name][0] * lanes[name][1]))
            for name, layer in self.layers.items()
        ) if self.layers else self.explorer.slowest.cycles  # fmt: skip
        return self.explorer.input_lanes(dict(lanes), max(slowest, 1))

    def _spec(self, lanes: Mapping[str, tuple[int, int]], how: Mapping[str, str]) -> DesignSpec:
        clock, shares = self.wish.clock_mhz, int(self.share_layers)
        return DesignSpec(1, lanes, how, clock_mhz=clock, share_layers=shares)


LEAST_TRIES, MOST_STAGES = 200, 20_000
"""Designs that a search makes: fewer of large ones, of which this many stages in all."""
CLIMBS = 3
"""States from which a search climbs."""
SMALL = 24
"""Options of a layer up to which all are tried at once."""
MOST_PAIRS = 600
"""Pairs of options up to which two layers change together."""


def is_constant(component: Component) -> bool:
    """Return whether a layer multiplies by constants, which needs no multiplier."""
    return isinstance(component, Linear) and component.products() > 0


def _with(state: State, changes: Mapping[int, Option]) -> State:
    return tuple(changes.get(k, option) for k, option in enumerate(state))


def _is_beside(option: Option, now: Option, factor: float = 4) -> bool:
    ratios = (option[1] / now[1], option[2] / now[2])
    return option[0] != now[0] or all(1 / factor <= ratio <= factor for ratio in ratios)


def all_states(options: Mapping[str, Sequence[Option]]) -> Iterable[State]:
    """Return every state, for small graphs."""
    return itertools.product(*options.values())


if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__ = lazy_names(__name__)
