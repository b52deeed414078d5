"""Training and evaluation of a model: `get_trainer`."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import TrainingArguments

from chop.actions.batch_columns import LABELS, Collate, column_names, match_columns
from chop.actions.distillation import Distillation, DistillingTrainer
from chop.actions.metrics import compute_metrics
from chop.actions.trainer import GraphTrainer
from chop.arguments import MAPPING, NEW_FOLDER, an, takes
from chop.errors import ConfigError, DataError, MissingDependencyError
from chop.ir.graph import MaseGraph

F = TypeVar("F", bound=Callable[..., Any])
MODEL = an(nn.Module, "a torch.nn.Module")
EVALUATED = ("test", "validation")
"""Splits for evaluation; the first that exists is used."""
SAVE_STEPS = 200
"""Default number of steps between checkpoints."""


def _takes_old_place(function: F) -> F:
    """Accept `output_dir` as the fifth positional argument, as in programs for DeepWok/mase."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if len(args) == 5 and isinstance(args[4], str | Path):
            return function(*args[:4], output_dir=args[4], **options)
        return function(*args, **options)

    return call  # type: ignore[return-value]


@_takes_old_place
@takes(model=MODEL | an(MaseGraph), tokenized_dataset=MAPPING, output_dir=NEW_FOLDER)
def get_trainer(
    model: nn.Module,
    tokenized_dataset: Mapping[str, Any],
    tokenizer: Any = None,
    evaluate_metric: str = "accuracy",
    num_train_epochs: float = 1,
    *,
    output_dir: str | Path = "mase_output/trainer",
    seed: int = 0,
    resume: bool = False,
    distillation: Distillation | None = None,
    **training_arguments: Any,
) -> GraphTrainer:
    """Return a trainer for a MaseGraph's model or any module: `.train()`, `.evaluate()`.

    `evaluate_metric`: one of `chop.actions.METRICS`; `.evaluate()` returns it as "eval_<name>".
    `training_arguments`: those of transformers' TrainingArguments, as `learning_rate`,
    `per_device_train_batch_size`, `gradient_accumulation_steps`, `bf16`, `save_steps` …

    With `distillation` the model is trained to follow a teacher instead of the labels.

    The same seed gives the same result on a CPU. With `resume`, checkpoints go to `output_dir`, and
    after a kill the same program resumes from the last complete one and reaches the same result;
    otherwise nothing is written. (A path as the fifth positional argument is the `output_dir`, as
    in programs for DeepWok/mase.)

        trainer = get_trainer(mg.model, dataset, tokenizer, evaluate_metric="accuracy")
        trainer.train()
        trainer.evaluate()["eval_accuracy"]
    """
    if importlib.util.find_spec("accelerate") is None:
        raise MissingDependencyError(
            "get_trainer: accelerate is not installed. Install it: pip install 'masegraph[train]'."
        )
    if isinstance(model, MaseGraph):
        model = model.model
    train, test = _splits(tokenized_dataset)
    metrics = compute_metrics(evaluate_metric)
    columns = match_columns(model, column_names(train))
    settings = {"num_train_epochs": num_train_epochs, "seed": seed, **training_arguments}
    kind: Callable[..., GraphTrainer] = GraphTrainer
    if distillation is not None:
        distillation.check(model, Collate(columns, tokenizer)([train[0]]))
        kind = functools.partial(DistillingTrainer, distillation=distillation)
    return kind(
        model=model,
        args=_arguments(settings, output_dir, resume),
        data_collator=Collate(columns, tokenizer),
        train_dataset=_only(train, columns),
        eval_dataset=_only(test, columns),
        processing_class=tokenizer,
        compute_metrics=metrics,
        resume=resume,
        facts=_facts(settings, model, train),
    )


def _splits(dataset: Mapping[str, Any]) -> tuple[Any, Any]:
    test = next((name for name in EVALUATED if name in dataset), None)
    if "train" not in dataset or test is None:
        raise DataError(
            f"get_trainer: expected splits 'train' and one of {', '.join(EVALUATED)}; "
            f"got {', '.join(map(str, dataset))}."
        )
    return dataset["train"], dataset[test]


def _only(split: Any, columns: Mapping[str, str]) -> Any:
    """Drop unused columns, if the dataset supports it: reading text is slow."""
    return split.select_columns(list(columns)) if hasattr(split, "select_columns") else split


DEFAULTS: dict[str, Any] = {
    "report_to": "none",
    "remove_unused_columns": False,  # `Collate` selects the columns
    "label_names": [LABELS],
    "logging_strategy": "epoch",
}


def _arguments(
    settings: Mapping[str, Any], output_dir: str | Path, resume: bool
) -> TrainingArguments:
    saving = {"save_strategy": "steps", "save_steps": SAVE_STEPS, "save_total_limit": 2}
    chosen = {
        **DEFAULTS,
        "dataloader_pin_memory": torch.cuda.is_available(),
        **(saving if resume else {"save_strategy": "no"}),
        **settings,
    }
    _check_numbers(chosen)
    try:
        return TrainingArguments(output_dir=str(output_dir), **chosen)
    except (TypeError, ValueError) as error:  # an unknown name or a wrong value
        raise ConfigError(f"get_trainer: {error}") from error


def check_training_arguments(settings: Mapping[str, Any]) -> None:
    """Raise if `settings` are not arguments of transformers' TrainingArguments."""
    if settings:
        _arguments(settings, "unused", resume=False)


LEAST = {
    "num_train_epochs": 0,
    "learning_rate": 0,
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
}
"""Settings -> smallest allowed value."""


def _check_numbers(settings: Mapping[str, Any]) -> None:
    """Raise for numbers that transformers would reject during training."""
    for field in dataclasses.fields(TrainingArguments):
        value = settings.get(field.name, 0)
        is_number = type(field.default) in (int, float)
        if is_number and not isinstance(value, int | float | None):
            raise ConfigError(f"get_trainer: {field.name} is a number, got {value!r:.80}.")
    for name, least in LEAST.items():
        value = settings.get(name, least)
        if not isinstance(value, int | float) or not least <= value < math.inf:
            raise ConfigError(f"get_trainer: {name} must be at least {least}, got {value}.")


PLACES = ("save_steps", "save_strategy", "save_total_limit", "logging_steps", "disable_tqdm")
"""Settings without an effect on the result; a resumed run may change them."""


def _facts(settings: Mapping[str, Any], model: nn.Module, train: Any) -> dict[str, Any]:
    """Return the facts that a checkpoint of this run must share."""
    plain = bool | int | float | str | None
    chosen = {k: v for k, v in settings.items() if k not in PLACES and isinstance(v, plain)}
    tensors = model.state_dict().values()
    elements = sum(value.numel() for value in tensors)
    return {**chosen, "rows": len(train), "tensors": len(tensors), "elements": elements}
