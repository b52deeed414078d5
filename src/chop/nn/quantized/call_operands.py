"""Formats of an op's operands from a config, and their application to a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from chop.arguments import MAPPING, NONE, check
from chop.errors import ConfigError
from chop.ir.ops import Compute, Operand
from chop.nn.quantized.integer_calls import DATA_OUT as DATA_OUT
from chop.nn.quantized.integer_calls import check_integers
from chop.nn.quantizers import Quantizer, operand_quantizers
from chop.nn.quantizers.operands import NO_FORMAT, SPELLED, plain_names


def is_unquantized(config: Mapping[str, Any] | None) -> bool:
    """Return True if `config` names no format: the op stays as it is."""
    return not config or config.get("name", config.get(SPELLED)) in NO_FORMAT


def layer_quantizers(
    compute: Compute, config: Mapping[str, Any], where: str
) -> dict[str, Quantizer]:
    """Return the format of each input and parameter of a layer, and of its result."""
    quantizers = operand_quantizers(config, (*compute.layer_roles, DATA_OUT), where)
    check_integers(compute, config, quantizers, where)
    return quantizers


def function_quantizers(
    compute: Compute, config: Mapping[str, Any], where: str
) -> dict[str, Quantizer]:
    """Return the format of each operand of a function, and of its result."""
    sources = {o.role: role_in(o, config) for o in compute.operands} | {DATA_OUT: DATA_OUT}
    by_source = operand_quantizers(config, tuple(dict.fromkeys(sources.values())), where)
    quantizers = {role: by_source[source] for role, source in sources.items()}
    check_integers(compute, config, quantizers, where)
    return quantizers


def role_in(operand: Operand, config: Mapping[str, Any]) -> str:
    """Return the role of an operand: a product's second is `weight` if the config has one."""
    prefer = operand.prefer
    has = prefer is not None and any(key.startswith(f"{prefer}_") for key in config)
    return prefer if has and prefer is not None else operand.role


def is_bypassed(quantizers: Iterable[Quantizer]) -> bool:
    """Return True if no operand changes."""
    return all(q.is_bypass for q in quantizers)


def quantize_arguments(
    operands: Iterable[Operand],
    quantizers: Mapping[str, Quantizer],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """Quantise the operands of a call; a tensor that occurs twice is quantised once."""
    positional, named = list(args), dict(kwargs)
    results: list[tuple[Any, Quantizer, Any]] = []
    for operand in operands:
        place: Any = positional if operand.position < len(positional) else named
        key: Any = operand.position if place is positional else operand.argument
        if place is named and key not in named:
            continue
        value, quantizer = place[key], quantizers[operand.role]
        earlier = [y for x, form, y in results if x is value and form == quantizer]
        place[key] = earlier[0] if earlier else quantize_value(value, quantizer)
        results.append((value, quantizer, place[key]))
    return positional, named


def quantize_value(value: Any, quantizer: Quantizer) -> Any:
    """Quantise a floating-point tensor, or the first of a tuple; return other values unchanged."""
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


def describe(target: str, form: type[Quantizer], roles: Iterable[str]) -> str:
    """Return the docstring of a generated layer or function."""
    summary, keys = (form.__doc__ or "").strip().splitlines()[0], ", ".join(f"`{r}`" for r in roles)
    return (
        f"`{target}` in the format `{form.name}`: {summary}\n\n"
        f"Takes the arguments of `{target}` and `config`, whose keys are an operand "
        f"({keys}; `{DATA_OUT}` for the result) joined to a setting of the format."
    )
