"""Train and measure a graph for a command: with progress, and so that a kill loses little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from chop.actions.language import LANGUAGE_METRICS, measure_language
from chop.actions.train import get_trainer
from chop.cli.console import Console, ProgressDisplay
from chop.cli.data import Data
from chop.cli.runs import question, run_folder
from chop.cli.session import Session
from chop.ir.graph import MaseGraph
from chop.ir.trace.inputs import is_hugging_face

CHECKPOINTS = "checkpoints"
LEARNING_RATES = {True: 5e-5, False: 1e-3}
"""Whether the model is Hugging Face's -> the learning rate where none is given."""


class MeasureSettings(Protocol):
    """The options that measuring reads."""

    @property
    def measure(self) -> str: ...
    @property
    def rows_measured_at_once(self) -> int: ...
    @property
    def seed(self) -> int: ...


class TrainSettings(MeasureSettings, Protocol):
    """The options that training reads."""

    @property
    def learning_rate(self) -> float | None: ...
    @property
    def rows_trained_at_once(self) -> int: ...
    @property
    def save_steps(self) -> int: ...
    @property
    def resume(self) -> bool: ...
    @property
    def training(self) -> dict[str, Any]: ...


class StepReport(TrainerCallback):
    """Tells a progress bar how far the trainer is."""

    def __init__(self, progress: ProgressDisplay, console: Console) -> None:
        self.progress, self.console = progress, console
        self.note = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Learn the number of steps; say where an interrupted training goes on."""
        self.progress.expect(state.max_steps)
        if state.global_step:
            done, whole = state.global_step, state.max_steps
            self.console.note(f"goes on after step {done} of {whole}; --no-resume starts afresh")

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Count a step."""
        self.progress.to(state.global_step, self.note)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Keep the loss to tell it."""
        if logs and "loss" in logs:
            self.note = f"loss {float(logs['loss']):.4f}"


def measure(
    graph: MaseGraph, data: Data, settings: MeasureSettings, reference: MaseGraph | None = None
) -> dict[str, float]:
    """The loss and the metric of a graph on the test rows; `reference` is a model to agree with."""
    if settings.measure in LANGUAGE_METRICS:
        other = None if reference is None else reference.model
        found = measure_language(
            graph.model,
            data.test,
            batch_size=settings.rows_measured_at_once,
            reference=other,
            metric=settings.measure,
        )
        return {settings.measure: found.pop(settings.measure), **found}
    trainer = make_trainer(graph, data, settings, 1, {})
    told = trainer.evaluate()
    keys = (settings.measure, "loss")
    return {key: float(told[f"eval_{key}"]) for key in keys if f"eval_{key}" in told}


def measured(
    session: Session,
    graph: MaseGraph,
    data: Data,
    settings: MeasureSettings,
    reference: MaseGraph | None = None,
) -> dict[str, float]:
    """Return the same for a command; a dry run measures a few rows, to see that it can be done."""
    return measure(graph, data.few() if session.is_dry else data, settings, reference)


def fit(
    graph: MaseGraph,
    data: Data,
    settings: TrainSettings,
    epochs: float,
    session: Session,
    stage: str = "train",
) -> dict[str, Any]:
    """Train in place for `epochs`; checkpoints stay in the output folder until it is done.

    The same model, data and settings make this run the same run when it is started again.
    """
    check_fit(graph, data, settings, epochs)
    session.start_work()
    asked = question(settings, graph, data)
    folder = run_folder(session.out / CHECKPOINTS / stage, asked, resume=settings.resume)
    saving = {"output_dir": folder, "save_steps": settings.save_steps, "resume": True}
    arguments = training_arguments(graph, settings) | saving
    trainer = make_trainer(graph, data, settings, epochs, arguments)
    with session.console.progress(stage) as progress:
        trainer.add_callback(StepReport(progress, session.console))
        told = trainer.train()
    graph.model.to("cpu").eval()
    return {"epochs": epochs, "steps": told.global_step, "loss": told.training_loss}


def check_fit(graph: MaseGraph, data: Data, settings: TrainSettings, epochs: float) -> None:
    """Raise where the arguments of a training or the metric after it would be refused."""
    make_trainer(graph, data, settings, epochs, training_arguments(graph, settings))
    measure(graph, data.few(), settings, graph)


def training_arguments(graph: MaseGraph, settings: TrainSettings) -> dict[str, Any]:
    """The options that transformers' Trainer takes."""
    rate = settings.learning_rate
    return {
        "learning_rate": LEARNING_RATES[is_hugging_face(graph.model)] if rate is None else rate,
        "per_device_train_batch_size": settings.rows_trained_at_once,
        **settings.training,
    }


def forget_checkpoints(session: Session) -> None:
    """Let the checkpoints of a run go when its results are in their place, and not before."""
    session.obsolete.append(session.out / CHECKPOINTS)


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
        "per_device_eval_batch_size": settings.rows_measured_at_once,
    }
    chosen = defaults | dict(arguments)
    trainer = get_trainer(
        graph.model, data.splits, data.tokenizer, settings.measure, epochs, **chosen
    )
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    return trainer
