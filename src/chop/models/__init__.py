"""Models by name, and small reference models that need no network."""

from chop.compat.old_names import lazy_names
from chop.models.cnn import CNN, ResidualBlock, ResidualCNN
from chop.models.mlp import MLP
from chop.models.named import get_model
from chop.models.reference_models import MODELS, reference_model
from chop.models.tasks import TASKS
from chop.models.tiny import tiny_bert, tiny_llama, tiny_vit

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "TASKS",
    "ResidualBlock",
    "ResidualCNN",
    "get_model",
    "reference_model",
    "tiny_bert",
    "tiny_llama",
    "tiny_vit",
]

__getattr__ = lazy_names(__name__)
