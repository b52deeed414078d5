"""Sums over the inputs of layers on the calibration data."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.ptq.observe.curvature import Importances
from chop.passes.ptq.observe.held_back import RowSplit, fitted_rows
from chop.passes.ptq.observe.layer_inputs import input_rows, weight_rows
from chop.passes.ptq.observe.layerwise_run import PairedRun, calls_of
from chop.passes.rewrite.split_experts import ExpertCall

OTHERS_SHARE = 0.1
"""Weight of the rows of other experts, relative to the rows that an expert has and would have if
all had the same number: few rows represent future inputs badly."""
WINDOW = ("kernel_size", "stride", "padding", "dilation", "groups", "in_features")
"""Settings of a layer that decide how its input becomes rows."""


@dataclass(frozen=True)
class InputSums:
    """Sums over all rows x that multiply a weight: x xᵀ, (x before - x) xᵀ, x, x before.

    x is the current input in its format; x before is the input in the float model. `rows`: number
    of rows. `halves`: the sums over each half of the rows, to test a step of one on the other.
    `held_back`: the sums over rows that are held back from the others, to test the result; None if
    there are too few rows.
    """

    hessian: Tensor
    drift: Tensor
    total: Tensor
    total_before: Tensor
    rows: int
    halves: tuple[InputSums, ...] = ()
    held_back: InputSums | None = None

    def __add__(self, other: InputSums) -> InputSums:
        """Return the sums over the rows of both; halves are added half by half."""
        halves = tuple(a + b for a, b in zip(self.halves, other.halves, strict=True))
        held_back = [sums for sums in (self.held_back, other.held_back) if sums is not None]
        return InputSums(
            self.hessian + other.hessian,
            self.drift + other.drift,
            self.total + other.total,
            self.total_before + other.total_before,
            self.rows + other.rows,
            halves,
            functools.reduce(operator.add, held_back) if held_back else None,
        )

    def __iadd__(self, other: InputSums) -> InputSums:
        """Return the sums over the rows of both; the matrices of `self` are reused for them."""
        halves = tuple(a.__iadd__(b) for a, b in zip(self.halves, other.halves, strict=True))
        held_back = self.held_back
        if held_back is not None and other.held_back is not None:
            held_back += other.held_back
        return InputSums(
            self.hessian.add_(other.hessian),
            self.drift.add_(other.drift),
            self.total + other.total,
            self.total_before + other.total_before,
            self.rows + other.rows,
            halves,
            other.held_back if held_back is None else held_back,
        )

    @property
    def split(self) -> RowSplit[InputSums]:
        """The sums over the fitted rows, the held-back rows and all rows."""
        if self.held_back is None:
            return RowSplit(self)
        alone = replace(self, halves=(), held_back=None)
        whole = replace(alone + self.held_back, halves=self.halves)
        return RowSplit(self, self.held_back, whole)

    def error(self, rounded: Tensor, weight: Tensor) -> float:
        """Return the squared error of a layer's outputs, up to a constant of the layer.

        The outputs of `rounded` on the current inputs are compared with those of `weight` on the
        inputs before.
        """
        gap = weight.double() - rounded.double()
        own = ((gap @ self.hessian) * gap).sum()
        drift = 2 * ((weight.double() @ self.drift) * gap).sum() if self.drift.dim() == 2 else 0.0
        return float(own + drift)


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
            self._last = (key, functools.reduce(operator.iadd, self.batches(node, layer)))
        return self._last[1]

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
    the router sends to others, with a small weight. `routed`: rows that the router sends to the
    layer of each expert, by its node.

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
    ) -> None:
        self.run, self.before, self.importances = run, before, importances or {}
        self.all_rows = all_rows
        self.routed: dict[fx.Node, int] = {}
        self.sums = sums_of if holds_back else _sums

    def key(self, node: fx.Node, layer: nn.Module) -> tuple[Any, ...]:
        own = node if node in self.importances else None  # its rows have weights of their own
        return *super().key(node, layer), own

    def batches(self, node: fx.Node, layer: nn.Module) -> Iterator[InputSums]:
        calls = calls_of(node)
        operands: Iterable[tuple[list[Tensor], list[Tensor] | None]]
        operands = ((now, None) for now in self.run.now.operands_of_calls(calls))
        is_expert = node in self.run.now.experts
        if self.before and not is_expert:
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
            sums = self.sums(rows, old)
            yield self._with_all_rows(node, layer, number, sums) if is_expert else sums

    def _with_all_rows(
        self, node: fx.Node, layer: nn.Module, batch: int, sums: InputSums
    ) -> InputSums:
        """Add the rows of all experts, so that the sums of a rare expert have full rank."""
        own = sums.rows + (0 if sums.held_back is None else sums.held_back.rows)
        self.routed[node] = self.routed.get(node, 0) + own
        if not self.all_rows:
            return sums
        x = self.run.now.rows_of_all(node, batch)
        rows = weight_rows(layer, x, str(node.target))
        experts = sum(call.x is self.run.now.experts[node].x for call in self._places)
        share = OTHERS_SHARE * (own + len(rows) / experts) / max(len(rows), 1)
        every = _sums(rows * share**0.5, None)
        total = sums.total + every.total
        hessian = sums.hessian + every.hessian
        return replace(sums, hessian=hessian, total=total, total_before=total)

    @property
    def _places(self) -> Iterable[ExpertCall]:
        return self.run.now.experts.values()


def sums_of(rows: Tensor, before: Tensor | None) -> InputSums:
    """Return the sums over the rows of one batch, of which the last are held back."""
    fitted = fitted_rows(len(rows))
    sums = _sums(rows[:fitted], None if before is None else before[:fitted])
    if fitted == len(rows):
        return sums
    held_back = _sums(rows[fitted:], None if before is None else before[fitted:])
    return replace(sums, held_back=replace(held_back, halves=()))


def _sums(rows: Tensor, before: Tensor | None) -> InputSums:
    """Return the sums over rows; with `before` also those of their halves."""
    if before is None:
        zero, total = rows.new_zeros(1).double(), rows.sum(0).double()
        return InputSums((rows.T @ rows).double(), zero, total, total, len(rows))
    half = (len(rows) + 1) // 2
    parts = tuple(
        InputSums(
            (now.T @ now).double(),
            ((old - now).T @ now).double(),
            now.sum(0).double(),
            old.sum(0).double(),
            len(now),
        )
        for now, old in zip((rows[:half], rows[half:]), (before[:half], before[half:]), strict=True)
    )
    return replace(parts[0] + parts[1], halves=parts)
