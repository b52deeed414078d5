"""Settings of a hardware design: given by users, kept in a graph's metadata, read by `chop.hw`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Self

from chop.config import check_fields, parse
from chop.errors import ConfigError, HardwareError
from chop.registry import suggest

DEFAULT_MHZ = 100.0
MEMORY, EXTERNAL, RELOAD = "memory", "external", "reload"
WEIGHT_PLACES = (MEMORY, EXTERNAL, RELOAD)
ALL_OTHERS = "*"
"""Key of `multiplier` for all nodes that it does not name."""


@dataclass(frozen=True)
class DesignSpec:
    """Settings of a design: parallelism, arithmetic, place of the weights, sharing and clock."""

    max_parallelism: Annotated[
        int | tuple[int, ...],
        "Largest number of elements per beat in the last dimension. A list gives one number per "
        "dimension, DIM_0 first; streams are parallel in DIM_0.",
    ] = 4
    parallelism: Annotated[
        Mapping[str, tuple[int, int]], "Input and output lanes of single nodes, set by hand."
    ] = field(default_factory=dict)
    multiplier: Annotated[
        Mapping[str, str],
        'Products of layers with their weights, by node ("*": all others): "array", a folded array '
        'of multipliers; "packed", two outputs per multiplier; or, for a whole vector or window in '
        'each cycle, "shift_add" (additions alone) or "tables" of input bits.',
    ] = field(default_factory=dict)
    adders_per_stage: Annotated[int, "Additions between two registers of shift_add and tables."] = 2
    clock_mhz: Annotated[
        float,
        "Clock for which registers are chosen, in MHz. A lower clock needs fewer flip-flops and "
        "cycles of latency.",
    ] = DEFAULT_MHZ
    weights: Annotated[
        str,
        "Place of the weights: memory of the design; reload, memory that the AXI control port can "
        "write at run time; or external, which gives each linear layer and convolution a port that "
        "streams its weights.",
    ] = MEMORY
    node_weights: Annotated[Mapping[str, str], "Place of the weights of single nodes."] = field(
        default_factory=dict
    )
    share_layers: Annotated[
        int,
        "Build repeated layers as one block, through which this many tensors go together. 0: only "
        "if max_multipliers cannot be reached otherwise.",
    ] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        most = self.max_parallelism
        if not most or min([most] if isinstance(most, int) else most) < 1:
            raise ConfigError(f"max_parallelism must be 1 or more, got {_plain(most)}.")
        for name, lanes in self.parallelism.items():
            if min(lanes) < 1:
                raise ConfigError(
                    f"parallelism.{name}: {list(lanes)}. Allowed: lanes of 1 or more."
                )
        if self.adders_per_stage < 1:
            raise ConfigError(f"adders_per_stage must be 1 or more, got {self.adders_per_stage}.")
        check_clock(self.clock_mhz)
        if self.share_layers < 0:
            raise ConfigError(f"share_layers must be 0 or more, got {self.share_layers}.")
        for name, place in {"default": self.weights, **self.node_weights}.items():
            if place not in WEIGHT_PLACES:
                raise ConfigError(
                    f"weights: '{name}' is '{place}'. {suggest(place, WEIGHT_PLACES)}"
                )

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, where: str = "design") -> Self:
        """Return the settings of a mapping; errors start with the key path `where`."""
        return parse(cls, config, where)

    def to_config(self) -> dict[str, Any]:
        """Return all settings as plain data, which `from_config` reads back."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    @property
    def most(self) -> int:
        """The most elements per beat."""
        most = self.max_parallelism
        return most if isinstance(most, int) else most[0]

    def of(self, name: str, inputs: int, outputs: int) -> tuple[int, int]:
        """Return the lanes on both sides of node `name`: divisors of its channels, or by hand."""
        return self.parallelism.get(name) or (self._fit(inputs), self._fit(outputs))

    def _fit(self, channels: int) -> int:
        return max(d for d in range(1, min(self.most, channels) + 1) if channels % d == 0)

    def multiplier_of(self, name: str) -> str:
        """Return how node `name` forms its products."""
        return self.multiplier.get(name, self.multiplier.get(ALL_OTHERS, "array"))

    def check_nodes(self, names: Iterable[str]) -> None:
        """Raise if a setting is for a node that is not one of `names`."""
        nodes = set(names)
        tables = {
            "parallelism": self.parallelism,
            "multiplier": self.multiplier,
            "weights": self.node_weights,
        }
        for setting, table in tables.items():
            for name in table:
                if name not in nodes and not (setting == "multiplier" and name == ALL_OTHERS):
                    raise HardwareError(f"{setting}: no node '{name}'. {suggest(name, nodes)}")


def check_clock(clock_mhz: float) -> None:
    """Raise unless the clock has a positive, finite frequency."""
    if not 0 < clock_mhz < math.inf:
        raise ConfigError(f"clock_mhz must be above 0 MHz, got {clock_mhz:g}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
