"""Widths of weights chosen under a budget, with one decoder layer in memory at a time.

The losses are those of `sensitivity_analysis_pass` on a whole graph: a forward run stores the input
of each decoder layer, and a backward run computes each layer again and tries all formats in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from chop.actions.decoder_stream import HIDDEN, DecoderStream, LayerInputs
from chop.actions.fused_layers import fused_groups
from chop.actions.post_training import FormatChoices
from chop.actions.stream_importances import BatchMeasures, Boundaries, first_tensor
from chop.actions.weight_budget import WeightBudget
from chop.nn.quantizers import Bypass, Quantizer, parse_format
from chop.passes.ptq.observe.curvature import DATA_IN, DRAWS, WEIGHT, Watch, scores_of, surprise

ROWS = "rows"
"""Key of the number of rows of a batch, counted once for each draw."""


@dataclass(frozen=True)
class StreamAllocation:
    """Formats to choose from, by their spellings, and the budget.

    `bits`: largest average over all weights of the model. `loss`: largest predicted loss in nats
    per row, in place of `bits`. `fusable`: server that joins layers, as in `fused_groups`.
    """

    formats: tuple[str, ...]
    bits: float | None = None
    loss: float | None = None
    fusable: str | None = None

    @property
    def forms(self) -> dict[str, Quantizer]:
        """Formats by spelling."""
        return {text: parse_format(text, "quantize.bits") for text in self.formats}


@dataclass(frozen=True)
class CoveredLayer:
    """Matrix whose format is chosen: the path of its module, which is its node's name too."""

    name: str
    elements: int

    @property
    def target(self) -> str:
        """Path of the module."""
        return self.name


def covered_layers(
    stream: DecoderStream, modules: Sequence[Sequence[str]]
) -> dict[tuple[int, str], CoveredLayer]:
    """Return the matrices of all layers, by the number of the layer and the path within it."""
    layers = {}
    for number, paths in enumerate(modules):
        for path in paths:
            name = f"{stream.layer_path(number)}.{path}"
            parts = stream.parts(f"{name}.weight")
            elements = sum(torch.Size(stream.stored[part.name].shape).numel() for part in parts)
            layers[number, path] = CoveredLayer(name, elements)
    return layers


def weight_elements(stream: DecoderStream) -> int:
    """Return the elements of all weights in the files."""
    return sum(torch.Size(t.shape).numel() for t in stream.stored.values() if len(t.shape) > 1)


def budget_of(
    stream: DecoderStream, layers: Mapping[tuple[int, str], CoveredLayer], form: StreamAllocation
) -> WeightBudget:
    """Return the sizes of all weights in the files; those that are not covered keep their types."""
    covered = sum(layer.elements for layer in layers.values())
    weights = [tensor for tensor in stream.stored.values() if len(tensor.shape) > 1]
    inside = {
        part.name
        for number, path in layers
        for part in stream.parts(f"{stream.layer_path(number)}.{path}.weight")
    }
    rest = sum(8.0 * tensor.nbytes for tensor in weights if tensor.name not in inside)
    least = covered * min(each.bits for each in form.forms.values())
    ties = {layer.name: layer.name for layer in layers.values()}
    return WeightBudget(weight_elements(stream), covered, rest, least, ties)


class StreamSensitivities(BatchMeasures):
    """Moves of each sample by each format in each layer."""

    kind = "sensitivities"

    def __init__(
        self,
        stream: DecoderStream,
        modules: Sequence[Sequence[str]],
        folder: Path,
        load: Callable[[int], nn.Module],
        allocation: StreamAllocation,
    ) -> None:
        super().__init__(stream, modules, folder, load)
        self.allocation = allocation

    def measured(
        self,
        batch: Mapping[str, Any],
        inputs: LayerInputs,
        boundaries: Boundaries,
        draw: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the moves by layer and format, and the number of rows."""
        top = self.result_of_layers(inputs, boundaries)
        with torch.enable_grad(), self.stream.loaded_head():
            scores = scores_of(self.stream.outputs(batch, top))
            gradients = [
                torch.autograd.grad(surprise(scores, draw), top, retain_graph=left > 0)[0]
                for left in reversed(range(DRAWS))
            ]
        moves = {ROWS: torch.tensor(DRAWS * scores.shape[:-1].numel())}
        samples = len(scores)
        del scores, top
        for number in reversed(range(len(inputs.sides))):
            x = boundaries.pop().requires_grad_()
            watches = self._watched(number, x, inputs.sides[number], gradients, samples)
            for path, watch in watches.items():
                for label, parts in watch.moves.items():
                    moves[f"{number}.{path}:{label}"] = torch.cat(parts)
        return moves

    def _watched(
        self,
        number: int,
        x: Tensor,
        sides: Mapping[str, Any],
        gradients: list[Tensor],
        samples: int,
    ) -> dict[str, Watch]:
        """Run a layer backward from each gradient, and replace it by that of the layer's input."""
        layer = self.load(number)
        forms = {t: {DATA_IN: Bypass(), WEIGHT: f} for t, f in self.allocation.forms.items()}
        watches = {path: Watch(layer.get_submodule(path), forms) for path in self.modules[number]}
        for watch in watches.values():
            watch.layer.register_forward_hook(watch)
        with torch.enable_grad():
            y = first_tensor(layer(**{HIDDEN: x}, **sides))
            for i, gradient in enumerate(gradients):
                is_last = i == len(gradients) - 1
                gradients[i] = torch.autograd.grad(y, x, gradient, retain_graph=not is_last)[0]
                for watch in watches.values():
                    watch.end_batch(samples)
        return watches

    def choices(self, batches: int) -> FormatChoices:
        """Return the losses of all matrices in all formats, measured on that many batches."""
        stored = [load_file(self.file(number)) for number in range(batches)]
        scale = (2 * sum(int(each[ROWS]) for each in stored)) ** -0.5
        layers, table = covered_layers(self.stream, self.modules), []
        for (number, path), layer in layers.items():
            for label, form in self.allocation.forms.items():
                moves = torch.cat([each[f"{number}.{path}:{label}"] for each in stored]) * scale
                row: dict[str, Any] = {"node": layer.name, "module": layer.name, "format": label}
                row |= {"elements": layer.elements, "bits": form.bits}
                table.append(row | {"loss": float(moves.square().sum()), "moves": moves.tolist()})
        groups = fused_groups(layers.values(), self.allocation.fusable)
        formats = {text: {"name": form.name} for text, form in self.allocation.forms.items()}
        budget = budget_of(self.stream, layers, self.allocation)
        return FormatChoices(formats, budget, table, groups)

    def assignment(self, batches: int) -> dict[str, Any]:
        """Return the record of the choice; its `assignment` has the format of each module."""
        choices, allocation = self.choices(batches), self.allocation
        if allocation.bits is not None:
            return choices.within_bits(allocation.bits)[1]
        assert allocation.loss is not None, "a budget is bits or a loss"
        return choices.within_loss(allocation.loss)[1]
