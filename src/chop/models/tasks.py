"""Tasks of models, from their configs and class names.

To support another ending of class names, add a row to `ENDINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto

from chop.hub import Place

CLASSIFIES_TEXT, CLASSIFIES_IMAGES = "sequence-classification", "image-classification"
PREDICTS_TEXT = "causal-lm"

TASKS = {
    CLASSIFIES_TEXT: "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    CLASSIFIES_IMAGES: "AutoModelForImageClassification",
    PREDICTS_TEXT: "AutoModelForCausalLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "masked-lm": "AutoModelForMaskedLM",
    "base": "AutoModel",
}
"""Class of transformers that builds the models of a task."""
ENDINGS = {
    "ForSequenceClassification": CLASSIFIES_TEXT,
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": CLASSIFIES_IMAGES,
    "ForCausalLM": PREDICTS_TEXT,
    "LMHeadModel": PREDICTS_TEXT,
    "ForConditionalGeneration": "seq2seq-lm",
}
"""Task by the ending of a class name. A model that was only pre-trained has no row."""
STARTS = {
    CLASSIFIES_TEXT: "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    CLASSIFIES_IMAGES: "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    PREDICTS_TEXT: "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
"""Model types by the tasks that a model without a head may be trained for, likeliest first."""


def task_of_class(name: str) -> str | None:
    """Return the task of a class of transformers by its name, None without a head.

    >>> task_of_class("LlamaForCausalLM"), task_of_class("BertModel")
    ('causal-lm', None)
    """
    return next((task for end, task in ENDINGS.items() if name.endswith(end)), None)


def read_config(place: Place) -> Mapping[str, Any]:
    """Return the config.json of a model from its folder or the hub, empty if unreadable."""
    try:
        return PretrainedConfig.get_config_dict(place.name, local_files_only=place.is_local)[0]
    except (OSError, ValueError):  # loading the model reports the fault
        return {}


def own_task(config: Mapping[str, Any]) -> str | None:
    """Return the task of the head that a model was saved with, else None."""
    names = config.get("architectures") or ()
    return next((task for n in names if (task := task_of_class(str(n))) is not None), None)


def possible_tasks(model_type: object) -> list[str]:
    """Return the tasks that models of this type can be trained for, likeliest first."""
    return [task for task, name in STARTS.items() if model_type in getattr(modeling_auto, name)]


def auto_class(task: str) -> Any:
    """Return the class of transformers that builds models for a task."""
    return getattr(transformers, TASKS[task])
