"""Explain the loss of a quantised model layer by layer, and test what would help."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.ir.trace.environment import evaluation_mode
from chop.log import get_logger
from chop.nn.quantizers import Quantizer
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.analysis.sensitivity import difference
from chop.passes.ptq.observe.curvature import scores_of
from chop.passes.ptq.observe.layerwise_run import calibration_batches, running
from chop.passes.ptq.observe.quantized_parts import (
    FirstInputs,
    Formats,
    PartlyQuantized,
    QuantizedPart,
    call_in,
    kernel_times,
    quantized_parts,
    without_formats,
)
from chop.passes.rewrite.propagate import bind_inputs

logger = get_logger(__name__)

WHERE = "explain.data"
MORE_BITS = 2
"""Bits that the trial of a wider format adds."""
SMALLEST_BLOCK = 8
"""Smallest block size that is halved."""
OUTLIERS = 20.0
"""Ratio of the largest magnitude to the root mean square from which smoothing or rotation helps."""


@dataclass(frozen=True)
class ExplainArgs:
    """Settings of `explain_analysis_pass`.

    `data`: calibration batches, an iterable or a function that returns one. `num_samples`: rows to
    use. `reference`: the float graph or model; without it the graph's own layers without formats,
    with their current weights. `share`: groups of layers below this share of the whole loss are
    skipped. `most`: number of layers to examine, the worst first. `times`: also compare the time
    of each kind of layer with the float layer.
    """

    data: Any = None
    num_samples: int | None = None
    reference: Any = None
    share: float = 0.02
    most: int = 8
    times: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ConfigError(f"explain.share: {self.share}. Allowed: from 0 to less than 1.")
        if self.most < 1:
            raise ConfigError(f"explain.most: {self.most}. Allowed: 1 or more.")
        if self.reference is not None and not isinstance(self.reference, MaseGraph | nn.Module):
            kind = type(self.reference).__name__
            raise ConfigError(f"explain.reference: expected a MaseGraph or a module, got {kind}.")


@graph_pass("explain_analysis_pass", ExplainArgs)
def explain_analysis_pass(graph: MaseGraph, args: ExplainArgs) -> PassResult:
    """Find the layers and operands that cause the loss of a quantised model, and what would help.

        _, info = explain_analysis_pass(mg, {"data": batches})

    The loss is the divergence of the outputs from those of the float model, in nats per row; no
    labels are needed. Groups of layers are quantised alone and halved, down to the layers whose
    loss is at least `share` of the whole. `info["loss"]` is that of the whole model.
    `info["layers"]` has a record for each such layer: its `loss` alone, `without`, the loss of the
    model with this layer in float, the loss of each of its `operands` alone, and the `changes` that
    were tried, best first. `info["kernels"]` has the kernel of each kind of layer and its time
    relative to the float layer. `info["runs"]` is the number of runs of the model.
    """
    parts = list(quantized_parts(graph))
    if not parts:
        raise ConfigError(
            "explain: nothing in the graph is quantised. Run a quantising pass first."
        )
    batches = calibration_batches(args.data, args.num_samples, WHERE)
    with torch.no_grad(), evaluation_mode(graph.model):
        reference = args.reference
        model = reference.model if isinstance(reference, MaseGraph) else reference
        trial = Trial(graph, parts, batches, model)
        whole = trial.loss({})
        worst = _worst_parts(trial, whole, args)
        logger.info("explain: %d of %d parts matter, %d runs", len(worst), len(parts), trial.runs)
        layers = [_record(trial, part, loss) for part, loss in worst[: args.most]]
        kernels = kernel_times(graph, parts, batches[0], trial.float_calls) if args.times else []
    return graph, {"loss": whole, "layers": layers, "kernels": kernels, "runs": trial.runs}


class Trial:
    """Losses of a graph with some of its parts in other formats."""

    def __init__(
        self,
        graph: MaseGraph,
        parts: Sequence[QuantizedPart],
        batches: Sequence[Any],
        reference: nn.Module | None,
    ) -> None:
        self.graph, self.parts, self.reference = graph, parts, reference
        self.runs = 0
        self.inputs = [bind_inputs(graph, b, WHERE) for b in batches]
        self.float_calls = {part: self._float_call(part) for part in parts}
        self.expected = list(self._expected())

    def _float_call(self, part: QuantizedPart) -> dict[Any, Callable[..., Any]]:
        try:
            is_own = self.reference is not None and part.layer is not None
            own = self.reference.get_submodule(part.name) if is_own and self.reference else None
        except AttributeError:  # the reference has no such layer
            own = None
        if own is not None and not part.is_adapted:
            return dict.fromkeys(part.nodes, own)
        if part.is_packed:
            raise ConfigError(
                f"explain.reference: '{part.name}' is packed: its float weight is in the model "
                "before packing alone. Give that as reference."
            )
        return call_in(self.graph, part, without_formats(part))

    def _expected(self) -> Iterator[Tensor]:
        if self.reference is None:
            yield from self._scores({p: self.float_calls[p] for p in self.parts})
            return
        with evaluation_mode(self.reference):
            for inputs in self.inputs:
                yield scores_of(self.reference(**inputs))

    def _scores(self, changes: Mapping[QuantizedPart, Mapping[Any, Any]]) -> Iterator[Tensor]:
        instead = {node: call for calls in changes.values() for node, call in calls.items()}
        self.runs += 1
        for number, inputs in enumerate(self.inputs):
            interpreter = PartlyQuantized(self.graph.model, instead)
            with running(WHERE, number):
                scores = scores_of(interpreter.run(*inputs.values()))
            yield scores

    def loss(self, changes: Mapping[QuantizedPart, Mapping[Any, Any]]) -> float:
        """Return the loss with other calls in the place of some parts."""
        return float(difference(self._scores(changes), self.expected)["loss"])

    def loss_alone(self, parts: Sequence[QuantizedPart], formats: Formats | None = None) -> float:
        """Return the loss with only these parts quantised, a single one optionally in `formats`."""
        changes = {p: self.float_calls[p] for p in self.parts if p not in parts}
        if formats is not None:
            (part,) = parts
            changes[part] = call_in(self.graph, part, formats)
        return self.loss(changes)

    def outliers(self, part: QuantizedPart) -> float:
        """Return the largest magnitude of the part's input, relative to its root mean square."""
        node = part.nodes[0]
        run = FirstInputs(self.graph.model, {node})
        run.run(*self.inputs[0].values())
        first = next((t for t in tensors_in(run.inputs[node]) if t.is_floating_point()), None)
        if first is None or not first.any():
            return 1.0
        return float(first.abs().max() / first.float().square().mean().sqrt())


def _worst_parts(
    trial: Trial, whole: float, args: ExplainArgs
) -> list[tuple[QuantizedPart, float]]:
    """Return the parts with at least a share of the loss, largest first, by halving groups."""
    waiting = [list(trial.parts)]
    worst: list[tuple[QuantizedPart, float]] = []
    while waiting:
        group = waiting.pop()
        loss = whole if len(group) == len(trial.parts) else trial.loss_alone(group)
        if loss < args.share * whole or loss == 0:
            continue
        if len(group) == 1:
            worst.append((group[0], loss))
        else:
            half = len(group) // 2
            waiting += [group[half:], group[:half]]
    return sorted(worst, key=lambda pair: -pair[1])


def _record(trial: Trial, part: QuantizedPart, loss: float) -> dict[str, Any]:
    formats = {role: form for role, form in part.formats.items() if not form.is_bypass}
    plain = without_formats(part)
    operands = {r: trial.loss_alone([part], {**plain, r: form}) for r, form in formats.items()}
    changes = _changes(trial, part, operands) if operands else []
    return {
        "node": part.nodes[0].name,
        "layer": part.name,
        "formats": {role: str(form) for role, form in formats.items()},
        "loss": loss,
        "without": trial.loss({part: trial.float_calls[part]}),
        "operands": operands,
        "changes": changes,
        "advice": _advice(part, loss, operands, changes, trial.outliers(part)),
    }


def _changes(
    trial: Trial, part: QuantizedPart, operands: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Try other formats for the worst operand with the part alone; return them, best first."""
    worst = max(operands, key=operands.__getitem__)
    tried = [
        {"change": text, "loss": trial.loss_alone([part], {**part.formats, worst: form})}
        for text, form in alternatives(worst, part.formats[worst])
    ]
    return sorted(tried, key=lambda row: row["loss"])


def _advice(
    part: QuantizedPart,
    loss: float,
    operands: Mapping[str, float],
    changes: Sequence[Mapping[str, Any]],
    outliers: float,
) -> list[str]:
    """Return advice for a part, in words."""
    if part.is_packed:
        return ["pack it in a wider format, or leave it out (skip)"]
    worst = max(operands, key=operands.__getitem__)
    advice = []
    if changes and changes[0]["loss"] < loss / 2:
        advice.append(f"{changes[0]['change']}: its loss falls to {changes[0]['loss']:.2g}")
    if worst == "weight":
        advice.append("round its weight by effect (gptq_transform_pass)")
    elif outliers > OUTLIERS:
        advice.append(
            f"spread its input (smooth_transform_pass, rotate_transform_pass): the largest is "
            f"{outliers:.0f} times the typical one"
        )
    return advice or ["leave it in float"]


def alternatives(role: str, form: Quantizer) -> Iterator[tuple[str, Quantizer]]:
    """Yield formats near `form` that round less, each with its settings."""
    for name, value in _settings(form).items():
        try:
            yield f"{role}_{name} = {value!r}", dataclasses.replace(form, **{name: value})
        except ConfigError:
            continue  # already as wide, or as small, as the format can be


def _settings(form: Quantizer) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if hasattr(form, "width"):
        settings["width"] = form.width + MORE_BITS
    if hasattr(form, "frac_width"):
        settings["frac_width"] = form.frac_width + 1
    size = None if form.blocks is None else form.blocks.block_size
    if isinstance(size, int) and size > SMALLEST_BLOCK:
        settings["block_size"] = size // 2
    scaled = form.scaled
    if scaled is not None and not scaled.is_stored:
        if scaled.granularity == "tensor" and scaled.scale is None:
            settings["granularity"] = "channel"
        elif scaled.granularity == "group":
            settings["group_size"] = max(scaled.group_size // 2, 1)
    return settings
