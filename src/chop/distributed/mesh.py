"""Mesh of equal devices: its shape, and the cost of compute, communication and memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from chop.config import check_fields, mesh_shape_of
from chop.errors import ConfigError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Bytes of a decimal unit; the binary ones (KIB, MIB …) are powers of 1024."""
UNITS |= {f"{name[0]}IB": 1024**k for k, name in enumerate(("KB", "MB", "GB", "TB"), 1)}


def bytes_of(size: int | str) -> int:
    """Return a number of bytes, which may have a unit.

    >>> bytes_of("80GB"), bytes_of("1.5 GiB"), bytes_of(1000)
    (80000000000, 1610612736, 1000)
    """
    match = re.fullmatch(r"\s*(-?[\d_.]+(?:e\d+)?)\s*([a-zA-Z]*)\s*", str(size))
    if match is None or match[2].upper() not in UNITS:
        raise ConfigError(
            f"memory '{size}': expected bytes, or a number with a unit: {', '.join(UNITS)[2:]}."
        )
    return round(float(match[1]) * UNITS[match[2].upper()])


__all__ = ["UNITS", "Axis", "Mesh", "bytes_of", "mesh_shape_of"]


@dataclass(frozen=True)
class Mesh:
    """Devices in a line (`(4,)`), a grid (`(2, 4)`) or a block (`(2, 2, 4)`), all of one kind.

    `bandwidth`: bytes per second between neighbours along each axis. `latency`: seconds before the
    first byte of a message, along each axis. One value applies to all axes. `memory`: bytes per
    device, None for no limit. `flops` and `memory_bandwidth`: per device and second. `overlaps`:
    gathers of parameters and reductions of their gradients run while the device computes.

    The defaults have the order of magnitude of a data-centre GPU on a fast link. Replace them by
    those of your machine to get meaningful times.
    """

    shape: tuple[int, ...] = (1, 2)
    bandwidth: tuple[float, ...] = (1e11,)
    latency: tuple[float, ...] = (5e-6,)
    memory: int | None = None
    flops: float = 5e13
    memory_bandwidth: float = 1.5e12
    overlaps: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.shape) not in (1, 2, 3) or any(n < 1 for n in self.shape):
            raise ConfigError(
                f"mesh shape {list(self.shape)}: expected one to three axes of at least 1 device."
            )
        for name in ("bandwidth", "latency"):
            values = getattr(self, name)
            if len(values) not in (1, len(self.shape)):
                raise ConfigError(
                    f"mesh {name} has {len(values)} values for {len(self.shape)} axes; give one, "
                    "or one for each axis."
                )
            if any(v < 0 or (v == 0 and name == "bandwidth") for v in values):
                raise ConfigError(f"mesh {name} {list(values)}: out of range.")
        for name in ("flops", "memory_bandwidth"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"mesh {name} must be above 0, got {getattr(self, name)}.")
        if self.memory is not None and self.memory <= 0:
            raise ConfigError(f"mesh memory must be above 0 bytes, got {self.memory}.")

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    def axis(self, index: int) -> Axis:
        """Return one axis of the mesh with its link."""
        bandwidth = self.bandwidth[index % len(self.bandwidth)]
        return Axis(self.shape[index], bandwidth, self.latency[index % len(self.latency)])


@dataclass(frozen=True)
class Axis:
    """Ring of `devices`: bytes per second between neighbours, seconds per message."""

    devices: int
    bandwidth: float
    latency: float
