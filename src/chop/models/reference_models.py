"""Registry of small reference models, with the input of each."""

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
"""Small reference models, with `num_labels` and sizes as arguments."""


@dataclass(frozen=True)
class ModelFacts:
    """Input kind of a reference model, and example inputs unless transformers has them."""

    reads: Reads
    example: Callable[[Any], Any] | None = None


MODEL_FACTS: dict[str, ModelFacts] = {}
"""Facts of reference models by name."""


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
    """Return the facts of the reference model whose class `model` has, else None."""
    return next((MODEL_FACTS[n] for n, build in MODELS.items() if build is type(model)), None)
