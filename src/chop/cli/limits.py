"""Allowed values of numeric options. To limit an option, add its name to `LIMITS`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.errors import ConfigError

Limit = tuple[str, Callable[[float], bool]]
"""Description and test of allowed values."""
NOT_NEGATIVE: Limit = ("at least 0", lambda value: value >= 0)
POSITIVE: Limit = ("above 0", lambda value: value > 0)
COUNT: Limit = ("at least 1", lambda value: value >= 1)
SEED: Limit = ("from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
SHARE: Limit = ("at least 0 and below 1", lambda value: 0 <= value < 1)
LIMITS: Mapping[str, Limit] = {
    **dict.fromkeys(("epochs", "qat_epochs", "finetune_epochs", "tune_epochs"), NOT_NEGATIVE),
    **dict.fromkeys(("timeout", "tolerance", "carbon_intensity"), NOT_NEGATIVE),
    **dict.fromkeys(("train_rows", "test_rows", "max_token_len", "batch", "trials"), COUNT),
    **dict.fromkeys(("batch_size", "eval_batch_size", "save_steps", "workers"), COUNT),
    **dict.fromkeys(("iterations", "input_shape", "stages", "micro_batches"), COUNT),
    **dict.fromkeys(("max_new_tokens", "beams", "repeat", "top_k"), COUNT),
    **dict.fromkeys(("max_tokens", "max_batch"), COUNT),
    **dict.fromkeys(("max_queue", "patience"), NOT_NEGATIVE),
    "max_length": ("at least 2", lambda value: value >= 2),
    "port": ("from 0 to 65535", lambda value: 0 <= value <= 65535),
    **dict.fromkeys(("seed", "seeds"), SEED),
    **dict.fromkeys(("sparsity", "sparsities", "prune"), SHARE),
    "learning_rate": POSITIVE,
    "temperature": POSITIVE,
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
}
"""Option -> limit of its value or values, the same in every command."""
NOT_EMPTY = ("iterations", "input_shape", "seeds", "values", "type", "inputs", "devices", "method")
"""Lists that must not be empty."""
MAY_BE_EMPTY = ("prompt",)
"""Text that may be empty; the command itself rejects a prompt without tokens."""


def check_limits(config: Any, where: str) -> None:
    """Raise for the first option of `config` whose value is not allowed."""
    for field in dataclasses.fields(config):
        value, place = getattr(config, field.name), f"{where}.{field.name}"
        if dataclasses.is_dataclass(value):
            check_limits(value, place)
            continue
        if field.name in NOT_EMPTY and value is not None and not len(value):
            raise ConfigError(f"{place}: empty. Give at least one value, separated by commas.")
        if field.name not in MAY_BE_EMPTY and "" in _each(value):
            raise ConfigError(f"{place}: an empty text. Leave the option out, or give a value.")
        if any(isinstance(v, str | Path) and set(str(v)) == {"/"} for v in _each(value)):
            raise ConfigError(f"{place}: '/' is the root of the file system. Name a folder in it.")
        for number in _each(value):  # numbers in tables are checked by their readers
            if isinstance(number, int | float) and not isinstance(number, bool):
                _check(number, LIMITS.get(field.name), place)


def _check(number: float, limit: Limit | None, where: str) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise ConfigError(f"{where}: {number} is not allowed. Allowed: a finite number.")
    if limit is not None and not limit[1](number):
        raise ConfigError(f"{where}: must be {limit[0]}, got {number}.")


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)
