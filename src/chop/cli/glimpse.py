"""A model seen from outside: what can be told of it before its weights are read."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.language import LANGUAGE_METRICS
from chop.cli.checkpoints import checkpoint_path
from chop.cli.configs import DataOptions, ModelOptions
from chop.dataset.running_text import is_language_data
from chop.errors import HubError
from chop.hub import locate
from chop.ir.store.checkpoint import outline
from chop.models import MODELS
from chop.models.named import DEFAULT_TASK, OWN_TASKS
from chop.models.tasks import (
    PREDICTS_TEXT,
    own_task,
    possible_tasks,
    read_config,
    task_of_class,
)

LABELS = "num_labels"


@dataclass(frozen=True)
class Glimpse:
    """A model seen from outside, without its weights.

    `task` is what it is for where something tells; `says` is what told it. `labels` is the number
    of classes its head has, None where the head is yet to be made; `can_resize` whether it is made
    with as many as asked for. `positions` is the longest row of tokens it takes.
    """

    task: str | None = None
    says: str = ""
    labels: int | None = None
    can_resize: bool = False
    is_regression: bool = False
    positions: int | None = None


def glimpse(options: ModelOptions) -> Glimpse:
    """What can be told of the model of `options` before it is loaded."""
    name = str(options.model)
    if name in MODELS:
        labels = inspect.signature(MODELS[name]).parameters.get(LABELS)
        found = OWN_TASKS.get(name, DEFAULT_TASK)
        return Glimpse(found, labels=None if labels is None else labels.default, can_resize=True)
    checkpoint = checkpoint_path(Path(name))
    if checkpoint is not None:
        kind, config = outline(checkpoint)
        return Glimpse(
            task_of_class(kind),
            kind,
            _head_size(config) if config else None,
            is_regression=config.get("problem_type") == "regression",
            positions=_positions(config),
        )
    if ":" in name:
        return Glimpse()
    return _hugging_face(name, options)


def _hugging_face(name: str, options: ModelOptions) -> Glimpse:
    try:
        config = read_config(locate(name, "model"))
    except HubError:  # the command says so
        return Glimpse()
    own = own_task(config)
    task = options.task or own or likely_task(config, options)
    has_head = own is not None and own == task
    return Glimpse(
        task,
        says=", ".join(map(str, config.get("architectures") or ())) if own == task else "",
        labels=_head_size(config) if has_head else 2,
        can_resize=not has_head,
        is_regression=config.get("problem_type") == "regression",
        positions=_positions(config),
    )


def _positions(config: Mapping[str, Any]) -> int | None:
    found = config.get("max_position_embeddings", config.get("n_positions"))
    return found if isinstance(found, int) and found > 0 else None


def _head_size(config: Mapping[str, Any]) -> int | None:
    labels = config.get("id2label")
    size = config.get(LABELS, len(labels) if isinstance(labels, Mapping) else 2)
    return size if isinstance(size, int) else None


def likely_task(config: Mapping[str, Any], options: ModelOptions) -> str:
    """What a model without a head is for: text where the data is running text, else classes."""
    possible = possible_tasks(config.get("model_type"))
    if wants_language(options) and PREDICTS_TEXT in possible:
        return PREDICTS_TEXT
    return possible[0] if possible else DEFAULT_TASK


def wants_language(options: ModelOptions) -> bool:
    """Whether the metric or the data is of language models; commands without them write text."""
    if not isinstance(options, DataOptions):
        return True
    if options.metric is not None:
        return options.metric in LANGUAGE_METRICS
    return options.dataset is not None and is_language_data(options.dataset)


def known_task(options: ModelOptions) -> str:
    """The task of a Hugging Face model: as asked for, as its config says, or the likeliest."""
    return options.task or glimpse(options).task or DEFAULT_TASK
