"""Sums over what layers are given on the calibration data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.graph.layer_inputs import input_rows
from chop.passes.graph.paired_run import PairedRun


@dataclass(frozen=True)
class InputSums:
    """Over all rows x that multiply a weight: x xᵀ, (x before - x) xᵀ, x, x before, and how many.

    x is as the layer has it now, in its format; before is without any format.
    """

    hessian: Tensor
    drift: Tensor
    total: Tensor
    total_before: Tensor
    rows: int


class InputStatistics:
    """The sums of one layer after the other, made once where layers read one value in one format.

    Without `before` what layers were given before is taken for what they are given now, and the
    run without formats stays where it is: half the work.
    """

    def __init__(self, run: PairedRun, *, before: bool) -> None:
        self.run = run
        self.before = before
        self.known: tuple[Any, InputSums] | None = None

    def of(self, node: fx.Node, layer: QuantizedModule) -> InputSums:
        """The sums of `layer`'s input, as it is when everything before has been rounded."""
        key = (node.args, layer.quantizers["data_in"], layer.op.name, _window(layer))
        if self.known is None or self.known[0] != key:
            self.known = (key, self._made(node, layer))
        return self.known[1]

    def _made(self, node: fx.Node, layer: QuantizedModule) -> InputSums:
        form = with_stored_scale(layer, "data_in", layer.quantizers["data_in"])
        sums: list[Tensor] = []
        count = 0
        for x, before in self._operands(node):
            rows = input_rows(layer, form(x)).float()
            _check_columns(node, layer, rows)
            old = rows if before is None else input_rows(layer, before).float()
            drift = rows.new_zeros(1) if before is None else (old - rows).T @ rows
            new = [t.double() for t in (rows.T @ rows, drift, rows.sum(0), old.sum(0))]
            sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
            count += len(rows)
        hessian, drift, total, total_before = sums
        return InputSums(hessian, drift, total, total_before, count)

    def _operands(self, node: fx.Node) -> Iterator[tuple[Tensor, Tensor | None]]:
        if self.before:
            yield from self.run.operands(node)
        else:
            for x in self.run.now.operands(node):
                yield x, None


def _check_columns(node: fx.Node, layer: QuantizedModule, rows: Tensor) -> None:
    columns = cast(Tensor, layer.weight).shape[1:].numel()
    if rows.shape[1] != columns:
        raise PassError(
            f"'{node.target}' takes {columns} values a row, the data brings it {rows.shape[1]}. "
            "Give batches like the inputs that the graph was captured with."
        )


def _window(layer: nn.Module) -> tuple[Any, ...]:
    return tuple(getattr(layer, k, None) for k in ("kernel_size", "stride", "padding", "dilation"))
