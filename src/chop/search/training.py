"""Space of training settings: arguments of `get_trainer` and TrainingArguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments

from chop.arguments import MAPPING, check
from chop.errors import ConfigError
from chop.registry import suggest
from chop.search.space import Dimension, ParameterValue, Space, read_dimension

SHORT_NAMES = {
    "epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "warm_up": "warmup_steps",
    "schedule": "lr_scheduler_type",
    "clip": "max_grad_norm",
}
"""Short name -> argument of TrainingArguments; `warm_up` below 1 is a share of the steps."""
ARGUMENTS = tuple(field.name for field in dataclasses.fields(TrainingArguments))


class TrainingSpace(Space):
    """Settings of training: `{"learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}}`.

    Names are those of transformers' TrainingArguments, or `SHORT_NAMES`. Lists are choices, tables
    with `low` and `high` are ranges.
    """

    def __init__(self, fields: Mapping[str, Any], *, where: str = "training") -> None:
        check(where, MAPPING, fields)
        names = (*ARGUMENTS, *SHORT_NAMES)
        dimensions: dict[str, Dimension] = {}
        for name, values in fields.items():
            if name not in names:  # the hint alone: there are over a hundred names
                hint = suggest(name, names).partition(" Known:")[0]
                hint = hint.replace("Known:", "Known names start:")
                raise ConfigError(f"{where}: unknown setting '{name}'. {hint}")
            dimensions[name] = read_dimension(values, f"{where}.{name}")
        super().__init__(dimensions)

    def training_arguments(self, params: Mapping[str, ParameterValue]) -> dict[str, Any]:
        """Return the keyword arguments of `get_trainer` for a point, without other dimensions."""
        return {SHORT_NAMES.get(k, k): params[k] for k in self.dimensions if k in params}


def read_space(mapping: Mapping[str, Any], where: str, subject: Any = None) -> TrainingSpace:
    """Read a table `[space.training]`."""
    return TrainingSpace(mapping, where=where)
