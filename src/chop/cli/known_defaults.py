"""What a command line leaves open and the model and the data tell: metric, labels, sizes.

Every command gets its configuration through `with_known_defaults`, before it loads anything.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from chop.actions.language import LANGUAGE_METRICS
from chop.actions.train import check_training_arguments
from chop.cli.configs import DataOptions, ModelOptions
from chop.cli.console import Console
from chop.cli.glimpse import LABELS, Glimpse, glimpse
from chop.dataset.labels import count_classes
from chop.dataset.running_text import is_language_data
from chop.errors import ConfigError
from chop.models.named import DEFAULT_TASK
from chop.models.tasks import PREDICTS_TEXT

CLASSIFIERS = ("sequence-classification", "image-classification")


def with_known_defaults(config: Any, console: Console) -> Any:
    """`config` with the metric, the labels and the sizes that the model and the data tell."""
    if not (isinstance(config, ModelOptions) and isinstance(config, DataOptions)):
        return config
    check_training_arguments(getattr(config, "training", {}))
    seen = Glimpse() if config.model is None else glimpse(config)
    metric = config.metric or _metric(config, seen)
    is_language = metric in LANGUAGE_METRICS
    _check_match(config, seen, metric)
    changes: dict[str, Any] = {"metric": metric, **_sizes(config, seen, is_language)}
    if not is_language and config.dataset is not None:
        changes["model_options"] = _with_labels(config, seen)
    _note(config, seen, metric, console)
    return dataclasses.replace(config, **changes)


def _check_match(config: Any, seen: Glimpse, metric: str) -> None:
    """Refuse a metric that the model gives no scores for, and text without labels to classify."""
    if config.dataset is None or metric in LANGUAGE_METRICS:
        return
    task = config.task or seen.task
    if task == PREDICTS_TEXT:
        allowed = ", ".join(LANGUAGE_METRICS)
        raise ConfigError(
            f"metric: '{config.model}' is for {task}, and {metric} is of classes. Allowed: "
            f"{allowed}; or another --task."
        )
    if task in CLASSIFIERS and is_language_data(config.dataset):
        raise ConfigError(
            f"dataset: '{config.dataset}' is running text, without labels, and '{config.model}' is "
            f"for {task}. Give labelled rows, or a model for {PREDICTS_TEXT}."
        )


ROWS = {"eval_batch_size": (64, 8), "batch_size": (32, 8)}
"""Rows at a time where none are given: of anything, and of a language model, which gives scores of
its whole vocabulary for every token of a row."""
LONGEST = 512


def _sizes(config: Any, seen: Glimpse, is_language: bool) -> dict[str, int]:
    found = {
        name: rows[is_language]
        for name, rows in ROWS.items()
        if hasattr(config, name) and getattr(config, name) is None
    }
    if config.max_token_len is None:
        found["max_token_len"] = min(LONGEST, seen.positions or LONGEST)
    return found


def _metric(config: DataOptions, seen: Glimpse) -> str:
    if seen.task == PREDICTS_TEXT:
        return "perplexity"
    if seen.task is None and config.dataset is not None and is_language_data(config.dataset):
        return "perplexity"
    return "mse" if seen.is_regression else "accuracy"


def _with_labels(config: Any, seen: Glimpse) -> dict[str, Any]:
    """The options of the model, with as many labels as the data has classes."""
    given = dict(config.model_options)
    task = config.task or seen.task
    if LABELS in given or seen.labels is None or task not in CLASSIFIERS or seen.is_regression:
        return given
    classes = count_classes(config.dataset)
    if classes is None or classes == seen.labels:
        return given
    if seen.can_resize:
        return {**given, LABELS: classes}
    if classes > seen.labels:
        raise ConfigError(
            f"dataset: '{config.dataset}' has {classes} classes, and the model "
            f"'{config.model}' ({seen.says}) tells {seen.labels} apart. Give data of "
            f"{seen.labels} classes, or start a new head: --set model_options.{LABELS}={classes} "
            "--set model_options.ignore_mismatched_sizes=true."
        )
    return given


def _note(config: Any, seen: Glimpse, metric: str, console: Console) -> None:
    """Say what was taken from the model's config, where it is not the plainest."""
    if config.task is None and seen.says and seen.task not in (None, DEFAULT_TASK):
        measured = f", measured by {metric}" if config.dataset is not None else ""
        console.note(f"{config.model} is for {seen.task}{measured} (it is a {seen.says})")
