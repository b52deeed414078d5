"""Training on several processes for a command: plan, run, checkpoints, the whole model."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from chop.actions.batch_columns import Collate
from chop.actions.loss_graph import loss_graph
from chop.actions.shard_checkpoints import consolidate
from chop.actions.split_training import (
    SplitOutcome,
    SplitTrainer,
    check_layers,
    check_split_arguments,
)
from chop.actions.trainer import PREFIX, GraphTrainer
from chop.cli.data import Data
from chop.cli.run_identity import run_folder, run_identity
from chop.cli.session import Session
from chop.cli.train_and_measure import (
    CHECKPOINTS,
    check_fit,
    make_trainer,
    training_arguments,
)
from chop.distributed.graph_parts import GraphPart, untied
from chop.distributed.mesh import Mesh, bytes_of, mesh_shape_of
from chop.distributed.plan_file import load_plan, plan_document
from chop.distributed.process_group import (
    LOCAL_RANK,
    RANK,
    WORLD_SIZE,
    ProcessRank,
    process_group,
)
from chop.distributed.split_plan import SplitPlan, check_kind, make_split
from chop.distributed.split_step import SplitStep
from chop.errors import ChopError, ConfigError, DataError
from chop.files import write_whole
from chop.ir.graph import MaseGraph

STAGE = "split"
"""Folder of these checkpoints, below the folder of all checkpoints of a command."""
MESH_SETTINGS = ("mesh", "stages", "micro_batches", "plan", "memory")
"""Settings that decide where a training runs, not what it computes."""
IDS = "input_ids"


@dataclass(frozen=True)
class MeshRequest:
    """Mesh, stages and plan of a command. `micro_batches`: None for as many as stages."""

    shape: tuple[int, ...]
    stages: int
    micro_batches: int
    plan: str
    memory: int | None

    @classmethod
    def of(cls, config: Any) -> MeshRequest:
        """Return the request of a configuration, checked against the batch."""
        memory = None if config.memory is None else bytes_of(config.memory)
        count = config.micro_batches or config.stages
        rows = config.rows_trained_at_once
        if rows % count:
            raise ConfigError(
                f"train.micro_batches: {count} do not divide a batch of {rows} rows. Allowed: a "
                "divisor of --batch-size."
            )
        if count < config.stages:
            raise ConfigError(
                f"train.micro_batches: {count} for {config.stages} stages. Allowed: at least "
                f"{config.stages}, so that every stage has work."
            )
        check_kind(config.plan, "train.plan")
        return cls(mesh_shape_of(config.mesh or "1"), config.stages, count, config.plan, memory)

    @property
    def text(self) -> str:
        """Mesh and stages as text, for names of files."""
        shape = "x".join(map(str, self.shape))
        plan = self.plan.replace(" ", "")
        return f"{shape}-stages{self.stages}-micro{self.micro_batches}-{plan}"

    def mesh(self) -> Mesh:
        """Return the mesh of one stage."""
        return Mesh(self.shape, memory=self.memory)


def place_of(processes: int) -> ProcessRank:
    """Return the place of this process among as many as are needed."""
    place = ProcessRank.of_environment()
    if place is None and processes == 1:
        return ProcessRank()
    if place is None:
        raise ConfigError(
            f"train.mesh: needs {processes} processes. Start it as a program: `mase train`, "
            f"`torchrun --nproc-per-node {processes} -m chop.cli train` or `accelerate launch`."
        )
    if place.count != processes:
        raise ConfigError(
            f"train.mesh: mesh and stages are for {processes} processes, and {place.count} were "
            f"started. Allowed: {processes} processes, or --mesh and --stages for {place.count}."
        )
    return place


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hide the other processes from libraries that would split data and models by themselves."""
    names = (RANK, WORLD_SIZE, LOCAL_RANK)
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def fit_split(
    config: Any, session: Session, graph: MaseGraph, data: Data, place: ProcessRank
) -> tuple[dict[str, Any], Path] | None:
    """Train on all processes; return facts and the last checkpoint, or None if not the first."""
    request = MeshRequest.of(config)
    check_split_arguments(config.training)
    check_layers(graph.model)
    if place.rank == 0:
        check_fit(graph, data, config, config.epochs)
    session.start_work()
    identity = run_identity(config, graph, data, leave_out=MESH_SETTINGS)
    parent = session.out / CHECKPOINTS / STAGE
    folder = run_folder(parent, identity, resume=config.resume) if place.rank == 0 else None
    trainer = _trainer(graph, data, config, folder or parent)
    with process_group(place) as kind:
        outcome, folder = _train(_Setup(config, session, request, trainer, graph), kind, folder)
    if place.rank != 0:
        return None
    losses = session.folder / "losses.csv"
    with losses.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(("step", "loss"))
        rows.writerows(enumerate(outcome.losses, 1))
    facts = {
        "epochs": config.epochs,
        "steps": outcome.steps,
        "loss": outcome.loss,
        "mesh": list(request.shape),
        "stages": request.stages,
        "micro_batches": request.micro_batches,
        "processes": place.count,
        "resumed_from_step": outcome.resumed,
    }
    return facts, folder / f"{PREFIX}{outcome.steps}"


def _trainer(graph: MaseGraph, data: Data, config: Any, folder: Path) -> GraphTrainer:
    """Return the trainer whose data, optimizer and schedule are used; rows have one length."""
    arguments = training_arguments(graph, config) | {
        "output_dir": folder,
        "dataloader_drop_last": True,
    }
    trainer: GraphTrainer = make_trainer(graph, data, config, config.epochs, arguments)
    trainer.args._n_gpu = 1  # processes share the work, not threads of one
    train: Any = trainer.train_dataset
    collate = trainer.data_collator
    if isinstance(collate, Collate) and collate.tokenizer is not None and IDS in train[0]:
        longest = max(len(row) for row in train[IDS])
        trainer.data_collator = replace(collate, length=longest)
    return trainer


@dataclass(frozen=True)
class _Setup:
    """Everything that a process knows before it meets the others."""

    config: Any
    session: Session
    request: MeshRequest
    trainer: GraphTrainer
    graph: MaseGraph


def _train(setup: _Setup, kind: str, folder: Path | None) -> tuple[SplitOutcome, Path]:
    folders = [folder]
    distributed.broadcast_object_list(folders)
    assert folders[0] is not None, "the first process has named the folder"
    graph, split = _planned(setup, folders[0])
    graph.model.to(kind)
    step = SplitStep(graph, split, kind)
    trainer = SplitTrainer(setup.trainer, step, setup.graph, folders[0])
    console = setup.session.console
    with console.progress("train") as progress:
        progress.expect(trainer.steps)

        def report(number: int, loss: float | None) -> None:
            if loss is None and number:
                whole = trainer.steps
                console.note(f"goes on after step {number} of {whole}; --no-resume starts afresh")
            progress.to(number, "" if loss is None else f"loss {loss:.4f}")

        outcome = trainer.train(setup.config.save_steps, report)
    return outcome, folders[0]


def _planned(setup: _Setup, folder: Path) -> tuple[MaseGraph, SplitPlan]:
    """Return the graph of the loss, and the plan of the first process."""
    request, trainer = setup.request, setup.trainer
    batch = setup.config.rows_trained_at_once
    rows: Any = trainer.train_dataset
    if len(rows) < batch:
        raise DataError(
            f"train.dataset: {len(rows)} training rows, and a batch has {batch}. Allowed: at "
            "least one batch of rows; give a smaller --batch-size or more rows."
        )
    count = batch // request.micro_batches
    example = trainer.data_collator([rows[i] for i in range(count)])
    graph = loss_graph(setup.graph, example)
    copies = untied(graph.model) if request.stages > 1 else {}
    answer: list[Any] = [None]
    if distributed.get_rank() == 0:
        answer = [_first_plan(graph, request, copies, folder)]
    distributed.broadcast_object_list(answer)
    if isinstance(answer[0], ChopError):
        raise answer[0]
    split: SplitPlan = pickle.loads(answer[0])
    return graph, split


def _first_plan(
    graph: MaseGraph, request: MeshRequest, copies: Mapping[str, str], folder: Path
) -> bytes | ChopError:
    """Return the plan as bytes, from the file of an earlier run if there is one, or the error."""
    file = folder / f"plan-{request.text}.json"
    try:
        if file.is_file():
            split = _loaded(json.loads(file.read_text()), graph, copies)
        else:
            split = make_split(
                graph,
                request.mesh(),
                stages=request.stages,
                micro_batches=request.micro_batches,
                kind=request.plan,
                copies=copies,
            )
            write_whole(file, json.dumps(_document(split, graph)))
    except ChopError as error:
        return error
    return pickle.dumps(split)


def _document(split: SplitPlan, graph: MaseGraph) -> dict[str, Any]:
    return {
        "plan": plan_document(split.plan, graph),
        "parts": [asdict(part) for part in split.parts],
        "micro_batches": split.micro_batches,
    }


def _loaded(document: Mapping[str, Any], graph: MaseGraph, copies: Mapping[str, str]) -> SplitPlan:
    parts = tuple(GraphPart.of(record) for record in document["parts"])
    plan = load_plan(document["plan"], graph).plan
    return SplitPlan(plan, parts, document["micro_batches"], copies)


def take_weights(checkpoint: Path, graph: MaseGraph) -> None:
    """Load a checkpoint of all processes into a whole model."""
    with torch.no_grad():
        consolidate(checkpoint, graph.model)
