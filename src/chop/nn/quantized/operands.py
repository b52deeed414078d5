"""The formats of an op's operands from a config, and their use in a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from chop.arguments import MAPPING, NONE, check
from chop.errors import ConfigError
from chop.ir.ops import Compute, Operand
from chop.nn.quantized.integer import DATA_OUT as DATA_OUT
from chop.nn.quantized.integer import check_integers
from chop.nn.quantizers import Quantizer, operand_quantizers
from chop.nn.quantizers.operands import NO_FORMAT, SPELLED, plain_names


def is_unquantized(config: Mapping[str, Any] | None) -> bool:
    """Return True if `config` names no format: the op stays as it is."""
    return not config or config.get("name", config.get(SPELLED)) in NO_FORMAT


def layer_quantizers(
    compute: Compute, config: Mapping[str, Any], where: str
) -> dict[str, Quantizer]:
    """The format of each input and parameter of a layer, and of its result."""
    found = operand_quantizers(config, (*compute.layer_roles, DATA_OUT), where)
    check_integers(compute, config, found, where)
    return found


def function_quantizers(
    compute: Compute, config: Mapping[str, Any], where: str
) -> dict[str, Quantizer]:
    """The format of each operand of a function, and of its result."""
    source = {o.role: role_in(o, config) for o in compute.operands}
    found = operand_quantizers(config, (*dict.fromkeys(source.values()), DATA_OUT), where)
    made = {role: found[source[role]] for role in source} | {DATA_OUT: found[DATA_OUT]}
    check_integers(compute, config, made, where)
    return made


def role_in(operand: Operand, config: Mapping[str, Any]) -> str:
    """A product's second operand is its `weight` where the config has settings for one."""
    prefer = operand.prefer
    has = prefer is not None and any(key.startswith(f"{prefer}_") for key in config)
    return prefer if has and prefer is not None else operand.role


def is_bypassed(quantizers: Iterable[Quantizer]) -> bool:
    """Whether no operand changes."""
    return all(q.is_bypass for q in quantizers)


def quantize_arguments(
    operands: Iterable[Operand],
    quantizers: Mapping[str, Quantizer],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments with its operands quantised; a tensor given twice is quantised once."""
    positional, named = list(args), dict(kwargs)
    done: list[tuple[Any, Quantizer, Any]] = []
    for operand in operands:
        place: Any = positional if operand.position < len(positional) else named
        key: Any = operand.position if place is positional else operand.argument
        if place is positional or key in named:
            place[key] = _once(place[key], quantizers[operand.role], done)
    return positional, named


def _once(value: Any, quantizer: Quantizer, done: list[tuple[Any, Quantizer, Any]]) -> Any:
    for given, by, result in done:
        if given is value and by == quantizer:
            return result
    result = quantize_value(value, quantizer)
    done.append((value, quantizer, result))
    return result


def quantize_value(value: Any, quantizer: Quantizer) -> Any:
    """A floating-point tensor quantised; a tuple's first; anything else as it is."""
    if isinstance(value, tuple) and value:
        return (quantize_value(value[0], quantizer), *value[1:])
    is_operand = isinstance(value, Tensor) and value.is_floating_point()
    return quantizer(value) if is_operand else value


def plain_config(
    config: Mapping[str, Any] | None, form: type[Quantizer], where: str
) -> dict[str, Any]:
    """Return a copy of `config` that is plain data and names the format `form`."""
    check("config", MAPPING | NONE, config)
    copied = {key: _plain(value) for key, value in plain_names(config or {}, where).items()}
    name = copied.setdefault("name", form.name)
    if name not in (form.name, *form.aliases):
        raise ConfigError(f"{where}.name: expected '{form.name}', got {name!r}.")
    return copied


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
