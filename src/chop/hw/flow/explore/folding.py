"""Parallelism by itself: the fewest multipliers for a pace, or the best pace for a budget.

A layer's cycles are its folds, so only divisors of its channels matter. For a target, every layer
takes its cheapest fold that meets it; what a pooling or an activation needs is asked of the layer
before it. A budget is met by the smallest target that stays within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.errors import HardwareError
from chop.hw.design.component import Component
from chop.hw.design.design import Design
from chop.hw.design.stream import divisors
from chop.hw.lower import DesignSpec, Lowered, Lowerer
from chop.ir.graph import MaseGraph

Lanes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Folding:
    """A parallelism with its pace and its price."""

    lanes: Mapping[str, tuple[int, int]]
    cycles: int
    multipliers: int
    share_layers: bool = False
    """Whether repeated layers are one block."""


def for_target(graph: MaseGraph, cycles: int, *, share_layers: bool = False) -> Folding:
    """The cheapest parallelism with at most `cycles` cycles between tensors."""
    return FoldingExplorer(graph, share_layers).for_target(cycles)


def for_budget(graph: MaseGraph, multipliers: int, *, share_layers: bool = False) -> Folding:
    """The fastest parallelism with at most `multipliers` multipliers.

    Where they are too few for one lane everywhere, repeated layers become one block.
    """
    apart = FoldingExplorer(graph, share_layers)
    least = apart.slowest.multipliers
    if least <= multipliers:
        return apart.for_budget(multipliers)
    told = f"{multipliers} multipliers are not enough; one lane everywhere needs {least}"
    if not share_layers:
        try:
            shared = FoldingExplorer(graph, True)
        except HardwareError as error:
            raise HardwareError(f"parallelism: {told}. In one block: {error}") from error
        if shared.slowest.multipliers <= multipliers:
            return shared.for_budget(multipliers)
        told += f", and {shared.slowest.multipliers} with repeated layers in one block"
    raise HardwareError(f"parallelism: {told}.")


class FoldingExplorer:
    """Foldings of one graph; what one lane everywhere gives is found once."""

    def __init__(self, graph: MaseGraph, share_layers: bool) -> None:
        self.graph, self.share_layers = graph, share_layers
        self.base = self._lower({})
        self.layers = _layers(self.base)
        self.slowest = self._folding(self.base, {})

    def for_target(self, cycles: int) -> Folding:
        """The cheapest with at most so many cycles."""
        least_out = dict.fromkeys(self.layers, 1)
        while True:
            lanes = {
                name: _cheapest(name, component, cycles // self.passes(name), least_out[name])
                for name, component in self.layers.items()
            }
            lanes |= self.input_lanes(lanes, cycles)
            lowered = self._lower(lanes)
            slow = _slow_stage(lowered.design, cycles)
            if slow is None:
                return self._folding(lowered, lanes)
            name = _layer_before(lowered.design, slow, self.layers)
            more = _next_divisor(name, self.layers[name], lanes[name][1], cycles)
            alike = lowered.components[name]  # layers that share a block are folded alike
            least_out |= {n: more for n in self.layers if lowered.components[n] is alike}

    def for_budget(self, multipliers: int) -> Folding:
        """The fastest with at most so many multipliers: fewer cycles never cost fewer of them."""
        best, targets = self.slowest, self.targets()
        low, high = -1, len(targets) - 1  # the last target is what one lane everywhere takes
        while high - low > 1:
            middle = (low + high) // 2
            try:
                found = self.for_target(targets[middle])
            except HardwareError:
                low = middle
                continue
            if found.multipliers <= multipliers:
                high, best = middle, found
            else:
                low = middle
        return best

    def targets(self) -> list[int]:
        """All cycles that a stage may take, in rising order: folds by divisors of its channels."""
        found = {self.slowest.cycles}
        for name, component in self.layers.items():
            inputs, outputs = channels(component)
            whole = component.products() * self.passes(name)
            found |= {whole // (i * o) for i in divisors(inputs) for o in divisors(outputs)}
        design = self.base.design
        streams = [(s, 1) for s in (*design.inputs.values(), *design.output_streams().values())]
        for stage in design.stages:
            times = design.passes if stage in design.looped else 1
            component = stage.component
            streams += [(s, times) for s in (*component.inputs, *component.outputs)]
            found.add(design.stage_cycles(stage))
        for stream, times in streams:
            found |= {times * stream.elements // d for d in divisors(stream.shape[-1])}
        return sorted(cycles for cycles in found if 0 < cycles <= self.slowest.cycles)

    def passes(self, name: str) -> int:
        """How often a tensor passes the layer `name`."""
        component, design = self.base.components[name], self.base.design
        is_looped = any(stage.component is component for stage in design.looped)
        return design.passes if is_looped else 1

    def _lower(self, lanes: Lanes) -> Lowered:
        """Without FIFOs; one lane where nothing is said."""
        return Lowerer(self.graph, DesignSpec(1, lanes, share_layers=int(self.share_layers))).run()

    def _folding(self, lowered: Lowered, lanes: Lanes) -> Folding:
        design = lowered.design
        return Folding(lanes, design.cycles(), design.cost().multipliers, self.share_layers)

    def input_lanes(self, lanes: Lanes, cycles: int) -> Lanes:
        """Lanes of the inputs: those of the first layer where that is enough, else the fewest."""
        names = [n.name for n in self.graph.fx_graph.nodes if n.op == "placeholder"]
        first = next(iter(lanes.values()), (1, 1))[0]
        found = {}
        for number, name in enumerate(names):
            stream = self.base.design.inputs.get(f"data_in_{number}")
            if stream is None:  # nothing reads it
                continue
            enough = [d for d in divisors(stream.shape[-1]) if stream.elements <= cycles * d]
            if not enough:
                raise HardwareError(
                    f"input '{name}': {stream.shape} cannot enter in {cycles} cycles."
                )
            chosen = first if first in enough else enough[0]
            found[name] = (chosen, chosen)
        return found


def _layers(lowered: Lowered) -> dict[str, Component]:
    return {name: c for name, c in lowered.components.items() if c.products()}


def channels(component: Component) -> tuple[int, int]:
    """What the lanes of both sides of a layer must divide."""
    return component.in_unit, component.outputs[0].shape[-1]


def _cheapest(name: str, component: Component, cycles: int, least_out: int) -> tuple[int, int]:
    """The pair of lanes with the fewest multipliers that meets `cycles`."""
    inputs, outputs = channels(component)
    whole = component.products()
    pairs = [
        (i, o)
        for i in divisors(inputs)
        for o in divisors(outputs)
        if whole <= cycles * i * o
        and component.inputs[0].beats <= cycles * i
        and component.outputs[0].beats <= cycles * o
        and o >= least_out
    ]
    if not pairs:
        raise HardwareError(
            f"node '{name}': no parallelism reaches {cycles} cycles; fully parallel it takes "
            f"{-(-whole // (inputs * outputs))}."
        )
    return min(pairs, key=lambda pair: (pair[0] * pair[1], abs(pair[0] - pair[1]), pair))


def _slow_stage(design: Design, cycles: int) -> str | None:
    for stage in design.stages:
        if design.stage_cycles(stage) > cycles:
            return stage.name
    return None


def _layer_before(design: Design, name: str, layers: Mapping[str, Component]) -> str:
    """The layer that decides the lanes of stage `name`."""
    while name not in layers:
        sources = [s.sources[0].stage for s in design.stages if s.name == name]
        if not sources or sources[0] in design.inputs:
            raise HardwareError(f"stage '{name}' is too slow and no layer before it can widen it.")
        name = sources[0]
    return name


def _next_divisor(name: str, component: Component, lanes: int, cycles: int) -> int:
    more = [d for d in divisors(channels(component)[1]) if d > lanes]
    if not more:
        raise HardwareError(f"node '{name}': what follows it cannot reach {cycles} cycles.")
    return more[0]
