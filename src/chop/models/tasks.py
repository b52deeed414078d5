"""What a model is for, as its own config says.

To teach it another ending of class names, add a row to `ENDINGS`.
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
"""Task -> the class of transformers that knows its models."""

ENDINGS = {
    "ForSequenceClassification": CLASSIFIES_TEXT,
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": CLASSIFIES_IMAGES,
    "ForCausalLM": PREDICTS_TEXT,
    "LMHeadModel": PREDICTS_TEXT,
    "ForConditionalGeneration": "seq2seq-lm",
}
"""How the name of a class ends -> its task. A model that was only pre-trained, by filling in what
is hidden or without a head, is for whatever it is trained for next: it has no row."""

STARTS = {
    CLASSIFIES_TEXT: "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    CLASSIFIES_IMAGES: "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    PREDICTS_TEXT: "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
"""What a model without a head may be trained for, the likeliest first -> the models that can."""


def task_of_class(name: str) -> str | None:
    """The task of a class of transformers, by its name; None where it has no head for one.

    >>> task_of_class("LlamaForCausalLM"), task_of_class("BertModel")
    ('causal-lm', None)
    """
    return next((task for end, task in ENDINGS.items() if name.endswith(end)), None)


def read_config(place: Place) -> Mapping[str, Any]:
    """The config.json of a model, from its folder or the hub; empty where it cannot be read."""
    try:
        found, _ = PretrainedConfig.get_config_dict(place.name, local_files_only=place.is_local)
    except (OSError, ValueError):  # loading the model says what is wrong
        return {}
    return found


def own_task(config: Mapping[str, Any]) -> str | None:
    """The task of the head that a model was saved with; None where it has none."""
    names = config.get("architectures") or ()
    return next((task for n in names if (task := task_of_class(str(n))) is not None), None)


def possible_tasks(model_type: object) -> list[str]:
    """The tasks that models of this type can be trained for, the likeliest first."""
    return [task for task, table in STARTS.items() if model_type in _table(table)]


def _table(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(modeling_auto, name)
    return found


def auto_class(task: str) -> Any:
    """The class of transformers that builds models for a task."""
    return getattr(transformers, TASKS[task])
