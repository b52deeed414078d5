"""Which layers lose what in which number format."""

from __future__ import annotations

import copy
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
from chop.passes.ptq.observe.calibration_data import calibration_batches, running
from chop.passes.ptq.observe.curvature import predicted_moves, scores_of
from chop.passes.rewrite.propagate import bind_inputs

OPS = ("linear", "conv1d", "conv2d", "embedding")
DATA_IN, WEIGHT = "data_in", "weight"


@dataclass(frozen=True)
class SensitivityArgs:
    """`data`: batches, an iterable or a function that gives one; `num_samples`: rows of them.

    `formats`: name -> config of a layer, as `quantize_transform_pass` takes it. `method`:
    "curvature" estimates all of them from one run forwards and backwards; "sweep" quantises one
    layer at a time and measures. `layers`: nodes or modules to look at, by default all linear
    layers, convolutions and embeddings.
    """

    data: Any = None
    num_samples: int | None = None
    formats: dict[str, dict[str, Any]] = field(default_factory=dict)
    method: Literal["curvature", "sweep"] = "curvature"
    layers: tuple[str, ...] | None = None


@graph_pass("sensitivity_analysis_pass", SensitivityArgs)
def sensitivity_analysis_pass(graph: MaseGraph, args: SensitivityArgs) -> PassResult:
    """What each format in each layer adds to the loss, in nats for each row of the output.

        _, info = sensitivity_analysis_pass(mg, {"data": batches, "formats": {
            "w4": {"name": "mxint", "weight_width": 4, "data_in_width": 8},
            "w8": {"name": "mxint", "weight_width": 8, "data_in_width": 8}}})

    The loss is the divergence of the model's own distribution from what it was: no labels are
    needed. `info["table"]` has a record for each layer and format: `loss`, the weight's elements
    and bits, and for the "sweep" the signal-to-noise ratio of the outputs in dB.
    """
    if not args.formats:
        raise ConfigError("sensitivity.formats: give at least one format to try.")
    formats = {k: plain_names(c, f"sensitivity.formats.{k}") for k, c in args.formats.items()}
    layers = layers_with_weights(graph, args.layers)
    forms = {n: weight_formats(m, formats) for n, m in layers.items()}
    batches = calibration_batches(args.data, args.num_samples, "sensitivity.data")
    if args.method == "curvature":
        losses = _estimated(graph, layers, forms, batches)
    else:
        losses = _measured(graph, layers, formats, batches)
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
    graph: MaseGraph, wanted: tuple[str, ...] | None = None
) -> dict[fx.Node, nn.Module]:
    """Return the layers whose weights formats are tried on, by the node that calls each first."""
    layers = dict(_layers(graph, wanted))
    if not layers:
        raise ConfigError(f"sensitivity: the graph has no layer to look at ({', '.join(OPS)}).")
    return layers


def _layers(
    graph: MaseGraph, wanted: tuple[str, ...] | None
) -> Iterator[tuple[fx.Node, nn.Module]]:
    """Float or quantised layers that nodes call, each once."""
    seen: set[int] = set()
    names: set[str] = set()
    for node in graph.fx_graph.nodes:
        op = find_op(node, graph.custom_ops) if node.op == "call_module" else None
        if op is None or op.name not in OPS or float_class_of(node_module(node)) is None:
            continue
        names |= {node.name, str(node.target)}
        is_wanted = wanted is None or {node.name, str(node.target)} & set(wanted)
        module = node_module(node)
        if is_wanted and id(module) not in seen and getattr(module, "groups", 1) == 1:
            seen.add(id(module))
            yield node, module
    unknown = sorted(set(wanted or ()) - names)
    if unknown:
        raise ConfigError(f"sensitivity.layers: the graph has no layer '{unknown[0]}'.")


def _weight(layer: nn.Module) -> Tensor:
    return layer.weight.detach()  # type: ignore[operator]


def stored_bits(form: Quantizer, weight: Tensor) -> float:
    """Return the bits that an element of `weight` takes in the format `form`."""
    return 8.0 * weight.element_size() if form.is_bypass else form.bits


def weight_formats(
    layer: nn.Module, formats: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Quantizer]]:
    """Return the formats of the operands of `layer` under each config."""
    found: dict[str, dict[str, Quantizer]] = {}
    for label, config in formats.items():
        where = f"sensitivity.formats.{label}"
        if config.get("name") is None:
            found[label] = {DATA_IN: Bypass(), WEIGHT: Bypass()}
            continue
        cls = quantized_class(layer, config["name"], where=where)
        found[label] = {DATA_IN: Bypass(), **cls.parse(config, where)[1]}
    return found


Losses = dict[tuple[fx.Node, str], dict[str, Any]]
Forms = Mapping[fx.Node, Mapping[str, Mapping[str, Quantizer]]]


def _estimated(
    graph: MaseGraph, layers: Mapping[fx.Node, nn.Module], forms: Forms, batches: list[Any]
) -> Losses:
    found = predicted_moves(graph, layers, forms, batches, "sensitivity.data")
    return {k: {"loss": float(m.square().sum()), "moves": m.tolist()} for k, m in found.items()}


def _measured(
    graph: MaseGraph,
    layers: Mapping[fx.Node, nn.Module],
    formats: Mapping[str, Mapping[str, Any]],
    batches: list[Any],
) -> Losses:
    expected = list(outputs(graph, batches, "sensitivity.data"))
    losses: Losses = {}
    for node in layers:
        for label, config in formats.items():
            changed = copy.deepcopy(graph)
            if config.get("name") is not None:
                rules = {"by": "name", node.name: {"config": dict(config)}}
                quantize_transform_pass(changed, rules)
            losses[node, label] = compared(changed, batches, expected, "sensitivity.data")
    return losses


def outputs(graph: MaseGraph, batches: list[Any], where: str) -> Iterator[Tensor]:
    """The scores that the model gives, batch by batch."""
    with evaluation_mode(graph.model), torch.no_grad():
        for number, batch in enumerate(batches):
            with running(where, number):
                scores = scores_of(graph.model(**bind_inputs(graph, batch, where)))
            yield scores


def compared(
    graph: MaseGraph, batches: list[Any], expected: list[Tensor], where: str
) -> dict[str, float]:
    """Divergence of a model's outputs from those expected, per row, and their ratio in dB."""
    return difference(outputs(graph, batches, where), expected)


def difference(found: Iterable[Tensor], expected: Iterable[Tensor]) -> dict[str, float]:
    """The same of scores, batch by batch."""
    divergence = signal = noise = 0.0
    rows = 0
    for scores, right in zip(found, expected, strict=True):
        p, q = right.double().log_softmax(-1), scores.double().log_softmax(-1)
        divergence += float((p.exp() * (p - q)).sum())
        rows += right.shape[:-1].numel()
        signal += float(right.double().square().sum())
        noise += float((scores.double() - right.double()).square().sum())
    ratio = torch.tensor(signal / noise).log10().item() * 10 if noise else float("inf")
    return {"loss": divergence / rows, "sqnr": ratio}
