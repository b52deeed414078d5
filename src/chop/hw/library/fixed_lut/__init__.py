"""Functions of one element by table: sigmoid, tanh, GELU and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import Component, Memory, Parameter, Unary, register
from chop.hw.design.cycle_model import Bracket, Twin
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.library.fixed_piecewise import Piecewise, along_lines, lines_of
from chop.hw.lower import Lowerer, Value, lowers, unary
from chop.hw.lower.engine import TRUTH
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op
from chop.ir.ops import node_module
from chop.nn.quantized.functional import is_quantized_function
from chop.nn.quantized.integer_calls import node_arithmetic
from chop.nn.quantizers.arithmetic.function import WHOLE_TABLE

LUT_WIDTHS = range(1, 17)


@register
@dataclass(frozen=True)
class Lut(Unary):
    """Function of one element, by table; exact by construction."""

    function: Callable[[npt.NDArray[np.float64]], npt.ArrayLike] = np.tanh
    module = "fixed_lut"
    has_sums = False

    def __post_init__(self) -> None:
        if self.source.format.width not in LUT_WIDTHS:
            raise ConfigError(
                f"fixed_lut: a table needs an input of {LUT_WIDTHS[0]} … {LUT_WIDTHS[-1]} bits, "
                f"got {self.source.format}."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        entries: Ints = self.table()[data[0] & (2**self.source.format.width - 1)]
        return entries

    def table(self) -> Ints:
        """Output codes, by input code read as an unsigned number."""
        width = self.source.format.width
        codes = np.arange(2**width)
        if self.source.format.is_signed:
            codes = np.where(codes >> (width - 1), codes - 2**width, codes)
        return self.format.encode(self.function(self.source.format.decode(codes)))

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "DATA_OUT_0_PRECISION_0": self.format.width,
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def memories(self) -> tuple[Memory, ...]:
        words = tuple(pack_words(self.table().reshape(-1, 1), self.format.width))
        return (Memory("table", words, self.format.width, is_streamed=False),)

    def twins(self) -> list[Twin]:
        return [Bracket(1)]

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(64, lanes=4), BYTE, np.tanh),
            cls(stream(64, lanes=2), Fixed(6, 5), lambda x: 1 / (1 + np.exp(-x))),
            cls(stream(64, number=NARROW), WIDE, lambda x: x * np.tanh(x)),
            cls(stream(64, number=COUNT), DOWN, np.tanh),
            cls(stream(8, number=BIT), COUNT, np.exp),
        ]


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_lut")
def lower_table(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a table of the node's function."""
    number = low.result_format(node)

    def make(source: Stream) -> Component:
        if source.format.width not in LUT_WIDTHS:
            raise low.refuse(
                node,
                f"an operand of {source.format.width} bits",
                f"Allowed: up to {LUT_WIDTHS[-1]}, for a table. Quantise it: data_in_width",
            )
        if node_arithmetic(node) == "integer" and source.format.width > WHOLE_TABLE:
            lines = lines_of(_of_tensors(node), source.format, number)
            return Piecewise(source, number, lines)
        _check_defined(low, node, source)
        return Lut(source, number, _function(node))

    return unary(low, node, make)


def _check_defined(low: Lowerer, node: fx.Node, source: Stream) -> None:
    """Raise if the function has no value for a code: the root or logarithm of less than 0."""
    number = source.format
    values = _function(node)(number.decode(np.arange(number.low, number.high + 1)))
    wrong = np.flatnonzero(np.isnan(values))
    if len(wrong):
        at = number.decode(np.array([number.low + wrong[-1]])).item()
        raise low.refuse(
            node,
            f"no value at {at}, which the operand's format {number} has",
            "Allowed: an operand in a format where it has values, such as one without a sign",
        )


@lowers("fixed_compare")
def lower_compare(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a table of truth values."""
    if len(low.operands(node)) != 1 or "isclose" in str(node.target):
        raise low.refuse(node, "two tensors", "Allowed: a tensor compared with a number")

    def make(source: Stream) -> Component:
        if source.format.width not in LUT_WIDTHS:
            what = f"an operand of {source.format.width} bits"
            raise low.refuse(node, what, f"Allowed: up to {LUT_WIDTHS[-1]}, for a table")
        return Lut(source, TRUTH, _function(node))

    return unary(low, node, make)


@lowers("fixed_not")
def lower_not(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the opposite truth value."""
    name = str(getattr(node.target, "__name__", node.target))
    value = low.operand(node)
    if name not in NEGATIONS or low.stream(value).format != TRUTH:
        raise low.refuse(node, name, f"Allowed of truth values: {', '.join(NEGATIONS)}")
    return unary(low, node, lambda source: Lut(source, TRUTH, lambda x: x == 0))


NEGATIONS = ("logical_not", "bitwise_not", "invert", "__invert__")


def _function(node: fx.Node) -> Callable[[Any], Any]:
    """Return the node's torch function, on NumPy doubles."""

    def call(x: Any) -> Any:
        tensor = torch.from_numpy(np.asarray(x, dtype=np.float64))
        with torch.no_grad():
            return _apply(node, tensor).numpy()

    return call


def _of_tensors(node: fx.Node) -> Callable[[Tensor], Tensor]:
    """Return the node's torch function, on doubles."""
    return lambda x: _apply(node, x)


def _apply(node: fx.Node, x: Tensor) -> Any:
    if node.op == "call_module":
        return _plain(node_module(node))(x)
    rest = [a for a in node.args if not isinstance(a, fx.Node)]
    named = {k: v for k, v in node.kwargs.items() if not isinstance(v, fx.Node)}
    if is_quantized_function(node.target):
        plain = node.target.op.compute.function  # type: ignore[union-attr]
        return plain(x, *rest, **{k: v for k, v in named.items() if k != "config"})
    if node.op == "call_method":
        return getattr(x, str(node.target))(*rest, **named)
    return node.target(x, *rest, **named)  # type: ignore[operator]


def _plain(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the forward of the torch layer that a quantised one is derived from."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith("torch.nn"):
            return lambda x: cls.forward(module, x)  # type: ignore[attr-defined]
    return module


# -- by definition ---------------------------------------------------------------------------------

_TABLES: dict[str, tuple[Callable[..., Tensor], str]] = {
    "sigmoid": (torch.sigmoid, "input"),
    "tanh": (torch.tanh, "input"),
    "gelu": (F.gelu, "input approximate"),
    "silu": (F.silu, "input inplace"),
    "elu": (F.elu, "input alpha inplace"),
    "mish": (F.mish, "input inplace"),
    "softplus": (F.softplus, "input beta threshold"),
    "softsign": (F.softsign, "input"),
}


def _in_doubles(function: Callable[..., Tensor], settings: Sequence[str]) -> Callable[..., Exact]:
    """Return a function without an exact value: the model's, in double precision.

    The double that torch gives is taken for the number itself: it lies within a few units of the
    53rd bit of the real one, and where a rounding is nearer than that, the model decides.
    """

    def evaluate(a: Arguments) -> Exact:
        options = {name: a[name] for name in settings if name in a}

        def call(x: Any) -> Any:
            return function(torch.from_numpy(np.ascontiguousarray(x)), **options).numpy()

        numbers = a.get("integer")
        if numbers is not None and numbers["input"].width > 12:
            return along_lines(a["input"], call, numbers["input"], numbers["data_out"])
        return Exact.of(call(a["input"].double()))

    return evaluate


for _name, (_torch, _arguments) in _TABLES.items():
    _settings = [name for name in _arguments.split() if name not in ("input", "inplace")]
    exact_op(_name, _arguments)(_in_doubles(_torch, _settings))
