"""A model by name: a small reference model, a hub name, a local folder, or a config.

To add a reference model: write a function or class that builds it, and list it in `MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import PretrainedConfig

from chop.errors import ConfigError
from chop.hub import locate
from chop.models.cnn import CNN, ResidualCNN
from chop.models.mlp import MLP
from chop.models.tiny import tiny_bert, tiny_vit
from chop.registry import Registry, suggest

MODELS: Registry[Callable[..., nn.Module]] = Registry("model")
"""Small reference models; each takes `num_labels` and its own sizes."""

MODELS.register("mlp", MLP)
MODELS.register("cnn", CNN)
MODELS.register("residual_cnn", ResidualCNN)
MODELS.register("tiny_vit", tiny_vit)
MODELS.register("tiny_bert", tiny_bert)

TASKS = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "image-classification": "AutoModelForImageClassification",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "base": "AutoModel",
}
"""Task -> the class of transformers that knows its models."""


def get_model(
    name: str | Path | PretrainedConfig, task: str = "sequence-classification", **options: Any
) -> nn.Module:
    """The model `name`: one of `MODELS`, a folder, a name on the hub, or a config.

    `task` is for Hugging Face models. `options` go to the builder (`num_labels` …). A config gives
    a model with random weights.
    """
    if isinstance(name, str) and name in MODELS and not Path(name).is_dir():
        return MODELS[name](**options)
    if task not in TASKS:
        raise ConfigError(f"get_model: unknown task '{task}'. {suggest(task, TASKS)}")
    family = getattr(transformers, TASKS[task])
    model: nn.Module
    if isinstance(name, PretrainedConfig):
        model = family.from_config(name, **options)
    else:
        place = locate(name, "model")
        model = family.from_pretrained(place.name, local_files_only=place.is_local, **options)
    return model
