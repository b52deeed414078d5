"""`mase train`: train a model on a dataset."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from chop.cli.session import Session
from chop.cli.shared_options import (
    DataOptions,
    ModelOptions,
    OutputOptions,
    TeacherOptions,
    TrainingOptions,
)
from chop.config import mesh_shape_of
from chop.errors import ConfigError

STEPS = 100
EXAMPLES = (
    "mase train mlp --dataset digits --epochs 8 --learning-rate 3e-3",
    "mase train prajjwal1/bert-tiny --dataset imdb --epochs 1 --batch-size 16",
    "mase train out/quantize --dataset imdb --teacher prajjwal1/bert-tiny --temperature 2",
    "mase train mlp --dataset digits --mesh 2 --plan fsdp",
    "mase train tiny_bert --dataset sequences --mesh 2x2 --stages 2 --micro-batches 4",
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ModelOptions, DataOptions, TrainingOptions, TeacherOptions, OutputOptions):
    """Length."""

    keeps_cache: ClassVar[bool] = True

    epochs: Annotated[float, "Passes over the training rows."] = 1.0
    mesh: Annotated[
        str | None,
        "Devices along each axis, as 2x2: train on one process per device. Default: one process.",
    ] = None
    stages: Annotated[int, "Stages of a pipeline, each on a mesh of its own."] = 1
    micro_batches: Annotated[
        int | None, "Parts of a batch that pass through the pipeline. Default: one per stage."
    ] = None
    plan: Annotated[
        str,
        "How to split on the mesh: best (the planner's choice), ddp, fsdp, megatron, or "
        "'megatron + sequence'.",
    ] = "best"
    memory: Annotated[
        int | str | None, "Memory per device for the planner: bytes, or with a unit as 80GB."
    ] = None
    max_memory: Annotated[
        float | str | None,
        "Train one decoder layer of a Hugging Face folder at a time to follow that of --teacher, "
        "and refuse if the predicted memory is larger: 16GB, or a number of GiB.",
    ] = None
    steps: Annotated[int, "Steps of each decoder layer with --max-memory."] = STEPS
    format: Annotated[
        str | None, "With --max-memory: format that the matrices are rounded to while they train."
    ] = None
    out: Path = Path("out/train")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, unset in (("steps", STEPS), ("format", None)):
            if self.max_memory is None and getattr(self, name) != unset:
                raise ConfigError(f"{name}: it is an option of --max-memory, and none is given.")
        if self.teacher is not None and self.is_split:
            raise ConfigError("teacher: it needs the whole model. Leave mesh and stages out.")
        if self.processes < 1:
            raise ConfigError(
                f"train: mesh {self.mesh} and {self.stages} stages. Allowed: 1 or more of each."
            )

    @property
    def is_split(self) -> bool:
        """True if the training runs by a plan, on one or several processes."""
        return self.mesh is not None or self.stages > 1

    @property
    def processes(self) -> int:
        """Number of processes: one per device of each stage."""
        return self.stages * math.prod(mesh_shape_of(self.mesh or "1"))


class _Split(TrainConfig):
    """The same options; a split model is captured without its cache, each mixture as one layer."""

    keeps_cache: ClassVar[bool] = False
    joins_experts: ClassVar[bool] = True


def run(config: TrainConfig, session: Session) -> dict[str, Any]:
    """Capture, train from the last checkpoint if there is one, evaluate, save."""
    if config.is_split:
        return _run_split(config, session)
    if config.max_memory is not None:
        from chop.cli.block_training import run_blocks

        return run_blocks(config, session)
    from chop.cli.checkpoints import save_model
    from chop.cli.source import describe, load_with_data, tokenizer_of
    from chop.cli.teacher import load_teacher
    from chop.cli.train_and_measure import fit, forget_checkpoints, measure

    source, data, graph = load_with_data(config, "train")
    teacher = load_teacher(config)
    trained = fit(graph, data, config, config.epochs, session, teacher=teacher)
    metrics = measure(graph, data, config)
    save_model(session, graph, tokenizer_of(config, source))
    text = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    session.console.say(f"trained {config.model} on {config.dataset}: {text}")
    forget_checkpoints(session)
    return {**describe(graph, source), "train": trained, "eval": metrics}


def _run_split(config: TrainConfig, session: Session) -> dict[str, Any]:
    """Train on the processes of the mesh; the first one evaluates and saves the whole model."""
    from chop.cli.checkpoints import save_model
    from chop.cli.source import (
        describe,
        find_source,
        load_graph,
        load_with_data,
        tokenizer_of,
    )
    from chop.cli.split_run import alone, fit_split, place_of, take_weights
    from chop.cli.train_and_measure import forget_checkpoints, measure

    options = {field.name: getattr(config, field.name) for field in fields(config)}
    split_config = _Split(**options)
    place = place_of(config.processes)
    with alone():
        source, data, graph = load_with_data(split_config, "train")
        trained = fit_split(split_config, session, graph, data, place)
        if trained is None:
            return {}
        facts, checkpoint = trained
        graph = load_graph(config, find_source(config), data)  # as the command saves it
        take_weights(checkpoint, graph)
        metrics = measure(graph, data, config)
    save_model(session, graph, tokenizer_of(config, source))
    text = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    session.console.say(
        f"trained {config.model} on {config.dataset} in {facts['processes']} processes: {text}"
    )
    forget_checkpoints(session)
    return {**describe(graph, source), "train": facts, "eval": metrics}
