"""Training and evaluation of a graph for a command, with progress and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from chop.actions.distillation import Distillation
from chop.actions.language import LANGUAGE_METRICS, measure_language
from chop.actions.train import get_trainer
from chop.cli.console import Console, ProgressDisplay
from chop.cli.data import TEST, Data
from chop.cli.run_identity import run_folder, run_identity
from chop.cli.session import Session
from chop.dataset.row_selection import draw_rows
from chop.ir.graph import MaseGraph
from chop.ir.trace.inputs import is_hugging_face
from chop.log import get_logger, log_step

logger = get_logger(__name__)

CHECKPOINTS = "checkpoints"
LEARNING_RATES = {True: 5e-5, False: 1e-3}
"""Default learning rate of Hugging Face models (True) and of others (False)."""


class MeasureSettings(Protocol):
    """Options that evaluation reads."""

    @property
    def measure(self) -> str: ...
    @property
    def rows_measured_at_once(self) -> int: ...
    @property
    def seed(self) -> int: ...


class TrainSettings(MeasureSettings, Protocol):
    """Options that training reads."""

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
    """Callback that shows the steps of a trainer as progress."""

    def __init__(self, progress: ProgressDisplay, console: Console) -> None:
        self.progress, self.console = progress, console
        self.note = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Set the number of steps; print where an interrupted training resumes."""
        self.progress.expect(state.max_steps)
        if state.global_step:
            done, whole = state.global_step, state.max_steps
            self.console.note(f"goes on after step {done} of {whole}; --no-resume starts afresh")

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Count a step."""
        self.progress.to(state.global_step, self.note)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Remember the loss for the next step."""
        if logs and "loss" in logs:
            self.note = f"loss {float(logs['loss']):.4f}"


class PredictionSteps(TrainerCallback):
    """Callback that reports the batches of an evaluation as steps."""

    done = 0

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **rest: Any
    ) -> None:
        """Count a batch; the count starts again after the last one."""
        total = len(eval_dataloader)
        self.done = self.done % total + 1
        log_step(logger, "evaluate: batch", self.done, total)


def measure(
    graph: MaseGraph, data: Data, settings: MeasureSettings, reference: MaseGraph | None = None
) -> dict[str, float]:
    """Return the metric and the loss on the test rows; `reference`: for token_agreement."""
    if settings.measure in LANGUAGE_METRICS:
        other = None if reference is None else reference.model
        metrics = measure_language(
            graph.model,
            data.test,
            batch_size=settings.rows_measured_at_once,
            reference=other,
            metric=settings.measure,
        )
        return {settings.measure: metrics.pop(settings.measure), **metrics}
    trainer = make_trainer(graph, data, settings, 1, {})
    values = trainer.evaluate()
    keys = (settings.measure, "loss")
    return {key: float(values[f"eval_{key}"]) for key in keys if f"eval_{key}" in values}


EVALUATION_FLOPS = 2e12
"""Operations of a default evaluation: about a minute on two CPU cores."""


def rows_to_measure(session: Session, graph: MaseGraph, data: Data, settings: Any) -> Data:
    """Return the data with as many test rows as a default evaluation takes, and note the number.

    The number depends on the model alone, so that results can be compared.
    """
    whole = len(data.test)
    if settings.all_rows or settings.test_rows is not None:
        return data
    count = int(EVALUATION_FLOPS / max(flops_per_row(graph, data), 1.0))
    count = max(count, 2 * settings.rows_measured_at_once)
    if count >= whole or not hasattr(data.test, "select"):
        return data
    session.console.note(f"evaluates {count} of {whole} test rows; --all-rows takes all")
    rows = draw_rows(data.test, count, settings.data_seed)
    return Data({**data.splits, TEST: rows}, data.tokenizer)


def flops_per_row(graph: MaseGraph, data: Data) -> float:
    """Return the operations of a forward run on one row: two per weight and token."""
    row = data.test[0]
    tokens = len(row["input_ids"]) if "input_ids" in row else 1
    elements = sum(p.numel() for p in graph.model.parameters() if p.dim() > 1)
    return 2.0 * tokens * elements


def measured(
    session: Session,
    graph: MaseGraph,
    data: Data,
    settings: MeasureSettings,
    reference: MaseGraph | None = None,
) -> dict[str, float]:
    """Return the same for a command; a dry run evaluates a few rows only."""
    return measure(graph, data.few(graph) if session.is_dry else data, settings, reference)


def fit(
    graph: MaseGraph,
    data: Data,
    settings: TrainSettings,
    epochs: float,
    session: Session,
    stage: str = "train",
    teacher: Distillation | None = None,
) -> dict[str, Any]:
    """Train in place for `epochs`, with checkpoints in the output folder.

    A run with the same model, data and settings resumes from them. With `teacher` the record has
    the divergence from it on the test rows, before and after.
    """
    check_fit(graph, data, settings, epochs)
    before = _divergence(graph, data, settings, teacher)
    session.start_work()
    identity = run_identity(settings, graph, data)
    folder = run_folder(session.out / CHECKPOINTS / stage, identity, resume=settings.resume)
    saving = {"output_dir": folder, "save_steps": settings.save_steps, "resume": True}
    arguments = training_arguments(graph, settings) | saving
    trainer = make_trainer(graph, data, settings, epochs, arguments | {"distillation": teacher})
    with session.console.progress(stage) as progress:
        trainer.add_callback(StepReport(progress, session.console))
        outcome = trainer.train()
    graph.model.to("cpu").eval()
    facts: dict[str, Any] = {
        "epochs": epochs,
        "steps": outcome.global_step,
        "loss": outcome.training_loss,
    }
    if teacher is not None:
        after = _divergence(graph, data, settings, teacher)
        facts["divergence"] = {"before": before, "after": after}
    return facts


COMPARED_ROWS = 64
"""Test rows on which a model is compared with its teacher."""


def _divergence(
    graph: MaseGraph, data: Data, settings: MeasureSettings, teacher: Distillation | None
) -> float:
    """Return the divergence from the teacher on the first test rows; 0 without one."""
    if teacher is None:
        return 0.0
    trainer = make_trainer(graph, data, settings, 1, {"distillation": teacher})
    rows = [data.test[i] for i in range(min(COMPARED_ROWS, len(data.test)))]
    step = settings.rows_measured_at_once
    batches = [trainer.data_collator(rows[i : i + step]) for i in range(0, len(rows), step)]
    return teacher.measure(graph.model, batches)


def check_fit(graph: MaseGraph, data: Data, settings: TrainSettings, epochs: float) -> None:
    """Raise if a training would reject its arguments or the metric."""
    make_trainer(graph, data, settings, epochs, training_arguments(graph, settings))
    measure(graph, data.few(graph), settings, graph)


def training_arguments(graph: MaseGraph, settings: TrainSettings) -> dict[str, Any]:
    """Return the arguments of transformers' Trainer."""
    rate = settings.learning_rate
    return {
        "learning_rate": LEARNING_RATES[is_hugging_face(graph.model)] if rate is None else rate,
        "per_device_train_batch_size": settings.rows_trained_at_once,
        **settings.training,
    }


def forget_checkpoints(session: Session) -> None:
    """Delete the checkpoints of a run once its results are in place."""
    session.obsolete.append(session.out / CHECKPOINTS)


def make_trainer(
    graph: MaseGraph,
    data: Data,
    settings: MeasureSettings,
    epochs: float,
    arguments: Mapping[str, Any],
) -> Any:
    """Return a trainer that prints nothing."""
    defaults = {
        "seed": settings.seed,
        "disable_tqdm": True,
        "per_device_eval_batch_size": settings.rows_measured_at_once,
    }
    options = defaults | dict(arguments)
    trainer = get_trainer(
        graph.model, data.splits, data.tokenizer, settings.measure, epochs, **options
    )
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    trainer.add_callback(PredictionSteps())
    return trainer
