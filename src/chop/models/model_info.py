"""What is known of a model by its name."""

from __future__ import annotations

from dataclasses import dataclass

from chop.models.named import MODELS
from chop.models.old import OLD_MODELS

IMAGE_MODELS = ("cnn", "residual_cnn", "resnet18", "tiny_vit", "vgg7")
TEXT_MODELS = ("tiny_bert",)


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
    ours = name.replace("-", "_")
    is_text = ours in TEXT_MODELS or ours not in {*MODELS, *OLD_MODELS, *IMAGE_MODELS}
    return ModelInfo(name, ours in IMAGE_MODELS, is_text)
