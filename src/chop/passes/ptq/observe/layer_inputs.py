"""Inputs of a linear layer or a convolution, as the rows that its weight is multiplied with."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from chop.errors import PassError
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers.stored_scale import with_stored_scale


def weight_rows(layer: nn.Module, x: Tensor, path: str) -> Tensor:
    """Return `x` as the rows that the weight is multiplied with, in the layer's input format.

    Raise PassError if they are not as long as the weight needs them.
    """
    if isinstance(layer, QuantizedModule):
        x = with_stored_scale(layer, "data_in", layer.quantizers["data_in"])(x)
    rows = input_rows(layer, x).float()
    columns = stored_weight(layer).shape[1:].numel() * groups_of(layer)
    if rows.shape[1] != columns:
        raise PassError(
            f"'{path}' takes {columns} values a row, the data brings it {rows.shape[1]}. "
            "Give batches like the inputs that the graph was captured with."
        )
    return rows


def groups_of(layer: nn.Module) -> int:
    """Return the number of groups of a convolution's inputs; each row of the weight reads one."""
    return int(getattr(layer, "groups", 1))


def input_rows(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the vectors that each row of the weight is multiplied with, as rows."""
    return sample_rows(layer, x).flatten(0, 1)


def sample_rows(layer: nn.Module, x: Tensor) -> Tensor:
    """Return these vectors as (samples, rows, columns); the first dimension of `x` are samples."""
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        samples = x.shape[0] if x.dim() > 1 else 1
        # computed: an expert may have no rows, and -1 would then be ambiguous
        return x.reshape(samples, x.shape[1:-1].numel(), x.shape[-1])
    sizes: Any = {k: getattr(layer, k) for k in ("kernel_size", "dilation", "stride")}
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode)
    if isinstance(layer, nn.Conv1d):
        x = x.unsqueeze(-2)
        sizes = {k: (1, *v) for k, v in sizes.items()}
    return F.unfold(x if x.dim() == 4 else x.unsqueeze(0), **sizes).movedim(1, -1)
