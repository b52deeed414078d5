"""Formats of a layer's operands from one config with keys `<operand>_<setting>`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from chop.arguments import MAPPING, NONE, check
from chop.config import NONE_SPELLINGS, convert
from chop.errors import ConfigError
from chop.log import warn_once
from chop.nn.quantizers.bypass import Bypass
from chop.nn.quantizers.formats import find_format, make_quantizer, spelled_settings
from chop.nn.quantizers.quantizer import FORMATS, Quantizer
from chop.registry import suggest

OPERANDS = ("data_in", "weight", "bias", "data_out")
"""Operands that any config may have settings for, numbered ones too."""
STAND_INS = {"bias": "weight", "data_in": "data_in_0"}
"""Operand whose settings another one uses by default; `data_in_1` uses those of `data_in`."""
EVERY_OPERAND = ("data_in", "weight")
"""Operands that together provide the default settings of all inputs and parameters."""
SPELLED = "format"
"""Another key for `name`, for configs that spell the whole format in it."""
NO_FORMAT = (None, *NONE_SPELLINGS)
OWN_NAME = "name"
FOR_ALL = {
    "floor": ("rounding", {True: "floor"}),
    "stochastic": ("stochastic", {}),
    "bipolar": ("bipolar", {}),
}
"""Keys for all operands: the setting, and its value for each value of the key."""
ARITHMETIC = "arithmetic"
ARITHMETICS = ("float", "integer")
"""Arithmetic of an op between the formats of its operands and its result."""
WITHOUT_EFFECT = (
    "additional_layers_inputs",
    "additional_layers_outputs",
    "binary_training",
    "cache_quantized_weight",
)
"""Keys in configs of DeepWok/mase that no format here needs."""


def plain_names(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a copy of `config` whose `name` is a registered name.

    `format` is another key for `name`. The settings of a spelling such as "mxint4" become those of
    the inputs and the weight, and so of all operands but the output. Settings in `config` stay.

    >>> plain_names({"name": "mxint4", "weight_width": 8}, "here")
    {'name': 'mxint', 'data_in_width': 4, 'weight_width': 8}
    """
    plain = dict(config)
    if SPELLED in plain:
        if "name" in plain:
            raise ConfigError(f"{where}: keys 'name' and '{SPELLED}' both name the format.")
        plain = {"name": plain.pop(SPELLED), **plain}
    name = plain.get("name")
    if name in NO_FORMAT or (isinstance(name, str) and name in FORMATS):
        return plain
    form, settings = spelled_settings(name, f"{where}.name")
    spelled = {f"{role}_{k}": v for role in EVERY_OPERAND for k, v in settings.items()}
    return {"name": form.name, **spelled, **{k: v for k, v in plain.items() if k != "name"}}


def operand_quantizers(
    config: Mapping[str, Any] | None, roles: Sequence[str], where: str
) -> dict[str, Quantizer]:
    """Return the format of each operand in `roles`.

    An operand without settings uses those of its stand-in (`STAND_INS`). Otherwise an output stays
    unchanged, and any other operand has the format's defaults. Settings of operands not in `roles`
    are checked only, so that one config serves layers with and without a bias. A width, an element
    or a name (`data_in_name`) of "NA" leaves its operand unquantised. Keys of `FOR_ALL` apply to
    every operand; `arithmetic` applies to the op.

    >>> config = {"name": "integer", "data_in_width": 8, "weight_width": 4}
    >>> {k: q.bits for k, q in operand_quantizers(config, ("data_in", "bias"), "here").items()}
    {'data_in': 8.0, 'bias': 4.0}
    """
    check(where, MAPPING | NONE, config)
    settings = {} if config is None else plain_names(config, where)
    name = settings.pop("name", None)
    bypass = convert(settings.pop("bypass", False), bool, f"{where}.bypass")
    _check_arithmetic(settings.pop(ARITHMETIC, ARITHMETICS[0]), name, where)
    if bypass or name in NO_FORMAT:
        return dict.fromkeys(roles, Bypass())
    fields = [*_own_fields(name, where), *find_format(name, f"{where}.name").legacy]
    common = _common_settings(settings, fields, where)
    by_operand = _by_operand(settings, fields, roles, where)
    own = {role: _make(name, role, {**common, **keys}, where) for role, keys in by_operand.items()}
    quantizers = {}
    for role in roles:
        unnumbered = re.sub(r"_\d+$", "", role)
        source = next((r for r in (role, unnumbered, STAND_INS.get(unnumbered)) if r in own), None)
        if source is not None:
            quantizers[role] = own[source]
        elif role.startswith("data_out"):
            quantizers[role] = Bypass()
        else:
            quantizers[role] = _make(name, role, common, where)
    return {role: _shared(quantizer) for role, quantizer in quantizers.items()}


@functools.cache
def _shared(quantizer: Quantizer) -> Quantizer:
    """Return one object for all formats that are equal.

    torch.compile checks the attributes of every object at every call. Layers that share their
    formats cost one check each: 24 layers were looked up in a third of the time.
    """
    return quantizer


def _check_arithmetic(value: Any, name: Any, where: str) -> None:
    if value not in ARITHMETICS:
        listed = ", ".join(repr(each) for each in ARITHMETICS)
        raise ConfigError(f"{where}.{ARITHMETIC}: {value!r} is not allowed. Allowed: {listed}.")
    is_fixed = name in NO_FORMAT or find_format(name, f"{where}.name").name == "integer"
    if value == "integer" and not is_fixed:
        raise ConfigError(
            f"{where}.{ARITHMETIC}: 'integer' needs the format 'integer', got {name!r}."
        )


def _own_fields(name: str, where: str) -> list[str]:
    return [f.name for f in dataclasses.fields(find_format(name, f"{where}.name"))]


def _common_settings(settings: dict[str, Any], fields: Sequence[str], where: str) -> dict[str, Any]:
    """Remove the keys without an operand from `settings` and return them as common settings."""
    for key in WITHOUT_EFFECT:
        if settings.pop(key, None) is not None:
            warn_once(__name__, f"{where}.{key}: has no effect.")
    common = {}
    for key, (field, values) in FOR_ALL.items():
        if key not in settings:
            continue
        value = settings.pop(key)  # older configs have 0 and 1
        is_on = convert(bool(value) if value in (0, 1) else value, bool, f"{where}.{key}")
        if field not in fields:
            warn_once(__name__, f"{where}.{key}: this format has no {field}; it has no effect.")
        elif not values or is_on in values:
            common[field] = values.get(is_on, is_on)
    return common


def _by_operand(
    settings: Mapping[str, Any], fields: Sequence[str], roles: Sequence[str], where: str
) -> dict[str, dict[str, Any]]:
    """Group settings: `{"weight_width": 8}` -> `{"weight": {"width": 8}}`."""
    grouped: dict[str, dict[str, Any]] = {}
    names = "|".join(sorted({*roles, *OPERANDS}, key=len, reverse=True))
    for key, value in settings.items():
        match = re.fullmatch(rf"((?:{names})(?:_\d+)?)_(\w+)", key)
        if match is None or match[2] not in (*fields, OWN_NAME):
            allowed = [f"{role}_{field}" for role in roles for field in fields]
            raise ConfigError(f"{where}: unknown key '{key}'. {suggest(key, allowed)}")
        grouped.setdefault(match[1], {})[match[2]] = value
    return grouped


def _make(name: str, role: str, keys: Mapping[str, Any], where: str) -> Quantizer:
    own_name = keys.get(OWN_NAME)
    if OWN_NAME in keys and own_name not in NO_FORMAT:
        raise ConfigError(
            f"{where}.{role}_name: {own_name!r} is not allowed. Allowed: 'NA'. The operands of a "
            "layer have one format."
        )
    marks = {"width", "element"} & {*_own_fields(name, where)}  # "NA" leaves the operand unchanged
    if OWN_NAME in keys or any(keys.get(key, 0) in NO_FORMAT for key in marks):
        return Bypass()
    try:
        return make_quantizer(name, keys, where)
    except ConfigError as error:  # the format's `width` is the user's `weight_width`
        pattern = rf"^{re.escape(where)}(\.|: key '|: )"
        raise ConfigError(re.sub(pattern, rf"\g<0>{role}_", str(error))) from error
