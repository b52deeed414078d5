"""Models by name: a small reference model, a hub name, a local folder, or a config.

To add a reference model, decorate a function or class that builds it with `@reference_model`.
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
from chop.models.folder_checks import CheckedPlace, check_model_options, checked
from chop.models.reference_models import MODELS
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
"""Tasks of reference models; the others have the default task."""
OLD_TASKS = {
    "cls": "sequence-classification",
    "classification": "sequence-classification",
    "lm": "causal-lm",
}
"""Names of tasks in programs for DeepWok/mase."""
WRONG_VALUES = (TypeError, ValueError, RuntimeError, StrictDataclassError)
"""Errors of Python, torch and transformers for invalid sizes and settings."""


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

    `task` is for Hugging Face models. `options` go to the builder (`num_labels` …). For a config or
    `pretrained=False` weights are random. `dataset_info` is the default for the number of
    labels; `checkpoint` is a folder or name to load the weights from. With `trust_remote_code` the
    Python files that a folder or the hub has for its model are imported.
    """
    task = OLD_TASKS.get(task, task)
    options = {"num_labels" if k == "num_classes" else k: v for k, v in options.items()}
    if dataset_info is not None:
        options.setdefault("num_labels", dataset_info.num_classes)
    if isinstance(name, str) and not Path(name).is_dir():
        builder = MODELS[name] if name in MODELS else OLD_MODELS.get(name.replace("-", "_"))
        if builder is not None:
            check_task(name, task)
            if checkpoint is not None:
                raise ConfigError(
                    f"get_model: '{name}' takes no checkpoint, got '{checkpoint}'. "
                    "Load its weights with chop.tools.checkpoint_load.load_model."
                )
            if pretrained:
                warn_once(__name__, f"get_model: '{name}' has no trained weights; they are random.")
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


def _load(source: CheckedPlace, task: str, pretrained: bool | None, options: dict[str, Any]) -> Any:
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
        line = (str(error).strip().splitlines() or [""])[0]
        raise HubError(
            f"model '{place.name}': transformers cannot load it ({type(error).__name__}: {line})."
        ) from error


def missing_weights(name: str, task: str, *, trust_remote_code: bool = False) -> list[str]:
    """Return the parameters of a Hugging Face model for `task` that its files lack.

    transformers initialises them at random, such as a new head.
    """
    source = checked(locate(name, "model"), trust_remote_code=trust_remote_code)
    _, loading_info = auto_class(task).from_pretrained(
        source.place.name,
        local_files_only=source.place.is_local,
        output_loading_info=True,
        trust_remote_code=trust_remote_code,
    )
    return sorted(loading_info["missing_keys"])


def _refuse_task(name: str, task: str, error: ValueError) -> None:
    """Raise a short error instead of transformers' list of hundreds of classes."""
    if "Unrecognized configuration class" not in str(error):
        return
    match = re.search(r"<class '[\w.]*\.(\w+)Config'>", str(error))
    kind = match.group(1) if match else "such"
    package = re.search(r"transformers\.models\.(\w+)\.", str(error))
    allowed = ", ".join([*possible_tasks(package and package.group(1)), "base"])
    raise ConfigError(
        f"task: '{name}' is a {kind} model, and there are none for {task}. Allowed: {allowed}."
    ) from error


def check_task(name: str, task: str | None) -> None:
    """Raise if a reference model has another task; None and the default are accepted."""
    own = OWN_TASKS.get(name, DEFAULT_TASK)
    if task not in (None, DEFAULT_TASK, own):
        raise ConfigError(
            f"task: '{name}' is for {own}, got '{task}'. Other tasks are of Hugging Face models."
        )


def build_model(name: str, builder: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return the model of `builder` with `options`; an error lists the allowed ones."""
    allowed = inspect.signature(builder).parameters
    try:
        inspect.signature(builder).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"model_options: {name} does not take {', '.join(options) or 'nothing'} ({error}). "
            f"It takes: {', '.join(allowed) or 'nothing'}."
        ) from error
    try:
        return builder(**options)
    except ChopError:
        raise
    except WRONG_VALUES as error:
        shown = ", ".join(f"{key} = {value!r}" for key, value in options.items()) or "none"
        raise ConfigError(
            f"{name}: no model could be built with model_options {shown} "
            f"({type(error).__name__}: {error}). It takes: {', '.join(allowed) or 'nothing'}."
        ) from error
