"""Shapes of a layer's tensors, derived from the layer's sizes.

To add a layer, add a row to `SHAPES`: its class, and a function from the layer to the shapes of its
parameters and buffers. A class without a row is not checked. A subclass uses its parent's row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.files import shown

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
LARGEST = 2**48
"""Largest size of a dimension."""


def check_shapes(module: nn.Module, where: str) -> None:
    """Raise CheckpointError if a tensor of a layer has a wrong shape or dtype."""
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


def _linear(layer: Any, *inputs: str) -> Shapes:
    weight = sizes(layer.out_features, *(getattr(layer, name) for name in inputs))
    return {"weight": weight, "bias": weight[:1]}


def _conv(layer: Any, *, is_transposed: bool = False) -> Shapes:
    outputs, inputs, groups = sizes(layer.out_channels, layer.in_channels, layer.groups)
    first = (inputs, outputs // groups) if is_transposed else (outputs, inputs // groups)
    return {"weight": (*first, *sizes(*layer.kernel_size)), "bias": (outputs,)}


def _norm(layer: Any) -> Shapes:
    names = ("weight", "bias", "running_mean", "running_var")
    return {"num_batches_tracked": (), **dict.fromkeys(names, sizes(layer.num_features))}


GATES = {"LSTM": 4, "GRU": 3}
"""Gates of a recurrent layer; others have one."""


def _recurrent(layer: Any) -> Shapes:
    """Return the shapes of the existing weights: a file may claim any number of layers."""
    inputs, hidden, out = sizes(layer.input_size, layer.hidden_size, layer.proj_size)
    rows = GATES.get(layer.mode, 1) * hidden
    result = out or hidden
    inner = result * (2 if layer.bidirectional else 1)
    shapes: Shapes = {}
    for name in layer._parameters:
        kind, _, rest = name.partition("_l")
        first = rest.removesuffix("_reverse") == "0"
        columns = {"weight_ih": inputs if first else inner, "weight_hh": result}.get(kind)
        if kind == "weight_hr":
            shapes[name] = (out, hidden)
        else:
            shapes[name] = (rows,) if columns is None else (rows, columns)
    return shapes


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


SHAPES: dict[type, Callable[[Any], Shapes]] = {
    nn.Linear: lambda layer: _linear(layer, "in_features"),
    nn.Bilinear: lambda layer: _linear(layer, "in1_features", "in2_features"),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _conv),
    **dict.fromkeys(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        functools.partial(_conv, is_transposed=True),
    ),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _norm),
    nn.GroupNorm: lambda layer: dict.fromkeys(("weight", "bias"), sizes(layer.num_channels)),
    **dict.fromkeys(
        (nn.LayerNorm, nn.RMSNorm),
        lambda layer: dict.fromkeys(("weight", "bias"), sizes(*layer.normalized_shape)),
    ),
    **dict.fromkeys(
        (nn.Embedding, nn.EmbeddingBag),
        lambda layer: {"weight": sizes(layer.num_embeddings, layer.embedding_dim)},
    ),
    nn.PReLU: lambda layer: {"weight": sizes(layer.num_parameters)},
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), _recurrent),
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
