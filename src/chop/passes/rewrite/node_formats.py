"""Number formats of quantised nodes in their metadata, and constants that no format may round."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata, ValueMeta
from chop.ir.ops import Op, Operand, find_op, node_module, parameter_role
from chop.log import get_logger
from chop.nn.modules.lora import adapted_layer
from chop.nn.quantized.call_operands import DATA_OUT
from chop.nn.quantized.functional import call_quantizers, is_quantized_function
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.arithmetic.integer_softmax import MASKED


def node_quantizers(node: fx.Node) -> Mapping[str, Quantizer] | None:
    """Return the format of each operand of `node` by its role; None if it is not quantised."""
    if node.op == "call_module":
        module = node_module(node)
        return module.quantizers if isinstance(module, QuantizedModule) else None
    if node.op == "call_function" and is_quantized_function(node.target):
        return call_quantizers(node.target, node.kwargs.get("config"))
    return None


def annotate_formats(node: fx.Node) -> None:
    """Write the formats of a quantised node's operands, parameters and results.

    A result without a format (`data_out`) is written in the format of the first operand, which the
    arithmetic is in, and is marked as not applied. A node without metadata stays unchanged.
    """
    quantizers, meta = node_quantizers(node), node.meta.get("mase")
    if quantizers is None or not isinstance(meta, MaseMetadata):
        return
    tensor_roles = _tensor_roles(node)
    for name, value in (meta.common.args or {}).items():
        role = tensor_roles.get(name) or role_of(name, quantizers)
        if role is not None:
            _write(value, quantizers[role], is_applied=True)
    own, first = quantizers[DATA_OUT], next(iter(quantizers.values()))
    result = (meta.common.results or {}).get("data_out_0")
    if result is not None:
        _write(result, first if own.is_bypass else own, is_applied=not own.is_bypass)


def _tensor_roles(node: fx.Node) -> dict[str, str]:
    """Return the role of each tensor operand of a quantised function, by its name in the metadata.

    Numbers among the operands have no name: in `2 - x` the metadata has `x` as data_in_0, and the
    function rounds it to the format of data_in_1.
    """
    if node.op != "call_function" or not is_quantized_function(node.target):
        return {}
    operands = node.target.op.compute.operands  # type: ignore[union-attr]
    roles = [o.role for o in operands if isinstance(operand_argument(node, o), fx.Node)]
    return {f"data_in_{k}": role for k, role in enumerate(roles) if role.startswith("data_in_")}


def operand_argument(node: fx.Node, operand: Operand) -> Any:
    """Return the argument of `node` for an operand; None if it has none."""
    if operand.position < len(node.args):
        return node.args[operand.position]
    return node.kwargs.get(operand.argument)


def role_of(name: str, quantizers: Mapping[str, Quantizer]) -> str | None:
    """Return the role of an operand by its name in the metadata; None for one without a format."""
    if name in quantizers:
        return name
    if name == "data_in_0" and "data_in" in quantizers:
        return "data_in"
    is_parameter = not name.startswith("data_") and parameter_role(name) in quantizers
    return parameter_role(name) if is_parameter and ("weight" in name or "bias" in name) else None


def check_scales(node: fx.Node, quantizers: Mapping[str, Quantizer], where: str) -> None:
    """Raise if a list of scales has another length than the operand of `node` needs."""
    for name, shape in _operand_shapes(node).items():
        role = role_of(name, quantizers)
        form = None if role is None else quantizers[role].scaled
        if form is None or not isinstance(form.scale, tuple):
            continue
        try:
            form.scales_of(torch.empty(shape, device="meta"))
        except ConfigError as error:
            raise ConfigError(f"{where}: node '{node.name}', operand '{name}': {error}") from error


def _operand_shapes(node: fx.Node) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's parameters, and those of all operands in the metadata."""
    meta = node.meta.get("mase")
    args = meta.common.args if isinstance(meta, MaseMetadata) else None
    operands = (args or {}).items()
    shapes = {name: tuple(value.shape) for name, value in operands if value.shape is not None}
    if node.op == "call_module":
        layer = adapted_layer(node_module(node))
        shapes |= {name: tuple(p.shape) for name, p in layer.named_parameters()}
    return shapes


def _write(value: ValueMeta, quantizer: Quantizer, *, is_applied: bool) -> None:
    if value.torch_dtype is not None and value.torch_dtype.is_floating_point:
        value.set_format(quantizer, is_applied=is_applied)


def relink_formats(node: fx.Node) -> None:
    """Write the format of `node`'s result into the metadata of the nodes that read it."""
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or meta.common.results is None:
        return
    result = meta.common.results.get("data_out_0")
    for user in node.users:
        reader = user.meta.get("mase")
        if result is None or not isinstance(reader, MaseMetadata):
            continue
        for value in (reader.common.args or {}).values():
            is_same = value.shape == result.shape and value.torch_dtype == result.torch_dtype
            if value.source is node and is_same:
                value.follow(result, is_applied=False)
        annotate_formats(user)  # operands that the user quantises have its own formats


logger = get_logger(__name__)


def without_masks(
    graph: MaseGraph, node: fx.Node, op: Op, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config of a call that rounds neither a mask among its operands nor its result.

    A mask is a constant with elements of -2**100 or less, also behind views of it. In 8 bits of
    fixed point minus infinity is -8, and a masked score of 7.5 would be -0.5: not masked at all.
    """
    compute = op.compute
    assert compute is not None, f"op '{op.name}' cannot be quantised"
    masks = [o.role for o in compute.operands if _is_mask(graph, operand_argument(node, o))]
    if not masks:
        return dict(config)
    logger.info("node '%s': %s is a mask; it and the result keep their values.", node.name, masks)
    return {**config, **{f"{role}_name": "NA" for role in (*masks, DATA_OUT)}}


def _is_mask(graph: MaseGraph, source: Any) -> bool:
    while isinstance(source, fx.Node) and source.op != "get_attr":
        op = find_op(source, graph.custom_ops)
        source = source.args[0] if op is not None and op.is_view and source.args else None
    if not isinstance(source, fx.Node):
        return False
    value = attrgetter(str(source.target))(graph.model)
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return is_float and bool((value <= MASKED).any())
