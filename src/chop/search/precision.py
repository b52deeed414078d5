"""Spaces of number formats: for each layer a format and its settings.

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
from chop.search.space import Choice, Dimension, Real, Space, Value, read_dimension

FLOAT = "float"
"""The choice that leaves a layer as it is."""
OPERANDS = ("data_in", "weight", "bias")
"""What a setting without an operand's name is for."""
Settings = Mapping[str, Any]
Formats = Mapping[str, Settings | Sequence[Settings]] | Sequence[str] | Literal["all"]
By = Literal["name", "type", "pattern"]


class _SearchSettings(Mapping[str, Settings]):
    """Format -> its `search_settings`, for every format there is."""

    def __getitem__(self, name: str) -> Settings:
        return FORMATS[name].search_settings

    def __iter__(self) -> Iterator[str]:
        return iter(FORMATS)

    def __len__(self) -> int:
        return len(FORMATS)


DEFAULT_SETTINGS: Mapping[str, Settings] = _SearchSettings()
"""What is searched of a format that is named without settings: what the format says of itself."""


@dataclass(frozen=True)
class Alternative:
    """A format with its settings: those that are fixed, and those to choose."""

    name: str
    number: int
    settings: Settings
    """All of them, in the order given."""
    choices: Mapping[str, Dimension]
    spelling: str | None = None
    """How the format was spelled, if not by its name."""

    @property
    def label(self) -> str:
        """Its name or spelling; further alternatives of one format are numbered."""
        label = self.spelling or self.name
        return label if self.number == 0 else f"{label}#{self.number}"

    def combinations(self) -> list[dict[str, Any]]:
        """Every choice of settings; of a continuous one, its bounds."""
        points = [_points(dimension) for dimension in self.choices.values()]
        return [
            {**self.settings, **dict(zip(self.choices, each, strict=True))}
            for each in itertools.product(*points)
        ]

    def config(self, settings: Settings, operands: Sequence[str]) -> dict[str, Any]:
        """The config of a layer."""
        if self.name == "bypass":
            return {"name": self.name}
        return {"name": self.name, **_by_operand({**self.settings, **settings}, operands)}


def _points(dimension: Dimension) -> Sequence[Value]:
    if isinstance(dimension, Real):
        return (dimension.low, dimension.high)
    points = dimension.points
    return () if points is None else points


def _by_operand(settings: Settings, operands: Sequence[str]) -> dict[str, Any]:
    """`width` -> `data_in_width`, `weight_width` …; a setting of one operand stands as it is."""
    own = {k: v for k, v in settings.items() if _operand_of(k) is not None}
    shared = {k: v for k, v in settings.items() if k not in own}
    return {f"{operand}_{k}": v for operand in operands for k, v in shared.items()} | own


def _operand_of(key: str) -> str | None:
    return next((o for o in ALL_OPERANDS if key.startswith(f"{o}_")), None)


class PrecisionSpace(Space):
    """For each layer of `subject` a number format, and its settings.

    `formats`: a table of settings for each format, where a list (or a table with `low` and
    `high`) is searched and anything else is fixed; a list of such tables gives a format's
    alternatives; a list of names, or "all" of the registry, takes `DEFAULT_SETTINGS`. A setting
    such as `width` is for every one of `operands`; `weight_width` is for the weight alone.

    `ops` and `targets` (paths, ends of paths, or expressions) say which layers; `by` whether each
    layer is a choice ("name"), all layers of a type ("type"), or all that match one of the targets
    ("pattern"). `keep_float` adds the choice to leave a layer alone. With `joint`, one dimension
    for each layer holds format and settings together: fewer writes, and a grid.

    A set of settings that a format refuses is refused here.
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
        """The number of points: conditional settings count where they matter."""
        return math.prod(len(self.options) for _ in self.groups)

    def suggest(self, trial: Any) -> dict[str, Value]:
        """A format for each group, then the settings of that format alone."""
        point: dict[str, Value] = {}
        for group in self.groups:
            point[group] = self.dimensions[group].suggest(group, trial)
            if self.joint or point[group] == FLOAT:
                continue
            alternative = self.alternatives[str(point[group])]
            for setting in alternative.choices:
                name = f"{group}.{alternative.label}.{setting}"
                point[name] = self.dimensions[name].suggest(name, trial)
        return point

    def layer_configs(self, params: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
        """Path of each layer -> its config, `{"name": None}` for those left alone."""
        return {
            path: config
            for group, paths in self.groups.items()
            for config in (self._config(group, params),)
            for path in paths
        }

    def quantize_config(self, params: Mapping[str, Value]) -> dict[str, Any]:
        """The arguments of quantize_transform_pass for a point; other dimensions are ignored."""
        chosen = self.layer_configs(params)
        if self.is_by_type:  # holds for models with other layers, too
            chosen = {op: self._config(op, params) for op in self.groups}
        rules = {k: {"config": c} for k, c in chosen.items() if c["name"] is not None}
        by = "type" if self.is_by_type else "name"
        return {"by": by, "default": {"config": {"name": None}}, **rules}

    def uniform(self, label: str, **settings: Value) -> dict[str, Value]:
        """The point where every group takes one format (or, where joint, one option)."""
        inner = {f"{g}.{label}.{k}": v for g in self.groups for k, v in settings.items()}
        point = {**dict.fromkeys(self.groups, label), **inner}
        self.check(point, "precision")
        return point

    def _config(self, group: str, params: Mapping[str, Value]) -> dict[str, Any]:
        if group not in params:
            raise ConfigError(f"precision: the point has no '{group}'. {suggest(group, params)}")
        chosen = str(params[group])
        if chosen not in self.dimensions[group]:
            known = [str(label) for label in self.dimensions[group].points or ()]
            raise ConfigError(f"precision: '{group}' is '{chosen}'. {suggest(chosen, known)}")
        if self.joint:
            return dict(self.options[chosen])
        if chosen == FLOAT:
            return {"name": None}
        alternative = self.alternatives[chosen]
        start = f"{group}.{chosen}."
        settings = {k: params[start + k] for k in alternative.choices}
        return alternative.config(settings, self.operands)


# -- reading what was given ---------------------------------------------------------------------


def _alternatives(formats: Formats, where: str) -> list[Alternative]:
    if isinstance(formats, str):
        if formats != "all":
            raise ConfigError(f"{where}.formats: expected 'all', names or tables, got '{formats}'.")
        formats = DEFAULT_SETTINGS
    if not isinstance(formats, Mapping):
        formats = {name: _default_settings(name) for name in formats}
    found = []
    for text, given in formats.items():
        form, spelled = spelled_settings(text, f"{where}.formats")
        label = None if text in FORMATS else text
        tables = [given] if isinstance(given, Mapping) else list(given)
        found += [
            _alternative(form.name, i, {**spelled, **t}, f"{where}.formats", label)
            for i, t in enumerate(tables)
        ]
    if not found:
        raise ConfigError(f"{where}.formats: no format is given. {suggest('', FORMATS)}")
    return found


def _default_settings(name: str) -> Settings:
    """Return what is searched of a format; one that is spelled out has its settings."""
    return DEFAULT_SETTINGS[name] if name in FORMATS else {}


def _alternative(
    name: str, number: int, settings: Settings, where: str, spelling: str | None
) -> Alternative:
    choices = {
        key: read_dimension(value, f"{where}.{name}.{key}")
        for key, value in settings.items()
        if isinstance(value, list | tuple | Mapping | Dimension)
    }
    return Alternative(name, number, dict(settings), choices, spelling)


def _check_settings(found: Iterable[Alternative], operands: Sequence[str], where: str) -> None:
    """Every combination must be a config that quantised layers take."""
    for alternative in found:
        for settings in alternative.combinations():
            path = f"{where}.formats.{alternative.label}"
            try:
                operand_quantizers(alternative.config(settings, operands), OPERANDS, path)
            except ConfigError as error:
                given = ", ".join(f"{k}={v}" for k, v in settings.items())
                raise ConfigError(f"{error} (with {given or 'no settings'})") from error


def _options(
    found: Iterable[Alternative], operands: Sequence[str], keep_float: bool
) -> dict[str, dict[str, Any]]:
    """Label of each format with settings -> config."""
    options: dict[str, dict[str, Any]] = {FLOAT: {"name": None}} if keep_float else {}
    for alternative in found:
        for settings in alternative.combinations():
            inner = ", ".join(f"{k}={v}" for k, v in settings.items())
            label = f"{alternative.name}({inner})" if inner else alternative.name
            if alternative.spelling is not None and not alternative.choices:
                label = alternative.spelling
            options[label] = alternative.config(settings, operands)
    return options


def _dimensions(space: PrecisionSpace, labels: list[str]) -> dict[str, Dimension]:
    found: dict[str, Dimension] = {}
    for group in space.groups:
        found[group] = Choice(tuple(labels))
        for alternative in () if space.joint else space.alternatives.values():
            start = f"{group}.{alternative.label}"
            found |= {f"{start}.{key}": d for key, d in alternative.choices.items()}
    return found


def _layers(subject: MaseGraph | nn.Module, ops: Sequence[str], where: str) -> dict[str, str]:
    """Path of each layer that can be quantised -> its op, in order."""
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
    found = {n: str(_op_name(m)) for n, m in named.items() if _op_name(m) in ops}
    if not found:
        raise ConfigError(f"{where}: the model has no {' or '.join(ops)} to quantise.")
    return found


def _op_name(module: nn.Module) -> str | None:
    op = op_of_module(module)
    return None if op is None or float_class_of(module) is None else op.name


def _groups(
    by: By, layers: Mapping[str, str], targets: Sequence[str] | None, where: str
) -> dict[str, list[str]]:
    """Which layers share a choice."""
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
    """The TOML form: arguments of `PrecisionSpace`."""

    formats: Any = "all"
    by: By = "name"
    targets: tuple[str, ...] | None = None
    keep_float: bool = True
    joint: bool = False
    ops: tuple[str, ...] = ("linear",)
    operands: tuple[str, ...] = OPERANDS


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> PrecisionSpace:
    """The space of a table `[space.precision]`, over the layers of `subject`."""
    table = parse(PrecisionTable, mapping, where)
    options = {k: v for k, v in vars(table).items() if k != "formats"}
    return PrecisionSpace(subject, table.formats, where=where, **options)
