"""Sums over the inputs of layers on the calibration data."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from torch import Tensor, fx, nn

from chop.nn.quantized.layer import QuantizedModule
from chop.passes.ptq.observe.layer_inputs import input_rows, weight_rows
from chop.passes.ptq.observe.reference_run import PairedRun
from chop.passes.ptq.observe.row_importance import Importances

WINDOW = ("kernel_size", "stride", "padding", "dilation", "groups", "in_features")
"""Settings of a layer that decide how its input becomes rows."""


@dataclass(frozen=True)
class InputSums:
    """Over all rows x that multiply a weight: x xᵀ, (x before - x) xᵀ, x, x before, and how many.

    x is as the layer has it now, in its format; before is without any format. `halves`: the same
    over one half of the rows and over the other, to test on one what the other says.
    """

    hessian: Tensor
    drift: Tensor
    total: Tensor
    total_before: Tensor
    rows: int
    halves: tuple[InputSums, ...] = ()

    def __add__(self, other: InputSums) -> InputSums:
        """The sums over the rows of both; halves are added half by half."""
        halves = tuple(a + b for a, b in zip(self.halves, other.halves, strict=True))
        return InputSums(
            self.hessian + other.hessian,
            self.drift + other.drift,
            self.total + other.total,
            self.total_before + other.total_before,
            self.rows + other.rows,
            halves,
        )


S = TypeVar("S")


class SharedSums(ABC, Generic[S]):
    """Sums over the inputs of one call after the other.

    Consecutive calls that read one value in one format share their sums.
    """

    _known: tuple[Any, S] | None = None

    def of(self, node: fx.Node, layer: nn.Module) -> S:
        """Return the sums at `node`, which calls `layer`, with all before it as it is now."""
        key = self.key(node, layer)
        if self._known is None or self._known[0] != key:
            self._known = (key, functools.reduce(operator.add, self.batches(node, layer)))
        return self._known[1]

    def key(self, node: fx.Node, layer: nn.Module) -> tuple[Any, ...]:
        """Return what the sums depend on."""
        form = layer.quantizers["data_in"] if isinstance(layer, QuantizedModule) else None
        window = tuple(getattr(layer, name, None) for name in WINDOW)
        return node.args, node.kwargs, form, window

    @abstractmethod
    def batches(self, node: fx.Node, layer: nn.Module) -> Iterator[S]:
        """Yield the sums over each batch of the calibration data."""


class InputStatistics(SharedSums[InputSums]):
    """`InputSums` of one quantised layer after the other, as everything before has been rounded.

    Without `before`, the inputs of the float model are taken to be those of now, and the run
    without formats is not advanced: half the work. `importances`: the weight of each row.
    """

    def __init__(
        self, run: PairedRun, *, before: bool, importances: Importances | None = None
    ) -> None:
        self.run = run
        self.before = before
        self.importances = importances or {}

    def key(self, node: fx.Node, layer: nn.Module) -> tuple[Any, ...]:
        own = node if node in self.importances else None  # its rows count as those of no other
        return *super().key(node, layer), own

    def batches(self, node: fx.Node, layer: nn.Module) -> Iterator[InputSums]:
        alone = ((x, None) for x in self.run.now.operands(node))
        operands: Iterable[tuple[Tensor, Tensor | None]]
        operands = self.run.operands(node) if self.before else alone
        for number, (x, before) in enumerate(operands):
            rows = weight_rows(layer, x, str(node.target))
            old = None if before is None else input_rows(layer, before).float()
            yield sums_of(*self._weighted(node, number, rows, old))

    def _weighted(
        self, node: fx.Node, batch: int, rows: Tensor, before: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Rows times the roots of what they count for: their products count so."""
        given = self.importances.get(node)
        counts = None if given is None else given[batch]
        if counts is None or len(counts) != len(rows):
            return rows, before
        roots = counts.sqrt()[:, None]
        return rows * roots, None if before is None else before * roots


def sums_of(rows: Tensor, before: Tensor | None) -> InputSums:
    """The sums over the rows of one batch; what was there `before` makes them in two halves."""
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
