"""Sums over what layers are given on calibration data, for methods that look at it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.ptq.observe.layer_inputs import input_rows
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun

MULTIPLYING = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers whose inputs can be laid out as the rows that their weights are multiplied with."""


def check_layer(layer: nn.Module, path: str, method: str) -> None:
    """Raise where it is not defined what the weights of a layer are multiplied with."""
    if not isinstance(layer, MULTIPLYING):
        allowed = ", ".join(kind.__name__ for kind in MULTIPLYING)
        raise PassError(
            f"prune: method '{method}' is not defined for '{path}' ({type(layer).__name__}); it is "
            f"for {allowed}. Leave the layer out with target_modules."
        )


def groups_of(layer: nn.Module) -> int:
    """Into how many parts the inputs of a layer fall: rows of the weight see one each."""
    return int(getattr(layer, "groups", 1))


class InputSums:
    """The sums of one call after the other, over all rows x of the data.

    With `products` of x xᵀ, as (groups, columns, columns); without, of the squares of x, as
    (groups, columns). Calls one after the other that read one value alike share their sums.
    """

    def __init__(self, run: LayerwiseRun, *, products: bool) -> None:
        self.run, self.products = run, products
        self._known: tuple[Any, Tensor] | None = None

    def of(self, node: fx.Node, layer: nn.Module) -> Tensor:
        """The sums at `node`, which calls `layer`, with all before it as it is now."""
        form = layer.quantizers["data_in"] if isinstance(layer, QuantizedModule) else None
        key = (node.args, node.kwargs, form, _window(layer))
        if self._known is None or self._known[0] != key:
            self._known = (key, self._made(node, layer))
        return self._known[1]

    def _made(self, node: fx.Node, layer: nn.Module) -> Tensor:
        found: Tensor | None = None
        for x in self.run.operands(node):
            rows = _rows(layer, x, str(node.target))
            new = rows.mT @ rows if self.products else rows.square().sum(1)
            found = new.double() if found is None else found + new
        assert found is not None, "calibration data has at least one batch"
        return found


def _rows(layer: nn.Module, x: Tensor, path: str) -> Tensor:
    """What the weight is multiplied with, as (groups, rows, columns), in its number format."""
    if isinstance(layer, QuantizedModule):
        x = with_stored_scale(layer, "data_in", layer.quantizers["data_in"])(x)
    rows = input_rows(layer, x).float()
    columns = math.prod(stored_weight(layer).shape[1:])
    if rows.shape[1] != columns * groups_of(layer):
        raise PassError(
            f"prune: '{path}' takes {columns * groups_of(layer)} values a row, the data brings it "
            f"{rows.shape[1]}. Give batches like the inputs that the graph was captured with."
        )
    return rows.reshape(len(rows), groups_of(layer), columns).movedim(1, 0)


def _window(layer: nn.Module) -> tuple[Any, ...]:
    names = ("kernel_size", "stride", "padding", "dilation", "groups", "in_features")
    return tuple(getattr(layer, name, None) for name in names)


def input_norms(layer: nn.Module, squares: Tensor) -> Tensor:
    """The norm of what each weight is multiplied with, in the shape of the weight."""
    weight = stored_weight(layer)
    rows = squares.sqrt().repeat_interleave(weight.shape[0] // len(squares), 0)
    return rows.reshape(weight.shape).to(torch.float32)
