"""Shapes that the tensors of a layer must have, by the sizes that the layer says.

To add a layer, add a row to `SHAPES`: its class, and a function from the layer to the shapes of its
parameters and buffers. A class without a row is not checked. Subclasses follow their parent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.files import shown

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
LARGEST = 2**48
"""Largest size of a dimension."""


def check_shapes(module: nn.Module, where: str) -> None:
    """Raise CheckpointError if a tensor of a layer has another shape or dtype than it must."""
    row = next((SHAPES[cls] for cls in type(module).__mro__ if cls in SHAPES), None)
    if row is None:
        return
    try:
        expected = row(module)
    except (AttributeError, TypeError, ValueError, LookupError, ZeroDivisionError) as error:
        kind = type(module).__name__
        raise CheckpointError(f"{where}.attributes: not those of a {kind} ({error!r}).") from error
    for name, shape in expected.items():
        tensor = module._parameters.get(name, module._buffers.get(name))
        if tensor is not None:
            _check(tensor, name, shape, where)


def _check(tensor: Tensor, name: str, shape: Shape, where: str) -> None:
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"{where}: '{name}' has shape {list(tensor.shape)}, and the layer's sizes make it "
            f"{shown(list(shape))}."
        )
    is_count = name == "num_batches_tracked"
    if is_count == (tensor.is_floating_point() or tensor.is_complex()):
        raise CheckpointError(f"{where}: '{name}' is {tensor.dtype}; expected a float.")


def sizes(*values: Any) -> Shape:
    """Return values that are sizes; raise ValueError for others."""
    for value in values:
        if type(value) is not int or not 0 <= value < LARGEST:
            raise ValueError(f"{shown(value)} is no size")
    return values


def _linear(layer: Any) -> Shapes:
    out, given = sizes(layer.out_features, layer.in_features)
    return {"weight": (out, given), "bias": (out,)}


def _bilinear(layer: Any) -> Shapes:
    out, one, two = sizes(layer.out_features, layer.in1_features, layer.in2_features)
    return {"weight": (out, one, two), "bias": (out,)}


def _conv(layer: Any, *, is_transposed: bool = False) -> Shapes:
    out, given, groups = sizes(layer.out_channels, layer.in_channels, layer.groups)
    kernel = sizes(*layer.kernel_size)
    first = (given, out // groups) if is_transposed else (out, given // groups)
    return {"weight": (*first, *kernel), "bias": (out,)}


def _norm(layer: Any) -> Shapes:
    (count,) = sizes(layer.num_features)
    names = ("weight", "bias", "running_mean", "running_var")
    return {"num_batches_tracked": (), **dict.fromkeys(names, (count,))}


def _group_norm(layer: Any) -> Shapes:
    return dict.fromkeys(("weight", "bias"), sizes(layer.num_channels))


def _layer_norm(layer: Any) -> Shapes:
    return dict.fromkeys(("weight", "bias"), sizes(*layer.normalized_shape))


def _embedding(layer: Any) -> Shapes:
    return {"weight": sizes(layer.num_embeddings, layer.embedding_dim)}


def _prelu(layer: Any) -> Shapes:
    return {"weight": sizes(layer.num_parameters)}


GATES = {"LSTM": 4, "GRU": 3}


def _recurrent(layer: Any) -> Shapes:
    """Return the shapes of the weights that there are: a file may claim any number of layers."""
    given, hidden, out = sizes(layer.input_size, layer.hidden_size, layer.proj_size)
    rows = GATES.get(layer.mode, 1) * hidden
    result = out or hidden
    inner = result * (2 if layer.bidirectional else 1)
    found: Shapes = {}
    for name in layer._parameters:
        kind, _, rest = name.partition("_l")
        first = rest.removesuffix("_reverse") == "0"
        columns = {"weight_ih": given if first else inner, "weight_hh": result}.get(kind)
        if kind == "weight_hr":
            found[name] = (out, hidden)
        else:
            found[name] = (rows,) if columns is None else (rows, columns)
    return found


def _attention(layer: Any) -> Shapes:
    wide, keys, values = sizes(layer.embed_dim, layer.kdim, layer.vdim)
    return {
        "in_proj_weight": (3 * wide, wide),
        "q_proj_weight": (wide, wide),
        "k_proj_weight": (wide, keys),
        "v_proj_weight": (wide, values),
        "in_proj_bias": (3 * wide,),
        "bias_k": (1, 1, wide),
        "bias_v": (1, 1, wide),
    }


def _rows(classes: Sequence[type], row: Callable[[Any], Shapes]) -> dict[type, Any]:
    return dict.fromkeys(classes, row)


SHAPES: dict[type, Callable[[Any], Shapes]] = {
    nn.Linear: _linear,
    nn.Bilinear: _bilinear,
    **_rows((nn.Conv1d, nn.Conv2d, nn.Conv3d), _conv),
    **_rows(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        functools.partial(_conv, is_transposed=True),
    ),
    **_rows((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _norm),
    **_rows((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _norm),
    nn.GroupNorm: _group_norm,
    **_rows((nn.LayerNorm, nn.RMSNorm), _layer_norm),
    **_rows((nn.Embedding, nn.EmbeddingBag), _embedding),
    nn.PReLU: _prelu,
    **_rows((nn.RNN, nn.LSTM, nn.GRU), _recurrent),
    nn.MultiheadAttention: _attention,
}
"""Class -> the shapes of its tensors."""


def check_scales(module: nn.Module, where: str) -> None:
    """Raise CheckpointError if a quantised layer has a scale that is infinite or NaN."""
    if not type(module).__module__.startswith("chop."):
        return
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is None or not name.endswith(("scale", "scales")):
            continue
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{where}: '{name}' has a scale that is infinite or NaN.")
