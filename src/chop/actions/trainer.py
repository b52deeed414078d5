"""Trainer of transformers for graphs and plain modules, with checkpoints that survive a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from chop.actions.batch_columns import LABELS, takes
from chop.errors import CheckpointError, DataError, TrainingError
from chop.files import read_json, write_whole
from chop.ir.trace.environment import evaluation_mode

COMPLETE = "complete.json"
"""Last file of a checkpoint; a checkpoint without it is incomplete."""
PREFIX = "checkpoint-"
FILES = "files"
"""Key of that file: names and sizes of the other files."""
LOSS_SUM = "loss_sum"
"""Key of that file: sum of the losses of all steps so far."""


class GraphTrainer(Trainer):
    """A Trainer for `mg.model` or any module, which uses complete checkpoints only.

    The loss of a model without labels is computed here: cross-entropy for classes, mean squared
    error for numbers. `resume`: `train()` resumes from the last complete checkpoint in the output
    folder, if there is one. `facts`: facts about the run; a checkpoint with other facts is an
    error.
    """

    def __init__(
        self, model: nn.Module, *, resume: bool = False, facts: Mapping[str, Any], **kwargs: Any
    ) -> None:
        super().__init__(model, **kwargs)
        self.resume = resume
        self.facts = dict(facts)
        self.folder = Path(self.args.output_dir or ".")
        self.has_own_loss = takes(model, LABELS)
        self._loss_sum = torch.zeros((), dtype=torch.float64)
        self._last_rows: dict[str, Any] | None = None

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as Trainer does; True resumes from a complete checkpoint, which must exist."""
        if resume_from_checkpoint is True or (resume_from_checkpoint is None and self.resume):
            last = last_complete(self.folder, self.facts)
            if last is None and resume_from_checkpoint is True:
                raise CheckpointError(f"{self.folder}: no complete checkpoint to resume from.")
            resume_from_checkpoint = None if last is None else str(last)
        self._loss_sum = torch.tensor(_stored_loss(resume_from_checkpoint), dtype=torch.float64)
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        self._check_finite()
        self._check_weights()
        self._check_last_loss()
        # Trainer divides the loss of the steps since the resume by the number of all steps
        loss = float(self._loss_sum) / max(output.global_step, 1)
        return output._replace(training_loss=loss, metrics={**output.metrics, "train_loss": loss})

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Run one step as Trainer does, and add up its loss."""
        self._last_rows = inputs
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        self._loss_sum = self._loss_sum.to(loss.device) + loss.detach().double()
        return loss

    def _check_finite(self) -> None:
        if not torch.isfinite(self._loss_sum):
            raise TrainingError(
                f"training, by step {self.state.global_step}: the loss is not finite "
                f"(learning_rate is {self.args.learning_rate}). Give a smaller learning rate, or "
                "look at the data and at ranges of formats for values that overflow."
            )

    def _check_weights(self) -> None:
        """Raise if the last step made a weight infinite or NaN: its loss was computed before."""
        for name, weight in self.model.named_parameters() if self.model is not None else ():
            if not torch.isfinite(weight.detach()).all():
                raise TrainingError(
                    f"training, by step {self.state.global_step}: parameter '{name}' is not finite "
                    f"(learning_rate is {self.args.learning_rate}). Its gradient was infinite or "
                    "NaN, as that of sqrt or log at 0. Change the model there, or do not train it."
                )

    def _check_last_loss(self) -> None:
        """Raise if the trained model has no finite loss on the rows of the last step."""
        if self._last_rows is None or self.model is None:
            return
        with torch.no_grad(), evaluation_mode(self.model):
            loss = self.compute_loss(self.model, self._prepare_inputs(dict(self._last_rows)))
        if not torch.isfinite(loss):
            raise TrainingError(
                f"training: after step {self.state.global_step} the loss on the rows of that step "
                f"is not finite (learning_rate is {self.args.learning_rate}). Give a smaller "
                "learning rate, or train without the layers before a log, a root or a quotient."
            )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a model with labels, or the loss of its scores."""
        if self.has_own_loss:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        features = {name: value for name, value in inputs.items() if name != LABELS}
        scores = scores_of(model(**features))
        loss = loss_of(scores, inputs[LABELS])
        return (loss, {"loss": loss, "logits": scores}) if return_outputs else loss

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        model = self.model
        if state_dict is None and model is not None and not isinstance(model, PreTrainedModel):
            # safetensors rejects tensors that share memory: copy tied weights
            stored = model.state_dict().items()
            state_dict = {name: value.detach().clone().contiguous() for name, value in stored}
        super()._save(output_dir, state_dict)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._check_finite()
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            checkpoint = self.folder / f"{PREFIX}{self.state.global_step}"
            note = {
                **self.facts,
                LOSS_SUM: float(self._loss_sum),
                FILES: {p.name: p.stat().st_size for p in checkpoint.iterdir() if p.is_file()},
            }
            write_whole(checkpoint / COMPLETE, json.dumps(note, sort_keys=True))


def scores_of(output: Any) -> Tensor:
    """Return the scores of a model's output: a tensor, the logits, or the first of several."""
    if isinstance(output, Mapping):
        output = output["logits"] if "logits" in output else next(iter(output.values()))
    scores: Tensor = output[0] if isinstance(output, tuple | list) else output
    return scores


LOSSES: dict[torch.dtype, Callable[[Tensor, Tensor], Tensor]] = {
    torch.int64: lambda scores, labels: F.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), labels.reshape(-1)
    ),
    torch.float32: lambda scores, labels: F.mse_loss(scores.reshape(labels.shape), labels),
}
"""Type of labels -> loss: integers are classes, floats are numbers."""


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of `scores` for `labels`."""
    if labels.dtype not in LOSSES:
        kinds = ", ".join(str(kind) for kind in LOSSES)
        raise DataError(f"labels are {labels.dtype}; a loss is known for {kinds}.")
    return LOSSES[labels.dtype](scores, labels)


def last_complete(folder: str | Path, facts: Mapping[str, Any]) -> Path | None:
    """Return the newest complete checkpoint in `folder`, or None."""
    paths = [path.parent for path in Path(folder).glob(f"{PREFIX}*/{COMPLETE}")]
    whole = [checkpoint for checkpoint in paths if _is_whole(checkpoint)]
    if not whole:
        return None
    newest = max(whole, key=lambda path: int(path.name.removeprefix(PREFIX)))
    _check_facts(newest, facts)
    return newest


def _is_whole(checkpoint: Path) -> bool:
    """Return True if all listed files are present: a kill may have interrupted the removal."""
    stored = read_json(checkpoint / COMPLETE, CheckpointError)
    listed = stored.get(FILES, {}) if isinstance(stored, dict) else {}
    if not isinstance(listed, dict):
        raise CheckpointError(f"{checkpoint / COMPLETE}: {FILES} must list sizes by name.")
    files = {name: checkpoint / str(name) for name in listed}
    return all(f.is_file() and f.stat().st_size == listed[n] for n, f in files.items())


def _stored_loss(checkpoint: str | bool | None) -> float:
    """Return the sum of losses in a checkpoint, 0 without one."""
    if not isinstance(checkpoint, str) or not Path(checkpoint, COMPLETE).is_file():
        return 0.0
    stored = read_json(Path(checkpoint, COMPLETE), CheckpointError)
    return float(stored.get(LOSS_SUM, 0.0))


def _check_facts(checkpoint: Path, facts: Mapping[str, Any]) -> None:
    stored = read_json(checkpoint / COMPLETE, CheckpointError)
    if not isinstance(stored, dict):
        raise CheckpointError(f"{checkpoint / COMPLETE}: not the note of a run. Give resume=False.")
    for name, value in json.loads(json.dumps(facts)).items():
        if stored.get(name) != value:
            raise CheckpointError(
                f"{checkpoint}: belongs to another run: its {name} is {stored.get(name)}, this "
                f"run's {value}. Give another output_dir, or resume=False."
            )
