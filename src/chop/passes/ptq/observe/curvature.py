"""Loss that small changes of layers add, predicted by one forward and one backward run.

The loss is the divergence of the model's distribution from what it was. Near no change it is half
of E[s²], where s is the change of the log-likelihood of a label drawn from the model itself: the
gradient of that likelihood times the change, summed over everything in one sample that the change
touches (the Fisher information; no label of the data is needed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.ir.trace.environment import evaluation_mode
from chop.nn.quantizers import Quantizer
from chop.passes.ptq.observe.calibration_data import running
from chop.passes.ptq.observe.layer_inputs import sample_rows
from chop.passes.rewrite.propagate import bind_inputs

Roles = Mapping[str, Quantizer]
DATA_IN, WEIGHT = "data_in", "weight"
DRAWS = 4
"""Labels drawn for each row of a sequence: its rows make one sample, and samples are few."""
KEPT_BYTES = 256 * 2**20
"""Memory for what formats do to weights, which are else rounded again for every batch."""


@dataclass
class Watch:
    """A layer, the formats to try in it, and the s of every sample that each has so far.

    A layer may be called several times in a batch, and on other rows than the batch has: what each
    call adds is `pending` until the batch is done. What formats do to the weight is the same for
    every batch: it is kept where memory allows.
    """

    layer: nn.Module
    formats: Mapping[str, Roles]
    moves: dict[str, list[Tensor]] = field(default_factory=dict)
    pending: dict[str, list[Tensor]] = field(default_factory=dict)
    is_reached: bool = False
    keeps_changes: bool = False
    changes: Tensor | None = None

    def __call__(self, _: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        x = args[0].detach()
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        output.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: self._add(x, gradient.detach())
        )
        return output

    def _add(self, x: Tensor, gradient: Tensor) -> None:
        if isinstance(self.layer, nn.Embedding):
            self._add_rows(x, gradient)
            return
        weight: Tensor = self.layer.weight.detach()  # type: ignore[operator]
        flat = _wide(weight).reshape(weight.shape[0], -1)
        rows, slopes = sample_rows(self.layer, _wide(x)), gradient_rows(self.layer, gradient)
        by_weight = (slopes.mT @ rows).flatten(1)
        moves = (by_weight @ self._weight_changes(weight, flat)).double()
        by_input = slopes @ flat if self._rounds_inputs() else slopes
        for moved, (label, roles) in zip(moves.unbind(1), self.formats.items(), strict=True):
            if not roles[DATA_IN].is_bypass:
                error = sample_rows(self.layer, _wide(roles[DATA_IN](x)) - _wide(x))
                moved = moved + (by_input * error).sum((1, 2))
            self.pending.setdefault(label, []).append(moved.cpu())

    def _add_rows(self, indices: Tensor, gradient: Tensor) -> None:
        """Add the moves of an embedding: its output is the rows of the weight at `indices`."""
        weight: Tensor = self.layer.weight.detach()  # type: ignore[operator]
        slopes = gradient_rows(self.layer, gradient)
        rows = indices.reshape(slopes.shape[:2])
        changes = self._weight_changes(weight, _wide(weight))
        for label, change in zip(self.formats, changes.unbind(1), strict=True):
            moved = (change.reshape(weight.shape)[rows] * slopes).sum((1, 2))
            self.pending.setdefault(label, []).append(moved.double().cpu())

    def _rounds_inputs(self) -> bool:
        return any(not roles[DATA_IN].is_bypass for roles in self.formats.values())

    def _weight_changes(self, weight: Tensor, flat: Tensor) -> Tensor:
        """(elements, formats): what each format does to the weight."""
        if self.changes is not None:
            return self.changes
        found = flat.new_empty(flat.numel(), len(self.formats))
        for column, roles in zip(found.unbind(1), self.formats.values(), strict=True):
            column.copy_((_wide(roles[WEIGHT](weight)).reshape(flat.shape) - flat).flatten())
        if self.keeps_changes:
            self.changes = found
        return found

    def end_batch(self, samples: int) -> None:
        """Take what the calls of a batch of so many samples added."""
        self.is_reached |= bool(self.pending)
        for label in self.formats:
            total = torch.zeros(samples, dtype=torch.double)
            for part in self.pending.pop(label, ()):
                total += _by_sample(part, samples)
            self.moves.setdefault(label, []).append(total)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _by_sample(part: Tensor, samples: int) -> Tensor:
    """Rows that a call had, added up by sample; where they are of no sample alone, in one."""
    if part.numel() % samples == 0:
        return part.reshape(samples, -1).sum(1)
    return torch.cat([part.sum()[None], part.new_zeros(samples - 1)])


def gradient_rows(layer: nn.Module, gradient: Tensor) -> Tensor:
    """(samples, rows, outputs)"""
    gradient = _wide(gradient)
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return gradient.flatten(2).movedim(1, -1)
    return gradient.reshape(gradient.shape[0], -1, gradient.shape[-1])


def predicted_moves(
    graph: MaseGraph,
    layers: Mapping[fx.Node, nn.Module],
    formats: Mapping[fx.Node, Mapping[str, Roles]],
    batches: Iterable[Any],
    where: str,
) -> dict[tuple[fx.Node, str], Tensor]:
    """How far each format in each layer moves each sample: s, over the root of twice the rows.

    The squares of a layer's moves add up to the loss of one row of the output; where several
    layers change, the moves of a sample add up first. The model is left as it was.
    """
    watches = _watches(layers, formats)
    rows = 0
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(graph.model))
        stack.enter_context(frozen(graph.model))
        stack.enter_context(torch.enable_grad())
        for watch in watches.values():
            stack.callback(watch.layer.register_forward_hook(watch).remove)
        draw = torch.Generator().manual_seed(0)
        for number, batch in enumerate(batches):
            with running(where, number):
                scores = scores_of(graph.model(**bind_inputs(graph, batch, where)))
            draws = DRAWS if scores.dim() > 2 else 1
            for number in range(1, draws + 1):
                rows += scores.shape[:-1].numel()
                surprise(scores, draw).backward(retain_graph=number < draws)  # type: ignore[no-untyped-call]
                for watch in watches.values():
                    watch.end_batch(scores.shape[0] if scores.dim() > 1 else 1)
    for node, watch in watches.items():
        if not watch.is_reached:
            raise PassError(f"{where}: no gradient reaches '{node.name}'.")
    return {
        (node, label): torch.cat(moves) / (2 * rows) ** 0.5
        for node, watch in watches.items()
        for label, moves in watch.moves.items()
    }


def _watches(
    layers: Mapping[fx.Node, nn.Module], formats: Mapping[fx.Node, Mapping[str, Roles]]
) -> dict[fx.Node, Watch]:
    """A watch for each layer; those that are seen first keep what their formats do."""
    found, room = {}, KEPT_BYTES
    for node, layer in layers.items():
        room -= 4 * layer.weight.numel() * len(formats[node])  # type: ignore[operator]
        found[node] = Watch(layer, formats[node], keeps_changes=room >= 0)
    return found


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter takes a gradient within: only values on the way do."""
    trains = [p for p in model.parameters() if p.requires_grad]
    for parameter in trains:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trains:
            parameter.requires_grad_(True)


def scores_of(result: Any) -> Tensor:
    """The logits of a model, or the first floating-point tensor it gives.

    Its last dimension are the classes, its first the samples.
    """
    if isinstance(result, Mapping) and "logits" in result:
        return result["logits"]  # type: ignore[no-any-return]
    scores = next((t for t in tensors_in(result) if t.is_floating_point() and t.dim()), None)
    if scores is None:
        raise PassError("the model gives no floating-point tensor that could be scores of classes.")
    return scores


def surprise(scores: Tensor, draw: torch.Generator) -> Tensor:
    """A loss whose gradients have the model's Fisher information as their second moment."""
    likely = scores.float().reshape(-1, scores.shape[-1]).log_softmax(-1)
    if likely.shape[1] == 2:  # both labels give one direction: their mean square is exact
        spread = likely.detach().exp().prod(1).sqrt()
        return ((likely[:, 0] - likely[:, 1]) * spread).sum()
    chosen = torch.multinomial(likely.detach().exp().cpu(), 1, generator=draw)
    return -likely.gather(-1, chosen.to(likely.device)).sum()
