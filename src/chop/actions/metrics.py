"""Metrics of predictions. To add one: a function of scores and labels, under `@METRICS.entry`.

Scores are what the model gives for each row: logits over classes, or numbers for a regression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chop.errors import ConfigError
from chop.registry import Registry

Array = np.ndarray
Metric = Callable[[Array, Array], float]
IGNORED = -100
"""The label of what is not to be predicted, such as padding."""

METRICS: Registry[Metric] = Registry("metric")
ERRORS = ("mse", "mae", "perplexity")
"""Metrics of which less is better."""


def direction_of(name: str) -> str:
    """Which way a metric is better, in the words of a search: "maximize" or "minimize"."""
    return "minimize" if METRICS.canonical(name) in ERRORS else "maximize"


def compute_metrics(name: str) -> Callable[[Any], dict[str, float]]:
    """A function for transformers' Trainer that gives `{name: value}`; unknown names are errors."""
    metric = METRICS[name]

    def compute(prediction: Any) -> dict[str, float]:
        scores = prediction.predictions
        scores = scores[0] if isinstance(scores, tuple) else scores  # hidden states may follow
        return {name: metric(np.asarray(scores), np.asarray(prediction.label_ids))}

    return compute


@METRICS.entry("accuracy")
def accuracy(scores: Array, labels: Array) -> float:
    """Share of rows whose highest score is at the label.

    >>> accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    0.5
    """
    chosen, wanted = _classes(scores, labels)
    return float((chosen == wanted).mean())


@METRICS.entry("precision")
def precision(scores: Array, labels: Array) -> float:
    """Of the rows given a class, the share that has it; as `f1` over classes."""
    hits, chosen, _ = _counts(scores, labels)
    return float(_ratio(hits, chosen).mean())


@METRICS.entry("recall")
def recall(scores: Array, labels: Array) -> float:
    """Of the rows that have a class, the share that is given it; as `f1` over classes."""
    hits, _, wanted = _counts(scores, labels)
    return float(_ratio(hits, wanted).mean())


@METRICS.entry("f1")
def f1(scores: Array, labels: Array) -> float:
    """Harmonic mean of precision and recall; of class 1 where there are two, else the mean."""
    hits, chosen, wanted = _counts(scores, labels)
    return float(_ratio(2 * hits, chosen + wanted).mean())


@METRICS.entry("matthews_correlation")
def matthews_correlation(scores: Array, labels: Array) -> float:
    """Correlation between the classes given and the classes there are; 0 for a constant answer."""
    hits, given, there = _counts(scores, labels, every_class=True)
    n = there.sum()
    covariance = hits.sum() * n - (given * there).sum()
    spread = (n**2 - (given**2).sum()) * (n**2 - (there**2).sum())
    return float(covariance / np.sqrt(spread)) if spread else 0.0


@METRICS.entry("mse")
def mse(scores: Array, labels: Array) -> float:
    """Mean of the squared differences."""
    return float((_differences(scores, labels) ** 2).mean())


@METRICS.entry("mae")
def mae(scores: Array, labels: Array) -> float:
    """Mean of the absolute differences."""
    return float(np.abs(_differences(scores, labels)).mean())


@METRICS.entry("perplexity")
def perplexity(scores: Array, labels: Array) -> float:
    """Of a language model: e to the mean surprise at each token, by what came before it.

    Labels are the tokens themselves: the scores at each place are of the next one.
    """
    before, wanted = _next_tokens(scores, labels)
    top = before.max(-1, keepdims=True)
    total = np.log(np.exp(before - top).sum(-1)) + top[:, 0]
    return float(np.exp((total - before[np.arange(len(wanted)), wanted]).mean()))


@METRICS.entry("token_agreement")
def token_agreement(scores: Array, labels: Array) -> float:
    """Share of places at which the highest score is at the next label: of another model's text,
    how often this one goes on alike.
    """
    before, wanted = _next_tokens(scores, labels)
    return float((before.argmax(-1) == wanted).mean())


def _next_tokens(scores: Array, labels: Array) -> tuple[Array, Array]:
    if scores.ndim != 3 or scores.shape[:2] != labels.shape:
        raise ConfigError(
            f"metric: perplexity and token_agreement need a score for each token of the vocabulary "
            f"at each place; the model gives {list(scores.shape)} for labels {list(labels.shape)}."
        )
    wanted = labels[:, 1:].reshape(-1)
    before = scores[:, :-1].reshape(len(wanted), -1).astype(np.float64)
    return before[wanted != IGNORED], wanted[wanted != IGNORED]


def _differences(scores: Array, labels: Array) -> Array:
    if scores.size != labels.size:
        raise ConfigError(
            f"metric: mse and mae compare a number for each label; the model gives "
            f"{scores.size // max(len(labels), 1)} for each row. Of classes, take accuracy or f1."
        )
    differences: Array = scores.reshape(labels.shape) - labels
    return differences


def _classes(scores: Array, labels: Array) -> tuple[Array, Array]:
    """The class of each row that counts: as given, and as it is."""
    counts = labels.reshape(-1) != IGNORED
    chosen = scores.argmax(-1).reshape(-1)
    return chosen[counts], labels.reshape(-1)[counts]


def _counts(scores: Array, labels: Array, every_class: bool = False) -> tuple[Array, Array, Array]:
    """For each class: rows given it rightly, rows given it, rows that have it.

    Of two classes, 0 is the absence of 1, so class 1 alone is told of unless every one is wanted.
    """
    chosen, wanted = _classes(scores, labels)
    size = scores.shape[-1]
    hits = np.bincount(wanted[chosen == wanted], minlength=size).astype(float)
    counts = (hits, *(np.bincount(each, minlength=size).astype(float) for each in (chosen, wanted)))
    first = 1 if size == 2 and not every_class else 0
    return counts[0][first:], counts[1][first:], counts[2][first:]


def _ratio(part: Array, whole: Array) -> Array:
    shares: Array = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return shares


METRICS.check(ERRORS, "metrics.ERRORS")
