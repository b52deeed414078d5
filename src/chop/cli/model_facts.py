"""Facts about a model that are known before its weights are loaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from chop.actions.language import LANGUAGE_METRICS
from chop.cli.checkpoints import checkpoint_path
from chop.cli.model_files import GGUF, kind_of
from chop.cli.named_objects import thing_of
from chop.cli.shared_options import DataOptions, ModelOptions
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
class ModelPreview:
    """Facts about a model, without its weights.

    `task`: its task, if known; `says`: the class or architecture that implies it. `labels`: classes
    of its head, None if the head is new; `can_resize`: a new head may have any number. `positions`:
    tokens of its longest row.
    """

    task: str | None = None
    says: str = ""
    labels: int | None = None
    can_resize: bool = False
    is_regression: bool = False
    positions: int | None = None


def model_facts(options: ModelOptions) -> ModelPreview:
    """Return the facts about the model of `options` that are known before it is loaded."""
    name, thing = str(options.model), thing_of(options.model)
    if thing is not None:
        model = getattr(thing, "model", thing)  # of a MaseGraph, or a module
        config = getattr(model, "config", None)
        settings = config.to_dict() if isinstance(config, PretrainedConfig) else {}
        return _of_class(type(model).__name__, settings)
    if name in MODELS:
        labels = inspect.signature(MODELS[name]).parameters.get(LABELS)
        task = OWN_TASKS.get(name, DEFAULT_TASK)
        return ModelPreview(
            task, labels=None if labels is None else labels.default, can_resize=True
        )
    checkpoint = checkpoint_path(Path(name))
    if checkpoint is not None:
        return _of_class(*outline(checkpoint))
    if Path(name).is_file():
        return _of_file(Path(name))
    if ":" in name:
        return ModelPreview()
    return _hugging_face(name, options)


def _of_file(path: Path) -> ModelPreview:
    """Return the facts about a file of another program: GGUF files hold language models."""
    return ModelPreview(PREDICTS_TEXT, "GGUF file") if kind_of(path) == GGUF else ModelPreview()


def _of_class(kind: str, config: Mapping[str, Any]) -> ModelPreview:
    return ModelPreview(
        task_of_class(kind),
        kind,
        _head_size(config) if config else None,
        is_regression=config.get("problem_type") == "regression",
        positions=_positions(config),
    )


def _hugging_face(name: str, options: ModelOptions) -> ModelPreview:
    try:
        config = read_config(locate(name, "model"))
    except HubError:  # the command reports it
        return ModelPreview()
    own = own_task(config)
    task = options.task or own or likely_task(config, options)
    has_head = own is not None and own == task
    return ModelPreview(
        task,
        says=", ".join(map(str, config.get("architectures") or ())) if own == task else "",
        labels=_head_size(config) if has_head else 2,
        can_resize=not has_head,
        is_regression=config.get("problem_type") == "regression",
        positions=_positions(config),
    )


def _positions(config: Mapping[str, Any]) -> int | None:
    size = config.get("max_position_embeddings", config.get("n_positions"))
    return size if isinstance(size, int) and size > 0 else None


def _head_size(config: Mapping[str, Any]) -> int | None:
    labels = config.get("id2label")
    size = config.get(LABELS, len(labels) if isinstance(labels, Mapping) else 2)
    return size if isinstance(size, int) else None


def likely_task(config: Mapping[str, Any], options: ModelOptions) -> str:
    """Return the task of a model without a head: causal-lm for running text, else classes."""
    possible = possible_tasks(config.get("model_type"))
    if wants_language(options) and PREDICTS_TEXT in possible:
        return PREDICTS_TEXT
    return possible[0] if possible else DEFAULT_TASK


def wants_language(options: ModelOptions) -> bool:
    """Return True if the metric or the data needs a language model, or there is neither."""
    if not isinstance(options, DataOptions):
        return True
    if options.metric is not None:
        return options.metric in LANGUAGE_METRICS
    return is_running_text(options.dataset)


def is_running_text(dataset: str | None) -> bool:
    """Return True if a dataset, by its name, is text without labels."""
    return dataset is not None and thing_of(dataset) is None and is_language_data(dataset)


def task_to_load(options: ModelOptions) -> str:
    """Return the task of a Hugging Face model: of the options, its config, or the likeliest."""
    return options.task or model_facts(options).task or DEFAULT_TASK
