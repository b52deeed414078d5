"""Choose the ranges of number formats from the operands' values on calibration data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata
from chop.ir.ops import Operand
from chop.log import get_logger, log_step
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.quantize import chosen_formats
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun, calibration_batches
from chop.passes.ptq.observe.observers import make_observer
from chop.passes.ptq.observe.watched_operands import (
    OperandObserver,
    Watched,
    operand_of,
    watch,
)
from chop.passes.quantization_rules import QuantizeArgs, modern_beside

logger = get_logger(__name__)

WHERE = "calibrate"
OWN = ("data", "num_samples", "observer", "operands")


@dataclass(frozen=True)
class CalibrateArgs(QuantizeArgs):
    """Settings of `calibrate_analysis_pass`.

    `data`: calibration batches, an iterable or a function that returns one. `num_samples`: rows to
    use. `observer`: its name (`mase list observers`), or a table with its `name` and settings.
    `operands`: those to calibrate; by default all. All other keys are rules as for
    quantize_transform_pass, by `by`: settings that a config leaves open are chosen, others stay.
    """

    data: Any = None
    num_samples: int | None = None
    observer: Any = "mse"
    operands: tuple[str, ...] = ("data_in", "weight", "bias")

    modern = staticmethod(modern_beside(OWN))


@graph_pass("calibrate_analysis_pass", CalibrateArgs)
def calibrate_analysis_pass(graph: MaseGraph, args: CalibrateArgs) -> PassResult:
    """Choose the settings that formats leave open: fractional widths, scales, exponent biases.

        _, info = calibrate_analysis_pass(mg, {"data": batches, "observer": "percentile",
            "linear": {"config": {"name": "scale_integer", "data_in_width": 8, "weight_width": 8,
                                  "weight_granularity": "channel"}}})
        quantize_transform_pass(mg, info["config"])

    `info["config"]` has a rule for each node; a scale for a whole tensor is a number in it. Scales
    of channels and groups are in the metadata of the nodes (`software.calibration`), where
    quantize_transform_pass reads them, and in `info["scales"]`. The float model runs layer by
    layer, so memory does not grow with its depth; `info["kept_bytes"]` is the largest size of the
    stored values. `info["table"]` has the range of every operand. Formats that measure each block
    have nothing to choose but the rule of their shared exponent, if there are several.
    """
    make_observer(args.observer, f"{WHERE}.observer")  # report a wrong one before anything runs
    watched = _watched(graph, args)
    if not watched:
        raise ConfigError(f"{WHERE}: the rules give no format to anything. Name one to calibrate.")
    batches = calibration_batches(args.data, args.num_samples, f"{WHERE}.data")
    kept_bytes = _observe(graph, watched, batches)
    for each in watched:
        each.settle(args.operands, args.observer, f"{WHERE}.observer")
    for node in graph.fx_graph.nodes:
        node.meta.setdefault("mase", MaseMetadata())
    for each in watched:
        for node in each.nodes:
            chosen = {role: dict(settings) for role, settings in each.chosen.items()}
            node.meta["mase"].software.calibration = chosen
    return graph, {
        "config": {"by": "name", **{w.key: {"config": w.config} for w in watched}},
        "scales": {w.key: scales for w in watched if (scales := w.scales)},
        "table": [record for w in watched for record in w.records],
        "kept_bytes": kept_bytes,
    }


def _watched(graph: MaseGraph, args: CalibrateArgs) -> list[Watched]:
    """Return everything that the rules give a format; a module with several calls once."""
    watched: dict[str, Watched] = {}
    for node, _, choice in chosen_formats(graph, args.rule_args):
        if choice is not None:
            new = watch(graph, node, choice)
            if watched.setdefault(new.key, new) is not new:
                watched[new.key].nodes.append(node)
    shared: dict[tuple[Any, ...], OperandObserver] = {}
    for each in watched.values():
        for operand in each.inputs:
            if not each.is_open(operand.role, args.operands):
                continue
            form = each.quantizers[operand.role]
            source = operand_of(operand, each.nodes[0].args, each.nodes[0].kwargs)
            # layers that read one value in one format share its observer
            is_alone = len(each.nodes) > 1 or not isinstance(source, fx.Node)
            key = (each.key, operand.role) if is_alone else (source, form)
            if key not in shared:
                shared[key] = OperandObserver(form, args.observer, f"{WHERE}.observer")
            each.observers[operand.role] = shared[key]
    return list(watched.values())


def _check_channels(watched: Watched, operand: Operand, value: Tensor) -> None:
    """Raise if scales are stored for each row of a batch: they fit no other batch size."""
    scaled = watched.quantizers[operand.role].scaled
    if scaled is None or scaled.granularity != "channel" or value.dim() < 2:
        return
    if scaled.axis % value.dim() == 0:
        name = watched.names.get(operand.role, operand.role)
        raise ConfigError(
            f"{WHERE}: node '{watched.nodes[0].name}': {operand.role} has a scale for each element "
            f"of dimension 0, which is the batch. Allowed: another {name}_axis, such as -1."
        )


def _observe(graph: MaseGraph, watched: list[Watched], batches: list[Any]) -> int:
    """Pass every operand to its observer; return the largest size of the stored values, bytes."""
    by_node = {node: each for each in watched for node in each.nodes}
    finished: set[tuple[OperandObserver, Any]] = set()
    kept_bytes = 0
    with LayerwiseRun(graph, batches, f"{WHERE}.data") as run:
        for number, node in enumerate(n for n in run.nodes if n in by_node):
            log_step(logger, "calibrate: node", number + 1, len(by_node), node.name)
            each = by_node[node]
            todo = [
                (operand, watcher)
                for operand in each.inputs
                if (watcher := each.observers.get(operand.role)) is not None
                and (watcher, operand_of(operand, node.args, node.kwargs)) not in finished
            ]
            for args, kwargs in run.arguments(node):
                for operand, watcher in todo:
                    value = operand_of(operand, args, kwargs)
                    if isinstance(value, Tensor) and value.is_floating_point():
                        _check_channels(each, operand, value)
                        watcher.observe(value)
            finished |= {(w, operand_of(o, node.args, node.kwargs)) for o, w in todo}
            kept_bytes = max(kept_bytes, run.kept_bytes)
        run.advance(run.nodes[-1])  # the last layer too must run on the data
    return kept_bytes
