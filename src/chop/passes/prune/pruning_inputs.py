"""Sums over the inputs of layers, for pruning methods that use calibration data."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.nn.modules.masked import stored_weight
from chop.passes.ptq.observe.input_sums import SharedSums
from chop.passes.ptq.observe.layer_inputs import groups_of, weight_rows
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


class InputProducts(SharedSums[Tensor]):
    """Sums over all rows x of the data, for each group of a layer's inputs.

    With `products` of x xᵀ, as (groups, columns, columns); without, of the squares of x, as
    (groups, columns).
    """

    def __init__(self, run: LayerwiseRun, *, products: bool) -> None:
        self.run, self.products = run, products

    def batches(self, node: fx.Node, layer: nn.Module) -> Iterator[Tensor]:
        groups = groups_of(layer)
        for x in self.run.operands(node):
            rows = weight_rows(layer, x, str(node.target))
            rows = rows.reshape(len(rows), groups, rows.shape[1] // groups).movedim(1, 0)
            yield (rows.mT @ rows if self.products else rows.square().sum(1)).double()


def input_norms(layer: nn.Module, squares: Tensor) -> Tensor:
    """The norm of what each weight is multiplied with, in the shape of the weight."""
    weight = stored_weight(layer)
    rows = squares.sqrt().repeat_interleave(weight.shape[0] // len(squares), 0)
    return rows.reshape(weight.shape).to(torch.float32)
