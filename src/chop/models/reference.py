"""The registry of small reference models, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import nn

from chop.registry import Registry

Build = Callable[..., nn.Module]
B = TypeVar("B", bound=Build)
Reads = Literal["features", "images", "text"]

MODELS: Registry[Build] = Registry("model")
"""Small reference models; each takes `num_labels` and its own sizes."""


@dataclass(frozen=True)
class ModelFacts:
    """What a reference model reads, and how example inputs are made for one that is built.

    A Hugging Face model makes its own examples.
    """

    reads: Reads
    example: Callable[[Any], Any] | None = None


MODEL_FACTS: dict[str, ModelFacts] = {}
"""Name of a reference model -> what is known of it."""


def reference_model(
    name: str, *, reads: Reads, example: Callable[[Any], Any] | None = None
) -> Callable[[B], B]:
    """Register a class or a function that builds a model as the reference model `name`."""

    def add(build: B) -> B:
        MODELS.register(name, build)
        MODEL_FACTS[name] = ModelFacts(reads, example)
        return build

    return add


def facts_of(model: nn.Module) -> ModelFacts | None:
    """The facts of the reference model whose class `model` has; None for any other model."""
    return next((MODEL_FACTS[n] for n, build in MODELS.items() if build is type(model)), None)
