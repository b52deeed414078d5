"""Spaces of architectures: fields of a config, and what stands in the place of layers."""

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
from chop.search.space import Choice, Dimension, Space, Value, read_dimension

Builder = Callable[..., nn.Module]
LayerChoice = Callable[[nn.Linear], nn.Module | None]


class InfeasibleError(ChopError, ValueError):
    """A point of a space that no model can be built for."""


def _keep(layer: nn.Linear) -> nn.Module:
    return layer


def _identity(layer: nn.Linear) -> nn.Module | None:
    return nn.Identity() if layer.in_features == layer.out_features else None


LAYER_CHOICES: Registry[LayerChoice] = Registry("layer choice")
"""What may stand in the place of a linear layer; None where its shape does not allow it."""
LAYER_CHOICES.register("linear", _keep)
LAYER_CHOICES.register("identity", _identity)


@dataclass(frozen=True)
class Inherited:
    """How much of a model's weights came from the super-model."""

    parameters: int
    total: int

    @property
    def share(self) -> float:
        """The part of the parameters that was copied."""
        return self.parameters / self.total if self.total else 0.0


@dataclass(frozen=True)
class Divides:
    """A rule that several architectures share: `divisor` must divide `number`."""

    number: str
    divisor: str

    def problem(self, fields: Mapping[str, Any]) -> str | None:
        """What is wrong with `fields`, None where nothing is."""
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
"""What is checked of the fields before a model is built."""


class ArchitectureSpace(Space):
    """Models that differ in fields of their config, and in layers left out.

    `base`: a Hugging Face model (whose weights are inherited), a config, or a function that builds
    a model from keyword arguments. `fields`: `{"num_hidden_layers": [2, 4]}`, any fields of the
    config or keywords of the function; one that it does not have is refused with the nearest name.
    `layers`: pattern of paths -> choices (`LAYER_CHOICES`), one dimension for each linear layer
    that matches; a layer is asked for only where the model has it and its shape leaves a choice.
    `weights`: the super-model of a config or function; `inherit` False starts from new weights.

    Weights: every parameter that the super-model has under the same name is copied where the two
    overlap, from index 0 in each dimension: a smaller model takes the leading slice of a larger
    one, a larger one holds the smaller and is new elsewhere.
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
        _check_layers(self.layers, where)
        self._paths: dict[tuple[Value, ...], dict[str, tuple[str, ...]]] = {}
        super().__init__({**self.fields, **self._layer_dimensions(where)})

    def suggest(self, trial: Any) -> dict[str, Value]:
        """The fields, then the layers that the model with these fields has."""
        point: dict[str, Value] = {n: d.suggest(n, trial) for n, d in self.fields.items()}
        if self.layers and self.problem(point) is None:
            for path in self.choices(point):
                point[path] = self.dimensions[path].suggest(path, trial)
        return point

    def problem(self, params: Mapping[str, Value]) -> str | None:
        """Why no model can be built for a point, None where one can."""
        fields = self.source.defaults() | self.own_fields(params)
        return next((text for rule in RULES if (text := rule.problem(fields))), None)

    def own_fields(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """The fields of a point; those it does not give stay as they are in the base."""
        return {name: params[name] for name in self.fields if name in params}

    def build(self, params: Mapping[str, Value], seed: int = 0) -> nn.Module:
        """The model of a point; the same point and seed give the same weights.

        Raises `InfeasibleError` where there is none.
        """
        return self.build_inherited(params, seed)[0]

    def build_inherited(
        self, params: Mapping[str, Value], seed: int = 0
    ) -> tuple[nn.Module, Inherited]:
        """The model of a point, and how much of it came from the super-model."""
        problem = self.problem(params)
        if problem is not None:
            raise InfeasibleError(f"architecture: {problem}.")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.source.build(self.own_fields(params))
        for path, choices in self.choices(params).items():
            _place(model, path, str(params.get(path, choices[0])))
        return model, inherit_weights(model, self.super_model)

    def choices(self, params: Mapping[str, Value]) -> dict[str, tuple[str, ...]]:
        """Path of each layer with a choice in the model of a point -> what may stand there."""
        if not self.layers:
            return {}
        own = self.own_fields(params)
        key = tuple(own.get(name) for name in self.fields)
        if key not in self._paths:
            self._paths[key] = _choices(self._on_meta(own), self.layers)
        return self._paths[key]

    def _layer_dimensions(self, where: str) -> dict[str, Dimension]:
        """One for each linear layer that matches, in any model of the space."""
        found: dict[str, Dimension] = {}
        for fields in self._corners() if self.layers else ():
            model = self._on_meta(fields)
            found |= {
                p: Choice(_pattern_choices(self.layers, p)) for p in _matched(model, self.layers)
            }
        for pattern in self.layers:
            if not any(matches(pattern, path) for path in found):
                raise ConfigError(f"{where}.layers: '{pattern}' matches no linear layer.")
        return found

    def _on_meta(self, fields: Mapping[str, Value]) -> nn.Module:
        """The model of `fields` without memory for its weights."""
        with torch.device("meta"):
            return self.source.build(fields)

    def _corners(self) -> list[dict[str, Value]]:
        """Fields whose models have, together, every layer: each value of each field once, and all
        largest; those that no model can be built for are left out."""
        values: dict[str, list[Any]] = {
            name: list(d.points or ()) for name, d in self.fields.items()
        }
        largest: dict[str, Any] = {n: max(v) for n, v in values.items() if _are_numbers(v)}
        corners: list[dict[str, Value]] = [{}, largest]
        corners += [{**largest, name: v} for name, each in values.items() for v in each]
        corners += [{name: v} for name, each in values.items() for v in each]
        return [c for c in corners if self.problem(c) is None]


def _are_numbers(values: Sequence[Any]) -> bool:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return bool(values) and len(numbers) == len(values)


# -- where models come from ---------------------------------------------------------------------


@dataclass(frozen=True)
class ConfigSource:
    """Models of one class, from a Hugging Face config."""

    config: PretrainedConfig
    make: Builder
    model: nn.Module | None = None

    def defaults(self) -> dict[str, Any]:
        """The fields of the base, under every name they have."""
        aliases = {name: getattr(self.config, name, None) for name in self.config.attribute_map}
        return {**self.config.to_dict(), **aliases}

    def check(self, name: str, where: str) -> None:
        """Refuse a field that the config does not have."""
        known = [key for key in self.defaults() if not key.startswith("_")]
        if name not in known:
            kind = type(self.config).__name__
            raise ConfigError(f"{where}: {kind} has no field '{name}'. {_suggest(name, known)}")

    def build(self, fields: Mapping[str, Any]) -> nn.Module:
        """A model with new weights."""
        config = copy.deepcopy(self.config)
        for name, value in fields.items():
            setattr(config, name, value)
        return self.make(config)


@dataclass(frozen=True)
class FunctionSource:
    """Models that a function builds from keyword arguments."""

    function: Builder
    model: nn.Module | None = None
    known: tuple[str, ...] = field(default=())
    takes_any: bool = False

    def defaults(self) -> dict[str, Any]:
        """The default arguments."""
        found = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in found if p.default is not p.empty}

    def check(self, name: str, where: str) -> None:
        """Refuse a keyword that the function does not take."""
        if name not in self.known and not self.takes_any:
            kind = getattr(self.function, "__name__", type(self.function).__name__)
            raise ConfigError(f"{where}: {kind} takes no '{name}'. {_suggest(name, self.known)}")

    def build(self, fields: Mapping[str, Any]) -> nn.Module:
        """A model with new weights."""
        return self.function(**fields)


def _suggest(name: str, known: Sequence[str]) -> str:
    """The nearest name; one that ends like it counts as near: num_layers -> num_hidden_layers."""
    ends = [k for k in known if all(part in k.split("_") for part in name.split("_"))]
    text = suggest(name, known)
    if not ends:
        return text
    return f"Did you mean '{ends[0]}'? Known:{text.partition('Known:')[2]}"


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
    """A function with `**options` hands them to a config: the model it builds says which exist."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if takes_any and all(p.default is not p.empty for p in parameters if p.name in known):
        config = getattr(function(), "config", None)
        if isinstance(config, PretrainedConfig):
            known += [name for name in config.to_dict() if not name.startswith("_")]
            takes_any = False
    return FunctionSource(function, None, tuple(known), takes_any)


# -- layers and weights -------------------------------------------------------------------------


def _check_layers(layers: Mapping[str, Sequence[str]], where: str) -> None:
    check_patterns(layers, f"{where}.layers")
    for pattern, choices in layers.items():
        for name in choices:
            if name not in LAYER_CHOICES:
                hint = suggest(name, LAYER_CHOICES)
                raise ConfigError(f"{where}.layers.{pattern}: unknown layer '{name}'. {hint}")


def _pattern_choices(layers: Mapping[str, tuple[str, ...]], path: str) -> tuple[str, ...]:
    return next(choices for pattern, choices in layers.items() if matches(pattern, path))


def _choices(model: nn.Module, layers: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Path of each linear layer that matches, and whose shape allows its choices -> these."""
    found: dict[str, tuple[str, ...]] = {}
    for path, module in _matched(model, layers).items():
        wanted = _pattern_choices(layers, path)
        if all(LAYER_CHOICES[name](module) is not None for name in wanted):
            found[path] = wanted  # all or none: a dimension's choices never change
    return found


def _matched(model: nn.Module, layers: Mapping[str, Any]) -> dict[str, nn.Linear]:
    """The linear layers that a pattern names, by path."""
    linear = {p: m for p, m in model.named_modules() if isinstance(m, nn.Linear)}
    return {p: m for p, m in linear.items() if any(matches(pattern, p) for pattern in layers)}


def _place(model: nn.Module, path: str, name: str) -> None:
    layer = model.get_submodule(path)
    assert isinstance(layer, nn.Linear), f"'{path}' is {type(layer).__name__}"
    chosen = LAYER_CHOICES[name](layer)
    if chosen is None:
        raise InfeasibleError(f"architecture: '{path}' ({layer}) cannot be '{name}'.")
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, chosen)


@torch.no_grad()
def inherit_weights(model: nn.Module, source: nn.Module | None) -> Inherited:
    """Copy into `model`, in place, what overlaps with parameters and buffers of the same name."""
    total = sum(p.numel() for p in model.parameters())
    if source is None:
        return Inherited(0, total)
    theirs = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    copied = sum(_overlap(p, theirs.get(name)) for name, p in model.named_parameters())
    for name, buffer in model.named_buffers():
        _overlap(buffer, theirs.get(name))
    return Inherited(copied, total)


def _overlap(mine: Tensor, theirs: Tensor | None) -> int:
    """Copy the part that both have; the number of elements copied."""
    if theirs is None or theirs.dim() != mine.dim() or theirs.dtype != mine.dtype:
        return 0
    common = tuple(slice(min(a, b)) for a, b in zip(mine.shape, theirs.shape, strict=True))
    mine[common] = theirs[common].to(mine.device)
    return mine[common].numel()


@dataclass(frozen=True)
class ArchitectureTable:
    """The TOML form: `fields`, `layers`, and whether weights are inherited."""

    fields: dict[str, Any]
    layers: dict[str, list[str]] = field(default_factory=dict)
    inherit: bool = True
    task: str = "sequence-classification"


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> ArchitectureSpace:
    """The space of a table `[space.architecture]`, around the model `subject`.

    Without the key `fields` the table itself holds the fields.
    """
    given = mapping if "fields" in mapping else _with_fields(mapping)
    table = parse(ArchitectureTable, given, where)
    return ArchitectureSpace(
        subject,
        table.fields,
        layers=table.layers,
        inherit=table.inherit,
        task=table.task,
        where=where,
    )


def _with_fields(mapping: Mapping[str, Any]) -> dict[str, Any]:
    own = ("layers", "inherit", "task")
    fields = {k: v for k, v in mapping.items() if k not in own}
    return {"fields": fields, **{k: v for k, v in mapping.items() if k in own}}
