"""Measure the loss of each number format in each layer."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.ir.trace.environment import evaluation_mode
from chop.nn.quantized.convert import float_class_of, quantized_class
from chop.nn.quantizers import Bypass, Quantizer
from chop.nn.quantizers.operands import plain_names
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.passes.ptq.observe.curvature import predicted_moves, scores_of
from chop.passes.ptq.observe.layerwise_run import calibration_batches, running
from chop.passes.rewrite.propagate import bind_inputs

OPS = ("linear", "conv1d", "conv2d", "embedding")
DATA_IN, WEIGHT = "data_in", "weight"


@dataclass(frozen=True)
class SensitivityArgs:
    """Settings of `sensitivity_analysis_pass`.

    `data`: calibration batches, an iterable or a function that returns one. `num_samples`: rows to
    use. `formats`: name -> config of a layer, as for `quantize_transform_pass`. `method`:
    "curvature" estimates all from one forward and backward run; "sweep" quantises one layer at a
    time and measures. `layers`: nodes or modules; by default all linear layers, convolutions and
    embeddings.
    """

    data: Any = None
    num_samples: int | None = None
    formats: dict[str, dict[str, Any]] = field(default_factory=dict)
    method: Literal["curvature", "sweep"] = "curvature"
    layers: tuple[str, ...] | None = None


@graph_pass("sensitivity_analysis_pass", SensitivityArgs)
def sensitivity_analysis_pass(graph: MaseGraph, args: SensitivityArgs) -> PassResult:
    """Measure the loss that each format adds in each layer, in nats per row of the output.

        _, info = sensitivity_analysis_pass(mg, {"data": batches, "formats": {
            "w4": {"name": "mxint", "weight_width": 4, "data_in_width": 8},
            "w8": {"name": "mxint", "weight_width": 8, "data_in_width": 8}}})

    The loss is the divergence of the model's distribution from the original one; no labels are
    needed. `info["table"]` has a record for each layer and format: `loss`, the weight's elements
    and bits, and for "sweep" the signal-to-noise ratio of the outputs in dB.
    """
    if not args.formats:
        raise ConfigError("sensitivity.formats: give at least one format to try.")
    formats = {k: plain_names(c, f"sensitivity.formats.{k}") for k, c in args.formats.items()}
    layers = layers_with_weights(graph, args.layers)
    forms = {n: weight_formats(m, formats) for n, m in layers.items()}
    batches = calibration_batches(args.data, args.num_samples, "sensitivity.data")
    losses: dict[tuple[fx.Node, str], dict[str, Any]] = {}
    if args.method == "curvature":
        moves = predicted_moves(graph, layers, forms, batches, "sensitivity.data")
        losses = {
            k: {"loss": float(m.square().sum()), "moves": m.tolist()} for k, m in moves.items()
        }
    else:
        expected = list(outputs(graph, batches, "sensitivity.data"))
        for node, (label, config) in itertools.product(layers, formats.items()):
            changed = copy.deepcopy(graph)
            if config.get("name") is not None:
                rules = {"by": "name", node.name: {"config": dict(config)}}
                quantize_transform_pass(changed, rules)
            losses[node, label] = compared(changed, batches, expected, "sensitivity.data")
    table = [
        {
            "node": node.name,
            "module": str(node.target),
            "format": label,
            "elements": _weight(layer).numel(),
            "bits": stored_bits(forms[node][label][WEIGHT], _weight(layer)),
            **losses[node, label],
        }
        for node, layer in layers.items()
        for label in formats
    ]
    return graph, {"table": table, "formats": formats}


def layers_with_weights(
    graph: MaseGraph, names: tuple[str, ...] | None = None
) -> dict[fx.Node, nn.Module]:
    """Return the layers whose weights formats are tried on, by the first node that calls each."""
    layers: dict[fx.Node, nn.Module] = {}
    present: set[str] = set()
    for node in graph.fx_graph.nodes:
        if not is_measured(node, graph):
            continue
        own, module = {node.name, str(node.target)}, node_module(node)
        present |= own
        is_chosen = names is None or own & set(names)
        if is_chosen and module not in layers.values():
            layers[node] = module
    unknown = sorted(set(names or ()) - present)
    if unknown:
        raise ConfigError(f"sensitivity.layers: the graph has no layer '{unknown[0]}'.")
    if not layers:
        raise ConfigError(f"sensitivity: the graph has no layer to look at ({', '.join(OPS)}).")
    return layers


def is_measured(node: fx.Node, graph: MaseGraph) -> bool:
    """Return True if the node calls a layer whose formats this pass can compare."""
    op = find_op(node, graph.custom_ops) if node.op == "call_module" else None
    return op is not None and op.name in OPS and float_class_of(node_module(node)) is not None


def _weight(layer: nn.Module) -> Tensor:
    return layer.weight.detach()  # type: ignore[operator]


def stored_bits(form: Quantizer, weight: Tensor) -> float:
    """Return the bits that an element of `weight` takes in the format `form`."""
    return 8.0 * weight.element_size() if form.is_bypass else form.bits


def weight_formats(
    layer: nn.Module, formats: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Quantizer]]:
    """Return the formats of the operands of `layer` under each config."""
    parsed: dict[str, dict[str, Quantizer]] = {}
    for label, config in formats.items():
        where = f"sensitivity.formats.{label}"
        if config.get("name") is None:
            parsed[label] = {DATA_IN: Bypass(), WEIGHT: Bypass()}
            continue
        cls = quantized_class(layer, config["name"], where=where)
        parsed[label] = {DATA_IN: Bypass(), **cls.parse(config, where)[1]}
    return parsed


def outputs(graph: MaseGraph, batches: list[Any], where: str) -> Iterator[Tensor]:
    """Yield the scores of the model, batch by batch."""
    with evaluation_mode(graph.model), torch.no_grad():
        for number, batch in enumerate(batches):
            with running(where, number):
                scores = scores_of(graph.model(**bind_inputs(graph, batch, where)))
            yield scores


def compared(
    graph: MaseGraph, batches: list[Any], expected: list[Tensor], where: str
) -> dict[str, float]:
    """Return the divergence of a model's outputs from `expected`, per row, and the SQNR in dB."""
    return difference(outputs(graph, batches, where), expected)


def difference(outputs: Iterable[Tensor], expected: Iterable[Tensor]) -> dict[str, float]:
    """Return the divergence and the signal-to-noise ratio of scores, over all batches."""
    divergence = signal = noise = 0.0
    rows = 0
    for scores, right in zip(outputs, expected, strict=True):
        p, q = right.double().log_softmax(-1), scores.double().log_softmax(-1)
        divergence += float((p.exp() * (p - q)).sum())
        rows += right.shape[:-1].numel()
        signal += float(right.double().square().sum())
        noise += float((scores.double() - right.double()).square().sum())
    ratio = torch.tensor(signal / noise).log10().item() * 10 if noise else float("inf")
    return {"loss": divergence / rows, "sqnr": ratio}
