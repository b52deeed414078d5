"""One config for a layer -> one format per operand: keys are `<operand>_<setting>`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from chop.arguments import MAPPING, NONE, check
from chop.config import NONE_SPELLINGS, convert
from chop.errors import ConfigError
from chop.log import warn_once
from chop.nn.quantizers.base import FORMATS, Quantizer
from chop.nn.quantizers.bypass import Bypass
from chop.nn.quantizers.formats import find_format, make_quantizer, spelled_settings
from chop.registry import suggest

OPERANDS = ("data_in", "weight", "bias", "data_out")
"""Operands that any config may speak of, whether the layer has them or not; numbered ones too."""

STAND_INS = {"bias": "weight", "data_in": "data_in_0"}
"""Whose settings an operand takes when it has none; a numbered operand takes the unnumbered's."""

EVERY_OPERAND = ("data_in", "weight")
"""Operands whose settings all others but an output take where they have none."""

SPELLED = "format"
"""Another key for `name`, for configs that give the whole format in it."""

NO_FORMAT = (None, *NONE_SPELLINGS)
OWN_NAME = "name"

FOR_ALL = {
    "floor": ("rounding", {True: "floor"}),
    "stochastic": ("stochastic", {}),
    "bipolar": ("bipolar", {}),
}
"""Keys without an operand: the setting of every operand they stand for, and its value by theirs."""

ARITHMETIC = "arithmetic"
ARITHMETICS = ("float", "integer")
"""How an op computes between the formats of its operands and its result."""

WITHOUT_EFFECT = (
    "additional_layers_inputs",
    "additional_layers_outputs",
    "binary_training",
    "cache_quantized_weight",
)
"""Keys without an operand that configs of DeepWok/mase have and no format here needs."""


def plain_names(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a copy of `config` whose `name` is a registered name.

    `format` is another key for `name`. The settings that a spelling such as "mxint4" has become
    those of the inputs and the weight, and so of every operand that stands in for them; a setting
    that `config` has itself stays. An output without settings stays as it is.

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
    """The format of each operand in `roles`.

    An operand without settings takes those of its stand-in (`STAND_INS`). Of those left, an output
    passes unchanged; any other takes the format's defaults, or a required key is missing. Settings
    of operands that are not in `roles` are checked and otherwise unused, so that one config serves
    layers with and without a bias. A width, an element or, in every format, a name of "NA"
    (`data_in_name`) leaves its operand unquantised; keys of `FOR_ALL` name no operand and speak of
    every one. `arithmetic` says how the op computes and is no operand's.

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
    fields = _format_fields(name, where)
    common = _common_settings(settings, fields, where)
    given = _by_operand(settings, fields, roles, where)
    made = {role: _make(name, role, {**common, **keys}, where) for role, keys in given.items()}
    return {role: _for_role(name, role, made, common, where) for role in roles}


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


def _format_fields(name: str, where: str) -> list[str]:
    return [*_own_fields(name, where), *find_format(name, f"{where}.name").legacy]


def _common_settings(settings: dict[str, Any], fields: Sequence[str], where: str) -> dict[str, Any]:
    """Take from `settings` the keys that name no operand, as settings of every operand."""
    for key in WITHOUT_EFFECT:
        if settings.pop(key, None) is not None:
            warn_once(__name__, f"{where}.{key}: has no effect.")
    common = {}
    for key, (field, values) in FOR_ALL.items():
        if key not in settings:
            continue
        is_on = convert(_switch(settings.pop(key)), bool, f"{where}.{key}")
        if field not in fields:
            warn_once(__name__, f"{where}.{key}: this format has no {field}; it has no effect.")
        elif not values or is_on in values:
            common[field] = values.get(is_on, is_on)
    return common


def _switch(value: Any) -> Any:
    return bool(value) if value in (0, 1) else value  # as older configs write true and false


def _by_operand(
    settings: Mapping[str, Any], fields: Sequence[str], roles: Sequence[str], where: str
) -> dict[str, dict[str, Any]]:
    """`{"weight_width": 8}` -> `{"weight": {"width": 8}}`."""
    found: dict[str, dict[str, Any]] = {}
    names = "|".join(sorted({*roles, *OPERANDS}, key=len, reverse=True))
    for key, value in settings.items():
        match = re.fullmatch(rf"((?:{names})(?:_\d+)?)_(\w+)", key)
        if match is None or match[2] not in (*fields, OWN_NAME):
            known = [f"{role}_{field}" for role in roles for field in fields]
            raise ConfigError(f"{where}: unknown key '{key}'. {suggest(key, known)}")
        found.setdefault(match[1], {})[match[2]] = value
    return found


def _make(name: str, role: str, keys: Mapping[str, Any], where: str) -> Quantizer:
    own = _own_fields(name, where)
    if OWN_NAME in keys:
        return _unquantized(keys[OWN_NAME], role, where)
    if any(keys.get(key, 0) in NO_FORMAT for key in ("width", "element") if key in own):
        return Bypass()  # a width or an element of "NA" leaves the operand as it is
    try:
        return make_quantizer(name, keys, where)
    except ConfigError as error:
        raise ConfigError(_with_operand(str(error), where, role)) from error


def _unquantized(name: Any, role: str, where: str) -> Quantizer:
    """What `data_in_name` may say: that the operand has no format."""
    if name not in NO_FORMAT:
        raise ConfigError(
            f"{where}.{role}_name: {name!r} is not allowed. Allowed: 'NA'. The operands of a layer "
            "have one format."
        )
    return Bypass()


def _with_operand(message: str, where: str, role: str) -> str:
    """The message in the user's terms: the format's `width` is their `weight_width`."""
    return re.sub(rf"^{re.escape(where)}(\.|: key '|: )", rf"\g<0>{role}_", message)


def _for_role(
    name: str,
    role: str,
    made: Mapping[str, Quantizer],
    common: Mapping[str, Any],
    where: str,
) -> Quantizer:
    for source in _sources(role):
        if source in made:
            return made[source]
    return Bypass() if role.startswith("data_out") else _make(name, role, common, where)


def _sources(role: str) -> list[str]:
    """The operand itself, then its stand-ins in turn."""
    unnumbered = re.sub(r"_\d+$", "", role)
    listed = [role, unnumbered, STAND_INS.get(unnumbered)]
    return [source for source in dict.fromkeys(listed) if source is not None]
