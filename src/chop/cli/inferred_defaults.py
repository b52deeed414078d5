"""Defaults that follow from the model and the data: metric, labels, sizes.

Every command receives its configuration through `with_inferred_defaults`, before it loads anything.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from chop.actions.language import LANGUAGE_METRICS
from chop.actions.train import check_training_arguments
from chop.cli.console import Console
from chop.cli.model_facts import LABELS, ModelPreview, is_running_text, model_facts
from chop.cli.named_objects import thing_of
from chop.cli.shared_options import DataOptions, ModelOptions
from chop.dataset.labels import count_classes
from chop.errors import ConfigError
from chop.models.named import DEFAULT_TASK
from chop.models.tasks import PREDICTS_TEXT

CLASSIFIERS = ("sequence-classification", "image-classification")


def with_inferred_defaults(config: Any, console: Console) -> Any:
    """Return `config` with the metric, the labels and the sizes that model and data imply."""
    if not (isinstance(config, ModelOptions) and isinstance(config, DataOptions)):
        return config
    if getattr(config, "model_free", False):  # no model is built
        return config
    check_training_arguments(getattr(config, "training", {}))
    facts = ModelPreview() if config.model is None else model_facts(config)
    metric = config.metric or _metric(config, facts)
    is_language = metric in LANGUAGE_METRICS
    _check_match(config, facts, metric)
    changes: dict[str, Any] = {"metric": metric, **_sizes(config, facts, is_language)}
    if not is_language and config.dataset is not None:
        changes["model_options"] = _with_labels(config, facts)
    _note(config, facts, metric, console)
    return dataclasses.replace(config, **changes)


def _check_match(config: Any, facts: ModelPreview, metric: str) -> None:
    """Raise for a metric that does not fit the model, and for unlabelled text to classify."""
    if config.dataset is None or metric in LANGUAGE_METRICS:
        return
    task = config.task or facts.task
    if task == PREDICTS_TEXT:
        allowed = ", ".join(LANGUAGE_METRICS)
        raise ConfigError(
            f"metric: '{config.model}' is for {task}, and {metric} is of classes. Allowed: "
            f"{allowed}; or another --task."
        )
    if task in CLASSIFIERS and is_running_text(config.dataset):
        raise ConfigError(
            f"dataset: '{config.dataset}' is running text, without labels, and '{config.model}' is "
            f"for {task}. Give labelled rows, or a model for {PREDICTS_TEXT}."
        )


ROWS = {"eval_batch_size": (64, 8), "batch_size": (32, 8)}
"""Default rows per batch, in general and for language models, whose scores take more memory."""
LONGEST = 512
"""Largest default number of tokens per row."""


def _sizes(config: Any, facts: ModelPreview, is_language: bool) -> dict[str, int]:
    sizes = {
        name: rows[is_language]
        for name, rows in ROWS.items()
        if hasattr(config, name) and getattr(config, name) is None
    }
    if config.max_token_len is None:
        sizes["max_token_len"] = min(LONGEST, facts.positions or LONGEST)
    return sizes


def _metric(config: DataOptions, facts: ModelPreview) -> str:
    if facts.task == PREDICTS_TEXT:
        return "perplexity"
    if facts.task is None and is_running_text(config.dataset):
        return "perplexity"
    return "mse" if facts.is_regression else "accuracy"


def _with_labels(config: Any, facts: ModelPreview) -> dict[str, Any]:
    """Return the options of the model, with one label for each class of the data."""
    options = dict(config.model_options)
    task = config.task or facts.task
    if LABELS in options or facts.labels is None or task not in CLASSIFIERS or facts.is_regression:
        return options
    classes = None if thing_of(config.dataset) is not None else count_classes(config.dataset)
    if classes is None or classes == facts.labels:
        return options
    if facts.can_resize:
        return {**options, LABELS: classes}
    if classes > facts.labels:
        raise ConfigError(
            f"dataset: '{config.dataset}' has {classes} classes, and the model "
            f"'{config.model}' ({facts.says}) tells {facts.labels} apart. Give data of "
            f"{facts.labels} classes, or start a new head: --set model_options.{LABELS}={classes} "
            "--set model_options.ignore_mismatched_sizes=true."
        )
    return options


def _note(config: Any, facts: ModelPreview, metric: str, console: Console) -> None:
    """Print the task that the model's config implies, unless it is the usual one."""
    if config.task is None and facts.says and facts.task not in (None, DEFAULT_TASK):
        measured = f", measured by {metric}" if config.dataset is not None else ""
        console.note(f"{config.model} is for {facts.task}{measured} (it is a {facts.says})")
