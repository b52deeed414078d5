"""What a compressed model costs: objectives beside accuracy, computed from its graph.

To add one: a function from a graph to a number, and a row of `COSTS`. Less is better in each but
those that `MAXIMISED` names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.latency import measure_latency
from chop.errors import ChopError, ConfigError, HardwareError
from chop.hw.design.design import Design
from chop.hw.flow import synth
from chop.hw.flow.predict import Prediction, predict
from chop.hw.lower import DesignSpec, lower
from chop.hw.lower.design_cache import attached_design, has_design
from chop.hw.sim.emit import emit
from chop.hw.timing.cycles import interval
from chop.ir.graph import MaseGraph
from chop.passes import calculate_avg_bits_mg_analysis_pass
from chop.passes.graph.analysis.calculate_avg_bits import stored_weights
from chop.passes.graph.analysis.summarize_graph import node_cost
from chop.pipelines import CompressionPipeline
from chop.registry import Registry, suggest

Cost = Callable[[MaseGraph], float]
COSTS: Registry[Cost] = Registry("cost")
"""Name -> cost of a graph whose nodes carry common metadata."""

MAXIMISED = ("frames_per_second", "predicted_mhz")
"""Costs that are gains: more is better."""

LATENCY_CALLS = 20
"""Calls of which the median is taken."""


def cost(name: str) -> Callable[[Cost], Cost]:
    """Register a function as the cost `name`."""

    def add(function: Cost) -> Cost:
        return COSTS.register(name, function)

    return add


def check_costs(names: Iterable[str], where: str) -> None:
    """Refuse a name that is not registered."""
    for name in names:
        if name not in COSTS:
            raise ConfigError(f"{where}: unknown cost '{name}'. {suggest(name, COSTS)}")


def direction_of_cost(name: str) -> str:
    """Whether a search minimises or maximises the cost `name`."""
    return "maximize" if name in MAXIMISED else "minimize"


def compute_costs(graph: MaseGraph, names: Iterable[str]) -> dict[str, float]:
    """The costs of `graph`; metadata is added where it is missing, nothing else changes."""
    wanted = list(names)
    check_costs(wanted, "costs")
    if wanted:
        graph, _ = CompressionPipeline()(graph)
    return {name: float(COSTS[name](graph)) for name in wanted}


@cost("average_bits")
def average_bits(graph: MaseGraph) -> float:
    """Bits of a parameter, on average over every layer that can be quantised."""
    return _counted(graph, "w_avg_bit")


@cost("average_activation_bits")
def average_activation_bits(graph: MaseGraph) -> float:
    """Bits of an element that an operation reads, on average."""
    return _counted(graph, "data_avg_bit")


@cost("average_linear_bits")
def average_linear_bits(graph: MaseGraph) -> float:
    """Bits of a parameter, on average over the linear layers alone."""
    return _counted(graph, "w_avg_bit", ops=["linear"])


def _counted(graph: MaseGraph, key: str, **args: Any) -> float:
    _, info = calculate_avg_bits_mg_analysis_pass(graph, args)
    if info[key] is None:
        raise ConfigError(f"costs: the graph has nothing to count for {key}.")
    return float(info[key])


@cost("model_bytes")
def model_bytes(graph: MaseGraph) -> float:
    """Bytes of all parameters, each in its format; pruned ones are stored as zeros."""
    seen: set[int] = set()
    stored = [s for node in graph.fx_graph.nodes for s in stored_weights(node, seen)]
    rest = [p for p in graph.model.parameters() if id(p) not in seen]
    bits = sum(s.elements * s.bits for s in stored)
    return bits / 8 + sum(p.numel() * p.element_size() for p in rest)


@cost("parameters")
def parameters(graph: MaseGraph) -> float:
    """The number of parameters."""
    return float(sum(p.numel() for p in graph.model.parameters()))


@cost("flops")
def flops(graph: MaseGraph) -> float:
    """Floating-point operations at the shapes of the trace."""
    return _summed(graph, "flops")


@cost("macs")
def macs(graph: MaseGraph) -> float:
    """Multiplications that are added up, at the shapes of the trace."""
    return _summed(graph, "macs")


def _summed(graph: MaseGraph, key: str) -> float:
    return float(sum(node_cost(graph, node)[key] for node in graph.fx_graph.nodes))


@cost("latency")
def latency(graph: MaseGraph) -> float:
    """Seconds of a call on the example inputs, the median on the device the model is on."""
    if not graph.dummy_in:
        raise ConfigError("costs: latency needs a graph with example inputs (dummy_in).")
    device = next(graph.model.parameters()).device.type
    records = measure_latency(
        {"model": graph}, graph.dummy_in, devices=[device], iterations=[LATENCY_CALLS]
    )
    return records[0].median


# -- hardware -----------------------------------------------------------------------------------


def _design(graph: MaseGraph, name: str) -> Design:
    try:
        lowered = attached_design(graph) if has_design(graph) else lower(graph, DesignSpec())
        return lowered.design
    except ChopError as error:
        raise HardwareError(f"costs: {name}: the graph cannot become hardware: {error}") from error


@cost("cycles")
def cycles(graph: MaseGraph) -> float:
    """Cycles between two tensors at full rate, from the cycle model of the design."""
    return float(interval(_design(graph, "cycles")))


@cost("multipliers")
def multipliers(graph: MaseGraph) -> float:
    """Multipliers of the design."""
    return float(_design(graph, "multipliers").cost().multipliers)


@cost("memory_bits")
def memory_bits(graph: MaseGraph) -> float:
    """Bits of constant memory of the design."""
    return float(_design(graph, "memory_bits").cost().memory_bits)


@cost("lut")
def lut(graph: MaseGraph) -> float:
    """Look-up tables after synthesis for xc7, which takes seconds to minutes."""
    design = _design(graph, "lut")
    with tempfile.TemporaryDirectory() as scratch:
        directory = emit(design, Path(scratch))
        return float(synth.synthesize(directory, design.name).lut)


# -- hardware, predicted: no tool runs ----------------------------------------------------------


PART = "ecp5-85k"
"""Whose cells and clock are predicted where no part is named."""


@dataclass(frozen=True)
class HardwareScore:
    """What a design is predicted to take of a part, and the cycles that its model counts."""

    prediction: Prediction
    interval: float
    """Cycles between two tensors."""

    @property
    def frames_per_second(self) -> float:
        """Tensors in a second at the predicted clock."""
        return self.prediction.mhz * 1e6 / self.interval


def score_design(design: Design, part: str = PART) -> HardwareScore:
    """The cells and the clock that are predicted for `part`, and the cycles of the cycle model."""
    return HardwareScore(predict(design, part), interval(design))


def _cells(kind: str) -> Callable[[HardwareScore], float]:
    return lambda score: float(getattr(score.prediction, kind))


PREDICTED: Mapping[str, Callable[[HardwareScore], float]] = {
    "frames_per_second": lambda score: score.frames_per_second,
    "predicted_mhz": lambda score: score.prediction.mhz,
    **{f"predicted_{kind}": _cells(kind) for kind in ("lut", "ff", "dsp", "bram")},
}
"""Costs that a score tells; of a graph alone, on `PART`."""


def _predicted(name: str) -> Cost:
    def of_graph(graph: MaseGraph) -> float:
        return PREDICTED[name](score_design(_design(graph, name)))

    return of_graph


for _name in PREDICTED:
    COSTS.register(_name, _predicted(_name))
