"""Spaces of number formats: a format and its settings for each layer.

>>> space = PrecisionSpace(model, {"integer": {"width": [8, 16], "frac_width": [4]}})
>>> space.quantize_config({"fc1": "integer", "fc1.integer.width": 8, "fc2": "float"})
{'by': 'name', 'default': {'config': {'name': None}}, 'fc1': {'config': {'name': 'integer', ...}}}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from chop.config import parse
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, op_of_module
from chop.nn.quantized.convert import float_class_of
from chop.nn.quantizers.formats import FORMATS, spelled_settings
from chop.nn.quantizers.operands import OPERANDS as ALL_OPERANDS
from chop.nn.quantizers.operands import operand_quantizers
from chop.passes.rewrite.module_patterns import matches, select
from chop.registry import suggest
from chop.search.space import Choice, Dimension, ParameterValue, Real, Space, read_dimension

FLOAT = "float"
"""Choice that does not quantise a layer."""
OPERANDS = ("data_in", "weight", "bias")
"""Operands of a setting without an operand in its name."""
Settings = Mapping[str, Any]
Formats = Mapping[str, Settings | Sequence[Settings]] | Sequence[str] | Literal["all"]
By = Literal["name", "type", "pattern"]


class _SearchSettings(Mapping[str, Settings]):
    """View of `FORMATS` as format -> `search_settings`."""

    def __getitem__(self, name: str) -> Settings:
        return FORMATS[name].search_settings

    def __iter__(self) -> Iterator[str]:
        return iter(FORMATS)

    def __len__(self) -> int:
        return len(FORMATS)


DEFAULT_SETTINGS: Mapping[str, Settings] = _SearchSettings()
"""Settings to search of a format that is named without settings."""


@dataclass(frozen=True)
class Alternative:
    """Format with its settings, fixed ones and those to choose."""

    name: str
    number: int
    settings: Settings
    """All settings, in the order of the user."""
    choices: Mapping[str, Dimension]
    spelling: str | None = None
    """Spelling of the format by the user, if not its name."""

    @property
    def label(self) -> str:
        """Name or spelling; further alternatives of one format are numbered."""
        label = self.spelling or self.name
        return label if self.number == 0 else f"{label}#{self.number}"

    def combinations(self) -> list[dict[str, Any]]:
        """Return every combination of settings; a continuous one has its two bounds."""
        points = [
            (d.low, d.high) if isinstance(d, Real) else d.points or ()
            for d in self.choices.values()
        ]
        return [
            {**self.settings, **dict(zip(self.choices, each, strict=True))}
            for each in itertools.product(*points)
        ]

    def config(self, settings: Settings, operands: Sequence[str]) -> dict[str, Any]:
        """Return the config of a layer, with `width` as `data_in_width`, `weight_width` …."""
        if self.name == "bypass":
            return {"name": self.name}
        settings = {**self.settings, **settings}
        prefixes = tuple(f"{operand}_" for operand in ALL_OPERANDS)
        own = {k: v for k, v in settings.items() if k.startswith(prefixes)}
        shared = {k: v for k, v in settings.items() if k not in own}
        each = {f"{operand}_{k}": v for operand in operands for k, v in shared.items()}
        return {"name": self.name, **each, **own}


class PrecisionSpace(Space):
    """Number format and settings of each layer of `subject`.

    `formats`: a table of settings per format, in which a list (or a table with `low` and `high`) is
    searched and other values are fixed. A list of such tables has alternatives of one format. A
    list of names, or "all", uses `DEFAULT_SETTINGS`. A setting such as `width` is for all
    `operands`; `weight_width` is for the weight alone.

    `ops` and `targets` (paths, ends of paths, or expressions) select layers. `by`: one choice per
    layer ("name"), per type of layer ("type"), or per target ("pattern"). `keep_float` adds the
    choice not to quantise. With `joint`, one dimension per layer has format and settings together:
    fewer writes, and a grid.

    Settings that a format rejects raise here.
    """

    def __init__(
        self,
        subject: MaseGraph | nn.Module,
        formats: Formats,
        *,
        by: By = "name",
        targets: Sequence[str] | None = None,
        keep_float: bool = True,
        joint: bool = False,
        ops: Sequence[str] = ("linear",),
        operands: Sequence[str] = OPERANDS,
        where: str = "precision",
    ) -> None:
        self.operands = tuple(operands)
        self.is_by_type = by == "type" and targets is None
        self.joint = joint
        self.alternatives = {a.label: a for a in _alternatives(formats, where)}
        _check_settings(self.alternatives.values(), self.operands, where)
        if joint and any(
            isinstance(d, Real) for a in self.alternatives.values() for d in a.choices.values()
        ):
            raise ConfigError(f"{where}.joint: a continuous setting has no list of options.")
        layers = _layers(subject, ops, where)
        paths = select(targets, list(layers), f"{where}.targets")
        self.groups = _groups(by, {p: layers[p] for p in paths}, targets, where)
        self.options = _options(self.alternatives.values(), self.operands, keep_float)
        labels = ([FLOAT] if keep_float else []) + list(self.alternatives)
        super().__init__(_dimensions(self, list(self.options) if joint else labels))

    @property
    def size(self) -> int:
        """Number of points; settings of a format count only with that format."""
        return math.prod(len(self.options) for _ in self.groups)

    def suggest(self, trial: Any) -> dict[str, ParameterValue]:
        """Return a format for each group, and the settings of that format alone."""
        point: dict[str, ParameterValue] = {}
        for group in self.groups:
            point[group] = self.dimensions[group].suggest(group, trial)
            if self.joint or point[group] == FLOAT:
                continue
            alternative = self.alternatives[str(point[group])]
            for setting in alternative.choices:
                name = f"{group}.{alternative.label}.{setting}"
                point[name] = self.dimensions[name].suggest(name, trial)
        return point

    def layer_configs(self, params: Mapping[str, ParameterValue]) -> dict[str, dict[str, Any]]:
        """Return the config of each layer by path; `{"name": None}` if it is not quantised."""
        configs = {group: self._config(group, params) for group in self.groups}
        return {path: configs[group] for group, paths in self.groups.items() for path in paths}

    def quantize_config(self, params: Mapping[str, ParameterValue]) -> dict[str, Any]:
        """Return the arguments of quantize_transform_pass for a point, without other dimensions."""
        chosen = self.layer_configs(params)
        if self.is_by_type:  # valid for models with other layers, too
            chosen = {op: self._config(op, params) for op in self.groups}
        rules = {k: {"config": c} for k, c in chosen.items() if c["name"] is not None}
        by = "type" if self.is_by_type else "name"
        return {"by": by, "default": {"config": {"name": None}}, **rules}

    def uniform(self, label: str, **settings: ParameterValue) -> dict[str, ParameterValue]:
        """Return the point where every group has one format (or one option if joint)."""
        inner = {f"{g}.{label}.{k}": v for g in self.groups for k, v in settings.items()}
        point = {**dict.fromkeys(self.groups, label), **inner}
        self.check(point, "precision")
        return point

    def _config(self, group: str, params: Mapping[str, ParameterValue]) -> dict[str, Any]:
        if group not in params:
            raise ConfigError(f"precision: the point has no '{group}'. {suggest(group, params)}")
        chosen = str(params[group])
        if chosen not in self.dimensions[group]:
            labels = [str(label) for label in self.dimensions[group].points or ()]
            raise ConfigError(f"precision: '{group}' is '{chosen}'. {suggest(chosen, labels)}")
        if self.joint:
            return dict(self.options[chosen])
        if chosen == FLOAT:
            return {"name": None}
        alternative = self.alternatives[chosen]
        start = f"{group}.{chosen}."
        settings = {k: params[start + k] for k in alternative.choices}
        return alternative.config(settings, self.operands)


def _alternatives(formats: Formats, where: str) -> list[Alternative]:
    if isinstance(formats, str):
        if formats != "all":
            raise ConfigError(f"{where}.formats: expected 'all', names or tables, got '{formats}'.")
        formats = DEFAULT_SETTINGS
    if not isinstance(formats, Mapping):  # a spelling has its settings in it
        formats = {name: DEFAULT_SETTINGS[name] if name in FORMATS else {} for name in formats}
    alternatives = []
    for text, tables in formats.items():
        form, spelled = spelled_settings(text, f"{where}.formats")
        spelling = None if text in FORMATS else text
        for number, table in enumerate([tables] if isinstance(tables, Mapping) else tables):
            settings = {**spelled, **table}
            choices = {
                key: read_dimension(value, f"{where}.formats.{form.name}.{key}")
                for key, value in settings.items()
                if isinstance(value, list | tuple | Mapping | Dimension)
            }
            alternatives.append(Alternative(form.name, number, settings, choices, spelling))
    if not alternatives:
        raise ConfigError(f"{where}.formats: no format is given. {suggest('', FORMATS)}")
    return alternatives


def _check_settings(
    alternatives: Iterable[Alternative], operands: Sequence[str], where: str
) -> None:
    """Raise unless quantised layers accept every combination of settings."""
    for alternative in alternatives:
        for settings in alternative.combinations():
            path = f"{where}.formats.{alternative.label}"
            try:
                operand_quantizers(alternative.config(settings, operands), OPERANDS, path)
            except ConfigError as error:
                text = ", ".join(f"{k}={v}" for k, v in settings.items())
                raise ConfigError(f"{error} (with {text or 'no settings'})") from error


def _options(
    alternatives: Iterable[Alternative], operands: Sequence[str], keep_float: bool
) -> dict[str, dict[str, Any]]:
    """Return the config of each format with settings, by label."""
    options: dict[str, dict[str, Any]] = {FLOAT: {"name": None}} if keep_float else {}
    for alternative in alternatives:
        for settings in alternative.combinations():
            inner = ", ".join(f"{k}={v}" for k, v in settings.items())
            label = f"{alternative.name}({inner})" if inner else alternative.name
            if alternative.spelling is not None and not alternative.choices:
                label = alternative.spelling
            options[label] = alternative.config(settings, operands)
    return options


def _dimensions(space: PrecisionSpace, labels: list[str]) -> dict[str, Dimension]:
    dimensions: dict[str, Dimension] = {}
    for group in space.groups:
        dimensions[group] = Choice(tuple(labels))
        for alternative in () if space.joint else space.alternatives.values():
            start = f"{group}.{alternative.label}"
            dimensions |= {f"{start}.{key}": d for key, d in alternative.choices.items()}
    return dimensions


def _layers(subject: MaseGraph | nn.Module, ops: Sequence[str], where: str) -> dict[str, str]:
    """Return the op of each layer that can be quantised, by path, in order."""
    for op in ops:
        if op not in OPS:
            raise ConfigError(f"{where}.ops: unknown op '{op}'. {suggest(op, OPS)}")
    model = subject.model if isinstance(subject, MaseGraph) else subject
    if not isinstance(model, nn.Module):
        kind = type(subject).__name__
        raise ConfigError(f"{where}: needs the model to be searched, got {kind}.")
    named = {name: module for name, module in model.named_modules() if name}
    if isinstance(subject, MaseGraph):  # in order of execution
        called = [str(n.target) for n in subject.fx_graph.nodes if n.op == "call_module"]
        named = {name: named[name] for name in called if name in named}
    layers = {n: str(_op_name(m)) for n, m in named.items() if _op_name(m) in ops}
    if not layers:
        raise ConfigError(f"{where}: the model has no {' or '.join(ops)} to quantise.")
    return layers


def _op_name(module: nn.Module) -> str | None:
    op = op_of_module(module)
    return None if op is None or float_class_of(module) is None else op.name


def _groups(
    by: By, layers: Mapping[str, str], targets: Sequence[str] | None, where: str
) -> dict[str, list[str]]:
    """Return the layers that share a choice."""
    if by not in ("name", "type", "pattern"):
        raise ConfigError(f"{where}.by: expected name, type or pattern, got {by!r}.")
    if by == "pattern" and targets is None:
        raise ConfigError(f"{where}.by: 'pattern' needs targets, one for each choice.")
    groups: dict[str, list[str]] = {}
    for path, op in layers.items():
        first = next((t for t in targets or () if matches(t, path)), path)
        groups.setdefault({"name": path, "type": op, "pattern": first}[by], []).append(path)
    return groups


@dataclass(frozen=True)
class PrecisionTable:
    """TOML form of the arguments of `PrecisionSpace`."""

    formats: Any = "all"
    by: By = "name"
    targets: tuple[str, ...] | None = None
    keep_float: bool = True
    joint: bool = False
    ops: tuple[str, ...] = ("linear",)
    operands: tuple[str, ...] = OPERANDS


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> PrecisionSpace:
    """Read a table `[space.precision]` for the layers of `subject`."""
    return PrecisionSpace(subject, where=where, **vars(parse(PrecisionTable, mapping, where)))
