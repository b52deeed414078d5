"""Spaces of hardware: word lengths, pruning, folding and arithmetic of one design, together.

>>> space = HardwareSpace(graph, HardwareTable(part="ecp5-25k", widths=(4, 8)))
>>> space.design_args({"pace": 256, "fc1.multiplier": "shift_add", "fc2.multiplier": "array"})
{'target_interval': 256, 'multiplier': {'fc1': 'shift_add'}}
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chop.actions.hardware_formats import BIAS, WEIGHT, Observed, fixed_point_rules, observe_values
from chop.config import parse
from chop.errors import ChopError, ConfigError, HardwareError
from chop.hw.design.component import Component
from chop.hw.design.stream import divisors
from chop.hw.flow.explore import for_target
from chop.hw.flow.explore.folding import channels
from chop.hw.flow.predict.model import family_of
from chop.hw.flow.route.parts import PARTS, get_part
from chop.hw.library.fixed_linear import PRODUCTS
from chop.hw.lower import DesignSpec, Lowered, Lowerer
from chop.ir.graph import MaseGraph
from chop.passes import quantize_transform_pass
from chop.passes.graph.analysis.add_hardware_metadata import (
    AddHardwareMetadataArgs,
    choose_design,
)
from chop.pipelines import CompressionPipeline
from chop.registry import suggest
from chop.search.costs import PART
from chop.search.space import Choice, Dimension, ParameterValue, Space

BIAS_WIDTH = 12
"""Biases are few, and added to sums that are wide."""
PACE, SPARSITY, OTHERS, ALL = "pace", "prune.sparsity", "others.width", "all"
"""Dimensions of the whole design, and the group of all layers."""
MULTIPLIER, LANES, ARRAY = "multiplier", "lanes", "array"
"""Ends of the dimensions of a layer."""
PACES = 8
"""The most paces to choose from where none are given: each takes half the cycles of the next."""
TRIED_WIDTH = 8
"""Bits of the design that is lowered before any trial, to check the model and its folds."""


@dataclass(frozen=True, kw_only=True)
class HardwareTable:
    """The TOML form, `[space.hardware]`.

    `part`: part whose cells and clock are predicted, and which a design must fit. `widths`: bits of
    the inputs and weights of layers, `others`: of nodes without weights (sums, softmax, norms,
    tables). `by`: widths and arithmetic are chosen for each layer ("name"), for all of a type, or
    for all ("model"). `sparsities`: shares of weights to prune. `folding`: "pace", one number of
    cycles between tensors that every layer is folded for, or "lanes", elements per beat of each
    layer. `paces`: those cycles; by default halved repeatedly, as far as the model and the part's
    multipliers allow. `lanes`: to choose from. `multipliers`: how linear layers form products with
    their constants: "array", and others such as "shift_add" for layers of at most
    `shift_add_weights` weights. `ceiling`: the best possible value of the metric; by default that
    of the uncompressed model or, if trials train, the best that there is.
    """

    part: str = PART
    widths: tuple[int, ...] = (4, 6, 8)
    others: tuple[int, ...] = (8,)
    by: Literal["name", "type", "model"] = "name"
    sparsities: tuple[float, ...] = (0.0, 0.5)
    folding: Literal["pace", "lanes"] = "pace"
    paces: tuple[int, ...] = ()
    lanes: tuple[int, ...] = (1, 2, 4, 8)
    multipliers: tuple[str, ...] = ("array", "shift_add")
    shift_add_weights: int = 1024
    ceiling: float | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ConfigError(f"part: unknown part '{self.part}'. {suggest(self.part, PARTS)}")
        try:
            family_of(self.part)
        except HardwareError as error:
            raise ConfigError(f"part: {error}") from error
        for name in ("widths", "others", "sparsities", "multipliers", "lanes"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: nothing to choose from. Give one or more.")
        for name, least, most in (("widths", 2, 16), ("others", 2, 16), ("lanes", 1, 1 << 16)):
            outside = [v for v in getattr(self, name) if not least <= v <= most]
            if outside:
                raise ConfigError(f"{name}: {outside[0]}. Allowed: {least} to {most}.")
        for share in self.sparsities:
            if not 0 <= share < 1:
                raise ConfigError(f"sparsities: {share}. Allowed: from 0 to less than 1.")
        for name in self.multipliers:
            if name not in PRODUCTS:
                raise ConfigError(f"multipliers: unknown '{name}'. {suggest(name, PRODUCTS)}")
        if any(cycles < 1 for cycles in self.paces):
            raise ConfigError(f"paces: {min(self.paces)} cycles. Allowed: 1 or more.")


@dataclass(frozen=True)
class Layer:
    """A layer that multiplies by constants, with the sizes that its choices depend on."""

    node: str
    is_linear: bool
    group: str
    weights: int
    inputs: int
    outputs: int


class HardwareSpace(Space):
    """One design of `subject`: widths and arithmetic of layers, sparsity, and folding.

    A model that does not lower is refused here, with the node that has no hardware.
    """

    def __init__(
        self, subject: MaseGraph, table: HardwareTable | None = None, *, where: str = "hardware"
    ) -> None:
        self.table = table or HardwareTable()
        self.where = where
        if not isinstance(subject, MaseGraph):
            raise ConfigError(f"{where}: needs the graph to be searched, got {subject!r:.60}.")
        try:
            graph, observed, lowered = _tried(subject)
        except ChopError as error:
            raise HardwareError(f"{where}: the model cannot become hardware: {error}") from error
        self.layers = _layers(observed, lowered, self.table.by, subject)
        self.paces = self.table.paces or _paces(graph, lowered, get_part(self.table.part).dsp)
        has_others = any(not node.is_weighted for node in observed.values())
        super().__init__(self._named(has_others))

    def _named(self, has_others: bool) -> dict[str, Dimension]:
        table = self.table
        dimensions: dict[str, Dimension] = {}
        for group in dict.fromkeys(layer.group for layer in self.layers.values()):
            dimensions[f"{group}.data_in"] = Choice(table.widths)
            dimensions[f"{group}.weight"] = Choice(table.widths)
            if len(table.multipliers) > 1 and self._adds(group):
                dimensions[f"{group}.{MULTIPLIER}"] = Choice(table.multipliers)
        if table.folding == LANES:
            dimensions |= {f"{n}.{LANES}": Choice(self._lanes(la)) for n, la in self.layers.items()}
        else:
            dimensions[PACE] = Choice(self.paces)
        if has_others:
            dimensions[OTHERS] = Choice(table.others)
        if table.sparsities != (0.0,):
            dimensions[SPARSITY] = Choice(table.sparsities)
        return dimensions

    def _adds(self, group: str) -> bool:
        return any(la.group == group and self._is_small(la) for la in self.layers.values())

    def _is_small(self, layer: Layer) -> bool:
        return layer.is_linear and layer.weights <= self.table.shift_add_weights

    def _lanes(self, layer: Layer) -> tuple[str, ...]:
        """Return input x output lanes, each a divisor of its channels."""
        sides = [
            [d for d in divisors(channels) if d in self.table.lanes] or [1]
            for channels in (layer.inputs, layer.outputs)
        ]
        return tuple(f"{i}x{o}" for i in sides[0] for o in sides[1])

    # -- what a point means --------------------------------------------------------------------

    def width(self, params: Mapping[str, ParameterValue], node: str, role: str) -> int:
        """Return the bits of an operand."""
        if role == BIAS:
            return BIAS_WIDTH
        layer = self.layers.get(node)
        if layer is None:
            return _whole(params.get(OTHERS, self.table.others[0]))
        return _whole(params[f"{layer.group}.{'weight' if role == WEIGHT else 'data_in'}"])

    def quantize_args(
        self, graph: MaseGraph, observed: Observed, params: Mapping[str, ParameterValue]
    ) -> dict[str, Any]:
        """Return the arguments of quantize_transform_pass for a point."""
        return fixed_point_rules(graph, observed, lambda node, role: self.width(params, node, role))

    def prune_args(
        self, params: Mapping[str, ParameterValue], seed: int = 0
    ) -> dict[str, Any] | None:
        """Return the arguments of prune_transform_pass for a point; None without pruning."""
        share = params.get(SPARSITY, self.table.sparsities[0])
        return {"weight": {"sparsity": share}, "seed": seed} if share else None

    def design_args(self, params: Mapping[str, ParameterValue]) -> dict[str, Any]:
        """Return the arguments of add_hardware_metadata_analysis_pass for a point."""
        chosen = {name: self._multiplier(layer, params) for name, layer in self.layers.items()}
        others = {
            name: how
            for name, how in chosen.items()
            if how != ARRAY and self._is_small(self.layers[name])
        }
        folded: dict[str, Any] = {}
        if self.table.folding == LANES:
            pairs = {name: str(params[f"{name}.{LANES}"]).split("x") for name in self.layers}
            lanes = {name: (int(i), int(o)) for name, (i, o) in pairs.items()}
            folded = {"max_parallelism": 1, "parallelism": lanes}
        else:
            folded = {"target_interval": _whole(params[PACE])}
        return folded | ({MULTIPLIER: others} if others else {})

    def design_spec(self, graph: MaseGraph, params: Mapping[str, ParameterValue]) -> DesignSpec:
        """Return the settings of the design of one graph, its pace turned into lanes."""
        args = AddHardwareMetadataArgs.from_config(self.design_args(params), self.where)
        return choose_design(graph, args)

    def _multiplier(self, layer: Layer, params: Mapping[str, ParameterValue]) -> str:
        return str(params.get(f"{layer.group}.{MULTIPLIER}", self.table.multipliers[0]))

    def initial(self) -> list[dict[str, ParameterValue]]:
        """Return points to begin with, which treat all layers equally and prune nothing.

        They have the widest and the narrowest words, with each arithmetic, for every folding.
        """
        foldings = max(len(_points(dimension)) for _, dimension in self._folding())
        ends_first = dict.fromkeys((0, foldings - 1, *range(foldings)))
        points = [
            self._even(width, number, how)
            for how in self.table.multipliers
            for width in (max, min)
            for number in ends_first
        ]
        return list({repr(point): point for point in points}.values())

    def _folding(self) -> list[tuple[str, Dimension]]:
        is_lanes = self.table.folding == LANES
        end = f".{LANES}" if is_lanes else PACE
        return [(n, d) for n, d in self.dimensions.items() if n.endswith(end)]

    def _even(self, choose: Any, number: int, multiplier: str) -> dict[str, ParameterValue]:
        """Return a point that treats all layers equally; `number` counts foldings."""
        point: dict[str, ParameterValue] = {}
        foldings = dict(self._folding())
        for name, dimension in self.dimensions.items():
            options = _points(dimension)
            if name in foldings:
                point[name] = options[min(number, len(options) - 1)]
            elif name.endswith(f".{MULTIPLIER}"):
                point[name] = multiplier
            else:
                point[name] = min(options) if name == SPARSITY else choose(options)
        return point


def _whole(value: ParameterValue) -> int:
    assert isinstance(value, int), f"a number of bits or cycles is {value!r}"
    return value


def _points(dimension: Dimension) -> list[Any]:
    return list(dimension.points or ())


# -- looking at the model --------------------------------------------------------------------------


def _tried(subject: MaseGraph) -> tuple[MaseGraph, Observed, Lowered]:
    """Return a copy of the model in 8 bits, with one lane everywhere, without FIFOs."""
    graph, _ = CompressionPipeline()(copy.deepcopy(subject))
    if not graph.dummy_in:
        raise HardwareError("the graph has no example inputs (dummy_in) to place the point by.")
    observed = observe_values(graph, [graph.dummy_in])
    rules = fixed_point_rules(
        graph, observed, lambda _, role: BIAS_WIDTH if role == BIAS else TRIED_WIDTH
    )
    graph, _ = quantize_transform_pass(graph, rules)
    return graph, observed, Lowerer(graph, DesignSpec(1)).run()


def _layers(observed: Observed, lowered: Lowered, by: str, subject: MaseGraph) -> dict[str, Layer]:
    """Return layers by node; calls of one module are one group."""
    targets = {n.name: str(n.target) for n in subject.fx_graph.nodes if n.op == "call_module"}
    firsts: dict[str, str] = {}
    layers = {}
    for name, node in observed.items():
        component = lowered.components.get(name)
        if not node.is_weighted or component is None:
            continue
        own = firsts.setdefault(targets.get(name, name), name)
        group = {"name": own, "type": node.op.name, "model": ALL}[by]
        is_linear = node.op.dims == "linear"
        layers[name] = Layer(name, is_linear, group, _weights(component), *channels(component))
    if not layers:
        raise HardwareError("the model has no linear layer or convolution to choose a design of.")
    return layers


def _weights(component: Component) -> int:
    weights = getattr(component, "weights", None)
    return int(weights.weight.size) if weights is not None else component.products()


def _paces(graph: MaseGraph, lowered: Lowered, multipliers: int) -> tuple[int, ...]:
    """Return cycles between tensors that the model can be folded for, in rising order.

    The first that takes more multipliers than there are is one of them: arithmetic without
    multipliers may still reach it.
    """
    paces: list[int] = []
    cycles = lowered.design.cycles()
    while len(paces) < PACES and cycles >= 1:
        try:
            folding = for_target(graph, cycles)
        except HardwareError:
            break
        paces.append(cycles)
        if folding.multipliers > multipliers:
            break
        cycles //= 2
    return tuple(sorted(paces))


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> HardwareSpace:
    """Return the space of a table `[space.hardware]`, over the layers of `subject`."""
    return HardwareSpace(subject, parse(HardwareTable, mapping, where), where=where)
