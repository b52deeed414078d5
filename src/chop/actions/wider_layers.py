"""Layers that 8 bits cannot hold, found by their error at the output, in a wider format.

An example is a bank of filters that feeds a logarithm: rounded filters leak into silent bands, and
the logarithm shows it. The sensitivity of `--bits 4` predicts small errors only; here the model
runs with groups of layers quantised alone.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import DataError
from chop.ir.graph import MaseGraph
from chop.ir.trace.environment import evaluation_mode
from chop.passes import quantize_transform_pass
from chop.passes.ptq.observe.curvature import scores_of
from chop.passes.ptq.observe.layerwise_run import running
from chop.passes.ptq.observe.quantized_parts import PartlyQuantized
from chop.passes.rewrite.propagate import bind_inputs

WHERE = "quantize.wider"
WIDER = "wider"
"""Key of the record of `widen_layers`."""
ENOUGH_DB = 30.0
"""SQNR of the outputs in dB, an error of 0.1 %, from which no layer is looked for."""
OUTLIER = 4.0
"""Factor over the mean error of the layers that stay, from which a layer becomes wider."""
SMALL_SHARE = 0.02
"""Share of the whole error below which a group of layers is not divided."""
MOST_RUNS = 24
"""Largest number of runs of the model; each is one batch."""
GAIN = 2.0
"""Factor by which the error of the model falls, or the layers stay."""

Group = tuple[str, ...]
"""Paths of layers with one weight: they have one format."""


@dataclass(frozen=True)
class WiderFormat:
    """Wider format for layers whose error at the output is far above that of the others.

    `layers`: paths of the layers that may become wider. `batches`: rows to measure on. `name` and
    `config`: spelling of the format, and the config of a layer; without a config the layers are
    found and stay.
    """

    layers: Sequence[str]
    batches: Sequence[Any]
    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def rules(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return arguments of quantize_transform_pass for the `layers` of a record."""
        config = {"config": dict(self.config)}
        return {"by": "name", **{row["layer"]: config for row in layers if self.config}}


def widen_layers(quantized: MaseGraph, graph: MaseGraph, wider: WiderFormat) -> dict[str, Any]:
    """Give layers of `quantized` that stand out a wider format; `graph` is the float model.

    The weights of `quantized` are still floats, which each call rounds. Nothing is looked for if
    the outputs have at least `ENOUGH_DB`. Otherwise groups of layers are quantised alone and
    divided, the worst first. The layers with the largest errors become wider: as few as leave an
    error of `ENOUGH_DB` to the others, each `OUTLIER` times as bad as these.

    Return the record: `layers`, each with the first layer that has its weight, and the `sqnr_db` of
    the model in which only layers with this weight are quantised; `format`; `share` of the error
    that they cause; `before_db` and `after_db`, the SQNR of the outputs. If `format` is empty the
    layers stay, and `after_db` is the value with floats.
    """
    with torch.no_grad(), evaluation_mode(quantized.model), evaluation_mode(graph.model):
        search = _Search.of(quantized, graph, wider)
        every = frozenset(search.groups)
        whole = search.error(every)
        record: dict[str, Any] = {"layers": [], "format": wider.name, "before_db": _db(whole)}
        if _db(whole) >= ENOUGH_DB:
            return record
        worst = _outliers(*search.divided(whole))
        rest = search.error(every - {group for _, group in worst}) if worst else whole
        if rest * GAIN > whole:
            return record
        layers = [
            {"layer": path, "weight_of": group[0], "sqnr_db": _db(e)}
            for e, group in worst
            for path in group
        ]
        if wider.config:
            quantize_transform_pass(quantized, wider.rules(layers))
            rest = search.error(every)
    return {**record, "layers": layers, "share": 1 - rest / whole, "after_db": _db(rest)}


def wider_text(record: Mapping[str, Any]) -> str:
    """Return the record of `widen_layers` in words; "" if the outputs are accurate enough."""
    counts = Counter(row["weight_of"] for row in record["layers"])
    names = ", ".join(
        name if count == 1 else f"{name} ({count} layers with its weight)"
        for name, count in counts.items()
    )
    before = f"8 bits rounded to nearest: the outputs have {record['before_db']:.1f} dB"
    if record["before_db"] >= ENOUGH_DB:
        return ""
    if not names:
        return f"{before}, and no layer stands out. `mase explain` measures them."
    after = f"{record['share']:.0%} of the error comes from {names}"
    if not record["format"]:
        return (
            f"{before}. {after}; the target has no wider format for them. Without --for they have "
            f"16 bits, which leaves {record['after_db']:.1f} dB."
        )
    return f"{before}. {after}: now in {record['format']}, with {record['after_db']:.1f} dB."


# -- the search ----------------------------------------------------------------------------------


@dataclass
class _Search:
    """Runs of a quantised graph with some of its layers replaced by those of the float graph."""

    graph: MaseGraph
    calls: Mapping[str, Mapping[fx.Node, nn.Module]]
    groups: Sequence[Group]
    inputs: Sequence[Mapping[str, Any]]
    expected: Sequence[Tensor]
    runs: int = 0

    @staticmethod
    def of(graph: MaseGraph, reference: MaseGraph, wider: WiderFormat) -> _Search:
        """Run the float graph and return the search."""
        layers = {path: reference.model.get_submodule(path) for path in wider.layers}
        calls: dict[str, dict[fx.Node, nn.Module]] = {path: {} for path in layers}
        for node in graph.fx_graph.nodes:
            if node.op == "call_module" and node.target in calls:
                calls[node.target][node] = layers[node.target]
        inputs = [bind_inputs(graph, batch, WHERE) for batch in wider.batches]
        if not inputs:
            raise DataError(f"{WHERE}: expected at least one batch, got none.")
        expected = []
        for number, each in enumerate(inputs):
            with running(WHERE, number):
                expected.append(scores_of(reference.model(**each)).double())
        return _Search(graph, calls, _groups(layers), inputs, expected)

    def error(self, quantized: frozenset[Group]) -> float:
        """Return the error of the outputs if only some groups are quantised, relative to them."""
        self.runs += 1
        in_float = [path for group in self.groups if group not in quantized for path in group]
        instead = {node: call for path in in_float for node, call in self.calls[path].items()}
        noise = signal = 0.0
        for number, (inputs, right) in enumerate(zip(self.inputs, self.expected, strict=True)):
            with running(WHERE, number):
                result = PartlyQuantized(self.graph.model, instead).run(*inputs.values())
            is_finite = right.isfinite()  # a mask is infinite in both
            noise += float((scores_of(result).double() - right)[is_finite].square().sum())
            signal += float(right[is_finite].square().sum())
        share = noise / signal if signal else noise
        return share if math.isfinite(share) else math.inf

    def divided(self, whole: float) -> tuple[list[tuple[float, Group]], float, int]:
        """Return errors of single groups, and the sum and the number of all other groups."""
        waiting = [(-whole, 0, len(self.groups))]
        single: list[tuple[float, Group]] = []
        while waiting and self.runs < MOST_RUNS and -waiting[0][0] >= SMALL_SHARE * whole:
            loss, first, last = heapq.heappop(waiting)
            if last - first == 1:
                single.append((-loss, self.groups[first]))
                continue
            middle = (first + last) // 2
            for low, high in ((first, middle), (middle, last)):
                alone = self.error(frozenset(self.groups[low:high]))
                heapq.heappush(waiting, (-alone, low, high))
        rest = sum(-loss for loss, _, _ in waiting)
        return single, rest, sum(high - low for _, low, high in waiting)


def _groups(layers: Mapping[str, nn.Module]) -> list[Group]:
    """Return the paths of the layers; those that share a weight are together."""
    groups: dict[Any, list[str]] = {}
    for path, layer in layers.items():
        weights = tuple(id(p) for p in layer.parameters() if p.dim() > 1)
        groups.setdefault(weights or path, []).append(path)
    return [tuple(paths) for paths in groups.values()]


def _outliers(
    single: Sequence[tuple[float, Group]], rest: float, others: int
) -> list[tuple[float, Group]]:
    """Return the groups that become wider, the worst first; `rest`: error of the `others`."""
    ordered = sorted(single, key=lambda pair: -pair[0])
    chosen = 0
    for count, (error, _) in enumerate(ordered, start=1):
        staying = len(ordered) - count + others
        remaining = rest + sum(e for e, _ in ordered[count:])
        if staying and error > OUTLIER * remaining / staying:
            chosen = count
        if _db(remaining) >= ENOUGH_DB:
            break
    return ordered[:chosen]


def _db(error: float) -> float:
    """Return an error relative to the outputs as SQNR in dB, from -200 to 200.

    >>> _db(0.001)
    30.0
    """
    return -10 * math.log10(min(max(error, 1e-20), 1e20))
