"""Metrics of predictions. To add one, put a function of scores and labels under `@METRICS.entry`.

Scores are the outputs of a model for each row: logits over classes, or numbers for a regression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chop.dataset.row_selection import IGNORED
from chop.errors import ConfigError
from chop.registry import Registry

Array = np.ndarray
Metric = Callable[[Array, Array], float]

METRICS: Registry[Metric] = Registry("metric")
ERRORS = ("mse", "mae", "perplexity")
"""Metrics that are better if smaller."""


def direction_of(name: str) -> str:
    """Return the direction in which a metric is better: "maximize" or "minimize"."""
    return "minimize" if METRICS.canonical(name) in ERRORS else "maximize"


def compute_metrics(name: str) -> Callable[[Any], dict[str, float]]:
    """Return a function for transformers' Trainer that returns `{name: value}`."""
    metric = METRICS[name]

    def compute(prediction: Any) -> dict[str, float]:
        scores = prediction.predictions
        scores = scores[0] if isinstance(scores, tuple) else scores  # hidden states may follow
        return {name: metric(np.asarray(scores), np.asarray(prediction.label_ids))}

    return compute


@METRICS.entry("accuracy")
def accuracy(scores: Array, labels: Array) -> float:
    """Return the share of rows whose highest score is at the label.

    >>> accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    0.5
    """
    predicted, true = _classes(scores, labels)
    return float((predicted == true).mean())


@METRICS.entry("precision")
def precision(scores: Array, labels: Array) -> float:
    """Return the share of rows predicted as a class that have it, averaged as in `f1`."""
    hits, predicted, _ = _counts(scores, labels)
    return float(_ratio(hits, predicted).mean())


@METRICS.entry("recall")
def recall(scores: Array, labels: Array) -> float:
    """Return the share of rows of a class that are predicted as it, averaged as in `f1`."""
    hits, _, true = _counts(scores, labels)
    return float(_ratio(hits, true).mean())


@METRICS.entry("f1")
def f1(scores: Array, labels: Array) -> float:
    """Return the harmonic mean of precision and recall: of class 1 of two, or the mean of all."""
    hits, predicted, true = _counts(scores, labels)
    return float(_ratio(2 * hits, predicted + true).mean())


@METRICS.entry("matthews_correlation")
def matthews_correlation(scores: Array, labels: Array) -> float:
    """Return the correlation of predicted and true classes; 0 for a constant prediction."""
    hits, predicted, true = _counts(scores, labels, every_class=True)
    n = true.sum()
    covariance = hits.sum() * n - (predicted * true).sum()
    spread = (n**2 - (predicted**2).sum()) * (n**2 - (true**2).sum())
    return float(covariance / np.sqrt(spread)) if spread else 0.0


@METRICS.entry("mse")
def mse(scores: Array, labels: Array) -> float:
    """Return the mean squared difference."""
    return float((_differences(scores, labels) ** 2).mean())


@METRICS.entry("mae")
def mae(scores: Array, labels: Array) -> float:
    """Return the mean absolute difference."""
    return float(np.abs(_differences(scores, labels)).mean())


@METRICS.entry("perplexity")
def perplexity(scores: Array, labels: Array) -> float:
    """Return e to the mean loss of a language model per token.

    Labels are the tokens themselves: the scores at each position are for the next token.
    """
    before, tokens = _next_tokens(scores, labels)
    top = before.max(-1, keepdims=True)
    total = np.log(np.exp(before - top).sum(-1)) + top[:, 0]
    return float(np.exp((total - before[np.arange(len(tokens)), tokens]).mean()))


@METRICS.entry("token_agreement")
def token_agreement(scores: Array, labels: Array) -> float:
    """Return the share of positions whose highest score is at the next token of the labels."""
    before, tokens = _next_tokens(scores, labels)
    return float((before.argmax(-1) == tokens).mean())


def _next_tokens(scores: Array, labels: Array) -> tuple[Array, Array]:
    if scores.ndim != 3 or scores.shape[:2] != labels.shape:
        raise ConfigError(
            f"metric: perplexity and token_agreement need a score for each token of the vocabulary "
            f"at each place; the model gives {list(scores.shape)} for labels {list(labels.shape)}."
        )
    tokens = labels[:, 1:].reshape(-1)
    before = scores[:, :-1].reshape(len(tokens), -1).astype(np.float64)
    return before[tokens != IGNORED], tokens[tokens != IGNORED]


def _differences(scores: Array, labels: Array) -> Array:
    if scores.size != labels.size:
        raise ConfigError(
            f"metric: mse and mae compare a number for each label; the model gives "
            f"{scores.size // max(len(labels), 1)} for each row. Of classes, take accuracy or f1."
        )
    differences: Array = scores.reshape(labels.shape) - labels
    return differences


def _classes(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return the predicted and the true class of every row that is not ignored."""
    counts = labels.reshape(-1) != IGNORED
    predicted = scores.argmax(-1).reshape(-1)
    return predicted[counts], labels.reshape(-1)[counts]


def _counts(scores: Array, labels: Array, every_class: bool = False) -> tuple[Array, Array, Array]:
    """Return, for each class, the hits, the predicted rows and the true rows.

    Of two classes only class 1 is returned, unless `every_class` is set.
    """
    predicted, true = _classes(scores, labels)
    size = scores.shape[-1]
    rows = (true[predicted == true], predicted, true)
    counts = [np.bincount(each, minlength=size).astype(float) for each in rows]
    first = 1 if size == 2 and not every_class else 0
    return counts[0][first:], counts[1][first:], counts[2][first:]


def _ratio(part: Array, whole: Array) -> Array:
    shares: Array = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return shares


METRICS.check(ERRORS, "metrics.ERRORS")
