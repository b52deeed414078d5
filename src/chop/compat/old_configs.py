"""Quantise configs as DeepWok/mase writes them, in the form that `QuantizeArgs` has.

Three layouts are read beside our own: a whole file with the table `[passes.quantize]`; rules whose
settings stand beside their `name` and may be nested by module (`[model_layer_0.self_attn.q_proj]`);
and the oldest, with tables `[module_classes_to_modify.linear]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chop.ir.ops import OPS
from chop.log import warn_once
from chop.nn.quantizers import FORMATS

OLD_FORMATS = {
    "minifloat_simple": ("minifloat_denorm", None),
    "logicnets": ("integer", "inputs and outputs are quantised, and no lookup tables are made"),
}
"""Names of formats that are called otherwise here, and what differs."""

OLD_OPS = {"avgpool2d": "avg_pool2d", "adaptiveavgpool2d": "adaptive_avg_pool2d"}
"""Names of ops that are called otherwise here."""

FORMATS.check((new for new, _ in OLD_FORMATS.values()), "old_configs.OLD_FORMATS")
OPS.check(OLD_OPS.values(), "old_configs.OLD_OPS")

BY_CLASS = (
    "module_classes_to_modify",
    "function_classes_to_modify",
    "method_classes_to_modify",
)
"""Tables of the oldest layout, each from the name of an op to its settings."""

LAYER = re.compile(r"model_layer(?:_(\d+))?")
"""How nested rules call a block of a transformer: one, by its number, or every one."""

FUNCTION = re.compile(r"(?:matmul|bmm|add|mul)_\d+")
"""How nested rules call a function of a block, which has no name of its own here."""


def modern_quantize_args(given: Any) -> Any:
    """`given` in our own layout, as a new mapping; other values are left for others to refuse.

    >>> modern_quantize_args({"passes": {"quantize": {"linear": {"name": "mxint"}}}})
    {'linear': {'config': {'name': 'mxint'}}, 'by': ['name', 'type']}
    """
    if not isinstance(given, Mapping):
        return given
    passes = given.get("passes")
    if isinstance(passes, Mapping):
        return modern_quantize_args(passes.get("quantize", {}))
    if any(key in given for key in BY_CLASS):
        return _from_classes(given)
    return _from_rules(given)


def _from_classes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The oldest layout: `name = "default"` stands for the settings of `[default]`."""
    default = given.get("default", {})
    made: dict[str, Any] = {"by": "type"}
    for table in BY_CLASS:
        for key, settings in given.get(table, {}).items():
            op = OLD_OPS.get(key, key)
            if op not in OPS or OPS[op].compute is None:
                warn_once(__name__, f"quantize.{table}.{key}: is not quantised here; left alone.")
                continue
            made[op] = _rule(default if settings.get("name") == "default" else settings, op)
    return made


def _from_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    has_loose_rules, has_layers = False, False
    for key, value in given.items():
        if not isinstance(value, Mapping):
            made[key] = value
        elif LAYER.fullmatch(key):
            has_layers = True
            made |= {
                _pattern(path): _rule(table, ".".join(path)) for path, table in _nested(key, value)
            }
        else:
            has_loose_rules |= "config" not in value and "name" in value and key != "default"
            made[key] = _rule(value, key)
    if has_layers:
        made["by"] = ["name", "regex_name"]
    elif has_loose_rules and "by" not in given:
        made["by"] = ["name", "type"]
    return made


def _rule(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A rule with its settings under `config`, its format under today's name."""
    config = table.get("config", table if "name" in table else None)
    if not isinstance(config, Mapping):
        return table  # not of an old layout: what is wrong with it is said elsewhere
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    name = plain.get("name")
    if isinstance(name, str) and name in OLD_FORMATS:
        plain["name"], difference = OLD_FORMATS[name]
        if difference:
            warn_once(__name__, f"quantize.{where}: {name} is {plain['name']} here: {difference}.")
    return {**(table if "config" in table else {}), "config": plain}


def _nested(key: str, table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The rules under a block, by their paths."""
    for name, value in table.items():
        if not isinstance(value, Mapping):
            continue
        if FUNCTION.fullmatch(name):
            path = f"quantize.{key}.….{name}"
            warn_once(__name__, f"{path}: functions are quantised by type, not within a block.")
        elif "name" in value:
            yield (key, name), value
        else:
            yield from (((key, *path), leaf) for path, leaf in _nested(name, value))


def _pattern(path: Sequence[str]) -> str:
    """An expression for the modules that a nested rule speaks of.

    >>> re.fullmatch(_pattern(("model_layer_0", "attention", "query")), "layer.0.attention.query")
    <re.Match object; span=(0, 23), match='layer.0.attention.query'>
    """
    block = LAYER.fullmatch(path[0])
    assert block is not None, f"'{path[0]}' is no block"
    number = block[1] or r"\d+"
    inside = r"\.(?:.*\.)?".join(re.escape(name) for name in path[1:])
    return rf"(?:.*\.)?layers?\.{number}\.(?:.*\.)?{inside}"
