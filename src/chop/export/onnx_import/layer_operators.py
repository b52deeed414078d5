"""Operators that become layers of torch if their parameters are constants of the file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.export.activation_rounding import Steps
from chop.export.onnx_import.call import OWN, Call, operator
from chop.export.onnx_import.movement_operators import gathered
from chop.export.onnx_import.reduction_operators import is_even, padded, paddings

CONVOLUTIONS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS: tuple[Any, ...] = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Rounding(nn.Module):
    """Rounding of an activation, until a format of a layer replaces it."""

    mase_leaf = True

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        """Round `x`."""
        return self.steps(x)


@operator("Round", domain=OWN)
def _round(call: Call) -> Any:
    x = call.tensor(0)
    steps = call.attribute("steps")
    if steps.axis >= 0:  # from the end, independent of the number of dimensions
        steps = replace(steps, axis=steps.axis - x.dim())
    return call.scope.layer((call.node.name,), "rounding", lambda: Rounding(steps))(x)


def _own(call: Call, place: int) -> nn.Parameter | None:
    """Return a constant input as a parameter, or None if it is missing."""
    return call.scope.matrix(call.name(place), turned=False)[0] if call.given(place) else None


def _are_constant(call: Call, *places: int) -> bool:
    return all(call.constant(i) is not None for i in places if call.given(i))


@operator("Linear", domain=OWN)
def _linear(call: Call) -> Any:
    """Run a linear layer; `turned`: the weight of the file is (inputs, outputs)."""
    turned = bool(call.attribute("turned"))
    weight, base = call.scope.matrix(call.name(1), turned=turned)
    bias = call.name(2) if call.given(2) else ""

    def make() -> nn.Module:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(bias), device="meta")
        return _with(layer, weight=weight, bias=_own(call, 2))

    return call.scope.layer(("linear", id(weight), bias), base, make)(call.tensor(0))


@operator("Gather")
def _embedding(call: Call) -> Any:
    """Look up rows of a table of the file: an embedding, unless the rows are constant."""
    table = call.constant(0)
    is_table = table is not None and table.dim() == 2 and table.is_floating_point()
    if call.scope.is_folding or not is_table or call.host(1) is not None:
        return gathered(call)
    if call.attribute("axis", 0) != 0 or call.constant(1) is not None:
        return gathered(call)
    weight, base = call.scope.matrix(call.name(0), turned=False)

    def make() -> nn.Module:
        return _with(nn.Embedding(weight.shape[0], weight.shape[1], device="meta"), weight=weight)

    return call.scope.layer(("embedding", id(weight)), base, make)(call.tensor(1))


def _settings(call: Call, x: Tensor, kernel: list[int]) -> tuple[dict[str, Any], Tensor]:
    rank = len(kernel)
    stride = call.attribute("strides", [1] * rank)
    pads = paddings(call, x, kernel, stride)
    settings = {
        "stride": tuple(stride),
        "dilation": tuple(call.attribute("dilations", [1] * rank)),
        "groups": call.attribute("group", 1),
    }
    if not is_even(call, list(stride), pads):
        x, pads = padded(x, pads), [(0, 0)] * rank
    return settings | {"padding": tuple(p[0] for p in pads)}, x


def convolved(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution of a node on these operands, without a layer."""
    settings, x = _settings(call, x, [int(s) for s in weight.shape[2:]])
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3]
    return function(x, weight, bias, **settings)  # type: ignore[no-any-return]


@operator("Conv")
def _conv(call: Call) -> Any:
    x = call.tensor(0)
    constant = call.constant(1)
    kernel = [int(s) for s in (call.tensor(1) if constant is None else constant).shape[2:]]
    settings, x = _settings(call, x, kernel)
    if call.scope.is_folding or not _are_constant(call, 1, 2):
        return convolved(call, call.tensor(0), call.tensor(1), call.optional(2))
    weight, base = call.scope.matrix(call.name(1), turned=False)
    bias = _own(call, 2)

    def make() -> nn.Module:
        inputs, outputs = weight.shape[1] * settings["groups"], weight.shape[0]
        cls = CONVOLUTIONS[len(kernel) - 1]
        layer = cls(inputs, outputs, kernel, bias=bias is not None, device="meta", **settings)
        return _with(layer, weight=weight, bias=bias)

    key = ("conv", id(weight), id(bias), *settings.values())
    return call.scope.layer(key, base, make)(x)


def _with(layer: nn.Module, **parameters: nn.Parameter | None) -> nn.Module:
    for name, value in parameters.items():
        if value is not None:
            setattr(layer, name, value)
    return layer


@operator("ConvTranspose")
def _conv_transpose(call: Call) -> Any:
    weight = call.tensor(1)
    rank = weight.dim() - 2
    pads = call.attribute("pads", [0] * 2 * rank)
    stride = call.attribute("strides", [1] * rank)
    extra = call.attribute("output_padding", [0] * rank)
    auto, shape = call.attribute("auto_pad", "NOTSET"), call.attribute("output_shape")
    if auto.startswith("SAME") and not shape:
        shape = [s * t for s, t in zip(call.tensor(0).shape[2:], stride, strict=True)]
    sides = [(pads[i], pads[i + rank]) for i in range(rank)]
    if shape:
        spread = call.attribute("dilations", [1] * rank)
        sizes = zip(call.tensor(0).shape[2:], stride, extra, weight.shape[2:], spread, strict=True)
        full = [t * (s - 1) + e + (k - 1) * d + 1 for s, t, e, k, d in sizes]
        lacks = [int(f - s) for f, s in zip(full, shape[-rank:], strict=True)]
        sides = [(n // 2, n - n // 2) for n in lacks]
        sides = sides if auto == "SAME_UPPER" else [pair[::-1] for pair in sides]
    is_same = all(low == high for low, high in sides)
    function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    y = function(
        call.tensor(0),
        weight,
        call.optional(2),
        stride=stride,
        padding=[low for low, _ in sides] if is_same else 0,
        output_padding=extra,
        groups=call.attribute("group", 1),
        dilation=call.attribute("dilations", [1] * rank),
    )
    return y if is_same else padded(y, [(-low, -high) for low, high in sides])


@operator("BatchNormalization")
def _batch_norm(call: Call) -> Any:
    x, eps = call.tensor(0), call.attribute("epsilon", 1e-5)
    if call.attribute("training_mode", 0) or len(call.node.outputs) > 1:
        raise ValueError("training mode. Allowed: inference")
    if call.scope.is_folding or not _are_constant(call, 1, 2, 3, 4) or not 2 <= x.dim() <= 5:
        scale, bias, mean, variance = (call.tensor(i) for i in range(1, 5))
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, eps)
    weight, base = call.scope.matrix(call.name(1), turned=False)

    def make() -> nn.Module:
        layer: nn.Module = NORMS[x.dim() - 2](weight.shape[0], eps, device="meta")
        _with(layer, weight=weight, bias=_own(call, 2))
        for name, place in (("running_mean", 3), ("running_var", 4)):
            constant = call.constant(place)
            assert constant is not None, "checked above"
            setattr(layer, name, constant.clone())
        layer.num_batches_tracked = torch.tensor(0)
        return layer

    return call.scope.layer(("norm", id(weight), call.name(3), eps), base, make)(x)


@operator("LayerNormalization", "RMSNormalization")
def _layer_norm(call: Call) -> Any:
    x, eps = call.tensor(0), call.attribute("epsilon", 1e-5)
    axis = call.attribute("axis", -1) % x.dim()
    shape = tuple(int(s) for s in x.shape[axis:])
    is_rms = call.node.operator.startswith("RMS")
    cls: Any = nn.RMSNorm if is_rms else nn.LayerNorm
    scale = call.constant(1)
    fits = scale is not None and tuple(scale.shape) == shape and _are_constant(call, 2)
    if call.scope.is_folding or not fits or len(call.node.outputs) > 1:
        normed = F.rms_norm(x, shape, eps=eps) if is_rms else F.layer_norm(x, shape, eps=eps)
        normed = normed * call.tensor(1)
        normed = normed + call.tensor(2) if call.given(2) else normed
        return (normed, *_moments(x, axis, eps))[: len(call.node.outputs)]
    weight, base = call.scope.matrix(call.name(1), turned=False)
    bias = _own(call, 2)
    extra = {} if is_rms else {"bias": bias is not None}

    def make() -> nn.Module:
        return _with(cls(shape, eps, device="meta", **extra), weight=weight, bias=bias)

    return call.scope.layer(("layer_norm", id(weight), id(bias), eps, axis), base, make)(x)


def _moments(x: Tensor, axis: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean and the reciprocal of the deviation of each row."""
    axes = list(range(axis, x.dim()))
    mean = x.mean(axes, keepdim=True)
    variance = ((x - mean) ** 2).mean(axes, keepdim=True)
    return mean, torch.rsqrt(variance + eps)


@operator("GroupNormalization")
def _group_norm(call: Call) -> Any:
    x, groups = call.tensor(0), call.attribute("num_groups")
    scale, bias = call.tensor(1), call.tensor(2)
    if call.version < 21:  # one per group
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return F.group_norm(x, groups, scale, bias, call.attribute("epsilon", 1e-5))


@operator("InstanceNormalization")
def _instance_norm(call: Call) -> Any:
    x, scale, bias = (call.tensor(i) for i in range(3))
    return F.instance_norm(x, weight=scale, bias=bias, eps=call.attribute("epsilon", 1e-5))


@operator("LpNormalization")
def _lp_norm(call: Call) -> Any:
    axis, order = call.attribute("axis", -1), call.attribute("p", 2)
    x = call.tensor(0)
    norm = torch.linalg.vector_norm(x, float(order), axis, keepdim=True)
    return torch.where(norm == 0, 0.0, x / norm)


@operator("LRN")
def _local_response(call: Call) -> Any:
    settings = [call.attribute(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))]
    return F.local_response_norm(call.tensor(0), call.attribute("size"), *settings)


RECURRENT: dict[str, tuple[Any, tuple[int, ...]]] = {
    "LSTM": (nn.LSTM, (0, 2, 3, 1)),
    "GRU": (nn.GRU, (1, 0, 2)),
    "RNN": (nn.RNN, (0,)),
}
"""Layer of torch, and the index in ONNX of each of its gates."""
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _check_recurrent(call: Call, directions: int) -> None:
    name = call.node.operator
    names = call.attribute("activations", ACTIVATIONS[name] * directions)
    if [n.lower() for n in names] != [a.lower() for a in ACTIVATIONS[name] * directions]:
        raise ValueError(f"activations {names[:6]}. Allowed: {ACTIVATIONS[name]}")
    has_peepholes = name == "LSTM" and call.given(7)
    if has_peepholes or (call.given(4) and call.constant(4) is None):
        raise ValueError("lengths or peepholes")
    if call.attribute("clip") or call.attribute("input_forget", 0):
        raise ValueError("clip or input_forget")
    if name == "GRU" and not call.attribute("linear_before_reset", 0):
        raise ValueError("linear_before_reset = 0. Allowed: 1")
    if not all(call.scope.is_fixed(call.name(i)) for i in (1, 2, 3) if call.given(i)):
        raise ValueError("weights that depend on inputs")


def _reordered(values: Tensor, gates: tuple[int, ...]) -> Tensor:
    """Return rows in the order of gates of torch."""
    parts = values.chunk(len(gates))
    return torch.cat([parts[g] for g in gates])


def _make_recurrent(call: Call) -> nn.Module:
    cls, gates = RECURRENT[call.node.operator]
    weight, recurrent, bias = call.tensor(1), call.tensor(2), call.optional(3)
    directions, hidden, has_bias = weight.shape[0], recurrent.shape[2], bias is not None
    layer: nn.Module = cls(weight.shape[2], hidden, bias=has_bias, bidirectional=directions == 2)
    state = {}
    for i, end in enumerate(("", "_reverse")[:directions]):
        state[f"weight_ih_l0{end}"] = _reordered(weight[i], gates)
        state[f"weight_hh_l0{end}"] = _reordered(recurrent[i], gates)
        if bias is not None:
            first, second = bias[i].chunk(2)
            state[f"bias_ih_l0{end}"] = _reordered(first, gates)
            state[f"bias_hh_l0{end}"] = _reordered(second, gates)
    layer.load_state_dict(state)
    return layer.eval()


@operator(*RECURRENT)
def _recurrent(call: Call) -> Any:
    directions = 2 if call.attribute("direction") == "bidirectional" else 1
    _check_recurrent(call, directions)
    is_first, is_back = call.attribute("layout", 0), call.attribute("direction") == "reverse"
    x = call.tensor(0).transpose(0, 1) if is_first else call.tensor(0)
    x = torch.flip(x, [0]) if is_back else x
    key = ("recurrent", *call.node.inputs[1:4])
    layer = call.scope.layer(key, call.node.name, lambda: _make_recurrent(call))
    states = [call.tensor(i) for i in (5, 6) if call.given(i)]
    states = [s.transpose(0, 1) for s in states] if is_first else states
    is_lstm = call.node.operator == "LSTM"
    if is_lstm and len(states) == 2:
        outputs, last = layer(x, (states[0], states[1]))
    elif states and not is_lstm:
        outputs, last = layer(x, states[0])
    else:
        outputs, last = layer(x)
    outputs = outputs.reshape(x.shape[0], x.shape[1], directions, -1).permute(0, 2, 1, 3)
    outputs = torch.flip(outputs, [0]) if is_back else outputs
    results = (outputs, last[0], last[1]) if is_lstm else (outputs, last)
    if is_first:
        outputs = outputs.permute(2, 0, 1, 3)
        results = (outputs, *(state.transpose(0, 1) for state in results[1:]))
    return results[: len(call.node.outputs)]
