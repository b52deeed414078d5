"""Conversion of float layers to quantised layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from chop.errors import ConfigError
from chop.ir.ops import op_of_module
from chop.ir.reclass import recipe_members, reclassed
from chop.nn.quantized.call_operands import is_unquantized
from chop.nn.quantized.layer import QuantizedModule, has_layers, layer_class, quantized_layers
from chop.nn.quantizers.formats import find_format
from chop.nn.quantizers.operands import ARITHMETIC, plain_names
from chop.registry import suggest


def float_class_of(module: nn.Module) -> type[nn.Module] | None:
    """Return the torch layer of `module`, None if it has no quantised layer.

    A subclass counts as its torch layer unless it overrides `forward` or is lazily initialised.
    """
    if isinstance(module, QuantizedModule):
        return module.float_class
    op = op_of_module(module)
    is_waiting = isinstance(module, LazyModuleMixin)  # would become the float layer after all
    if op is None or not has_layers(op) or is_waiting:
        return None
    base = next(cls for cls in type(module).__mro__ if cls in op.modules)
    return base if type(module).forward is base.forward else None


def from_float(
    module: nn.Module, config: Mapping[str, Any], *, where: str = "config"
) -> QuantizedModule:
    """Return `module` as a layer that computes in the format of `config`.

    It is the same module with another class: parameters, buffers and hooks are shared, and device,
    mode, masks and parametrisations stay. A layer that is already quantised changes its format.
    """
    if is_unquantized(config):
        raise ConfigError(f"{where}: key 'name' is missing: it names the number format.")
    config = plain_names(config, where)
    cls = quantized_class(module, config["name"], where=where)
    settings = cls.parse(config, where)
    layer = reclassed(module, cls)
    layer.set_formats(*settings)
    return layer


def to_format(module: nn.Module, config: Mapping[str, Any], *, where: str) -> QuantizedModule:
    """Return `module` itself if it has the format of `config` already, else such a layer."""
    layer = from_float(module, config, where=where)
    if not isinstance(module, QuantizedModule) or type(module) is not type(layer):
        return layer
    is_same = module.quantizers == layer.quantizers
    is_same &= module.config.get(ARITHMETIC) == layer.config.get(ARITHMETIC)
    return module if is_same else layer


def quantized_class(module: nn.Module, name: str, *, where: str) -> type[QuantizedModule]:
    """Return the class of a layer like `module` in the format `name`."""
    form = find_format(name, f"{where}.name")
    base = float_class_of(module)
    if base is None:
        kind = type(module).__name__
        raise ConfigError(
            f"{where}: {kind} has no quantised layer. {suggest(kind.lower(), quantized_layers())}"
        )
    quantized, cls = layer_class(base, form), type(module)
    own = own_class(cls.__bases__[0] if is_parametrized(module) else cls)
    if own is not base:
        quantized = mixed_class(quantized, own)
    if not is_parametrized(module):
        return quantized
    # as torch derives a class with a property for each parametrised tensor
    members = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    return type(f"Parametrized{quantized.__name__}", (quantized,), members)


def own_class(cls: type[nn.Module]) -> type[nn.Module]:
    """Return the float class of a layer, quantised or not."""
    if not issubclass(cls, QuantizedModule):
        return cls
    mixed = getattr(cls, "mixed_class", None)
    return cls.float_class if mixed is None else mixed


def mixed_class(quantized: type[QuantizedModule], own: type[nn.Module]) -> type[QuantizedModule]:
    """Return `quantized` for a subclass of its float layer, with that class's members."""
    return _MIXED(quantized, own)


def _mix(quantized: type[QuantizedModule], own: type[nn.Module]) -> type[QuantizedModule]:
    members = {
        "__module__": own.__module__,
        "__doc__": quantized.__doc__,
        "mixed_class": own,
        **recipe_members(mixed_class, quantized, own),
    }
    return type(f"{own.__name__}{quantized.format.class_suffix}", (quantized, own), members)


_MIXED: Callable[..., type[QuantizedModule]] = functools.cache(_mix)
