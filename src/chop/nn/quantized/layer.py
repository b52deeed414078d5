"""Layers that compute with quantised operands, one class for each torch layer and format.

A class is made from the op table and the registry of formats when it is first asked for, so that a
format or an op that is registered later has its layers too; the files of
`chop.nn.quantized.modules` give them their places.
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
from chop.ir.reclass import masked
from chop.ir.store.packed_tensors import Stored
from chop.nn.quantized.frozen import forget, is_random, quantize_parameter
from chop.nn.quantized.integer import compute_integers, is_integer, with_gradient_of
from chop.nn.quantized.operands import (
    DATA_OUT,
    is_bypassed,
    layer_quantizers,
    plain_config,
    quantize_arguments,
    quantize_value,
)
from chop.nn.quantizers import FORMATS, Quantizer
from chop.nn.quantizers.codes import Floats, same_bits, scales_of
from chop.nn.quantizers.stored_scale import with_stored_scale, with_stored_scales

PLACE = "chop.nn.quantized.modules"
"""The package of the layers; those of an op are in the module of its name, where there is one."""


def has_layers(op: Op) -> bool:
    """Whether the op has quantised layers."""
    return op.compute is not None and bool(op.modules)


def quantized_layers() -> tuple[str, ...]:
    """The ops that have quantised layers."""
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
    quantizers: dict[str, Quantizer]
    held: list[str] = []  # noqa: RUF012 -- set as a whole, never changed in place
    """Parameters that are values of their format as they are, until the layer trains.

    A format that measures its scale on the weights would measure another on rounded ones.
    """

    def __init__(self, *args: Any, config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        settings = self.parse(config, type(self).__name__)
        super().__init__(*args, **kwargs)
        self.set_formats(*settings)

    def set_formats(self, config: dict[str, Any], quantizers: dict[str, Quantizer]) -> None:
        """Take what `parse` gave.

        What would be overwritten in place is the quantised input, a value of the layer's own:
        nothing is saved by it, and a compiler may refuse.
        """
        self.config, self.quantizers = config, quantizers
        self.__dict__.pop("held", None)
        if getattr(self, "inplace", False) and not self.is_bypassed:
            self.inplace = False

    @classmethod
    def parse(
        cls, config: Mapping[str, Any] | None, where: str
    ) -> tuple[dict[str, Any], dict[str, Quantizer]]:
        """`config` as plain data, and the format of each operand; errors carry the path `where`."""
        plain = plain_config(config, cls.format, where)
        return plain, layer_quantizers(_compute(cls.op), plain, where)

    @property
    def is_bypassed(self) -> bool:
        """Whether this layer computes exactly as the float layer."""
        return is_bypassed(self.quantizers.values())

    def quantized_parameters(self) -> tuple[Any, ...]:
        """The layer's parameters in their formats, in the order its kernel takes them."""
        return tuple(self._quantized(name) for name in _compute(self.op).parameters)

    def _quantized(self, name: str) -> Any:
        value = operator.attrgetter(name)(self)
        if value is None or name in self.held:
            return value
        role = parameter_role(name)
        quantizer = with_stored_scale(self, role, self.quantizers[role])
        # again masked: some formats have no zero
        return masked(self, name, quantize_parameter(self, name, value, quantizer))

    def format_of(self, name: str) -> Quantizer:
        """The format of the parameter `name`."""
        return self.quantizers[parameter_role(name)]

    def stored_values(self) -> dict[str, Stored]:
        """The parameters that have a format, as the layer computes with them."""
        found = {}
        for name in _compute(self.op).parameters:
            form, source = self.format_of(name), operator.attrgetter(name)(self)
            if source is None or form.is_bypass or is_random(form):
                continue
            with torch.no_grad():
                values = self._quantized(name).detach()
                scale = self._scale_of(name, form, source.detach())
                again = masked(self, name, self._formatted(name, values))
            is_held = not same_bits(again.detach(), values)
            found[name] = Stored(values, form, scale, is_held)
        return found

    def _formatted(self, name: str, values: Tensor) -> Tensor:
        role = parameter_role(name)
        made: Tensor = with_stored_scale(self, role, self.quantizers[role])(values)
        return made

    def _scale_of(self, name: str, form: Quantizer, source: Tensor) -> Floats | None:
        scaled = form.scaled
        if scaled is None:
            return None
        role = parameter_role(name)
        if getattr(self, f"{role}_zero_point", None) is not None:
            return None
        stored = getattr(self, f"{role}_scale") if scaled.is_stored else None
        return scales_of(scaled, source, stored)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.is_bypassed:
            return super().forward(*args, **kwargs)
        compute = _compute(self.op)
        if not is_integer(compute, self.config):
            return self._in_float(args, kwargs)
        values = self._in_integers(compute, (*args, *kwargs.values())[0])
        is_trained = torch.is_grad_enabled()
        return with_gradient_of(values, self._in_float(args, kwargs)) if is_trained else values

    def _in_integers(self, compute: Compute, operand: Tensor) -> Tensor:
        """As hardware computes; such an op has one operand."""
        own = dict(zip(compute.parameters, self.quantized_parameters(), strict=True))
        float_forward = super().forward

        def setting(name: str, default: Any) -> Any:
            return own[name] if name in own else getattr(self, name, default)

        key = (self.op.name, self.float_class.extra_repr(self))
        return compute_integers(compute, self.quantizers, operand, setting, float_forward, key)

    def _in_float(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In floating point, between the formats of the operands and of the result."""
        compute = _compute(self.op)
        quantizers = with_stored_scales(self, self.quantizers)
        inputs, options = quantize_arguments(compute.inputs, quantizers, args, kwargs)
        if compute.kernel is None:
            result = super().forward(*inputs, **options)
        else:
            result = compute.kernel(self, self.quantized_parameters(), *inputs, **options)
        return quantize_value(result, quantizers[DATA_OUT])

    def train(self, mode: bool = True) -> QuantizedModule:
        """As `nn.Module.train`; quantised weights are made anew after it."""
        forget(self)
        if mode:
            self.__dict__.pop("held", None)
        return super().train(mode)

    def extra_repr(self) -> str:
        formats = ", ".join(f"{role}={q}" for role, q in self.quantizers.items())
        return ", ".join(text for text in (super().extra_repr(), formats) if text)


def _compute(op: Op) -> Compute:
    assert op.compute is not None, f"op '{op.name}' cannot be quantised"
    return op.compute


def layer_name(base: type[nn.Module], form: type[Quantizer]) -> str:
    """`nn.Linear`, Integer -> `LinearInteger`."""
    return f"{base.__name__}{form.class_suffix}"


_MADE: dict[tuple[type[nn.Module], type[Quantizer]], type[QuantizedModule]] = {}


def layer_class(base: type[nn.Module], form: type[Quantizer]) -> type[QuantizedModule]:
    """The class of the torch layer `base` in the format `form`."""
    if (base, form) not in _MADE:
        _MADE[base, form] = _make(base, form)
    return _MADE[base, form]


def _make(base: type[nn.Module], form: type[Quantizer]) -> type[QuantizedModule]:
    op = next(op for op in OPS.values() if has_layers(op) and base in op.modules)
    members = {
        "__module__": _place(op),
        "__doc__": _describe(op, base, form),
        "__signature__": _with_config(base),
        "op": op,
        "float_class": base,
        "format": form,
        "forward": _forward_of(base),
    }
    return type(layer_name(base, form), (QuantizedModule, base), members)


def _place(op: Op) -> str:
    """The module that answers for the layers of `op`; an op from outside has none of its own."""
    own = f"{PLACE}.{op.name}"
    return own if importlib.util.find_spec(own) is not None else PLACE


def find_layer_class(name: str, ops: Iterable[Op]) -> type[QuantizedModule] | None:
    """The layer called `name` (`LinearInteger`) of one of `ops`; None where there is none."""
    for form in FORMATS.values():
        wanted = name.removesuffix(form.class_suffix)
        for base in (base for op in ops if has_layers(op) for base in op.modules):
            if base.__name__ == wanted and layer_name(base, form) == name:
                return layer_class(base, form)
    return None


def layers_of(place: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the module `place`, whose last name is the op's."""
    op = OPS[place.rpartition(".")[2]]

    def answer(name: str) -> Any:
        found = find_layer_class(name, (op,))
        if found is None:
            raise AttributeError(f"module '{place}' has no attribute '{name}'")
        return found

    def listed() -> list[str]:
        return [layer_name(base, form) for base in op.modules for form in FORMATS.values()]

    return answer, listed


def _forward_of(base: type[nn.Module]) -> Callable[..., Any]:
    """A forward with the signature of the float layer's, for tools that read it."""

    @functools.wraps(base.forward)
    def forward(self: QuantizedModule, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs)

    return forward


def _with_config(base: type[nn.Module]) -> inspect.Signature:
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None)
    own = inspect.signature(base)
    named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    return own.replace(parameters=[*named, config])


def _describe(op: Op, base: type[nn.Module], form: type[Quantizer]) -> str:
    roles = ", ".join(f"`{role}`" for role in _compute(op).layer_roles)
    summary = (form.__doc__ or "").strip().splitlines()[0]
    return (
        f"`nn.{base.__name__}` in the format `{form.name}`: {summary}\n\n"
        f"Takes the arguments of `nn.{base.__name__}` and `config`, whose keys are an operand "
        f"({roles}; `{DATA_OUT}` for the result) joined to a setting of the format."
    )
