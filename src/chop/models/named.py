"""A model by name: a small reference model, a hub name, a local folder, or a config.

To add a reference model: a function or class that builds it, under `@reference_model`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, PretrainedConfig

from chop.compat.old_models import OLD_HUB_NAMES, OLD_MODELS
from chop.errors import ChopError, ConfigError, HubError
from chop.hub import locate
from chop.log import warn_once
from chop.models.folders import Checked, check_model_options, checked
from chop.models.reference import MODELS
from chop.models.tasks import (
    CLASSIFIES_IMAGES,
    CLASSIFIES_TEXT,
    PREDICTS_TEXT,
    TASKS,
    auto_class,
    possible_tasks,
)
from chop.registry import suggest

DEFAULT_TASK = CLASSIFIES_TEXT
OWN_TASKS = {
    **dict.fromkeys(("mlp", "cnn", "residual_cnn", "tiny_vit"), CLASSIFIES_IMAGES),
    "tiny_llama": PREDICTS_TEXT,
}
"""Reference models -> what they are for; the others are for the default task."""

OLD_TASKS = {
    "cls": "sequence-classification",
    "classification": "sequence-classification",
    "lm": "causal-lm",
}
"""Tasks as programs for DeepWok/mase call them."""


WRONG_VALUES = (TypeError, ValueError, RuntimeError, StrictDataclassError)
"""What Python, torch and transformers raise on sizes and settings that make no model."""


def get_model(
    name: str | Path | PretrainedConfig,
    task: str = DEFAULT_TASK,
    dataset_info: Any = None,
    pretrained: bool | None = None,
    checkpoint: str | Path | None = None,
    *,
    trust_remote_code: bool = False,
    **options: Any,
) -> nn.Module:
    """Return the model `name`: one of `MODELS`, a folder, a name on the hub, or a config.

    `task` is for Hugging Face models. `options` go to the builder (`num_labels` …). A config gives
    a model with random weights, and so does `pretrained=False`. `dataset_info` gives the number of
    labels where `options` do not; `checkpoint` is a folder or name to take the weights from.
    `trust_remote_code`: import the Python files that a folder or the hub has for its model.
    """
    task, options = OLD_TASKS.get(task, task), _with_labels(options, dataset_info)
    if isinstance(name, str) and not Path(name).is_dir():
        builder = MODELS[name] if name in MODELS else OLD_MODELS.get(name.replace("-", "_"))
        if builder is not None:
            check_task(name, task)
            _check_weights(name, pretrained, checkpoint)
            built: nn.Module = build_model(name, builder, options)
            return built
        if name in OLD_HUB_NAMES:
            name, task = OLD_HUB_NAMES[name], "image-classification"
    if task not in TASKS:
        raise ConfigError(f"get_model: unknown task '{task}'. {suggest(task, TASKS)}")
    family = auto_class(task)
    model: nn.Module
    if isinstance(name, PretrainedConfig):
        model = family.from_config(name, **options)
        return model
    check_model_options(options)
    place = locate(checkpoint or name, "model")
    model = _load(checked(place, trust_remote_code=trust_remote_code), task, pretrained, options)
    return model


def _load(source: Checked, task: str, pretrained: bool | None, options: dict[str, Any]) -> Any:
    """Return the model of a checked place; errors of transformers become HubErrors."""
    place, family = source.place, auto_class(task)
    trusted: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    has_weights = pretrained is not False
    try:
        config = AutoConfig.from_pretrained(
            place.name, local_files_only=place.is_local, **trusted, **options
        )
        source.check_size(lambda: family.from_config(config, **trusted), has_weights=has_weights)
        if not has_weights:
            return family.from_config(config, **trusted)
        return family.from_pretrained(
            place.name, local_files_only=place.is_local, **trusted, **options
        )
    except ChopError:
        raise
    except Exception as error:  # of any kind: every model checks its config in its own way
        if isinstance(error, ValueError):
            _refuse_task(place.name, task, error)
        told = (str(error).strip().splitlines() or [""])[0]
        raise HubError(
            f"model '{place.name}': transformers cannot load it ({type(error).__name__}: {told})."
        ) from error


def missing_weights(name: str, task: str, *, trust_remote_code: bool = False) -> list[str]:
    """Return the parameters that a Hugging Face model for `task` has and its files lack.

    transformers draws them at random, as for the new head of a model that is to be trained.
    """
    source = checked(locate(name, "model"), trust_remote_code=trust_remote_code)
    _, told = auto_class(task).from_pretrained(
        source.place.name,
        local_files_only=source.place.is_local,
        output_loading_info=True,
        trust_remote_code=trust_remote_code,
    )
    return sorted(told["missing_keys"])


def _refuse_task(name: str, task: str, error: ValueError) -> None:
    """Say in a line what transformers says in a list of hundreds of classes."""
    if "Unrecognized configuration class" not in str(error):
        return
    found = re.search(r"<class '[\w.]*\.(\w+)Config'>", str(error))
    kind = found.group(1) if found else "such"
    known = possible_tasks(_model_type(str(error)))
    allowed = ", ".join([*known, "base"])
    raise ConfigError(
        f"task: '{name}' is a {kind} model, and there are none for {task}. Allowed: {allowed}."
    ) from error


def _model_type(told: str) -> str | None:
    """The type of model that transformers' error is about: the name of its package."""
    found = re.search(r"transformers\.models\.(\w+)\.", told)
    return found.group(1) if found else None


def check_task(name: str, task: str | None) -> None:
    """Refuse a task that a reference model is not for; none and the default say nothing."""
    own = OWN_TASKS.get(name, DEFAULT_TASK)
    if task not in (None, DEFAULT_TASK, own):
        raise ConfigError(
            f"task: '{name}' is for {own}, got '{task}'. Other tasks are of Hugging Face models."
        )


def build_model(name: str, builder: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """What `builder` makes of `options`; an error names those that it takes."""
    taken = inspect.signature(builder).parameters
    try:
        inspect.signature(builder).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"model_options: {name} does not take {', '.join(options) or 'nothing'} ({error}). "
            f"It takes: {', '.join(taken) or 'nothing'}."
        ) from error
    try:
        return builder(**options)
    except ChopError:
        raise
    except WRONG_VALUES as error:
        shown = ", ".join(f"{key} = {value!r}" for key, value in options.items()) or "none"
        raise ConfigError(
            f"{name}: no model could be built with model_options {shown} "
            f"({type(error).__name__}: {error}). It takes: {', '.join(taken) or 'nothing'}."
        ) from error


def _with_labels(options: dict[str, Any], dataset_info: Any) -> dict[str, Any]:
    """`options` with `num_labels`, which older programs call `num_classes` or leave to the data."""
    renamed = {"num_labels" if k == "num_classes" else k: v for k, v in options.items()}
    if dataset_info is not None:
        renamed.setdefault("num_labels", dataset_info.num_classes)
    return renamed


def _check_weights(name: str, pretrained: bool | None, checkpoint: Any) -> None:
    if checkpoint is not None:
        raise ConfigError(
            f"get_model: '{name}' takes no checkpoint, got '{checkpoint}'. "
            "Load its weights with chop.tools.checkpoint_load.load_model."
        )
    if pretrained:
        warn_once(__name__, f"get_model: '{name}' has no trained weights; they are random.")
