"""A mesh of equal devices: its shape, and what computing, talking and storing cost on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chop.config import check_fields
from chop.errors import ConfigError


@dataclass(frozen=True)
class Mesh:
    """Devices in a line (`(4,)`) or a grid (`(2, 4)`), all of one kind.

    `bandwidth`: bytes a second between neighbours along each axis. `latency`: seconds a message
    takes before its first byte, along each axis. One value stands for all axes. `memory`: bytes on
    a device, None for no limit. `flops` and `memory_bandwidth`: of one device, a second.

    The defaults are of the order of a data-centre GPU on a fast link; give your own for figures
    that mean something on your machine.
    """

    shape: tuple[int, ...] = (1, 2)
    bandwidth: tuple[float, ...] = (1e11,)
    latency: tuple[float, ...] = (5e-6,)
    memory: int | None = None
    flops: float = 5e13
    memory_bandwidth: float = 1.5e12

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.shape) not in (1, 2) or any(n < 1 for n in self.shape):
            raise ConfigError(
                f"mesh shape {list(self.shape)}: expected one or two axes of at least 1 device."
            )
        for name in ("bandwidth", "latency"):
            self._check_axes(name)
        for name in ("flops", "memory_bandwidth"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"mesh {name} must be above 0, got {getattr(self, name)}.")
        if self.memory is not None and self.memory <= 0:
            raise ConfigError(f"mesh memory must be above 0 bytes, got {self.memory}.")

    def _check_axes(self, name: str) -> None:
        values = getattr(self, name)
        if len(values) not in (1, len(self.shape)):
            raise ConfigError(
                f"mesh {name} has {len(values)} values for {len(self.shape)} axes; give one, or "
                "one for each axis."
            )
        if any(v < 0 or (v == 0 and name == "bandwidth") for v in values):
            raise ConfigError(f"mesh {name} {list(values)}: out of range.")

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return math.prod(self.shape)

    def axis(self, index: int) -> Axis:
        """One axis of the mesh, as the cost of talking along it sees it."""
        return Axis(
            self.shape[index],
            self.bandwidth[index % len(self.bandwidth)],
            self.latency[index % len(self.latency)],
        )


@dataclass(frozen=True)
class Axis:
    """A ring of `devices`: bytes a second between neighbours, seconds a message costs."""

    devices: int
    bandwidth: float
    latency: float
