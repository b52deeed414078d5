"""Batches of calibration data: accepted forms, and limits on their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from chop.errors import ChopError, ConfigError, PassError
from chop.ir.node_arguments import tensors_in


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
    source = source_of(data)
    if source is None or isinstance(source, Tensor | Mapping | str):
        kind = type(source).__name__
        raise ConfigError(f"{where}: expected an iterable of batches, got {kind}.")
    if num_samples is not None and num_samples < 1:
        raise ConfigError(f"{where}: num_samples must be at least 1, got {num_samples}.")
    batches = list(first_batches(source, num_samples))
    if not batches:
        raise ConfigError(f"{where}: no batch was given. Give at least one.")
    return batches


def source_of(data: Any) -> Any:
    """Return the iterable that `data` is, or that it returns when called."""
    return data() if callable(data) and not isinstance(data, Iterable) else data


def first_batches(source: Iterable[Any], num_samples: int | None) -> Iterator[Any]:
    """Yield batches until `num_samples` rows are reached; all of them without a number."""
    rows = 0
    for batch in source:
        yield batch
        first = next(tensors_in(batch), torch.zeros(1))
        rows += first.shape[0] if first.dim() else 1
        if num_samples is not None and rows >= num_samples:
            return
