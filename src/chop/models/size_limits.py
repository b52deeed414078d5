"""Limits on the size of a model that a file describes, checked while its modules are built.

The model is built on the meta device, without memory, up to the first module or tensor beyond the
limits. So a forged config costs no more than its weights would.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as registration

from chop.errors import HubError

SLACK_BYTES, SLACK_MODULES = 1 << 28, 2048
"""Allowance for tensors without weight files: a new head, masks, position tables."""
PLAIN_GROWTH, PACKED_GROWTH = 8, 32
"""Bytes of a float32 model per byte of its weights: float8 with half shared, and one bit."""
MODULES_PER_TENSOR = 8


@dataclass(frozen=True)
class SizeLimit:
    """Largest model: bytes of its tensors, counted as float32, and number of modules."""

    bytes: int
    modules: int
    reason: str

    @staticmethod
    def of_weights(bytes: int, tensors: int, *, is_packed: bool) -> SizeLimit:
        """Return the limit for weight files of `bytes` bytes with `tensors` tensors."""
        growth = PACKED_GROWTH if is_packed else PLAIN_GROWTH
        reason = f"its weights are {bytes} bytes in {tensors} tensors"
        most = growth * bytes + SLACK_BYTES
        return SizeLimit(most, MODULES_PER_TENSOR * tensors + SLACK_MODULES, reason)

    @staticmethod
    def of_machine() -> SizeLimit:
        """Return the limit for a model without weights: the memory of this machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return SizeLimit(memory, 1 << 17, f"this machine has {memory} bytes of memory")


def check_size(build: Callable[[], Any], limit: SizeLimit, where: str) -> None:
    """Build a model without memory; raise HubError if it is larger than the limit."""
    with torch.device("meta"), _counting(limit, where):
        build()


@contextlib.contextmanager
def _counting(limit: SizeLimit, where: str) -> Iterator[None]:
    """Count modules and tensors as they are registered; raise HubError beyond the limit."""
    size, modules = 0, 0

    def tensor(_: nn.Module, name: str, value: torch.Tensor | None) -> None:
        nonlocal size
        if value is not None:
            size += value.numel() * (4 if value.is_floating_point() else value.itemsize)
        if size > limit.bytes:
            raise HubError(
                f"{where}: the config describes a model of more than {limit.bytes} bytes (at "
                f"'{name}', of shape {list(value.shape) if value is not None else []}), and "
                f"{limit.reason}."
            )

    def part(_: nn.Module, name: str, value: nn.Module | None) -> None:
        nonlocal modules
        modules += 1
        if modules > limit.modules:
            raise HubError(
                f"{where}: the config describes a model of more than {limit.modules} modules, and "
                f"{limit.reason}."
            )

    handles = (
        registration.register_module_parameter_registration_hook(tensor),
        registration.register_module_buffer_registration_hook(tensor),
        registration.register_module_module_registration_hook(part),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
