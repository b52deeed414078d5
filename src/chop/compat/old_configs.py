"""Quantisation configs of DeepWok/mase, translated to the layout of `QuantizeArgs`.

Three layouts are read in addition to our own:

- a whole file with the table `[passes.quantize]`;
- rules with `name` and its settings in one table, possibly nested by module
  (`[model_layer_0.self_attn.q_proj]`);
- the oldest, with tables `[module_classes_to_modify.linear]`.
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
"""Old name of a format -> its name here, and the difference if there is one."""

OLD_OPS = {"avgpool2d": "avg_pool2d", "adaptiveavgpool2d": "adaptive_avg_pool2d"}
"""Old name of an op -> its name here."""

FORMATS.check((new for new, _ in OLD_FORMATS.values()), "old_configs.OLD_FORMATS")
OPS.check(OLD_OPS.values(), "old_configs.OLD_OPS")

BY_CLASS = (
    "module_classes_to_modify",
    "function_classes_to_modify",
    "method_classes_to_modify",
)
"""Tables of the oldest layout: name of an op -> its settings."""

LAYER = re.compile(r"model_layer(?:_(\d+))?")
"""Key of a transformer block in nested rules; without a number it means every block."""

FUNCTION = re.compile(r"(?:matmul|bmm|add|mul)_\d+")
"""Key of a function of a block in nested rules; functions have no such names here."""


def modern_quantize_args(config: Any) -> Any:
    """Return `config` in our own layout, as a new mapping; return other values unchanged.

    >>> modern_quantize_args({"passes": {"quantize": {"linear": {"name": "mxint"}}}})
    {'linear': {'config': {'name': 'mxint'}}, 'by': ['name', 'type']}
    """
    if not isinstance(config, Mapping):
        return config
    passes = config.get("passes")
    if isinstance(passes, Mapping):
        return modern_quantize_args(passes.get("quantize", {}))
    return (_from_classes if any(key in config for key in BY_CLASS) else _from_rules)(config)


def _from_classes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the oldest layout, where `name = "default"` means the settings of `[default]`."""
    default = config.get("default", {})
    rules: dict[str, Any] = {"by": "type"}
    for table in BY_CLASS:
        for key, settings in config.get(table, {}).items():
            op = OLD_OPS.get(key, key)
            if op not in OPS or OPS[op].compute is None:
                warn_once(__name__, f"quantize.{table}.{key}: is not quantised here; left alone.")
                continue
            rules[op] = _rule(default if settings.get("name") == "default" else settings, op)
    return rules


def _from_rules(config: Mapping[str, Any]) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    has_flat_rules, has_layers = False, False
    for key, value in config.items():
        if not isinstance(value, Mapping):
            rules[key] = value
        elif LAYER.fullmatch(key):
            has_layers = True
            nested = _nested(key, value)
            rules |= {_pattern(path): _rule(table, ".".join(path)) for path, table in nested}
        else:
            has_flat_rules |= "config" not in value and "name" in value and key != "default"
            rules[key] = _rule(value, key)
    if has_layers:
        rules["by"] = ["name", "regex_name"]
    elif has_flat_rules and "by" not in config:
        rules["by"] = ["name", "type"]
    return rules


def _rule(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a rule with its settings under `config` and the current name of its format."""
    config = table.get("config", table if "name" in table else None)
    if not isinstance(config, Mapping):
        return table  # not an old layout; the reader of rules checks it
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    name = plain.get("name")
    if isinstance(name, str) and name in OLD_FORMATS:
        plain["name"], difference = OLD_FORMATS[name]
        if difference:
            warn_once(__name__, f"quantize.{where}: {name} is {plain['name']} here: {difference}.")
    return {**(table if "config" in table else {}), "config": plain}


def _nested(key: str, table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the table of every rule below a block."""
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
    """Return a regular expression for the modules of a nested rule.

    >>> re.fullmatch(_pattern(("model_layer_0", "attention", "query")), "layer.0.attention.query")
    <re.Match object; span=(0, 23), match='layer.0.attention.query'>
    """
    block = LAYER.fullmatch(path[0])
    assert block is not None, f"'{path[0]}' is no block"
    number = block[1] or r"\d+"
    inside = r"\.(?:.*\.)?".join(re.escape(name) for name in path[1:])
    return rf"(?:.*\.)?layers?\.{number}\.(?:.*\.)?{inside}"
