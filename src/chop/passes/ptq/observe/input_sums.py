"""Sums over the inputs of layers on the calibration data."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.ptq.observe.curvature import Importances
from chop.passes.ptq.observe.layer_inputs import input_rows, weight_rows
from chop.passes.ptq.observe.layerwise_run import PairedRun, calls_of
from chop.passes.ptq.observe.row_sums import InputSums, plain_sums, sums_of
from chop.passes.ptq.observe.stored_sums import StoredSums, are_stored
from chop.passes.rewrite.split_experts import ExpertCall

OTHERS_SHARE = 0.1
"""Weight of the rows of other experts, relative to the rows that an expert has and would have if
all had the same number: few rows represent future inputs badly."""
WINDOW = ("kernel_size", "stride", "padding", "dilation", "groups", "in_features")
"""Settings of a layer that decide how its input becomes rows."""


S = TypeVar("S")


class SharedSums(ABC, Generic[S]):
    """Sums over the inputs of one layer after the other, over all calls of each layer.

    Consecutive layers that read the same values in one format share their sums.
    """

    _last: tuple[Any, S] | None = None

    def of(self, node: fx.Node, layer: nn.Module) -> S:
        """Return the sums at `node`, which calls `layer`, given all current layers before it."""
        key = self.key(node, layer)
        if self._last is None or self._last[0] != key:
            self._last = None  # its memory is free before the next sums need it
            self._last = (key, self.summed(node, layer))
        return self._last[1]

    def summed(self, node: fx.Node, layer: nn.Module) -> S:
        """Return the sums over all batches."""
        return functools.reduce(operator.iadd, self.batches(node, layer))

    def key(self, node: fx.Node, layer: nn.Module) -> tuple[Any, ...]:
        """Return everything that the sums depend on."""
        form = layer.quantizers["data_in"] if isinstance(layer, QuantizedModule) else None
        window = tuple(getattr(layer, name, None) for name in WINDOW)
        operands = tuple((call.args, call.kwargs) for call in calls_of(node))
        return operands, form, window

    @abstractmethod
    def batches(self, node: fx.Node, layer: nn.Module) -> Iterator[S]:
        """Yield the sums over each batch of the calibration data; the first is added to."""


class InputStatistics(SharedSums[InputSums]):
    """`InputSums` of one quantised layer after the other, behind the rounded layers.

    Without `before`, the float inputs are assumed equal to the current ones, and the reference is
    not run: half the work. `importances`: the weight of each row. `holds_back`: some rows are left
    out of the sums, to test the result. `all_rows`: an expert of a mixture also sees the rows that
    the router sends to others, with a small weight. `spill`: folder for the sums of wide layers,
    which otherwise are in memory. `routed`: rows that the router sends to the layer of each expert,
    by its node.

    The router may decide differently in the float model, so that experts have no rows before.
    """

    def __init__(
        self,
        run: PairedRun,
        *,
        before: bool,
        importances: Importances | None = None,
        holds_back: bool = False,
        all_rows: bool = True,
        spill: Path | None = None,
    ) -> None:
        self.run, self.before, self.importances = run, before, importances or {}
        self.all_rows, self.holds_back, self.spill = all_rows, holds_back, spill
        self.routed: dict[fx.Node, int] = {}
        self.sums = sums_of if holds_back else plain_sums

    def key(self, node: fx.Node, layer: nn.Module) -> tuple[Any, ...]:
        own = node if node in self.importances else None  # its rows have weights of their own
        return *super().key(node, layer), own

    def summed(self, node: fx.Node, layer: nn.Module) -> InputSums:
        weight = stored_weight(layer)
        sizes = (len(weight), weight.shape[1:].numel())
        is_large = are_stored(*sizes, before=self._has_before(node))
        if self.spill is None or not is_large or weight.device.type != "cpu":
            return super().summed(node, layer)
        sums = StoredSums(self.spill, holds_back=self.holds_back)
        for number, (rows, before) in enumerate(self._rows(node, layer)):
            sums.add(rows, before)
            if node in self.run.now.experts:
                others = self._others(node, layer, number, len(rows))
                if others is not None:
                    sums.add_others(others)
        return sums.result()

    def batches(self, node: fx.Node, layer: nn.Module) -> Iterator[InputSums]:
        for number, (rows, before) in enumerate(self._rows(node, layer)):
            sums = self.sums(rows, before)
            if node in self.run.now.experts:
                sums = _with_others(sums, self._others(node, layer, number, len(rows)))
            yield sums

    def _has_before(self, node: fx.Node) -> bool:
        return self.before and node not in self.run.now.experts

    def _rows(self, node: fx.Node, layer: nn.Module) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the weighted rows of each batch, now and before."""
        calls = calls_of(node)
        operands: Iterable[tuple[list[Tensor], list[Tensor] | None]]
        operands = ((now, None) for now in self.run.now.operands_of_calls(calls))
        if self._has_before(node):
            operands = self.run.operands_of_calls(calls)
        for number, (now, before) in enumerate(operands):
            rows = torch.cat([weight_rows(layer, x, str(node.target)) for x in now])
            if not rows.isfinite().all():
                raise PassError(
                    f"'{node.target}': its inputs on batch {number} have NaN or infinity. Allowed: "
                    "calibration data on which the quantised layers have finite inputs."
                )
            old = None if before is None else torch.cat([input_rows(layer, x) for x in before])
            old = None if old is None else old.float()
            weights = self.importances[node][number] if node in self.importances else None
            if weights is not None and len(weights) == len(rows):
                roots = weights.sqrt()[:, None]  # so that products are weighted
                rows, old = rows * roots, None if old is None else old * roots
            yield rows, old

    def _others(self, node: fx.Node, layer: nn.Module, batch: int, own: int) -> Tensor | None:
        """Return weighted rows of all experts, so that the sums of a rare expert have full rank."""
        self.routed[node] = self.routed.get(node, 0) + own
        if not self.all_rows:
            return None
        x = self.run.now.rows_of_all(node, batch)
        rows = weight_rows(layer, x, str(node.target))
        experts = sum(call.x is self.run.now.experts[node].x for call in self._places)
        share = OTHERS_SHARE * (own + len(rows) / experts) / max(len(rows), 1)
        weighted: Tensor = rows * share**0.5
        return weighted

    @property
    def _places(self) -> Iterable[ExpertCall]:
        return self.run.now.experts.values()


def _with_others(sums: InputSums, others: Tensor | None) -> InputSums:
    """Add the rows of other experts; they are not used for tests."""
    if others is None:
        return sums
    assert isinstance(sums.hessian, Tensor), "the sums are in memory"
    total = sums.total + others.sum(0).double()
    hessian = sums.hessian + (others.T @ others).double()
    return replace(sums, hessian=hessian, total=total, total_before=total)
