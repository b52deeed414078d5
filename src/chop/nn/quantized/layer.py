"""Layers that compute with quantised operands, one class per torch layer and format.

A class is created from the op table and the format registry at first use, so that formats and ops
registered later have layers too. The classes belong to the modules of `chop.nn.quantized.modules`.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chop.ir.ops import OPS, Compute, Op, parameter_role
from chop.ir.reclass import masked, reclassed
from chop.ir.split_formats import with_formats
from chop.ir.split_rule import ParameterCuts, SplitRule, plain_split_rule
from chop.ir.store.packed_tensors import Stored
from chop.nn.quantized.call_operands import (
    DATA_OUT,
    describe,
    is_bypassed,
    layer_quantizers,
    plain_config,
    quantize_arguments,
    quantize_value,
)
from chop.nn.quantized.frozen import forget, is_random, quantize_parameter
from chop.nn.quantized.integer_calls import compute_integers, is_integer, with_gradient_of
from chop.nn.quantized.layer_formats import shared_formats
from chop.nn.quantized.training_step import rounded_together
from chop.nn.quantizers import FORMATS, Quantizer
from chop.nn.quantizers.codes import Floats, Tiles, same_bits, scales_of, tiles_of
from chop.nn.quantizers.stored_scale import with_stored_scale, with_stored_scales

PLACE = "chop.nn.quantized.modules"
"""Package of the layers; those of an op are in the module of its name if there is one."""


def has_layers(op: Op) -> bool:
    """Return True if the op has quantised layers."""
    return op.compute is not None and bool(op.modules)


def quantized_layers() -> tuple[str, ...]:
    """Return the names of ops with quantised layers."""
    return tuple(op.name for op in OPS.values() if has_layers(op))


class QuantizedModule(nn.Module):
    """A torch layer whose inputs and parameters pass through number formats first.

    `config` is the configuration as given, `quantizers` the format of each operand by its role
    (`data_in`, `weight`, `bias`; `data_out` is the result). The parameters are the float layer's:
    they train, and state dicts of both kinds fit both.
    """

    op: ClassVar[Op]
    format: ClassVar[type[Quantizer]]
    float_class: ClassVar[type[nn.Module]]
    mase_leaf: ClassVar[bool] = True

    config: dict[str, Any]
    quantizers: Mapping[str, Quantizer]
    held: list[str] = []  # noqa: RUF012 -- set as a whole, never changed in place
    """Parameters that are used without rounding again, until the layer trains.

    A scale measured on rounded weights could differ from the one they were rounded with.
    """
    cuts: ParameterCuts = {}  # noqa: RUF012 -- set as a whole, never changed in place
    """Parts of rounded parameters that a device computes with."""

    def __init__(self, *args: Any, config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        settings = self.parse(config, type(self).__name__)
        super().__init__(*args, **kwargs)
        self.set_formats(*settings)

    def set_formats(self, config: dict[str, Any], quantizers: Mapping[str, Quantizer]) -> None:
        """Set the result of `parse`."""
        self.config, self.quantizers = config, shared_formats(quantizers)
        self.__dict__.pop("held", None)
        # in place would overwrite a quantised copy: no memory is saved, and compilers may refuse
        if getattr(self, "inplace", False) and not self.is_bypassed:
            self.inplace = False

    @classmethod
    def parse(
        cls, config: Mapping[str, Any] | None, where: str
    ) -> tuple[dict[str, Any], dict[str, Quantizer]]:
        """Return `config` as plain data, and the format of each operand; errors name `where`."""
        plain = plain_config(config, cls.format, where)
        return plain, layer_quantizers(_compute(cls.op), plain, where)

    @property
    def is_bypassed(self) -> bool:
        """True if this layer computes exactly as the float layer."""
        return is_bypassed(self.quantizers.values())

    def quantized_parameters(self) -> tuple[Any, ...]:
        """Return the parameters in their formats, in the order of the kernel's arguments."""
        return _quantized_parameters(self, _compute(self.op))

    def format_of(self, name: str) -> Quantizer:
        """Return the format of the parameter `name`."""
        return self.quantizers[parameter_role(name)]

    def stored_values(self) -> dict[str, Stored]:
        """Return the values of the parameters that have a format."""
        stored = {}
        for name in _compute(self.op).names_of(self):
            form, source = self.format_of(name), operator.attrgetter(name)(self)
            if source is None or form.is_bypass or is_random(form):
                continue
            with torch.no_grad():
                values = _quantized(self, name).detach()
                scale = self._scale_of(name, form, source.detach())
                again = masked(self, name, _quantizer(self, name)(values))
            is_held = not same_bits(again.detach(), values)
            stored[name] = Stored(values, form, scale, is_held)
        return stored

    def _scale_of(self, name: str, form: Quantizer, source: Tensor) -> Floats | Tiles | None:
        scaled = form.scaled
        if scaled is None:
            return tiles_of(form, source) if name not in self.held else None
        role = parameter_role(name)
        if getattr(self, f"{role}_zero_point", None) is not None:
            return None
        stored = getattr(self, f"{role}_scale") if scaled.is_stored else None
        return scales_of(scaled, source, stored)

    def split_rule(self) -> SplitRule | None:
        """Return how this layer is split over devices; None if it must run whole."""
        compute = _compute(self.op)
        if compute.own_names is not None or is_integer(compute, self.config):
            return None
        plain = plain_split_rule(self)
        if plain is None:
            return None
        roles = {f"data_in_{operand.position}": operand.role for operand in compute.inputs}
        roles |= {n: parameter_role(n) for n in compute.parameters if n not in self.held}
        return with_formats(plain, self, {**roles, DATA_OUT: DATA_OUT})

    def for_parts(self, parts: Mapping[str, Tensor], cuts: ParameterCuts) -> QuantizedModule:
        """Return the layer that rounds whole parameters and computes with their `cuts`."""
        if not cuts:
            return self
        part = reclassed(self, type(self))
        part.cuts = dict(cuts)
        return part

    def train(self, mode: bool = True) -> QuantizedModule:
        """Set the mode as `nn.Module.train` does; drop cached quantised weights."""
        forget(self)
        if mode:
            self.__dict__.pop("held", None)
        return super().train(mode)

    def extra_repr(self) -> str:
        formats = ", ".join(f"{role}={q}" for role, q in self.quantizers.items())
        return ", ".join(text for text in (super().extra_repr(), formats) if text)


# A call of a layer goes through functions: torch.compile checks, at every call of a compiled model,
# that no layer has an attribute with the name of a method that it calls.


def _run(
    layer: QuantizedModule, compute: Compute, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if is_bypassed(layer.quantizers.values()):
        return layer.float_class.forward(layer, *args, **kwargs)
    if not is_integer(compute, layer.config):
        return _in_float(layer, compute, args, kwargs)
    values = _in_integers(layer, compute, (*args, *kwargs.values())[0])
    if not torch.is_grad_enabled():
        return values
    return with_gradient_of(values, _in_float(layer, compute, args, kwargs))


def _in_integers(layer: QuantizedModule, compute: Compute, operand: Tensor) -> Tensor:
    """Compute as hardware does; such an op has one operand."""
    own = dict(zip(compute.parameters, _quantized_parameters(layer, compute), strict=True))

    def setting(name: str, default: Any) -> Any:
        return own[name] if name in own else getattr(layer, name, default)

    def float_forward(*args: Any, **kwargs: Any) -> Any:
        return layer.float_class.forward(layer, *args, **kwargs)

    key = (layer.op.name, layer.float_class.extra_repr(layer))
    return compute_integers(compute, layer.quantizers, operand, setting, float_forward, key)


def _in_float(
    layer: QuantizedModule, compute: Compute, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compute in floating point between the formats of the operands and of the result."""
    together = rounded_together(layer, compute, args, kwargs)
    if together is not None and compute.kernel is not None:
        out = with_stored_scale(layer, DATA_OUT, layer.quantizers[DATA_OUT])
        return quantize_value(compute.kernel(layer, *together), out)
    quantizers = with_stored_scales(layer, layer.quantizers)
    inputs, options = quantize_arguments(compute.inputs, quantizers, args, kwargs)
    if compute.kernel is None:
        result = layer.float_class.forward(layer, *inputs, **options)
    else:
        result = compute.kernel(layer, _quantized_parameters(layer, compute), *inputs, **options)
    return quantize_value(result, quantizers[DATA_OUT])


def _quantized_parameters(layer: QuantizedModule, compute: Compute) -> tuple[Any, ...]:
    return tuple(_quantized(layer, name) for name in compute.names_of(layer))


def _quantized(layer: QuantizedModule, name: str) -> Any:
    value = operator.attrgetter(name)(layer)
    if value is None or name in layer.held:
        return value
    rounded = quantize_parameter(layer, name, value, _quantizer(layer, name))
    whole = masked(layer, name, rounded)  # masked again: some formats have no zero
    for cut in layer.cuts.get(name, ()):
        whole = whole.narrow(*cut)
    return whole


def _quantizer(layer: QuantizedModule, name: str) -> Any:
    role = parameter_role(name)
    return with_stored_scale(layer, role, layer.quantizers[role])


def _compute(op: Op) -> Compute:
    assert op.compute is not None, f"op '{op.name}' cannot be quantised"
    return op.compute


def layer_name(base: type[nn.Module], form: type[Quantizer]) -> str:
    """Return the class name: `nn.Linear`, Integer -> `LinearInteger`."""
    return f"{base.__name__}{form.class_suffix}"


_CLASSES: dict[tuple[type[nn.Module], type[Quantizer]], type[QuantizedModule]] = {}


def layer_class(base: type[nn.Module], form: type[Quantizer]) -> type[QuantizedModule]:
    """Return the class of the torch layer `base` in the format `form`."""
    if (base, form) not in _CLASSES:
        _CLASSES[base, form] = _make(base, form)
    return _CLASSES[base, form]


def _make(base: type[nn.Module], form: type[Quantizer]) -> type[QuantizedModule]:
    op = next(op for op in OPS.values() if has_layers(op) and base in op.modules)
    own_module = f"{PLACE}.{op.name}"  # an op from outside has none
    signature = inspect.signature(base)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    compute = _compute(op)
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None)

    @functools.wraps(base.forward)  # tools read the signature
    def forward(self: QuantizedModule, *args: Any, **kwargs: Any) -> Any:
        return _run(self, compute, args, kwargs)

    members = {
        "__module__": own_module if importlib.util.find_spec(own_module) is not None else PLACE,
        "__doc__": describe(f"nn.{base.__name__}", form, compute.layer_roles),
        "__signature__": signature.replace(parameters=[*named, config]),
        "op": op,
        "float_class": base,
        "format": form,
        "forward": forward,
    }
    return type(layer_name(base, form), (QuantizedModule, base), members)


def find_layer_class(name: str, ops: Iterable[Op]) -> type[QuantizedModule] | None:
    """Return the layer called `name` (`LinearInteger`) of one of `ops`, else None."""
    for form in FORMATS.values():
        base_name = name.removesuffix(form.class_suffix)
        for base in (base for op in ops if has_layers(op) for base in op.modules):
            if base.__name__ == base_name and layer_name(base, form) == name:
                return layer_class(base, form)
    return None


def layers_of(place: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of the module `place`, whose last name is the op's."""
    op = OPS[place.rpartition(".")[2]]

    def get_layer(name: str) -> Any:
        layer = find_layer_class(name, (op,))
        if layer is None:
            raise AttributeError(f"module '{place}' has no attribute '{name}'")
        return layer

    def list_layers() -> list[str]:
        return [layer_name(base, form) for base in op.modules for form in FORMATS.values()]

    return get_layer, list_layers
