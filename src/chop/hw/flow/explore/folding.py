"""Choice of parallelism: the fewest multipliers for a pace, or the best pace for a budget.

A layer's cycles are its folds, so only divisors of its channels matter. For a target, every layer
gets its cheapest fold that meets it; if a pooling or an activation is too slow, the layer before it
gets more lanes. A budget is met by the smallest target that stays within it.
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
    """A parallelism with its pace and its multipliers."""

    lanes: Mapping[str, tuple[int, int]]
    cycles: int
    multipliers: int
    share_layers: bool = False
    """True if repeated layers are one block."""


def for_target(graph: MaseGraph, cycles: int, *, share_layers: bool = False) -> Folding:
    """Return the cheapest parallelism with at most `cycles` cycles between tensors."""
    return FoldingExplorer(graph, share_layers).for_target(cycles)


def for_budget(graph: MaseGraph, multipliers: int, *, share_layers: bool = False) -> Folding:
    """Return the fastest parallelism with at most `multipliers` multipliers.

    If they are too few for one lane everywhere, repeated layers become one block.
    """
    apart = FoldingExplorer(graph, share_layers)
    least = apart.slowest.multipliers
    if least <= multipliers:
        return apart.for_budget(multipliers)
    problem = f"{multipliers} multipliers are not enough; one lane everywhere needs {least}"
    if not share_layers:
        try:
            shared = FoldingExplorer(graph, True)
        except HardwareError as error:
            raise HardwareError(f"parallelism: {problem}. In one block: {error}") from error
        if shared.slowest.multipliers <= multipliers:
            return shared.for_budget(multipliers)
        problem += f", and {shared.slowest.multipliers} with repeated layers in one block"
    raise HardwareError(f"parallelism: {problem}.")


class FoldingExplorer:
    """Foldings of one graph; the design with one lane everywhere is lowered once."""

    def __init__(self, graph: MaseGraph, share_layers: bool) -> None:
        self.graph, self.share_layers = graph, share_layers
        self.base = self._lower({})
        self.layers = {n: c for n, c in self.base.components.items() if c.products()}
        self.slowest = self._folding(self.base, {})

    def for_target(self, cycles: int) -> Folding:
        """Return the cheapest folding with at most `cycles` cycles."""
        least_out = dict.fromkeys(self.layers, 1)
        while True:
            lanes = {
                name: _cheapest(name, component, cycles // self.passes(name), least_out[name])
                for name, component in self.layers.items()
            }
            lanes |= self.input_lanes(lanes, cycles)
            lowered = self._lower(lanes)
            design = lowered.design
            slow = next((s.name for s in design.stages if design.stage_cycles(s) > cycles), None)
            if slow is None:
                return self._folding(lowered, lanes)
            name = _layer_before(design, slow, self.layers)
            more = _next_divisor(name, self.layers[name], lanes[name][1], cycles)
            alike = lowered.components[name]  # layers that share a block are folded alike
            least_out |= {n: more for n in self.layers if lowered.components[n] is alike}

    def for_budget(self, multipliers: int) -> Folding:
        """Return the fastest with at most `multipliers`: fewer cycles never cost fewer of them."""
        best, targets = self.slowest, self.targets()
        low, high = -1, len(targets) - 1  # the last target is what one lane everywhere takes
        while high - low > 1:
            middle = (low + high) // 2
            try:
                folding = self.for_target(targets[middle])
            except HardwareError:
                low = middle
                continue
            if folding.multipliers <= multipliers:
                high, best = middle, folding
            else:
                low = middle
        return best

    def targets(self) -> list[int]:
        """Return all cycles that a stage may take, in rising order."""
        candidates = {self.slowest.cycles}
        for name, component in self.layers.items():
            inputs, outputs = channels(component)
            whole = component.products() * self.passes(name)
            candidates |= {whole // (i * o) for i in divisors(inputs) for o in divisors(outputs)}
        design = self.base.design
        streams = [(s, 1) for s in (*design.inputs.values(), *design.output_streams().values())]
        for stage in design.stages:
            times = design.passes if stage in design.looped else 1
            component = stage.component
            streams += [(s, times) for s in (*component.inputs, *component.outputs)]
            candidates.add(design.stage_cycles(stage))
        for stream, times in streams:
            candidates |= {times * stream.elements // d for d in divisors(stream.shape[-1])}
        return sorted(cycles for cycles in candidates if 0 < cycles <= self.slowest.cycles)

    def passes(self, name: str) -> int:
        """Return the number of passes of a tensor through the layer `name`."""
        component, design = self.base.components[name], self.base.design
        is_looped = any(stage.component is component for stage in design.looped)
        return design.passes if is_looped else 1

    def _lower(self, lanes: Lanes) -> Lowered:
        return Lowerer(self.graph, DesignSpec(1, lanes, share_layers=int(self.share_layers))).run()

    def _folding(self, lowered: Lowered, lanes: Lanes) -> Folding:
        design = lowered.design
        return Folding(lanes, design.cycles(), design.cost().multipliers, self.share_layers)

    def input_lanes(self, lanes: Lanes, cycles: int) -> Lanes:
        """Return lanes of the inputs: those of the first layer if enough, else the fewest."""
        names = [n.name for n in self.graph.fx_graph.nodes if n.op == "placeholder"]
        first = next(iter(lanes.values()), (1, 1))[0]
        inputs = {}
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
            inputs[name] = (chosen, chosen)
        return inputs


def channels(component: Component) -> tuple[int, int]:
    """Return the numbers that the lanes of both sides of a layer must divide."""
    return component.in_unit, component.outputs[0].shape[-1]


def _cheapest(name: str, component: Component, cycles: int, least_out: int) -> tuple[int, int]:
    """Return the pair of lanes with the fewest multipliers that meets `cycles`."""
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


def _layer_before(design: Design, name: str, layers: Mapping[str, Component]) -> str:
    """Return the layer that decides the lanes of stage `name`."""
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
