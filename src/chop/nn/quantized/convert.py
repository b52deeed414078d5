"""Float layer -> quantised layer."""

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
from chop.nn.quantized.layer import QuantizedModule, has_layers, layer_class, quantized_layers
from chop.nn.quantized.operands import is_unquantized
from chop.nn.quantizers.formats import find_format
from chop.nn.quantizers.operands import ARITHMETIC, plain_names
from chop.registry import suggest


def float_class_of(module: nn.Module) -> type[nn.Module] | None:
    """The torch layer that `module` computes as; None where it has no quantised layer.

    A subclass counts as its torch layer unless it has a forward of its own, or is still to be
    initialised by its first call.
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
    """`module` as a layer that computes in the format of `config`.

    It shares the parameters, buffers and hooks, and keeps device, mode, masks and
    parametrisations, because it is the whole module with another class. A layer that is quantised
    already changes its format.
    """
    if is_unquantized(config):
        raise ConfigError(f"{where}: key 'name' is missing: it names the number format.")
    config = plain_names(config, where)
    cls = quantized_class(module, config["name"], where=where)
    settings = cls.parse(config, where)
    made = reclassed(module, cls)
    made.set_formats(*settings)
    return made


def to_format(module: nn.Module, config: Mapping[str, Any], *, where: str) -> QuantizedModule:
    """`module` itself where it computes in the format of `config` already, else as such a layer."""
    made = from_float(module, config, where=where)
    if isinstance(module, QuantizedModule) and type(module) is type(made):
        is_same = module.quantizers == made.quantizers
        is_same &= module.config.get(ARITHMETIC) == made.config.get(ARITHMETIC)
        return module if is_same else made
    return made


def quantized_class(module: nn.Module, name: str, *, where: str) -> type[QuantizedModule]:
    """The class of a layer like `module` in the format `name`."""
    form = find_format(name, f"{where}.name")
    base = float_class_of(module)
    if base is None:
        kind = type(module).__name__
        raise ConfigError(
            f"{where}: {kind} has no quantised layer. {suggest(kind.lower(), quantized_layers())}"
        )
    made, own = layer_class(base, form), type(module)
    if is_parametrized(module):
        return _parametrized(_derived(made, own.__bases__[0]), own)
    return _derived(made, own)


def _derived(made: type[QuantizedModule], cls: type[nn.Module]) -> type[QuantizedModule]:
    """`made` for a layer of class `cls`, which may be a subclass of the torch layer."""
    own = own_class(cls)
    return made if own is made.float_class else mixed_class(made, own)


def _parametrized(made: type[QuantizedModule], own: type[nn.Module]) -> type[QuantizedModule]:
    """`made` with the properties that parametrisation gave the class `own`, as torch derives it."""
    members = {k: v for k, v in vars(own).items() if k not in ("__dict__", "__weakref__")}
    return type(f"Parametrized{made.__name__}", (made,), members)


def own_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The float class of a layer, whether it is quantised or not."""
    if not issubclass(cls, QuantizedModule):
        return cls
    mixed = getattr(cls, "mixed_class", None)
    return cls.float_class if mixed is None else mixed


def mixed_class(made: type[QuantizedModule], own: type[nn.Module]) -> type[QuantizedModule]:
    """`made` for a subclass of its float layer, whose properties and methods it keeps."""
    return _MIXED(made, own)


def _mix(made: type[QuantizedModule], own: type[nn.Module]) -> type[QuantizedModule]:
    members = {
        "__module__": own.__module__,
        "__doc__": made.__doc__,
        "mixed_class": own,
        **recipe_members(mixed_class, made, own),
    }
    return type(f"{own.__name__}{made.format.class_suffix}", (made, own), members)


_MIXED: Callable[..., type[QuantizedModule]] = functools.cache(_mix)
