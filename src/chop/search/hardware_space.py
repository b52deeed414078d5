"""Spaces of hardware: word lengths, pruning, folding and arithmetic of one design.

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
from chop.hw.design.stream import divisors
from chop.hw.flow.explore import for_target
from chop.hw.flow.predict.model import family_of
from chop.hw.flow.route.parts import PARTS, get_part
from chop.hw.library.fixed_linear import PRODUCTS
from chop.hw.lower import Lowered, Lowerer, Parallelism
from chop.ir.graph import MaseGraph
from chop.passes import quantize_transform_pass
from chop.pipelines import CompressionPipeline
from chop.registry import suggest
from chop.search.costs import PART
from chop.search.space import Choice, Dimension, Space, Value

BIAS_WIDTH = 12
"""Bits of a bias; biases are few, and the sums they are added to are wide."""
PACE, SPARSITY, OTHERS, ALL = "pace", "prune.sparsity", "others.width", "all"
"""Dimensions of the whole design, and the group of all layers."""
MULTIPLIER, LANES, ARRAY = "multiplier", "lanes", "array"
"""Suffixes of the dimensions of a layer, and the default multiplier."""
PACES = 8
"""Largest number of default paces; each has half the cycles of the next."""
TRIED_WIDTH = 8
"""Bits of the test design that shows, before any trial, if and how the model lowers."""


@dataclass(frozen=True, kw_only=True)
class HardwareTable:
    """TOML form, `[space.hardware]`.

    `part`: FPGA part of the predictions, which a design must fit. `widths`: bits of the inputs and
    weights of layers. `others`: bits of ops without weights (sums, softmax, norms, tables). `by`:
    one choice of widths and arithmetic per layer ("name"), per type, or for all ("model").
    `sparsities`: shares of weights to prune. `folding`: "pace", the number of cycles between
    tensors that every layer is folded for, or "lanes", elements per beat of each layer. `paces`:
    those cycles; by default powers of two apart, within the multipliers of the part. `lanes`: to
    choose from. `multipliers`: products of linear layers with their constants: "array", and others
    such as "shift_add" for layers of at most `shift_add_weights` weights. `ceiling`: upper bound of
    the metric; by default that of the uncompressed model or, if trials train, the best possible.
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
    """Layer that multiplies by constants, and its sizes."""

    node: str
    op: str
    group: str
    weights: int
    inputs: int
    outputs: int


class HardwareSpace(Space):
    """Designs of `subject`: widths and arithmetic of layers, sparsity, and folding.

    A model that does not lower raises here, with the node that has no hardware.
    """

    def __init__(
        self, subject: MaseGraph, table: HardwareTable | None = None, *, where: str = "hardware"
    ) -> None:
        self.table = table or HardwareTable()
        self.where = where
        if not isinstance(subject, MaseGraph):
            raise ConfigError(f"{where}: needs the graph to be searched, got {subject!r:.60}.")
        try:
            graph, observed, lowered = _lower_once(subject)
        except ChopError as error:
            raise HardwareError(f"{where}: the model cannot become hardware: {error}") from error
        self.layers = _layers(observed, lowered, self.table.by, subject)
        self.paces = self.table.paces or _paces(graph, lowered, get_part(self.table.part).dsp)
        has_others = any(not node.is_weighted for node in observed.values())
        super().__init__(self._dimensions_by_name(has_others))

    def _dimensions_by_name(self, has_others: bool) -> dict[str, Dimension]:
        table = self.table
        small = {la.group for la in self.layers.values() if self._is_small(la)}
        dimensions: dict[str, Dimension] = {}
        for group in dict.fromkeys(layer.group for layer in self.layers.values()):
            dimensions[f"{group}.data_in"] = Choice(table.widths)
            dimensions[f"{group}.weight"] = Choice(table.widths)
            if len(table.multipliers) > 1 and group in small:
                dimensions[f"{group}.{MULTIPLIER}"] = Choice(table.multipliers)
        if table.folding == LANES:
            for name, layer in self.layers.items():
                inputs, outputs = (
                    [d for d in divisors(channels) if d in table.lanes] or [1]
                    for channels in (layer.inputs, layer.outputs)
                )
                pairs = tuple(f"{i}x{o}" for i in inputs for o in outputs)
                dimensions[f"{name}.{LANES}"] = Choice(pairs)
        else:
            dimensions[PACE] = Choice(self.paces)
        if has_others:
            dimensions[OTHERS] = Choice(table.others)
        if table.sparsities != (0.0,):
            dimensions[SPARSITY] = Choice(table.sparsities)
        return dimensions

    def _is_small(self, layer: Layer) -> bool:
        """Return True if the layer may do without multipliers."""
        return layer.op == "linear" and layer.weights <= self.table.shift_add_weights

    def width(self, params: Mapping[str, Value], node: str, role: str) -> int:
        """Return the bits of an operand."""
        if role == BIAS:
            return BIAS_WIDTH
        layer = self.layers.get(node)
        if layer is None:
            return _whole(params.get(OTHERS, self.table.others[0]))
        return _whole(params[f"{layer.group}.{'weight' if role == WEIGHT else 'data_in'}"])

    def quantize_args(
        self, graph: MaseGraph, observed: Observed, params: Mapping[str, Value]
    ) -> dict[str, Any]:
        """Return the arguments of quantize_transform_pass for a point."""
        return fixed_point_rules(graph, observed, lambda node, role: self.width(params, node, role))

    def prune_args(self, params: Mapping[str, Value], seed: int = 0) -> dict[str, Any] | None:
        """Return the arguments of prune_transform_pass for a point; None if nothing is pruned."""
        share = params.get(SPARSITY, self.table.sparsities[0])
        return {"weight": {"sparsity": share}, "seed": seed} if share else None

    def design_args(self, params: Mapping[str, Value]) -> dict[str, Any]:
        """Return the arguments of add_hardware_metadata_analysis_pass for a point."""
        first = self.table.multipliers[0]
        others = {}
        for name, layer in self.layers.items():
            multiplier = str(params.get(f"{layer.group}.{MULTIPLIER}", first))
            if multiplier != ARRAY and self._is_small(layer):
                others[name] = multiplier
        folded: dict[str, Any] = {}
        if self.table.folding == LANES:
            pairs = {name: str(params[f"{name}.{LANES}"]).split("x") for name in self.layers}
            lanes = {name: (int(i), int(o)) for name, (i, o) in pairs.items()}
            folded = {"max_parallelism": 1, "parallelism": lanes}
        else:
            folded = {"target_interval": _whole(params[PACE])}
        return folded | ({MULTIPLIER: others} if others else {})

    def folded_args(self, graph: MaseGraph, params: Mapping[str, Value]) -> dict[str, Any]:
        """Return `design_args` for one graph, with the lanes of each layer instead of the pace."""
        args = self.design_args(params)
        cycles = args.pop("target_interval", None)
        if cycles is None:
            return args
        lanes = {name: list(pair) for name, pair in for_target(graph, cycles).lanes.items()}
        return {"max_parallelism": 1, "parallelism": lanes, **args}

    def initial(self) -> list[dict[str, Value]]:
        """Return first points, which treat all layers alike and prune nothing.

        They have the widest and the narrowest words, with each arithmetic and each folding, the
        fastest and the smallest first.
        """
        end = f".{LANES}" if self.table.folding == LANES else PACE
        options: dict[str, list[Any]] = {
            n: list(d.points or ()) for n, d in self.dimensions.items()
        }
        foldings = max(len(each) for name, each in options.items() if name.endswith(end))

        def point(choose: Any, number: int, multiplier: str) -> dict[str, Value]:
            values: dict[str, Value] = {}
            for name, each in options.items():
                if name.endswith(end):
                    values[name] = each[min(number, len(each) - 1)]
                elif name.endswith(f".{MULTIPLIER}"):
                    values[name] = multiplier
                else:
                    values[name] = min(each) if name == SPARSITY else choose(each)
            return values

        points = [
            point(choose, number, multiplier)
            for multiplier in self.table.multipliers
            for choose in (max, min)
            for number in dict.fromkeys((0, foldings - 1, *range(foldings)))
        ]
        return list({repr(each): each for each in points}.values())


def _whole(value: Value) -> int:
    assert isinstance(value, int), f"a number of bits or cycles is {value!r}"
    return value


def _lower_once(subject: MaseGraph) -> tuple[MaseGraph, Observed, Lowered]:
    """Lower a copy of the model in 8 bits with one lane everywhere, without FIFOs."""
    graph, _ = CompressionPipeline()(copy.deepcopy(subject))
    if not graph.dummy_in:
        raise HardwareError("the graph has no example inputs (dummy_in) to place the point by.")
    observed = observe_values(graph, [graph.dummy_in])
    rules = fixed_point_rules(
        graph, observed, lambda _, role: BIAS_WIDTH if role == BIAS else TRIED_WIDTH
    )
    graph, _ = quantize_transform_pass(graph, rules)
    return graph, observed, Lowerer(graph, Parallelism(1), "top").run()


def _layers(observed: Observed, lowered: Lowered, by: str, subject: MaseGraph) -> dict[str, Layer]:
    """Return the layers by node; calls of one module are one group."""
    targets = {n.name: str(n.target) for n in subject.fx_graph.nodes if n.op == "call_module"}
    firsts: dict[str, str] = {}
    layers = {}
    for name, node in observed.items():
        component = lowered.components.get(name)
        if not node.is_weighted or component is None:
            continue
        own = firsts.setdefault(targets.get(name, name), name)
        group = {"name": own, "type": node.op.name, "model": ALL}[by]
        weights = getattr(component, "weights", None)
        count = int(weights.weight.size) if weights is not None else component.products()
        channels = component.in_unit, component.outputs[0].shape[-1]
        layers[name] = Layer(name, node.op.name, group, count, *channels)
    if not layers:
        raise HardwareError("the model has no linear layer or convolution to choose a design of.")
    return layers


def _paces(graph: MaseGraph, lowered: Lowered, multipliers: int) -> tuple[int, ...]:
    """Return the cycles between tensors that the model can be folded for, in ascending order.

    The first pace that needs too many multipliers is included: arithmetic without multipliers may
    still reach it.
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
    """Read a table `[space.hardware]` for the layers of `subject`."""
    return HardwareSpace(subject, parse(HardwareTable, mapping, where), where=where)
