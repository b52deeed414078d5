"""What is known of a model by its name."""

from __future__ import annotations

from dataclasses import dataclass

from chop.compat.old_models import OLD_IMAGE_MODELS, OLD_MODELS
from chop.models.reference import MODEL_FACTS, Reads


@dataclass(frozen=True)
class ModelInfo:
    """A model's name and what it reads: images, text, or vectors of features."""

    name: str
    is_vision_model: bool
    is_nlp_model: bool

    @property
    def is_physical_model(self) -> bool:
        """Whether the model reads vectors of features."""
        return not (self.is_vision_model or self.is_nlp_model)


def get_model_info(name: str) -> ModelInfo:
    """What the model `name` reads; a name that is not one of ours is that of a text model."""
    reads = _reads(name.replace("-", "_"))
    return ModelInfo(name, reads == "images", reads == "text")


def _reads(name: str) -> Reads:
    if name in MODEL_FACTS:
        return MODEL_FACTS[name].reads
    if name in OLD_IMAGE_MODELS:
        return "images"
    return "features" if name in OLD_MODELS else "text"
