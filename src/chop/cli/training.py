"""Train and measure a graph for a command: with progress, and so that a kill loses little."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from chop.actions.train import get_trainer
from chop.cli.console import Progress
from chop.cli.data import Data
from chop.cli.output import write_text
from chop.cli.session import Session
from chop.errors import CheckpointError
from chop.files import read_json
from chop.ir.graph import MaseGraph
from chop.ir.inputs import is_hugging_face

CHECKPOINTS = "checkpoints"
RUN = "run.json"
LEARNING_RATES = {True: 5e-5, False: 1e-3}
"""Whether the model is Hugging Face's -> the learning rate where none is given."""


class MeasureSettings(Protocol):
    """The options that measuring reads."""

    @property
    def metric(self) -> str: ...
    @property
    def eval_batch_size(self) -> int: ...
    @property
    def seed(self) -> int: ...


class TrainSettings(MeasureSettings, Protocol):
    """The options that training reads."""

    @property
    def learning_rate(self) -> float | None: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def save_steps(self) -> int: ...
    @property
    def resume(self) -> bool: ...
    @property
    def training(self) -> dict[str, Any]: ...


class Report(TrainerCallback):
    """Tells a progress bar how far the trainer is."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.note = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Learn the number of steps."""
        self.progress.expect(state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Count a step."""
        self.progress.to(state.global_step, self.note)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Keep the loss to tell it."""
        if logs and "loss" in logs:
            self.note = f"loss {float(logs['loss']):.4f}"


def measure(graph: MaseGraph, data: Data, settings: MeasureSettings) -> dict[str, float]:
    """The loss and the metric of a graph on the test rows."""
    trainer = make_trainer(graph, data, settings, 1, {})
    told = trainer.evaluate()
    keys = (settings.metric, "loss")
    return {key: float(told[f"eval_{key}"]) for key in keys if f"eval_{key}" in told}


def fit(
    graph: MaseGraph,
    data: Data,
    settings: TrainSettings,
    epochs: float,
    session: Session,
    identity: Mapping[str, Any],
    stage: str = "train",
) -> dict[str, Any]:
    """Train in place for `epochs`; checkpoints stay in the output folder until it is done.

    `identity` is what makes this run the same run when it is started again.
    """
    folder = session.out / CHECKPOINTS / stage
    check_identity(folder, identity, resume=settings.resume)
    saving = {"output_dir": folder, "save_steps": settings.save_steps, "resume": True}
    arguments = training_arguments(graph, settings) | saving
    trainer = make_trainer(graph, data, settings, epochs, arguments)
    with session.console.progress(stage) as progress:
        trainer.add_callback(Report(progress))
        told = trainer.train()
    graph.model.to("cpu").eval()
    return {"epochs": epochs, "steps": told.global_step, "loss": told.training_loss}


def training_arguments(graph: MaseGraph, settings: TrainSettings) -> dict[str, Any]:
    """The options that transformers' Trainer takes."""
    rate = settings.learning_rate
    return {
        "learning_rate": LEARNING_RATES[is_hugging_face(graph.model)] if rate is None else rate,
        "per_device_train_batch_size": settings.batch_size,
        **settings.training,
    }


def forget_checkpoints(session: Session) -> None:
    """Remove the checkpoints of a run that reached its end."""
    shutil.rmtree(session.out / CHECKPOINTS, ignore_errors=True)


def make_trainer(
    graph: MaseGraph,
    data: Data,
    settings: MeasureSettings,
    epochs: float,
    arguments: Mapping[str, Any],
) -> Any:
    """A trainer that says nothing by itself."""
    defaults = {
        "seed": settings.seed,
        "disable_tqdm": True,
        "per_device_eval_batch_size": settings.eval_batch_size,
    }
    chosen = defaults | dict(arguments)
    trainer = get_trainer(
        graph.model, data.splits, data.tokenizer, settings.metric, epochs, **chosen
    )
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    return trainer


def check_identity(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Make sure that what is in `folder` is of this very run; without `resume`, empty it."""
    note = folder / RUN
    wanted = json.loads(json.dumps(identity, default=str))
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    if note.is_file():
        stored = read_json(note, CheckpointError)
        if not isinstance(stored, dict):
            raise CheckpointError(f"{note}: not the note of a run. --no-resume starts afresh.")
        changed = [k for k in {**stored, **wanted} if stored.get(k) != wanted.get(k)]
        if changed:
            key = changed[0]
            raise CheckpointError(
                f"{folder}: belongs to an unfinished run whose {key} is {stored.get(key)}; now it "
                f"is {wanted.get(key)}. --no-resume starts afresh; or give another --out."
            )
    write_text(note, json.dumps(wanted))
