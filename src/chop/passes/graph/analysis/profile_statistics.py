"""Statistics of weights and of activations over a stream of inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, fx

from chop.config import parse
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.node_arguments import tensors_in
from chop.ir.ops import node_module
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.observe.layerwise_run import first_batches, source_of
from chop.passes.ptq.observe.tensor_statistics import STATISTICS, Statistic
from chop.passes.rewrite.propagate import bind_inputs, propagate
from chop.registry import suggest

Config = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ProfileStatisticsArgs:
    """Settings of `profile_statistics_analysis_pass`.

    `by`: targets are node names ("name") or MASE ops ("type"). `*_statistics`: name -> its
    configuration (`device`, `dims` and its own keys). `input_generator`: an iterable of inputs, or
    a function that returns one. `num_samples`: rows of the batch dimension to use.
    """

    by: Literal["type", "name"] = "type"
    target_weight_nodes: list[str] = field(default_factory=list)
    target_activation_nodes: list[str] = field(default_factory=list)
    weight_statistics: Config = field(default_factory=dict)
    activation_statistics: Config = field(default_factory=dict)
    input_generator: Any = None
    num_samples: int | None = None

    def __post_init__(self) -> None:
        if self.num_samples is not None and self.num_samples < 1:
            raise ConfigError(f"num_samples must be at least 1, got {self.num_samples}.")


@graph_pass("profile_statistics_analysis_pass", ProfileStatisticsArgs, needs=("software",))
def profile_statistics_analysis_pass(graph: MaseGraph, args: ProfileStatisticsArgs) -> PassResult:
    """Write statistics under `software.args[name]["stat"]` and `software.results[name]["stat"]`.

    Weights are those of the target weight nodes; activations are the operands and results of the
    target activation nodes, gathered over all inputs. `info["table"]` has the records.
    """
    statistics = _profile_weights(graph, args) | _profile_activations(graph, args)
    rows = []
    for (node, branch, name), gathered in statistics.items():
        stat = {kind: each.compute() for kind, each in gathered.items()}
        getattr(mase_meta(node).software, branch)[name]["stat"].update(stat)
        rows.append({"node": node.name, "branch": branch, "name": name, "stat": stat})
    return graph, {"table": rows}


Key = tuple[fx.Node, str, str]
Gathered = dict[str, Statistic]


def _profile_weights(graph: MaseGraph, args: ProfileStatisticsArgs) -> dict[Key, Gathered]:
    make = _maker(args.weight_statistics, "weight_statistics")
    statistics: dict[Key, Gathered] = {}
    for node in _targets(graph, args.by, args.target_weight_nodes, "target_weight_nodes"):
        names = mase_meta(node).software.args or {}
        parameters = node_module(node).named_parameters() if node.op == "call_module" else ()
        for name, tensor in parameters:
            if name in names and tensor.is_floating_point():
                statistics[node, "args", name] = _updated(make(), tensor)
    return statistics


def _profile_activations(graph: MaseGraph, args: ProfileStatisticsArgs) -> dict[Key, Gathered]:
    make = _maker(args.activation_statistics, "activation_statistics")
    targets = _targets(graph, args.by, args.target_activation_nodes, "target_activation_nodes")
    if not targets or not args.activation_statistics:
        return {}
    if args.input_generator is None:
        raise ConfigError("profile_statistics.input_generator: activations need inputs to run on.")
    watched = _watched(targets)
    statistics: dict[Key, Gathered] = {}

    def record(node: fx.Node, result: Any) -> None:
        for i, tensor in enumerate(tensors_in(result)):
            for key in watched.get((node, i), ()):
                if tensor.is_floating_point():
                    _updated(statistics.setdefault(key, make()), tensor)

    batches = source_of(args.input_generator)
    inputs = (bind_inputs(graph, batch, "profile_statistics") for batch in batches)
    for values in first_batches(inputs, args.num_samples):
        propagate(graph, values, record, real=True)
    return statistics


def _watched(targets: list[fx.Node]) -> dict[tuple[fx.Node, int], list[Key]]:
    """Return the statistics that each result of a node feeds: its own, and those of its users."""
    watched: dict[tuple[fx.Node, int], list[Key]] = {}
    for node in targets:
        common = mase_meta(node).common
        for i, name in enumerate(common.results or {}):
            watched.setdefault((node, i), []).append((node, "results", name))
        used: Counter[fx.Node] = Counter()
        for name, value in (common.args or {}).items():
            if value.source is not None and value.is_tensor:
                results = len(mase_meta(value.source).common.results or {})
                place = used[value.source] % results  # x * x is one tensor
                used[value.source] += 1
                watched.setdefault((value.source, place), []).append((node, "args", name))
    return watched


def _updated(gathered: Gathered, tensor: Tensor) -> Gathered:
    for each in gathered.values():
        each.update(tensor)
    return gathered


def _maker(config: Config, where: str) -> Callable[[], Gathered]:
    path = f"profile_statistics.{where}"
    for name in config:
        if name not in STATISTICS:
            raise ConfigError(f"{path}: unknown statistic '{name}'. {suggest(name, STATISTICS)}")
    return lambda: {n: parse(STATISTICS[n], c, f"{path}.{n}") for n, c in config.items()}


def _targets(graph: MaseGraph, by: str, names: list[str], where: str) -> list[fx.Node]:
    label = {n: n.name if by == "name" else mase_meta(n).common.mase_op for n in graph.nodes}
    for name in names:
        if name not in label.values():
            labels = {str(value) for value in label.values()}
            raise ConfigError(
                f"profile_statistics.{where}: no node has {by} '{name}'. {suggest(name, labels)}"
            )
    return [node for node in graph.nodes if label[node] in names]
