"""Importance of each input row of a layer to the model's loss.

An error in a layer's output costs more on some tokens than on others, and on padding nothing. The
loss of a small error is half of (gradient · error)², so a row counts by the mean square of the
gradients over the layer's outputs. Where a model gives `logits` the loss is the divergence from its
own distribution, and the gradient that of the log-likelihood of a label drawn from it (the Fisher
information; no label of the data is needed). Of any other model it is the squared error of what it
gives, and the gradient that of its outputs times random signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.log import get_logger
from chop.passes.ptq.observe.calibration_data import running
from chop.passes.ptq.observe.curvature import frozen, gradient_rows, surprise
from chop.passes.ptq.observe.layerwise_run import own
from chop.passes.ptq.observe.reference_run import formats_off
from chop.passes.rewrite.propagate import bind_inputs, undisturbed

logger = get_logger(__name__)

EQUAL_SHARE = 0.1
"""Of what rows count for, the share that is the same for all: few rows may have a gradient, and
they alone say little about the inputs to come."""

Importances = Mapping[fx.Node, Sequence[Tensor | None]]
"""For each layer and batch, what its rows count for: 1 on average over all batches."""


def row_importances(
    graph: MaseGraph, layers: Mapping[fx.Node, nn.Module], batches: Sequence[Any], where: str
) -> Importances:
    """What the rows of each layer count for, by one run forwards and backwards without formats.

    None where no gradient says: in a layer that was not run, or whose outputs do not matter.
    """
    watches = {node: _Watch() for node in layers}
    draw = torch.Generator().manual_seed(0)
    with ExitStack() as stack:
        model = graph.model
        for manager in (undisturbed, formats_off, frozen):
            stack.enter_context(manager(model))
        stack.enter_context(torch.enable_grad())
        for node, layer in layers.items():
            stack.callback(layer.register_forward_hook(watches[node]).remove)
        for number, batch in enumerate(batches):
            with running(where, number):
                inputs = {k: own(v) for k, v in bind_inputs(graph, batch, where).items()}
                loss = _loss(model(**inputs), draw)
            if not loss.requires_grad:
                logger.info("%s: no gradient reaches the layers, all rows count the same.", where)
                return {}
            loss.backward()  # type: ignore[no-untyped-call]
            for watch in watches.values():
                watch.end_batch()
    return {node: _shared_out(watch.batches) for node, watch in watches.items()}


def _loss(result: Any, draw: torch.Generator) -> Tensor:
    """What is differentiated: its squared gradients are the loss of a small error."""
    if isinstance(result, Mapping) and "logits" in result:
        return surprise(result["logits"], draw)
    total = torch.zeros(())
    for given in tensors_in(result):
        if given.is_floating_point():
            signs = torch.randint(0, 2, given.shape, generator=draw).to(given) * 2 - 1
            total = total + (given * signs).float().sum().cpu()
    return total


class _Watch:
    """The squared gradients of one layer's rows, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[Tensor | None] = []
        self.now: Tensor | None = None

    def __call__(self, layer: nn.Module, _: tuple[Any, ...], output: Tensor) -> Tensor:
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        output.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: self._add(gradient_rows(layer, gradient.detach()))
        )
        return output

    def _add(self, rows: Tensor) -> None:
        squares = rows.float().square().mean(-1).flatten()
        self.now = squares if self.now is None else self.now + squares

    def end_batch(self) -> None:
        self.batches.append(self.now)
        self.now = None


def _shared_out(batches: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Squared gradients, over their mean and with the share that is equal for all."""
    found = [b for b in batches if b is not None]
    count = sum(b.numel() for b in found)
    mean = sum(float(b.double().sum()) for b in found) / max(count, 1)
    if mean == 0:
        return [None] * len(batches)
    return [None if b is None else (1 - EQUAL_SHARE) * b / mean + EQUAL_SHARE for b in batches]
