"""Parallelism by itself: the fewest multipliers for a pace, or the best pace for a budget.

A layer's cycles are its folds, so only divisors of its channels matter. For a target, every layer
takes its cheapest fold that meets it; what a pooling or an activation needs is asked of the layer
before it. A budget is met by the smallest target that stays within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.errors import HardwareError
from chop.hw.component import Component
from chop.hw.design import Design
from chop.hw.lower import Lowered, Lowerer, Parallelism
from chop.hw.stream import divisors
from chop.ir.graph import MaseGraph

Lanes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Folding:
    """A parallelism with its pace and its price."""

    lanes: Mapping[str, tuple[int, int]]
    cycles: int
    multipliers: int


def for_target(graph: MaseGraph, cycles: int) -> Folding:
    """The cheapest parallelism with at most `cycles` cycles between tensors."""
    layers = _layers(_lower(graph, {}))
    least_out = dict.fromkeys(layers, 1)
    while True:
        lanes = {name: _cheapest(name, c, cycles, least_out[name]) for name, c in layers.items()}
        lanes |= _input_lanes(graph, lanes, cycles)
        lowered = _lower(graph, lanes)
        slow = _slow_stage(lowered.design, cycles)
        if slow is None:
            return _folding(lowered, lanes)
        name = _layer_before(lowered.design, slow, layers)
        least_out[name] = _next_divisor(name, layers[name], lanes[name][1], cycles)


def for_budget(graph: MaseGraph, multipliers: int) -> Folding:
    """The fastest parallelism with at most `multipliers` multipliers."""
    slowest = _folding(_lower(graph, {}), {})
    if slowest.multipliers > multipliers:
        raise HardwareError(
            f"parallelism: {multipliers} multipliers are not enough; one lane everywhere needs "
            f"{slowest.multipliers}."
        )
    low, high, best = 0, slowest.cycles, slowest
    while high - low > 1:  # fewer cycles never cost fewer multipliers
        middle = (low + high) // 2
        try:
            found = for_target(graph, middle)
        except HardwareError:
            low = middle
            continue
        if found.multipliers <= multipliers:
            high, best = min(middle, found.cycles), found
        else:
            low = middle
    return best


def _lower(graph: MaseGraph, lanes: Lanes) -> Lowered:
    """Without FIFOs; one lane where nothing is said."""
    return Lowerer(graph, Parallelism(1, lanes), "top").run()


def _input_lanes(graph: MaseGraph, lanes: Lanes, cycles: int) -> Lanes:
    """Lanes of the inputs: those of the first layer where that is enough, else the fewest."""
    names = [n.name for n in graph.fx_graph.nodes if n.op == "placeholder"]
    first = next(iter(lanes.values()), (1, 1))[0]
    ports = _lower(graph, {}).design.inputs
    found = {}
    for number, name in enumerate(names):
        stream = ports.get(f"data_in_{number}")
        if stream is None:  # nothing reads it
            continue
        enough = [d for d in divisors(stream.shape[-1]) if stream.elements <= cycles * d]
        if not enough:
            raise HardwareError(f"input '{name}': {stream.shape} cannot enter in {cycles} cycles.")
        chosen = first if first in enough else enough[0]
        found[name] = (chosen, chosen)
    return found


def _folding(lowered: Lowered, lanes: Lanes) -> Folding:
    design = lowered.design
    return Folding(lanes, design.cycles(), design.cost().multipliers)


def _layers(lowered: Lowered) -> dict[str, Component]:
    return {name: c for name, c in lowered.components.items() if c.products()}


def _channels(component: Component) -> tuple[int, int]:
    return component.in_unit, component.outputs[0].shape[-1]


def _cheapest(name: str, component: Component, cycles: int, least_out: int) -> tuple[int, int]:
    """The pair of lanes with the fewest multipliers that meets `cycles`."""
    inputs, outputs = _channels(component)
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
        if stage.component.cycles() > cycles:
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
    more = [d for d in divisors(_channels(component)[1]) if d > lanes]
    if not more:
        raise HardwareError(f"node '{name}': what follows it cannot reach {cycles} cycles.")
    return more[0]
