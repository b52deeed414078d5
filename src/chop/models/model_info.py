"""Kind of input of a model, by name."""

from __future__ import annotations

from dataclasses import dataclass

from chop.compat.old_models import OLD_IMAGE_MODELS, OLD_MODELS
from chop.models.reference_models import MODEL_FACTS, Reads


@dataclass(frozen=True)
class ModelInfo:
    """Name of a model and the kind of its input: images, text, or feature vectors."""

    name: str
    is_vision_model: bool
    is_nlp_model: bool

    @property
    def is_physical_model(self) -> bool:
        """True if the model reads feature vectors."""
        return not (self.is_vision_model or self.is_nlp_model)


def get_model_info(name: str) -> ModelInfo:
    """Return the input kind of the model `name`; an unknown name is a text model."""
    key = name.replace("-", "_")
    reads: Reads = "features" if key in OLD_MODELS else "text"
    reads = "images" if key in OLD_IMAGE_MODELS else reads
    reads = MODEL_FACTS[key].reads if key in MODEL_FACTS else reads
    return ModelInfo(name, reads == "images", reads == "text")
