"""Restriction of a plan to a part of the model; everything else is whole on every device."""

from __future__ import annotations

from fnmatch import fnmatchcase

from chop.distributed.domains import Filter, Option
from chop.distributed.program import Program, ProgramValue, parameter_value
from chop.distributed.strategies import WHOLE
from chop.errors import ConfigError
from chop.registry import suggest


def part_of_model(program: Program, pattern: str) -> Filter:
    """Return the restriction to the layers that match `pattern`, such as `model.layers.1*`.

    The part goes from the first parameter of a layer that matches to the last value that reads one.
    """
    layers = _layers(program)
    matching = {layer for layer in layers if _matches(layer, pattern)}
    if not matching:
        nearest = suggest(pattern, sorted(set(layers)))
        raise ConfigError(f"shard.only: no layer with parameters matches '{pattern}'. {nearest}")
    owned = {parameter_value(name) for layer in matching for name in layers[layer]}
    places = [
        place
        for place, value in enumerate(program.values)
        if value.name in owned or any(r.value in owned for r in value.references)
    ]
    inside = {value.name for value in program.values[places[0] : places[-1] + 1]}

    def is_allowed(value: ProgramValue, option: Option) -> bool:
        return value.name in inside or all(strategy == WHOLE for strategy in option)

    return is_allowed


def _layers(program: Program) -> dict[str, list[str]]:
    """Return the names of the parameters of each layer."""
    layers: dict[str, list[str]] = {}
    for value in program.values:
        if value.is_parameter:
            name = value.name.removeprefix(parameter_value(""))
            layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers


def _matches(layer: str, pattern: str) -> bool:
    """Return True if the pattern names a layer or a module that contains it."""
    parts = layer.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))
