"""Spaces of architectures: fields of a config, and replacements of layers."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from chop.config import parse
from chop.errors import ChopError, ConfigError
from chop.ir.graph import MaseGraph
from chop.models.named import get_model
from chop.passes.rewrite.module_patterns import check_patterns, matches
from chop.registry import Registry, suggest
from chop.search.space import Choice, Dimension, ParameterValue, Space, read_dimension

Builder = Callable[..., nn.Module]
LayerChoice = Callable[[nn.Linear], nn.Module | None]


class InfeasibleError(ChopError, ValueError):
    """Error for a point of a space that has no model."""


LAYER_CHOICES: Registry[LayerChoice] = Registry("layer choice")
"""Replacements of a linear layer by name, as functions; None if the shape does not allow it."""
LAYER_CHOICES.register("linear", lambda layer: layer)
LAYER_CHOICES.register(
    "identity",
    lambda layer: nn.Identity() if layer.in_features == layer.out_features else None,
)


@dataclass(frozen=True)
class Inherited:
    """Number of parameters that a model inherited from the super-model."""

    parameters: int
    total: int

    @property
    def share(self) -> float:
        """Inherited share of the parameters."""
        return self.parameters / self.total if self.total else 0.0


@dataclass(frozen=True)
class Divides:
    """Rule of several architectures: `divisor` must divide `number`."""

    number: str
    divisor: str

    def problem(self, fields: Mapping[str, Any]) -> str | None:
        """Return the problem with `fields`, or None."""
        number, divisor = fields.get(self.number), fields.get(self.divisor)
        is_known = isinstance(number, int) and isinstance(divisor, int) and divisor > 0
        if not is_known or number % divisor == 0:  # type: ignore[operator]
            return None
        return f"{self.number} {number} is not divisible by {self.divisor} {divisor}"


RULES = (
    Divides("hidden_size", "num_attention_heads"),
    Divides("n_embd", "n_head"),
    Divides("d_model", "num_heads"),
    Divides("num_attention_heads", "num_key_value_heads"),
)
"""Rules that fields must satisfy before a model is built."""


class ArchitectureSpace(Space):
    """Models that differ in fields of their config and in replaced layers.

    `base`: a Hugging Face model (whose weights are inherited), a config, or a function that builds
    a model from keyword arguments. `fields`: `{"num_hidden_layers": [2, 4]}`, fields of the config
    or keywords of the function. `layers`: pattern of paths -> choices (`LAYER_CHOICES`), one
    dimension per matching linear layer; a point has it only if its model has the layer and the
    shape allows a choice. `weights`: the super-model of a config or function. `inherit` False
    starts from new weights.

    Weights: each parameter of the super-model is copied to the parameter of the same name where the
    two overlap, from index 0 in each dimension. A smaller model gets the leading slice of a larger
    one; a larger one contains the smaller and is new elsewhere.
    """

    def __init__(
        self,
        base: PreTrainedModel | PretrainedConfig | MaseGraph | Builder,
        fields: Mapping[str, Any],
        *,
        layers: Mapping[str, Sequence[str]] | None = None,
        weights: nn.Module | None = None,
        inherit: bool = True,
        task: str = "sequence-classification",
        where: str = "architecture",
    ) -> None:
        self.source = _source(base, task, where)
        self.super_model = (weights or self.source.model) if inherit else None
        for name in fields:
            self.source.check(name, where)
        self.fields = {n: read_dimension(d, f"{where}.{n}") for n, d in fields.items()}
        self.layers = {p: tuple(choices) for p, choices in (layers or {}).items()}
        check_patterns(self.layers, f"{where}.layers")
        for pattern, choices in self.layers.items():
            for name in choices:
                if name not in LAYER_CHOICES:
                    hint = suggest(name, LAYER_CHOICES)
                    raise ConfigError(f"{where}.layers.{pattern}: unknown layer '{name}'. {hint}")
        self._paths: dict[tuple[ParameterValue, ...], dict[str, tuple[str, ...]]] = {}
        super().__init__({**self.fields, **self._layer_dimensions(where)})

    def suggest(self, trial: Any) -> dict[str, ParameterValue]:
        """Return the fields, then the layers of the model with these fields."""
        point: dict[str, ParameterValue] = {n: d.suggest(n, trial) for n, d in self.fields.items()}
        if self.layers and self.problem(point) is None:
            for path in self.choices(point):
                point[path] = self.dimensions[path].suggest(path, trial)
        return point

    def problem(self, params: Mapping[str, ParameterValue]) -> str | None:
        """Return the reason why a point has no model, or None."""
        fields = self.source.defaults() | self.own_fields(params)
        return next((text for rule in RULES if (text := rule.problem(fields))), None)

    def own_fields(self, params: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Return the fields of a point; others have the value of the base."""
        return {name: params[name] for name in self.fields if name in params}

    def build(self, params: Mapping[str, ParameterValue], seed: int = 0) -> nn.Module:
        """Return the model of a point; the same point and seed have the same weights.

        Raise `InfeasibleError` if there is none.
        """
        return self.build_inherited(params, seed)[0]

    def build_inherited(
        self, params: Mapping[str, ParameterValue], seed: int = 0
    ) -> tuple[nn.Module, Inherited]:
        """Return the model of a point, and the count of its inherited parameters."""
        problem = self.problem(params)
        if problem is not None:
            raise InfeasibleError(f"architecture: {problem}.")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.source.build(self.own_fields(params))
        for path, choices in self.choices(params).items():
            _place(model, path, str(params.get(path, choices[0])))
        return model, inherit_weights(model, self.super_model)

    def choices(self, params: Mapping[str, ParameterValue]) -> dict[str, tuple[str, ...]]:
        """Return the choices of each layer of the model of a point, by path."""
        if not self.layers:
            return {}
        own = self.own_fields(params)
        key = tuple(own.get(name) for name in self.fields)
        if key not in self._paths:
            layers = self._matched(own)
            self._paths[key] = {
                path: choices
                for path, choices in ((p, self._pattern_choices(p)) for p in layers)
                # all or none: a dimension's choices never change
                if all(LAYER_CHOICES[name](layers[path]) is not None for name in choices)
            }
        return self._paths[key]

    def _layer_dimensions(self, where: str) -> dict[str, Dimension]:
        """Return a dimension for each matching linear layer of any model of the space."""
        corners = self._corners() if self.layers else []
        paths = dict.fromkeys(path for fields in corners for path in self._matched(fields))
        for pattern in self.layers:
            if not any(matches(pattern, path) for path in paths):
                raise ConfigError(f"{where}.layers: '{pattern}' matches no linear layer.")
        return {path: Choice(self._pattern_choices(path)) for path in paths}

    def _pattern_choices(self, path: str) -> tuple[str, ...]:
        return next(choices for pattern, choices in self.layers.items() if matches(pattern, path))

    def _matched(self, fields: Mapping[str, ParameterValue]) -> dict[str, nn.Linear]:
        """Return the matching linear layers of the model of `fields`, without their weights."""
        with torch.device("meta"):
            modules = self.source.build(fields).named_modules()
        linear = {p: m for p, m in modules if isinstance(m, nn.Linear)}
        return {p: m for p, m in linear.items() if any(matches(t, p) for t in self.layers)}

    def _corners(self) -> list[dict[str, ParameterValue]]:
        """Return feasible fields whose models together have every layer of the space.

        These are each value of each field once, with the others at their default or largest value.
        """
        values: dict[str, list[Any]] = {n: list(d.points or ()) for n, d in self.fields.items()}
        largest: dict[str, Any] = {
            name: max(each)
            for name, each in values.items()
            if each and all(isinstance(v, int | float) and not isinstance(v, bool) for v in each)
        }
        corners: list[dict[str, ParameterValue]] = [{}, largest]
        corners += [{**largest, name: v} for name, each in values.items() for v in each]
        corners += [{name: v} for name, each in values.items() for v in each]
        return [c for c in corners if self.problem(c) is None]


@dataclass(frozen=True)
class ConfigSource:
    """Source of models of one class, from a Hugging Face config."""

    config: PretrainedConfig
    make: Builder
    model: nn.Module | None = None

    def defaults(self) -> dict[str, Any]:
        """Return the fields of the base, under all their names."""
        aliases = {name: getattr(self.config, name, None) for name in self.config.attribute_map}
        return {**self.config.to_dict(), **aliases}

    def check(self, name: str, where: str) -> None:
        """Raise if the config does not have the field."""
        names = [key for key in self.defaults() if not key.startswith("_")]
        if name not in names:
            kind = type(self.config).__name__
            raise ConfigError(f"{where}: {kind} has no field '{name}'. {_suggest(name, names)}")

    def build(self, fields: Mapping[str, Any]) -> nn.Module:
        """Return a model with new weights."""
        config = copy.deepcopy(self.config)
        for name, value in fields.items():
            setattr(config, name, value)
        return self.make(config)


@dataclass(frozen=True)
class FunctionSource:
    """Source of models that a function builds from keyword arguments."""

    function: Builder
    model: nn.Module | None = None
    names: tuple[str, ...] = ()
    takes_any: bool = False

    def defaults(self) -> dict[str, Any]:
        """Return the default arguments."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def check(self, name: str, where: str) -> None:
        """Raise if the function does not accept the keyword."""
        if name not in self.names and not self.takes_any:
            kind = getattr(self.function, "__name__", type(self.function).__name__)
            raise ConfigError(f"{where}: {kind} takes no '{name}'. {_suggest(name, self.names)}")

    def build(self, fields: Mapping[str, Any]) -> nn.Module:
        """Return a model with new weights."""
        return self.function(**fields)


def _suggest(name: str, names: Sequence[str]) -> str:
    """Return a hint; a name with all words of `name` is near: num_layers -> num_hidden_layers."""
    near = [n for n in names if all(word in n.split("_") for word in name.split("_"))]
    text = suggest(name, names)
    return f"Did you mean '{near[0]}'? Known:{text.partition('Known:')[2]}" if near else text


def _source(base: Any, task: str, where: str) -> ConfigSource | FunctionSource:
    if isinstance(base, MaseGraph):
        base = base.original
    if isinstance(base, PreTrainedModel):
        return ConfigSource(base.config, type(base), base)
    if isinstance(base, PretrainedConfig):
        return ConfigSource(base, functools.partial(get_model, task=task))
    if callable(base) and not isinstance(base, nn.Module):
        return _function_source(base)
    raise ConfigError(
        f"{where}: a model is built from a Hugging Face model, a config or a function; "
        f"got {type(base).__name__}."
    )


def _function_source(function: Builder) -> FunctionSource:
    """Return the source of a function; `**options` are fields of the config of its model."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if takes_any and all(p.default is not p.empty for p in parameters if p.name in names):
        config = getattr(function(), "config", None)
        if isinstance(config, PretrainedConfig):
            names += [name for name in config.to_dict() if not name.startswith("_")]
            takes_any = False
    return FunctionSource(function, None, tuple(names), takes_any)


def _place(model: nn.Module, path: str, name: str) -> None:
    layer = model.get_submodule(path)
    assert isinstance(layer, nn.Linear), f"'{path}' is {type(layer).__name__}"
    replacement = LAYER_CHOICES[name](layer)
    if replacement is None:
        raise InfeasibleError(f"architecture: '{path}' ({layer}) cannot be '{name}'.")
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, replacement)


@torch.no_grad()
def inherit_weights(model: nn.Module, source: nn.Module | None) -> Inherited:
    """Copy to `model`, in place, the overlap of parameters and buffers of the same name."""
    total = sum(p.numel() for p in model.parameters())
    if source is None:
        return Inherited(0, total)
    theirs = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    copied = sum(_overlap(p, theirs.get(name)) for name, p in model.named_parameters())
    for name, buffer in model.named_buffers():
        _overlap(buffer, theirs.get(name))
    return Inherited(copied, total)


def _overlap(mine: Tensor, theirs: Tensor | None) -> int:
    """Copy the common part and return its number of elements."""
    if theirs is None or theirs.dim() != mine.dim() or theirs.dtype != mine.dtype:
        return 0
    common = tuple(slice(min(a, b)) for a, b in zip(mine.shape, theirs.shape, strict=True))
    mine[common] = theirs[common].to(mine.device)
    return mine[common].numel()


@dataclass(frozen=True)
class ArchitectureTable:
    """TOML form of the arguments of `ArchitectureSpace`."""

    fields: dict[str, Any]
    layers: dict[str, list[str]] = field(default_factory=dict)
    inherit: bool = True
    task: str = "sequence-classification"


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> ArchitectureSpace:
    """Read a table `[space.architecture]` for the model `subject`.

    Without the key `fields`, all keys but the options are fields.
    """
    if "fields" not in mapping:
        options = {k: v for k, v in mapping.items() if k in ("layers", "inherit", "task")}
        mapping = {"fields": {k: v for k, v in mapping.items() if k not in options}, **options}
    table = parse(ArchitectureTable, mapping, where)
    return ArchitectureSpace(subject, where=where, **vars(table))
