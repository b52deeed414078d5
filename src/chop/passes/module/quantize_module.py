"""Quantise the layers of a plain module, without a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from chop.errors import PassError
from chop.ir.ops import OPS, op_of_module
from chop.log import get_logger
from chop.nn.modules.transposed import as_linear, is_transposed_linear
from chop.nn.quantized.convert import float_class_of, to_format
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import parse_args
from chop.passes.change_warnings import warn_little
from chop.passes.quantization_rules import Candidate, QuantizeArgs, choose, require_rules

logger = get_logger(__name__)

WHERE = "quantize"
LINEAR = OPS["linear"].name


def quantize_module_transform_pass(
    module: nn.Module, pass_args: Mapping[str, Any] | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Replace float layers by quantised ones; arguments as in `quantize_transform_pass`.

    Names are module paths. Functions inside a forward are not found: trace the model for those.
    transformers' `Conv1D` counts as a linear layer; quantised, its weight is transposed. The module
    is changed in place and returned; for a single layer the quantised one is returned.
    """
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise PassError(f"quantize_module: expected a module, got {kind}. Give mg.model.")
    return quantize_module(module, parse_args(QuantizeArgs, pass_args, WHERE))


def quantize_module(module: nn.Module, args: QuantizeArgs) -> tuple[nn.Module, dict[str, Any]]:
    """Quantise the layers of `module` by the rules; `info["quantized"]` names their classes."""
    require_rules(args)
    layers = list(_layers(module, ""))
    choices = choose(args, [_candidate(path, layer) for path, layer in layers], WHERE)
    replaced: dict[str, QuantizedModule] = {}
    new: dict[tuple[int, str], QuantizedModule] = {}  # a layer at two paths stays one layer
    for (path, layer), choice in zip(layers, choices, strict=True):
        if choice is not None:
            key = (id(layer), choice.where)
            if key not in new:
                plain = as_linear(layer) if is_transposed_linear(layer) else layer
                new[key] = to_format(plain, choice.config, where=choice.where)
            replaced[path] = new[key]
    result = _replace(module, replaced)
    warn_unchanged(replaced)
    warn_little(WHERE, "quantised", replaced.values(), result)
    return result, {"quantized": {path: type(layer).__name__ for path, layer in replaced.items()}}


def warn_unchanged(changes: Mapping[Any, Any]) -> None:
    """Warn if nothing was quantised."""
    if not changes:
        logger.warning("%s: nothing was quantised: no rule gave a layer a format.", WHERE)


def _layers(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield paths and modules, without the modules inside a layer of the op table."""
    yield path, module
    if float_class_of(module) is None and not is_transposed_linear(module):
        for name, child in module._modules.items():  # named_children() skips what is shared
            if child is not None:
                yield from _layers(child, f"{path}.{name}" if path else name)


def _candidate(path: str, module: nn.Module) -> Candidate:
    if is_transposed_linear(module):
        return Candidate((path,), LINEAR, True)
    op = op_of_module(module)
    name = type(module).__name__ if op is None else op.name
    return Candidate((path,), name, float_class_of(module) is not None)


def _replace(module: nn.Module, replaced: Mapping[str, QuantizedModule]) -> nn.Module:
    if "" in replaced:
        return replaced[""]
    for path, layer in replaced.items():
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, layer)
    for each in module.modules():
        # torch's encoder must call its layers: in evaluation it would read their weights directly
        is_changed = any(isinstance(child, QuantizedModule) for child in each.modules())
        if is_changed and isinstance(each, nn.TransformerEncoderLayer):
            each.activation_relu_or_gelu = 0  # torch's mark of an activation it cannot fuse
        if is_changed and isinstance(each, nn.TransformerEncoder):
            each.use_nested_tensor = False
    return module
