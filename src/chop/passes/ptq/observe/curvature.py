"""Loss that small changes of layers add, predicted by one forward and one backward run.

The loss is the divergence of the model's distribution from the original one. For small changes it
is half of E[s²], where s is the change of the log-likelihood of a label drawn from the model: the
gradient of that likelihood times the change, summed over everything in one sample that the change
touches (the Fisher information; no label of the data is needed).

The importance of an input row of a layer is the mean square of the gradients over its outputs: an
error costs more on some tokens than on others, and nothing on padding. For a model without `logits`
the loss is the squared error of its outputs, and the gradient that of the outputs times random
signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.ir.trace.environment import evaluation_mode
from chop.log import get_logger, log_step
from chop.nn.quantizers import Quantizer
from chop.passes.ptq.observe.carried_batch import CarriedBatch
from chop.passes.ptq.observe.layer_inputs import groups_of, sample_rows
from chop.passes.ptq.observe.layerwise_run import formats_off, own, running
from chop.passes.ptq.observe.stored_matrix import steps
from chop.passes.rewrite.propagate import bind_inputs, undisturbed

Roles = Mapping[str, Quantizer]
DATA_IN, WEIGHT = "data_in", "weight"
DRAWS = 4
"""Labels drawn for each row of a sequence: its rows form one sample, and samples are few."""
AT_ONCE = 1 << 22
"""Elements of a weight whose gradients of all samples are in memory at a time."""
KEPT_BYTES = 256 * 2**20
"""Memory to cache the changes of weights, which otherwise are rounded again for every batch."""


@dataclass
class Watch:
    """A layer, the formats to try in it, and the s of every sample for each format.

    A layer may be called several times per batch, and on other rows than the batch has, so the
    contributions of its calls are `pending` until the batch ends. The changes of the weight are
    the same for every batch; `keeps_changes` caches them.
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
        return with_hook(output, lambda gradient: self._add(x, gradient))

    def _add(self, x: Tensor, gradient: Tensor) -> None:
        if isinstance(self.layer, nn.Embedding):
            self._add_rows(x, gradient)
            return
        weight: Tensor = self.layer.weight.detach()  # type: ignore[operator]
        flat = _wide(weight).reshape(weight.shape[0], -1)
        rows, slopes = sample_rows(self.layer, _wide(x)), gradient_rows(self.layer, gradient)
        groups = groups_of(self.layer)
        by_group = _by_group(slopes, groups)
        moves = flat.new_zeros(len(slopes), len(self.formats), dtype=torch.double)
        for part in self._slices(flat, groups):
            by_weight = (by_group[..., part].mT @ _by_group(rows, groups)).flatten(1)
            moves += (by_weight @ self._weight_changes(weight[part], flat[part])).double()
        rounds_inputs = any(not roles[DATA_IN].is_bypass for roles in self.formats.values())
        by_input = slopes
        if rounds_inputs:
            matrices = flat.reshape(groups, -1, flat.shape[1])
            by_input = (by_group @ matrices).movedim(1, 2).flatten(2)
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

    def _slices(self, flat: Tensor, groups: int) -> list[slice]:
        """Return the rows of the weight to look at together: all, if a format needs them all."""
        forms = [roles[WEIGHT] for roles in self.formats.values()]
        is_separable = all(form.is_bypass or form.part_unit(2, 0) == 1 for form in forms)
        if self.keeps_changes or groups != 1 or not is_separable:
            return [slice(None)]
        return steps(len(flat), max(AT_ONCE // flat.shape[1], 1))

    def _weight_changes(self, weight: Tensor, flat: Tensor) -> Tensor:
        """Return the change of the weight by each format, (elements, formats)."""
        if self.changes is not None:
            return self.changes
        changes = flat.new_empty(flat.numel(), len(self.formats))
        for column, roles in zip(changes.unbind(1), self.formats.values(), strict=True):
            column.copy_((_wide(roles[WEIGHT](weight)).reshape(flat.shape) - flat).flatten())
        if self.keeps_changes:
            self.changes = changes
        return changes

    def end_batch(self, samples: int) -> None:
        """Add the pending contributions of a batch with `samples` samples."""
        self.is_reached |= bool(self.pending)
        for label in self.formats:
            total = torch.zeros(samples, dtype=torch.double)
            for part in self.pending.pop(label, ()):
                total += _by_sample(part, samples)
            self.moves.setdefault(label, []).append(total)


def with_hook(output: Tensor, hook: Callable[[Tensor], None]) -> Tensor:
    """Return `output`, made to require a gradient, with a hook that receives the gradient.

    A gradient that is NaN or infinite counts as 0, in the layers before it too: so is that of a
    square root at 0, the magnitude of a silent piece of sound.
    """
    if not output.requires_grad:
        output = output.detach().requires_grad_()

    def receive(gradient: Tensor) -> Tensor:
        finite = gradient.detach().nan_to_num(0.0, 0.0, 0.0)
        hook(finite)
        return finite

    output.register_hook(receive)  # type: ignore[no-untyped-call]
    return output


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _by_sample(part: Tensor, samples: int) -> Tensor:
    """Sum the rows of a call by sample; rows that belong to no single sample count in the first."""
    if part.numel() % samples == 0:
        return part.reshape(samples, -1).sum(1)
    return torch.cat([part.sum()[None], part.new_zeros(samples - 1)])


def _by_group(rows: Tensor, groups: int) -> Tensor:
    """Return (samples, rows, columns) as (samples, groups, rows, columns of a group)."""
    return rows.reshape(*rows.shape[:-1], groups, -1).movedim(2, 1)


def gradient_rows(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Return a gradient as (samples, rows, outputs)."""
    gradient = _wide(gradient)
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return gradient.flatten(2).movedim(1, -1)
    return gradient.reshape(gradient.shape[0], gradient.shape[1:-1].numel(), gradient.shape[-1])


def predicted_moves(
    graph: MaseGraph,
    layers: Mapping[fx.Node, nn.Module],
    formats: Mapping[fx.Node, Mapping[str, Roles]],
    batches: Iterable[Any],
    where: str,
) -> dict[tuple[fx.Node, str], Tensor]:
    """Return the move of each sample by each format in each layer: s / sqrt(2 * rows).

    The squares of a layer's moves sum to the loss per row of the output. If several layers change,
    sum the moves of a sample first. The model stays unchanged.
    """
    watches, room = {}, KEPT_BYTES
    for node, layer in layers.items():  # the first layers cache the changes of their weights
        room -= 4 * layer.weight.numel() * len(formats[node])  # type: ignore[operator]
        watches[node] = Watch(layer, formats[node], keeps_changes=room >= 0)
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


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Disable the gradients of all parameters inside the context."""
    trains = [p for p in model.parameters() if p.requires_grad]
    for parameter in trains:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trains:
            parameter.requires_grad_(True)


def scores_of(result: Any) -> Tensor:
    """Return the logits of a model, or the first floating-point tensor of its result.

    The last dimension are the classes, the first the samples.
    """
    if isinstance(result, Mapping) and "logits" in result:
        return result["logits"]  # type: ignore[no-any-return]
    scores = next((t for t in tensors_in(result) if t.is_floating_point() and t.dim()), None)
    if scores is None:
        raise PassError("the model gives no floating-point tensor that could be scores of classes.")
    return scores


def surprise(scores: Tensor, draw: torch.Generator) -> Tensor:
    """Return a loss whose gradients have the model's Fisher information as second moment."""
    likely = scores.float().reshape(-1, scores.shape[-1]).log_softmax(-1)
    if likely.shape[1] == 2:  # both labels give one direction: their mean square is exact
        spread = likely.detach().exp().prod(1).sqrt()
        return ((likely[:, 0] - likely[:, 1]) * spread).sum()
    labels = torch.multinomial(likely.detach().exp().cpu(), 1, generator=draw)
    return -likely.gather(-1, labels.to(likely.device)).sum()


logger = get_logger(__name__)

EQUAL_SHARE = 0.1
"""Share of the weight that is equal for all rows: few rows may have a gradient, and these alone
represent future inputs badly."""

Importances = Mapping[fx.Node, Sequence[Tensor | None]]
"""Weights of rows for each layer and batch: 1 on average over all batches."""


def row_importances(
    graph: MaseGraph, layers: Mapping[fx.Node, nn.Module], batches: Sequence[Any], where: str
) -> Importances:
    """Return the weights of each layer's rows, by one forward and backward run without formats.

    None for a layer that was not run, or whose outputs have no gradient. Batches that enter the
    model in the middle bring the weights with them.
    """
    if all(isinstance(batch, CarriedBatch) for batch in batches):
        brought = [batch.importances or {} for batch in batches]
        return {node: [each.get(str(node.target)) for each in brought] for node in layers}
    watches = {node: RowWatch() for node in layers}
    draw = torch.Generator().manual_seed(0)
    with ExitStack() as stack:
        model = graph.model
        for manager in (undisturbed, formats_off, frozen):
            stack.enter_context(manager(model))
        stack.enter_context(torch.enable_grad())
        for node, layer in layers.items():
            stack.callback(layer.register_forward_hook(watches[node]).remove)
        for number, batch in enumerate(batches):
            log_step(logger, "importance of rows: batch", number + 1, len(batches))
            with running(where, number):
                inputs = {k: own(v) for k, v in bind_inputs(graph, batch, where).items()}
                loss = importance_loss(model(**inputs), draw)
            if not loss.requires_grad:
                logger.info("%s: no gradient reaches the layers, all rows count the same.", where)
                return {}
            loss.backward()  # type: ignore[no-untyped-call]
            for watch in watches.values():
                watch.end_batch()
    return {node: shared_out(watch.batches) for node, watch in watches.items()}


def importance_loss(result: Any, draw: torch.Generator) -> Tensor:
    """Return the function whose squared gradients are the loss of a small error."""
    if isinstance(result, Mapping) and "logits" in result:
        return surprise(result["logits"], draw)
    total = torch.zeros(())
    for output in tensors_in(result):
        if output.is_floating_point():
            signs = torch.randint(0, 2, output.shape, generator=draw).to(output) * 2 - 1
            total = total + (output * signs).float().sum().cpu()
    return total


class RowWatch:
    """Squared gradients of one layer's rows, batch by batch; the rows of all calls in order."""

    def __init__(self) -> None:
        self.batches: list[Tensor | None] = []
        self.calls: list[Tensor] = []
        self.is_reached = False

    def __call__(self, layer: nn.Module, _: tuple[Any, ...], output: Tensor) -> Tensor:
        number, rows = len(self.calls), gradient_rows(layer, output.detach())
        self.calls.append(rows.new_zeros(rows.shape[:2].numel()))
        return with_hook(output, lambda gradient: self._add(number, gradient_rows(layer, gradient)))

    def _add(self, number: int, rows: Tensor) -> None:
        self.calls[number] = rows.float().square().mean(-1).flatten()
        self.is_reached = True

    def end_batch(self) -> None:
        self.batches.append(torch.cat(self.calls) if self.is_reached else None)
        self.calls, self.is_reached = [], False


def shared_out(batches: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Divide squared gradients by their mean, and mix in the equal share."""
    present = [b for b in batches if b is not None]
    count = sum(b.numel() for b in present)
    mean = sum(float(b.double().sum()) for b in present) / max(count, 1)
    if mean == 0:
        return [None] * len(batches)
    return [None if b is None else (1 - EQUAL_SHARE) * b / mean + EQUAL_SHARE for b in batches]
