"""Values in MXINT: which formats have blocks, and the casts to and from them.

A node may bring an operand to MXINT that its component takes as fixed point: then the numbers are
brought there and back. `fixed_linear` and `fixed_matmul` take blocks as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.arith.mxint_wire import WIDEST_MANTISSA, Mxint, block_of, rounding_of
from chop.hw.design.stream import Stream, divisors
from chop.hw.streams.fixed_to_mxint import ToMxint
from chop.hw.streams.mxint_to_fixed import FromMxint, exact_format
from chop.ir.meta import ValueMeta, mase_meta
from chop.nn.quantizers import MXInt

if TYPE_CHECKING:  # the engine casts
    from chop.hw.lower.engine import Lowerer, Value


def operand_blocks(node: fx.Node, name: str) -> MXInt | None:
    """Return the MXINT format that `node` applies to an operand or parameter, or None."""
    return _applied(node, f"args.{name}", (mase_meta(node).common.args or {}).get(name))


def result_blocks(node: fx.Node) -> MXInt | None:
    """Return the MXINT format that `node` applies to its result, or None."""
    results = mase_meta(node).common.results or {}
    return _applied(node, "results.data_out_0", results.get("data_out_0"))


def takes_blocks(node: fx.Node) -> bool:
    """Return whether `node` brings an operand or parameter to MXINT."""
    return any(operand_blocks(node, name) is not None for name in mase_meta(node).common.args or {})


def _applied(node: fx.Node, where: str, meta: ValueMeta | None) -> MXInt | None:
    form = None if meta is None or not meta.is_applied else meta.format
    if form is None or form.wire != "mxint":
        return None
    number = cast(MXInt, form)
    if number.width > WIDEST_MANTISSA:
        raise HardwareError(
            f"node '{node.name}': {where} has mantissas of {number.width} bits. Allowed in "
            f"hardware: {WIDEST_MANTISSA}."
        )
    try:
        rounding_of(number)
    except ConfigError as error:
        raise HardwareError(f"node '{node.name}': {where}: {error}") from error
    return number


def parameter_blocks(node: fx.Node, name: str) -> MXInt:
    """Return the MXINT format of a weight or bias; raise without one, or across rows."""
    blocks = operand_blocks(node, name)
    if blocks is None:
        meta = mase_meta(node).common["args"][name]
        raise HardwareError(
            f"node '{node.name}': args.{name} is {meta.type} {meta.precision} beside operands in "
            f"MXINT. Allowed: 'mxint' for all of them."
        )
    if blocks.axis not in (-1, 1 if name == "weight" else 0):
        raise HardwareError(
            f"node '{node.name}': {name}_axis = {blocks.axis}. Allowed in hardware: -1, blocks "
            f"along what is summed over."
        )
    return blocks


def needed_blocks(low: Lowerer, node: fx.Node, name: str, axis: int = -1) -> MXInt:
    """Return the MXINT format of an operand with blocks along `axis`; raise for others."""
    blocks = operand_blocks(node, name)
    if blocks is None:
        raise low.refuse(
            node, f"{name} is not in MXINT, another operand is", "Allowed: 'mxint' for all of them"
        )
    dims = len(mase_meta(node).common["args"][name]["shape"])
    if blocks.tile[0] != 1 or blocks.axis % dims != axis % dims:
        raise low.refuse(
            node,
            f"{name} has blocks of {blocks.block_size} along axis {blocks.axis}",
            f"Allowed in hardware: blocks of one size along what is summed over, axis = {axis}",
        )
    return blocks


def block_operand(low: Lowerer, node: fx.Node, number: int, lanes: int, axis: int = -1) -> Value:
    """Return an operand in MXINT, `lanes` of a block per beat; blocks along -2 transposed."""
    name = f"data_in_{number}"
    blocks = needed_blocks(low, node, name, axis)
    source = low.operands(node)[number]
    value = low.values[source]
    is_blocked = isinstance(low.stream(value).format, Mxint) and result_blocks(source) == blocks
    if is_blocked and axis == -1 and low.stream(value).lanes == lanes:
        return value  # bringing it there again would change nothing
    value = plainly(low, f"{node.name}_plain_{number}", value)
    return to_blocks(low, node, f"{node.name}_mxint_{number}", value, blocks, lanes, axis=axis)


def to_blocks(
    low: Lowerer,
    node: fx.Node,
    name: str,
    value: Value,
    blocks: MXInt,
    lanes: int,
    *,
    axis: int = -1,
) -> Value:
    """Return `value` in MXINT with blocks along `axis`, which its stream follows."""
    places = np.arange(len(value.order)).reshape(value.shape)
    order: Ints = (places if axis == -1 else np.swapaxes(places, -1, -2)).reshape(-1)
    shape = value.shape if axis == -1 else (*value.shape[:-2], value.shape[-1], value.shape[-2])
    value = low.arrange(node, value, order, shape)
    source = Stream(shape, lanes, low.stream(value).format)
    return replace(value, wire=low.once(name, ToMxint(source, blocks), value.wire))


def there_and_back(low: Lowerer, node: fx.Node, name: str, value: Value, blocks: MXInt) -> Value:
    """Return `value` brought to MXINT and back to fixed point."""
    lanes = block_lanes(low, node, value, blocks)
    return plainly(low, f"{name}_plain", to_blocks(low, node, name, value, blocks, lanes))


def block_lanes(low: Lowerer, node: fx.Node, value: Value, blocks: MXInt) -> int:
    """Return the most lanes for a cast of `value` that its stream and a block allow."""
    dims = len(value.shape) + 1
    if blocks.tile[0] != 1 or blocks.axis % dims != dims - 1:
        raise low.refuse(
            node,
            f"MXINT with blocks of {blocks.block_size} along axis {blocks.axis}",
            "Allowed in hardware: blocks of one size along the last dimension",
        )
    row = value.shape[-1]
    most = low.stream(value).lanes
    return max(d for d in divisors(np.gcd(row, block_of(blocks, row))) if d <= most)


def plainly(low: Lowerer, name: str, value: Value, number_format: Fixed | None = None) -> Value:
    """Return `value` in fixed point: in `number_format`, or with all its numbers."""
    stream = low.stream(value)
    if not isinstance(stream.format, Mxint):
        return value
    number = exact_format(stream.format) if number_format is None else number_format
    return replace(value, wire=low.once(name, FromMxint(stream, number), value.wire))


def doubles(values: npt.NDArray[np.float64]) -> Tensor:
    """Return a tensor of the numbers."""
    return torch.from_numpy(np.ascontiguousarray(values))
