"""Costs of a compressed model: further objectives of a search, computed from its graph.

To add one, decorate a function from a graph to a number with `@cost`. Searches minimise costs,
except those in `MAXIMISED`.
"""

from __future__ import annotations

import functools
import operator
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

CostFunction = Callable[[MaseGraph], float]
COSTS: Registry[CostFunction] = Registry("cost")
"""Costs by name; the nodes of the graph need common metadata."""

MAXIMISED = ("frames_per_second", "predicted_mhz")
"""Costs that searches maximise."""

LATENCY_CALLS = 20
"""Calls per measurement; the result is their median."""


def cost(name: str) -> Callable[[CostFunction], CostFunction]:
    """Register a function as the cost `name`."""
    return lambda function: COSTS.register(name, function)


def check_costs(names: Iterable[str], where: str) -> None:
    """Raise if a name is not registered."""
    for name in names:
        if name not in COSTS:
            raise ConfigError(f"{where}: unknown cost '{name}'. {suggest(name, COSTS)}")


def direction_of_cost(name: str) -> str:
    """Return "minimize" or "maximize" for the cost `name`."""
    return "maximize" if name in MAXIMISED else "minimize"


def compute_costs(graph: MaseGraph, names: Iterable[str]) -> dict[str, float]:
    """Return the costs of `graph`; missing metadata is added to it."""
    names = list(names)
    check_costs(names, "costs")
    if names:
        graph, _ = CompressionPipeline()(graph)
    return {name: float(COSTS[name](graph)) for name in names}


@cost("average_bits")
def average_bits(graph: MaseGraph) -> float:
    """Return the average bits of a parameter over every layer that can be quantised."""
    return _counted(graph, "w_avg_bit")


@cost("average_activation_bits")
def average_activation_bits(graph: MaseGraph) -> float:
    """Return the average bits of an element that an operation reads."""
    return _counted(graph, "data_avg_bit")


@cost("average_linear_bits")
def average_linear_bits(graph: MaseGraph) -> float:
    """Return the average bits of a parameter over the linear layers."""
    return _counted(graph, "w_avg_bit", ops=["linear"])


def _counted(graph: MaseGraph, key: str, **args: Any) -> float:
    _, info = calculate_avg_bits_mg_analysis_pass(graph, args)
    if info[key] is None:
        raise ConfigError(f"costs: the graph has nothing to count for {key}.")
    return float(info[key])


@cost("model_bytes")
def model_bytes(graph: MaseGraph) -> float:
    """Return the bytes of all parameters in their formats; pruned ones are stored as zeros."""
    counted: set[int] = set()
    stored = [s for node in graph.fx_graph.nodes for s in stored_weights(node, counted)]
    rest = [p for p in graph.model.parameters() if id(p) not in counted]
    bits = sum(s.elements * s.bits for s in stored)
    return bits / 8 + sum(p.numel() * p.element_size() for p in rest)


@cost("parameters")
def parameters(graph: MaseGraph) -> float:
    """Return the number of parameters."""
    return float(sum(p.numel() for p in graph.model.parameters()))


@cost("flops")
def flops(graph: MaseGraph) -> float:
    """Return the floating-point operations at the shapes of the trace."""
    return float(sum(node_cost(graph, node)["flops"] for node in graph.fx_graph.nodes))


@cost("macs")
def macs(graph: MaseGraph) -> float:
    """Return the multiply-accumulate operations at the shapes of the trace."""
    return float(sum(node_cost(graph, node)["macs"] for node in graph.fx_graph.nodes))


@cost("latency")
def latency(graph: MaseGraph) -> float:
    """Return the median seconds of a call on the example inputs, on the model's device."""
    if not graph.dummy_in:
        raise ConfigError("costs: latency needs a graph with example inputs (dummy_in).")
    device = next(graph.model.parameters()).device.type
    records = measure_latency(
        {"model": graph}, graph.dummy_in, devices=[device], iterations=[LATENCY_CALLS]
    )
    return records[0].median


def _design(graph: MaseGraph, name: str) -> Design:
    try:
        lowered = attached_design(graph) if has_design(graph) else lower(graph, DesignSpec())
        return lowered.design
    except ChopError as error:
        raise HardwareError(f"costs: {name}: the graph cannot become hardware: {error}") from error


@cost("cycles")
def cycles(graph: MaseGraph) -> float:
    """Return the cycles between two tensors at full rate, by the cycle model of the design."""
    return float(interval(_design(graph, "cycles")))


@cost("multipliers")
def multipliers(graph: MaseGraph) -> float:
    """Return the multipliers of the design."""
    return float(_design(graph, "multipliers").cost().multipliers)


@cost("memory_bits")
def memory_bits(graph: MaseGraph) -> float:
    """Return the bits of constant memory of the design."""
    return float(_design(graph, "memory_bits").cost().memory_bits)


@cost("lut")
def lut(graph: MaseGraph) -> float:
    """Return the look-up tables after synthesis for xc7, which takes seconds to minutes."""
    design = _design(graph, "lut")
    with tempfile.TemporaryDirectory() as scratch:
        directory = emit(design, Path(scratch))
        return float(synth.synthesize(directory, design.name).lut)


PART = "ecp5-85k"
"""Default FPGA part of predictions."""


@dataclass(frozen=True)
class HardwareScore:
    """Predicted cells and clock of a design on a part, and the cycles of its model."""

    prediction: Prediction
    interval: float
    """Cycles between two tensors."""

    @property
    def frames_per_second(self) -> float:
        """Tensors per second at the predicted clock."""
        return self.prediction.mhz * 1e6 / self.interval


def score_design(design: Design, part: str = PART) -> HardwareScore:
    """Return the predicted cells and clock of `design` on `part`, and the modelled cycles."""
    return HardwareScore(predict(design, part), interval(design))


PREDICTED: Mapping[str, Callable[[HardwareScore], float]] = {
    "frames_per_second": lambda score: score.frames_per_second,
    "predicted_mhz": lambda score: score.prediction.mhz,
    **{
        f"predicted_{kind}": operator.attrgetter(f"prediction.{kind}")
        for kind in ("lut", "ff", "dsp", "bram")
    },
}
"""Costs computed from a score; for a graph alone, on `PART`."""


def _predicted_cost(graph: MaseGraph, *, name: str) -> float:
    return float(PREDICTED[name](score_design(_design(graph, name))))


for _name in PREDICTED:
    COSTS.register(_name, functools.partial(_predicted_cost, name=_name))
