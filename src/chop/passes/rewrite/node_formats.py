"""Number formats of quantised nodes, in their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from chop.ir.meta import CommonMeta, MaseMetadata, ValueMeta
from chop.ir.ops import Operand, node_module, parameter_role
from chop.nn.quantized.call_operands import DATA_OUT
from chop.nn.quantized.functional import call_quantizers, is_quantized_function
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer


def node_quantizers(node: fx.Node) -> Mapping[str, Quantizer] | None:
    """The format of each operand of `node` by its role; None where it is not quantised."""
    if node.op == "call_module":
        module = node_module(node)
        return module.quantizers if isinstance(module, QuantizedModule) else None
    if node.op == "call_function" and is_quantized_function(node.target):
        return call_quantizers(node.target, node.kwargs.get("config"))
    return None


def annotate_formats(node: fx.Node) -> None:
    """Write the formats of a quantised node's operands, parameters and results.

    A result without a format of its own (`data_out`) is told in the format of the first operand,
    the one the arithmetic is done in, and is not said to be brought there. Does nothing to a node
    without metadata.
    """
    quantizers, meta = node_quantizers(node), node.meta.get("mase")
    if quantizers is None or not isinstance(meta, MaseMetadata):
        return
    tensor_roles = _tensor_roles(node)
    for name, value in (meta.common.args or {}).items():
        role = tensor_roles.get(name) or role_of(name, quantizers)
        if role is not None:
            _write(value, quantizers[role], is_applied=True)
    _annotate_result(meta.common, quantizers)


def _tensor_roles(node: fx.Node) -> dict[str, str]:
    """Return the role of each tensor operand of a quantised function, by its name in the metadata.

    Numbers among the operands have no name: in `2 - x` the metadata has `x` as data_in_0, and the
    function brings it to the format of data_in_1.
    """
    if node.op != "call_function" or not is_quantized_function(node.target):
        return {}
    operands = node.target.op.compute.operands  # type: ignore[union-attr]
    roles = [o.role for o in operands if isinstance(operand_argument(node, o), fx.Node)]
    return {f"data_in_{k}": role for k, role in enumerate(roles) if role.startswith("data_in_")}


def operand_argument(node: fx.Node, operand: Operand) -> Any:
    """Return what `node` is called with for an operand; None where it has none."""
    if operand.position < len(node.args):
        return node.args[operand.position]
    return node.kwargs.get(operand.argument)


def _annotate_result(common: CommonMeta, quantizers: Mapping[str, Quantizer]) -> None:
    own, first = quantizers[DATA_OUT], next(iter(quantizers.values()))
    value = (common.results or {}).get("data_out_0")
    if value is not None:
        is_applied = not own.is_bypass
        _write(value, own if is_applied else first, is_applied=is_applied)


def role_of(name: str, quantizers: Mapping[str, Quantizer]) -> str | None:
    """The role of an operand by its name in the metadata; None for one without a format."""
    if name in quantizers:
        return name
    if name == "data_in_0" and "data_in" in quantizers:
        return "data_in"
    is_parameter = not name.startswith("data_") and parameter_role(name) in quantizers
    return parameter_role(name) if is_parameter and ("weight" in name or "bias" in name) else None


def _write(value: ValueMeta, quantizer: Quantizer, *, is_applied: bool) -> None:
    if value.torch_dtype is not None and value.torch_dtype.is_floating_point:
        value.set_format(quantizer, is_applied=is_applied)


def relink_formats(node: fx.Node) -> None:
    """Let the nodes that read `node` tell the format of its result."""
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or meta.common.results is None:
        return
    result = meta.common.results.get("data_out_0")
    for user in node.users:
        reader = user.meta.get("mase")
        if result is not None and isinstance(reader, MaseMetadata):
            _follow(reader.common, node, result)
            annotate_formats(user)  # what it quantises itself, it tells itself


def _follow(common: CommonMeta, source: fx.Node, result: ValueMeta) -> None:
    for value in (common.args or {}).values():
        same = value.shape == result.shape and value.torch_dtype == result.torch_dtype
        if value.source is source and same:
            value.follow(result, is_applied=False)  # told, not brought there
