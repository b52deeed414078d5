"""Rules that turn the nodes of a decode step into instructions.

The step has some rows with one new token each. Its tensors are real tensors with fixed addresses,
so that PyTorch itself computes all views; rules add instructions for everything else. Keys and
values of all tokens, masks and scores have sizes that grow: they are stand-ins, which only
attention reads.

To support another op, add a function to `RULES` under the op's name in `chop.ir.ops`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from chop.kernels.layers import QEmbeddingPacked, QLinearPacked
from chop.kernels.ops import ROUNDED, PackedTensor
from chop.kernels.packed_formats import KERNEL_CODES, packed_format
from chop.kernels.step_code import (
    FUNCTIONS,
    LEAST_SHARED,
    ScoreStep,
    StepProgram,
    UnsupportedError,
)

VIEWS = frozenset(
    ("view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "getitem", "chunk", "split",
     "expand", "size", "getattr", "flatten", "contiguous", "to", "view_as", "unflatten")
)  # fmt: skip
"""Ops that PyTorch computes while the program is built."""
COPYING = frozenset(("reshape", "contiguous", "flatten"))
"""Views that copy if the layout requires it."""


class Past:
    """Stand-in for the cache."""


class Ones:
    """Stand-in for an attention mask that admits every token from a row's first one on."""


class KeyCount:
    """Stand-in for the number of keys."""


@dataclass(frozen=True)
class Mask:
    """Stand-in for a causal mask of one query: all keys, or the last `window`."""

    window: int | None


@dataclass(frozen=True)
class Cached:
    """Stand-in for the keys or the values of a layer, of shape (rows, heads, keys, size).

    `is_split` has a dimension for the `repeats` of each head, before they are merged.
    """

    layer: int
    rows: int
    heads: int
    size: int
    written: Tensor
    repeats: int = 1
    is_split: bool = False
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes, with a stand-in for the number of keys."""
        last = (self.size, KeyCount) if self.is_transposed else (KeyCount, self.size)
        heads = (self.heads, self.repeats) if self.is_split else (self.heads * self.repeats,)
        return (self.rows, *heads, *last)


@dataclass(frozen=True)
class Scores:
    """Stand-in for the scores of attention, with the functions that were applied to them."""

    query: Tensor
    keys: Cached
    steps: tuple[tuple[str, float], ...] = ()
    window: int | None = None
    is_normal: bool = False


STAND_INS = (Past, Ones, Mask, Cached, Scores)


class StepBuilder:
    """Program under construction for some rows, with the inputs of the step as tensors."""

    def __init__(self, rows: int = 1) -> None:
        self.rows = rows
        self.program = StepProgram()
        self.token = self.program.empty(rows, 1)
        self.position = self.program.empty(rows, 1)
        self.appended: dict[int, tuple[Tensor, Tensor]] = {}


Rule = Callable[..., Any]


def unary_rule(function: str) -> Rule:
    def rule(b: StepBuilder, x: Any, **options: Any) -> Any:
        if isinstance(x, Scores) and not x.is_normal:
            return replace(x, steps=(*x.steps, (function, 0.0)))
        _want(isinstance(x, Tensor), f"{function} of a {type(x).__name__}")
        return b.program.elementwise(function, x)

    return rule


def binary_rule(function: str) -> Rule:
    def rule(b: StepBuilder, x: Any, y: Any) -> Any:
        if isinstance(x, Scores):
            return _changed_scores(x, function, y)
        if function in ("add", "mul") and isinstance(y, Scores):
            return _changed_scores(y, function, x)
        x, y = (v if isinstance(v, Tensor) else _number(b, v) for v in (x, y))
        return b.program.elementwise(function, x, y)

    return rule


def _changed_scores(scores: Scores, function: str, other: Any) -> Scores:
    _want(not scores.is_normal, f"{function} after softmax")
    if function == "add" and isinstance(other, Mask):
        return replace(scores, window=other.window)
    _want(isinstance(other, int | float), f"{function} of scores and a {type(other).__name__}")
    return replace(scores, steps=(*scores.steps, (function, float(other))))


def _number(b: StepBuilder, value: Any) -> Tensor:
    _want(isinstance(value, int | float), f"an operand of type {type(value).__name__}")
    return b.program.constant(value)


def _power(b: StepBuilder, x: Tensor, exponent: Any) -> Tensor:
    multiply = b.program.elementwise
    if exponent == 2:
        return multiply("mul", x, x)
    if exponent == 3:
        return multiply("mul", multiply("mul", x, x), x)
    return multiply("pow", x, _number(b, exponent))


def _mean(b: StepBuilder, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    last = x.dim() - 1
    _want(dim in (-1, last, (-1,), [-1]), f"mean over {dim}")
    rows = b.program.contiguous(x)
    out = b.program.empty(*x.shape[:-1], *([1] if keepdim else []))
    n = x.shape[-1]
    b.program.add(
        "row_sums", out, [rows], size=(rows.numel() // n, n), out=(out.data_ptr(), ()),
        a=(rows.data_ptr(), (n,)), number=(n,), is_shared=rows.numel() >= LEAST_SHARED,
    )  # fmt: skip
    return out


def _gelu(b: StepBuilder, x: Tensor, approximate: str = "none") -> Tensor:
    return b.program.elementwise("gelu" if approximate == "none" else "gelu_tanh", x)


def _dropout(
    b: StepBuilder, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    _want(not training or p == 0, "dropout in training")
    return x


def _cat(b: StepBuilder, tensors: Any, dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(x.shape[dim] for x in tensors)
    out, first = b.program.empty(*shape), 0
    for x in tensors:
        part = out.narrow(dim, first, x.shape[dim])
        first += x.shape[dim]
        if x.numel():
            b.program.elementwise_into(part, "copy", x)
    return out


# -- tables, norms and products --------------------------------------------------------------------


def _embedding(b: StepBuilder, index: Tensor, weight: Any, *args: Any, **options: Any) -> Tensor:
    _want(options.get("max_norm") is None and len(args) < 2, "an embedding with max_norm")
    return _table_rows(b, index, weight)


def _table_rows(b: StepBuilder, index: Tensor, weight: Tensor | PackedTensor) -> Tensor:
    p, columns, index = b.program, weight.shape[-1], b.program.contiguous(index)
    out = p.empty(*index.shape, columns)
    views: dict[str, Any] = {"out": (out.data_ptr(), ()), "a": (index.data_ptr(), ())}
    if isinstance(weight, PackedTensor):
        parts = _packed_fields(p, weight, None)
        p.add(
            "embed_packed", out, [index], size=(1, 1, index.numel()), **_rows_in_use(b, index, 1),
            **views, **parts,
        )  # fmt: skip
    else:
        _want(weight.dtype == torch.float32, f"a table of {weight.dtype}")
        size = (*weight.shape, index.numel())
        p.add(
            "embed", out, [index], size=size, **_rows_in_use(b, index, 1), **views,
            more=(p.weight(weight),),
        )  # fmt: skip
    return out


def _rows_in_use(b: StepBuilder, x: Tensor, columns: int) -> dict[str, Any]:
    """Return how many rows of `columns` there are in `x` for each row of the program.

    The native code computes those of the rows in use. 0 stands for an operand without such rows.
    """
    per_row = x.numel() // columns // b.rows if x.shape[0] == b.rows else 0
    return {"number": (0, per_row)}


def _packed_fields(p: StepProgram, weight: PackedTensor, bias: Tensor | None) -> dict[str, Any]:
    rows, columns = weight.shape
    row = packed_format(weight.format)
    assert row is not None, f"no packed format '{weight.format}'"
    for part in (weight.offsets, bias):
        _want(part is None or part.dtype == torch.float32, "a bias or offset that is no float32")
    parts = (weight.codes, weight.scales, weight.offsets, bias)
    layout = (KERNEL_CODES[weight.format], rows, columns, weight.group_size)
    return {
        "more": tuple(p.weight(part) for part in parts),
        "whole": (*layout, int(row.has_real_scales), 8 // row.per_byte),
    }


def _layer_norm(
    b: StepBuilder, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    n = math.prod(shape)
    _want(len(shape) == 1 and x.shape[-1] == n, "a layer norm over several dimensions")
    p, rows = b.program, b.program.contiguous(x)
    out = p.empty(*x.shape)
    p.add(
        "layer_norm", out, [rows], size=(rows.numel() // n, n), out=(out.data_ptr(), ()),
        a=(rows.data_ptr(), (n,)), more=(p.weight(weight), p.weight(bias)), number=(eps,),
        is_shared=rows.numel() >= LEAST_SHARED,
    )  # fmt: skip
    return out


def _linear(b: StepBuilder, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
    _want(weight.dtype == torch.float32, f"a weight of {weight.dtype}")
    more = (b.program.weight(weight), b.program.weight(bias))
    return _product(b, "float_product", x, tuple(weight.shape), more=more)


def _addmm(b: StepBuilder, bias: Any, x: Tensor, weight: Any) -> Tensor:
    more = (b.program.weight(weight), b.program.weight(bias))
    return _product(b, "transposed_product", x, tuple(weight.shape[::-1]), more=more)


def _packed_linear(b: StepBuilder, layer: QLinearPacked, x: Tensor) -> Tensor:
    form = layer.quantizers.get("data_in")
    rounds = form == ROUNDED
    _want(set(layer.quantizers) <= {"data_in"}, "a packed layer with quantised outputs")
    _want(form is None or rounds, f"activations in {form}")
    fields = _packed_fields(b.program, layer.weight, layer.bias)
    return _product(b, "packed_product", x, layer.weight.shape, function=int(rounds), **fields)


def _product(b: StepBuilder, kind: str, x: Tensor, shape: tuple[int, ...], **fields: Any) -> Tensor:
    """Add the product of rows `x` with a weight of `shape` (outputs, inputs)."""
    p, x = b.program, b.program.contiguous(x)
    out = p.empty(*x.shape[:-1], shape[0])
    views = {"out": (out.data_ptr(), ()), "a": (x.data_ptr(), ())}
    size = (*shape, x.numel() // shape[1])
    in_use = _rows_in_use(b, x, shape[1])
    p.add(kind, out, [x], is_shared=True, size=size, **in_use, **views, **fields)
    return out


# -- attention -------------------------------------------------------------------------------------


def _positions(b: StepBuilder, *args: Any) -> Tensor:
    return b.position


def _causal_mask(
    b: StepBuilder, mask: Any, states: Any, past: Any, window: int | None = None, *args: Any
) -> Mask:
    return Mask(window)


def _update_past(b: StepBuilder, past: Past, key: Tensor, value: Tensor, layer: int) -> Any:
    p, written = b.program, b.program.empty(1)
    rows, heads = key.shape[:2]
    _want(rows == b.rows and key.shape[2] == 1 and value.shape[1] == heads, "several new tokens")
    new_key, new_value = (
        (x.data_ptr(), (x.stride(1), x.stride(3), x.stride(0))) for x in (key, value)
    )
    p.add(
        "append", written, [key, value], a=new_key, b=new_value, size=(1, 1, rows),
        whole=(layer, heads, key.shape[3], value.shape[3]), number=(0, 1),
    )  # fmt: skip
    _want(layer not in b.appended, "a layer that is updated twice")
    b.appended[layer] = (key, value)
    return tuple(Cached(layer, rows, heads, x.shape[3], written) for x in (key, value))


def _attention(
    b: StepBuilder, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    _want(isinstance(key, Cached) and not dropout_p and not is_causal, "attention of another kind")
    _want(attn_mask is None or isinstance(attn_mask, Mask), "attention with a mask of its own")
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    window = None if attn_mask is None else attn_mask.window
    return _attend(b, Scores(query, key, (("mul", factor),), window), value)


def _matmul(b: StepBuilder, x: Any, y: Any) -> Any:
    if isinstance(x, Tensor) and isinstance(y, Cached) and y.is_transposed:
        return Scores(x, replace(y, is_transposed=False))
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape[-1] == 1 and y.dim() > 1:
        # A sum of one product: transformers before 5.18 computes rotary angles in this way.
        return binary_rule("mul")(b, x, y)
    _want(isinstance(x, Scores) and isinstance(y, Cached), "matmul of tensors")
    _want(x.is_normal and not y.is_transposed, "matmul of scores without softmax")
    return _attend(b, x, y)


def _softmax(b: StepBuilder, x: Any, dim: int, *args: Any, **options: Any) -> Scores:
    _want(isinstance(x, Scores) and dim in (-1, 3), "softmax of a tensor")
    _want(options.get("dtype") in (None, torch.float32), "softmax in another dtype")
    return replace(x, is_normal=True)


def _attend(b: StepBuilder, scores: Scores, values: Any) -> Tensor:
    p, keys, query = b.program, scores.keys, scores.query
    _want(isinstance(values, Cached) and values.layer == keys.layer, "values of another layer")
    rows, heads, queries, _ = query.shape
    is_whole = not keys.is_split and not values.is_split and rows == b.rows
    _want(is_whole and queries == 1 and heads % keys.heads == 0, "attention of several queries")
    query = query if query.stride(3) == 1 else p.contiguous(query)
    out = p.empty(rows, 1, heads, values.size)
    steps = (ScoreStep * len(scores.steps))(
        *(ScoreStep(FUNCTIONS.index(name), number) for name, number in scores.steps)
    )
    p.kept.append(steps)
    sizes = (keys.layer, heads // keys.heads, keys.size, values.size)
    p.add(
        "attend", out, [query, keys.written], is_shared=True, size=(heads, 1, rows),
        out=(out.data_ptr(), (values.size, 0, heads * values.size)),
        a=(query.data_ptr(), (query.stride(1), 0, query.stride(0))),
        more=(ctypes.addressof(steps),), whole=(*sizes, scores.window or 0, len(scores.steps)),
        number=(0, 1),
    )  # fmt: skip
    return out.transpose(1, 2)


def _want(condition: bool, problem: str) -> None:
    if not condition:
        raise UnsupportedError(problem)


RULES: dict[str, Rule] = {
    **{name: binary_rule(name) for name in ("add", "sub", "mul", "div")},
    **{
        name: unary_rule(name)
        for name in ("neg", "rsqrt", "sqrt", "cos", "sin", "tanh", "exp", "sigmoid", "silu", "relu")
    },
    "pow": _power,
    "mean": _mean,
    "gelu": _gelu,
    "cat": _cat,
    "dropout": _dropout,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "addmm": _addmm,
    "matmul": _matmul,
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
    "positions": _positions,
    "causal_mask": _causal_mask,
    "update_past": _update_past,
}
"""Rules of functions and methods by the name of the op."""


def _activation(function: str) -> Rule:
    return lambda b, layer, x: unary_rule(function)(b, x)


MODULE_RULES: dict[type, Rule] = {
    nn.Linear: lambda b, m, x: _linear(b, x, m.weight, m.bias),
    nn.Embedding: lambda b, m, x: _embedding(b, x, m.weight, max_norm=m.max_norm),
    nn.LayerNorm: lambda b, m, x: _layer_norm(b, x, m.normalized_shape, m.weight, m.bias, m.eps),
    nn.Dropout: lambda b, m, x: _dropout(b, x, m.p, m.training),
    nn.GELU: lambda b, m, x: _gelu(b, x, m.approximate),
    nn.Identity: lambda b, m, x: x,
    **{c: _activation(n) for c, n in ((nn.ReLU, "relu"), (nn.SiLU, "silu"), (nn.Tanh, "tanh"),
                                      (nn.Sigmoid, "sigmoid"))},
    QLinearPacked: _packed_linear,
    QEmbeddingPacked: lambda b, m, x: _table_rows(b, x, m.weight),
}  # fmt: skip
"""Rules of modules by their exact class: a subclass may compute something else."""
