"""Sums over what layers are given on the calibration data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.ptq.observe.layer_inputs import input_rows
from chop.passes.ptq.observe.reference_run import PairedRun
from chop.passes.ptq.observe.row_importance import Importances


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


class InputStatistics:
    """The sums of one layer after the other, made once where layers read one value in one format.

    Without `before` what layers were given before is taken for what they are given now, and the
    run without formats stays where it is: half the work. `importances`: what rows count for.
    """

    def __init__(
        self, run: PairedRun, *, before: bool, importances: Importances | None = None
    ) -> None:
        self.run = run
        self.before = before
        self.importances = importances or {}
        self.known: tuple[Any, InputSums] | None = None

    def of(self, node: fx.Node, layer: QuantizedModule) -> InputSums:
        """The sums of `layer`'s input, as it is when everything before has been rounded."""
        own = node if node in self.importances else None  # its rows count as those of no other
        key = (node.args, layer.quantizers["data_in"], layer.op.name, _window(layer), own)
        if self.known is None or self.known[0] != key:
            self.known = (key, self._made(node, layer))
        return self.known[1]

    def _made(self, node: fx.Node, layer: QuantizedModule) -> InputSums:
        form = with_stored_scale(layer, "data_in", layer.quantizers["data_in"])
        found: InputSums | None = None
        for number, (x, before) in enumerate(self._operands(node)):
            rows = input_rows(layer, form(x)).float()
            _check_columns(node, layer, rows)
            old = None if before is None else input_rows(layer, before).float()
            new = sums_of(*self._weighted(node, number, rows, old))
            found = new if found is None else found + new
        assert found is not None, "calibration data has at least one batch"
        return found

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

    def _operands(self, node: fx.Node) -> Iterator[tuple[Tensor, Tensor | None]]:
        if self.before:
            yield from self.run.operands(node)
        else:
            for x in self.run.now.operands(node):
                yield x, None


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


def _check_columns(node: fx.Node, layer: QuantizedModule, rows: Tensor) -> None:
    columns = cast(Tensor, layer.weight).shape[1:].numel()
    if rows.shape[1] != columns:
        raise PassError(
            f"'{node.target}' takes {columns} values a row, the data brings it {rows.shape[1]}. "
            "Give batches like the inputs that the graph was captured with."
        )


def _window(layer: nn.Module) -> tuple[Any, ...]:
    return tuple(getattr(layer, k, None) for k in ("kernel_size", "stride", "padding", "dilation"))
