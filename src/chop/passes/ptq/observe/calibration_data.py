"""Batches of calibration data: what a pass may be given, and how much of it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from chop.errors import ChopError, ConfigError, PassError
from chop.ir.arguments import tensors_in


@contextmanager
def running(where: str, number: int) -> Iterator[None]:
    """Say which batch it was where a graph does not run on one."""
    try:
        yield
    except ChopError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise PassError(
            f"{where}: the graph does not run on batch {number}: {reason}. "
            "Give batches like the inputs that the graph was captured with."
        ) from error


def calibration_batches(data: Any, num_samples: int | None, where: str) -> list[Any]:
    """The batches of `data` until `num_samples` rows are seen; all of them without a number.

    `data` is an iterable of batches (mappings, tensors or tuples), or a function that gives one.
    """
    source = data() if isinstance(data, Callable) and not isinstance(data, Iterable) else data  # type: ignore[arg-type]
    if source is None or isinstance(source, Tensor | Mapping | str):
        kind = type(source).__name__
        raise ConfigError(f"{where}: expected an iterable of batches, got {kind}.")
    if num_samples is not None and num_samples < 1:
        raise ConfigError(f"{where}: num_samples must be at least 1, got {num_samples}.")
    found, seen = [], 0
    for batch in source:
        found.append(batch)
        first = next(tensors_in(batch), torch.zeros(1))
        seen += first.shape[0] if first.dim() else 1
        if num_samples is not None and seen >= num_samples:
            break
    if not found:
        raise ConfigError(f"{where}: no batch was given. Give at least one.")
    return found
