"""One case for each quantisable op, one config for each format: the matrix that tests run over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.expert_layer import Experts

SETTINGS: dict[str, dict[str, Any]] = {
    "integer": {"width": 8, "frac_width": 4},
    "scale_integer": {"width": 8},
    "binary": {},
    "binary_scaling": {},
    "binary_residual": {"levels": 2},
    "ternary": {"scaling_factor": True},
    "log": {"width": 8},
    "minifloat_ieee": {"width": 8, "exponent_width": 4},
    "minifloat_denorm": {"width": 8, "exponent_width": 4},
    "fp8": {"element": "e4m3"},
    "block_fp": {"width": 8, "exponent_width": 8, "block_size": 4},
    "block_minifloat": {"width": 8, "exponent_width": 4, "block_size": 4},
    "block_log": {"width": 8, "block_size": 4},
    "mxint": {"width": 8, "block_size": 4},
    "mxfp": {"element": "e4m3", "block_size": 4},
    "nvfp4": {"block_size": 4},
    "fp8_block": {"block_size": [4, 4]},
    "bypass": {},
}
"""Settings of each format, without their operand prefix."""


def config_of(name: str) -> dict[str, Any]:
    """A config that gives the format `name` to every operand."""
    settings = SETTINGS[name].items()
    keys = {f"{role}_{k}": v for role in ("data_in", "weight", "bias") for k, v in settings}
    return {"name": name} | keys


def random(*shape: int, trains: bool = True) -> Tensor:
    """A repeatable tensor with values in the range of every format under test."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(trains)


@dataclass(frozen=True)
class LayerCase:
    """A float layer and the inputs it is called with."""

    layer: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]


def _pointwise(layer: Callable[[], nn.Module]) -> LayerCase:
    return LayerCase(layer, lambda: (random(3, 5),))


def _attention_inputs() -> tuple[Tensor, Tensor, Tensor]:
    query, memory = random(2, 3, 8), random(2, 4, 8)
    return query, memory, memory


LAYER_CASES: dict[str, LayerCase] = {
    "linear": LayerCase(lambda: nn.Linear(6, 5), lambda: (random(3, 6),)),
    "conv1d": LayerCase(lambda: nn.Conv1d(3, 4, 3, padding=1), lambda: (random(2, 3, 7),)),
    "conv2d": LayerCase(
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="circular"),
        lambda: (random(2, 4, 6, 6),),
    ),
    "conv_transpose2d": LayerCase(
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), lambda: (random(2, 3, 4, 4), [10, 10])
    ),
    "embedding": LayerCase(
        lambda: nn.Embedding(7, 5, padding_idx=0), lambda: (torch.tensor([[0, 3], [6, 3]]),)
    ),
    "experts": LayerCase(
        lambda: Experts(nn.Parameter(random(3 * 4, 8).detach()), experts=3),
        lambda: (random(4, 8), torch.tensor([1, 1, 4], dtype=torch.int32)),
    ),
    "layer_norm": LayerCase(lambda: nn.LayerNorm(6), lambda: (random(3, 6),)),
    "rms_norm": LayerCase(lambda: nn.RMSNorm(6), lambda: (random(3, 6),)),
    "group_norm": LayerCase(lambda: nn.GroupNorm(2, 6), lambda: (random(3, 6, 4),)),
    "batch_norm1d": LayerCase(lambda: nn.BatchNorm1d(5), lambda: (random(4, 5),)),
    "batch_norm2d": LayerCase(
        lambda: nn.BatchNorm2d(3, momentum=None), lambda: (random(2, 3, 4, 4),)
    ),
    "multihead_attention": LayerCase(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True), _attention_inputs
    ),
    "lstm": LayerCase(
        lambda: nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True, proj_size=3),
        lambda: (random(2, 3, 5),),
    ),
    "gru": LayerCase(lambda: nn.GRU(5, 4, 2, bias=False), lambda: (random(3, 2, 5),)),
    "rnn": LayerCase(
        lambda: nn.RNN(5, 4, nonlinearity="relu"), lambda: (random(3, 5), random(1, 4))
    ),
    "lstm_cell": LayerCase(
        lambda: nn.LSTMCell(5, 4), lambda: (random(2, 5), (random(2, 4), random(2, 4)))
    ),
    "gru_cell": LayerCase(lambda: nn.GRUCell(5, 4), lambda: (random(5),)),
    "rnn_cell": LayerCase(lambda: nn.RNNCell(5, 4), lambda: (random(2, 5), random(2, 4))),
    "relu": _pointwise(lambda: nn.ReLU(inplace=True)),
    "leaky_relu": _pointwise(lambda: nn.LeakyReLU(0.2)),
    "gelu": _pointwise(lambda: nn.GELU(approximate="tanh")),
    "silu": _pointwise(nn.SiLU),
    "selu": _pointwise(nn.SELU),
    "tanh": _pointwise(nn.Tanh),
    "sigmoid": _pointwise(nn.Sigmoid),
    "softplus": _pointwise(lambda: nn.Softplus(beta=2.0)),
    "softsign": _pointwise(nn.Softsign),
    "hardswish": _pointwise(nn.Hardswish),
    "softmax": _pointwise(lambda: nn.Softmax(dim=-1)),
    "avg_pool2d": LayerCase(
        lambda: nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False),
        lambda: (random(2, 3, 4, 4),),
    ),
    "adaptive_avg_pool1d": LayerCase(lambda: nn.AdaptiveAvgPool1d(2), lambda: (random(2, 3, 5),)),
    "adaptive_avg_pool2d": LayerCase(
        lambda: nn.AdaptiveAvgPool2d((2, 1)), lambda: (random(2, 3, 4, 4),)
    ),
}


@dataclass(frozen=True)
class FunctionCase:
    """A torch function, and the arguments of a call; `operands` says which are quantised."""

    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    operands: tuple[int, ...] = (0,)


def _unary(function: Callable[..., Any], *options: Any) -> FunctionCase:
    return FunctionCase(function, lambda: (random(3, 5), *options))


def _binary(function: Callable[..., Any], *shapes: tuple[int, ...]) -> FunctionCase:
    return FunctionCase(function, lambda: tuple(random(*s) for s in shapes), (0, 1))


FUNCTION_CASES: dict[str, FunctionCase] = {
    "linear": FunctionCase(F.linear, lambda: (random(3, 6), random(5, 6), random(5)), (0, 1, 2)),
    "conv1d": FunctionCase(
        F.conv1d, lambda: (random(2, 3, 7), random(4, 3, 3), random(4), 2), (0, 1, 2)
    ),
    "conv2d": FunctionCase(
        F.conv2d, lambda: (random(2, 3, 5, 5), random(4, 3, 3, 3), random(4), 2), (0, 1, 2)
    ),
    "conv_transpose2d": FunctionCase(
        F.conv_transpose2d,
        lambda: (random(2, 3, 5, 5), random(3, 4, 3, 3), random(4), 2),
        (0, 1, 2),
    ),
    "embedding": FunctionCase(F.embedding, lambda: (torch.tensor([3, 1]), random(5, 6)), (1,)),
    "layer_norm": FunctionCase(
        F.layer_norm, lambda: (random(3, 6), (6,), random(6), random(6)), (0, 2, 3)
    ),
    "rms_norm": FunctionCase(F.rms_norm, lambda: (random(3, 6), (6,), random(6)), (0, 2)),
    "group_norm": FunctionCase(
        F.group_norm, lambda: (random(3, 6, 2), 2, random(6), random(6)), (0, 2, 3)
    ),
    "relu": _unary(F.relu),
    "leaky_relu": _unary(F.leaky_relu, 0.2),
    "gelu": _unary(F.gelu),
    "silu": _unary(F.silu),
    "selu": _unary(F.selu),
    "tanh": _unary(torch.tanh),
    "sigmoid": _unary(torch.sigmoid),
    "softplus": _unary(F.softplus, 2.0),
    "softsign": _unary(F.softsign),
    "hardswish": _unary(F.hardswish),
    "softmax": _unary(torch.softmax, -1),
    "avg_pool2d": FunctionCase(F.avg_pool2d, lambda: (random(2, 3, 4, 4), (2, 1), 1, (1, 0))),
    "adaptive_avg_pool1d": _unary(F.adaptive_avg_pool1d, 2),
    "adaptive_avg_pool2d": FunctionCase(
        F.adaptive_avg_pool2d, lambda: (random(2, 3, 4, 4), (2, 1))
    ),
    "add": _binary(torch.add, (3, 4), (4,)),
    "sub": _binary(torch.sub, (3, 4), (4,)),
    "mul": _binary(torch.mul, (3, 4), (4,)),
    "matmul": _binary(torch.matmul, (2, 3, 4), (4, 5)),
    "bmm": _binary(torch.bmm, (2, 3, 4), (2, 4, 5)),
    "scaled_dot_product_attention": FunctionCase(
        F.scaled_dot_product_attention,
        lambda: (random(2, 3, 4), random(2, 5, 4), random(2, 5, 4)),
        (0, 1, 2),
    ),
}
