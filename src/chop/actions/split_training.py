"""Training of a split model on several processes, as `GraphTrainer` trains on one.

Every process reads every batch, in the order of `GraphTrainer`. Optimizer, schedule and clipping
are those of transformers' Trainer. Random numbers follow from the seed, the step and the stage, so
that a checkpoint needs no state of a generator, and a run resumes on any number of processes.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainingArguments, get_scheduler

from chop.actions.shard_checkpoints import ShardStore, TrainingTensors
from chop.actions.trainer import GraphTrainer
from chop.distributed.split_step import SplitStep
from chop.errors import ConfigError, DataError, TrainingError
from chop.files import write_whole
from chop.ir.graph import MaseGraph

ELEMENTWISE = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""Optimizers that treat every element alone, so that parts of a parameter can be updated alone."""
SUPPORTED = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "optim", "optim_args", "weight_decay"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("max_grad_norm", "max_steps", "dataloader_num_workers", "dataloader_drop_last"),
)
"""Arguments of transformers' TrainingArguments that a split training follows."""
LOSSES = "losses.jsonl"
"""File with the loss of every step, in the folder of a run."""
STEPS_PER_SEED, STAGES_PER_STEP = 2**31, 2**8
"""Room for random numbers of steps and stages between two seeds."""


@dataclass(frozen=True)
class SplitOutcome:
    """Steps of a finished training, the steps it resumed from, and the loss of every step."""

    steps: int
    resumed: int
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Mean loss of all steps."""
        return sum(self.losses) / max(len(self.losses), 1)


def check_split_arguments(settings: Mapping[str, Any]) -> None:
    """Raise for arguments of a training that a split training does not follow."""
    for name in settings:
        if name not in SUPPORTED:
            raise ConfigError(
                f"training.{name}: a training on a mesh does not follow it. Allowed: "
                f"{', '.join(SUPPORTED)}."
            )
    optimizer = settings.get("optim", ELEMENTWISE[0])
    if optimizer not in ELEMENTWISE:
        raise ConfigError(
            f"training.optim: {optimizer} does not treat every element alone, so it cannot update "
            f"parts of a parameter. Allowed: {', '.join(ELEMENTWISE)}."
        )


def check_layers(model: nn.Module) -> None:
    """Raise for a layer that keeps statistics of whole batches while it trains."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            raise ConfigError(
                f"training: layer '{name}' ({type(layer).__name__}) keeps statistics of whole "
                "batches, which no process of a mesh sees. Allowed: models without it."
            )


class SplitTrainer:
    """Training of `step` on the batches of `trainer`, with checkpoints in `folder`.

    `graph`: the whole model, by whose layers the Trainer chooses the weights that decay.
    """

    def __init__(
        self, trainer: GraphTrainer, step: SplitStep, graph: MaseGraph, folder: Path
    ) -> None:
        self.trainer, self.step, self.folder = trainer, step, folder
        self.arguments: TrainingArguments = trainer.args
        self.loader: Any = trainer.get_train_dataloader()
        train: Any = trainer.train_dataset
        if not len(self.loader):
            raise DataError(
                f"training: {len(train)} rows, and a batch has "
                f"{self.arguments.per_device_train_batch_size}. Give at least one batch of rows, "
                "or a smaller batch_size."
            )
        self.steps = steps_of(self.arguments, len(self.loader))
        parameters = {n: p for n, p in step.parameters().items() if p.requires_grad}
        self.optimizer = _optimizer(trainer, graph.model, parameters)
        self.schedule = _schedule(self.arguments, self.optimizer, self.steps)
        self.tensors = TrainingTensors(parameters, self.optimizer, step.split.copies)
        self.store = ShardStore(folder, trainer.facts)
        self.losses: list[float] = []

    def train(
        self, save_steps: int, on_step: Callable[[int, float | None], None] | None = None
    ) -> SplitOutcome:
        """Train to the end, from the last complete checkpoint; `on_step`: step and loss."""
        resumed = self._resume()
        report = on_step or (lambda number, loss: None)
        report(resumed, None)
        for number, batch in self._batches(resumed):
            loss = self._one_step(number, self._on_device(batch))
            self._record(number, loss)
            report(number, loss)
            if number % save_steps == 0 or number == self.steps:
                self.store.save(self.tensors, number)
        return SplitOutcome(self.steps, resumed, tuple(self.losses))

    def _resume(self) -> int:
        resumed = self.store.resume(self.tensors)
        if resumed:  # the rates follow from the number of steps alone
            self.schedule.last_epoch = resumed - 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # no step of the optimizer before it
                self.schedule.step()
        self.losses = [math.nan] * resumed
        if distributed.get_rank() == 0:  # the file has steps behind the checkpoint
            rows = read_losses(self.folder / LOSSES)[:resumed]
            self.losses[: len(rows)] = rows
            lines = [json.dumps({"step": i, "loss": loss}) for i, loss in enumerate(rows, 1)]
            write_whole(self.folder / LOSSES, "".join(f"{line}\n" for line in lines))
        return resumed

    def _batches(self, done: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the number and the batch of each step behind `done`."""
        per_epoch = len(self.loader)
        number = done
        for epoch in itertools.count(done // per_epoch):
            self.loader.set_epoch(epoch)
            start = number - epoch * per_epoch
            for batch in itertools.islice(self.loader, start, None):
                if number == self.steps:
                    return
                number += 1
                yield number, batch
            if number == self.steps:
                return

    def _on_device(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        device = self.step.device
        return {n: v.to(device) if isinstance(v, Tensor) else v for n, v in batch.items()}

    def _one_step(self, number: int, batch: Mapping[str, Any]) -> float:
        seed = self.arguments.seed * STEPS_PER_SEED + number * STAGES_PER_STEP + self.step.stage
        torch.manual_seed(seed % 2**63)
        self.step.model.train()
        loss = self.step.gradients(batch)
        if not math.isfinite(loss):
            raise TrainingError(
                f"training, step {number}: the loss is not finite (learning_rate is "
                f"{self.arguments.learning_rate}). Give a smaller learning rate, or look at the "
                "data and at ranges of formats for values that overflow."
            )
        if self.arguments.max_grad_norm > 0:
            copies = self.step.split.copies
            clip_gradients(self.tensors.parameters, copies, self.arguments.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss

    def _record(self, number: int, loss: float) -> None:
        self.losses.append(loss)
        if distributed.get_rank() == 0:
            with (self.folder / LOSSES).open("a") as opened:
                opened.write(json.dumps({"step": number, "loss": loss}) + "\n")


def steps_of(arguments: TrainingArguments, per_epoch: int) -> int:
    """Return the number of steps of a training."""
    if arguments.max_steps > 0:
        return arguments.max_steps
    return math.ceil(arguments.num_train_epochs * per_epoch)


def read_losses(file: Path) -> list[float]:
    """Return the losses of a run's file, one per step, without a torn last line."""
    text = file.read_text() if file.is_file() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [float(json.loads(line)["loss"]) for line in lines]


def _optimizer(
    trainer: GraphTrainer, model: nn.Module, parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer of transformers' Trainer for the parameters of this process.

    Parameters on different meshes are in groups of their own, since one call updates a group.
    """
    kind, options = Trainer.get_optimizer_cls_and_kwargs(trainer.args)
    decays = trainer.get_decay_parameter_names(model)
    groups: dict[Any, list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((mesh, name in decays), []).append(parameter)
    rates = {True: trainer.args.weight_decay, False: 0.0}
    listed = [{"params": each, "weight_decay": rates[key[1]]} for key, each in groups.items()]
    optimizer: torch.optim.Optimizer = kind(listed, **options)
    return optimizer


def _schedule(
    arguments: TrainingArguments, optimizer: torch.optim.Optimizer, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    settings: Any = arguments.lr_scheduler_kwargs
    schedule = get_scheduler(
        arguments.lr_scheduler_type,
        optimizer,
        num_warmup_steps=arguments.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=settings,
    )
    if not isinstance(schedule, torch.optim.lr_scheduler.LambdaLR):
        raise ConfigError(
            f"training.lr_scheduler_type: {arguments.lr_scheduler_type} does not follow from the "
            "number of steps alone. Allowed: linear, cosine, constant, polynomial …"
        )
    return schedule


def clip_gradients(
    parameters: Mapping[str, Tensor], copies: Mapping[str, str], largest: float
) -> float:
    """Scale all gradients of a split model so that their norm is at most `largest`; return it.

    Every element counts once, though several processes or layers (`copies`) may have it.
    """
    square = torch.zeros((), dtype=torch.float64)
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    for name, gradient in gradients.items():
        if name not in copies and _is_first_copy(gradient):
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            square += local.double().square().sum().cpu()
    distributed.all_reduce(square)
    norm = float(square.sqrt())
    scale = min(1.0, largest / (norm + 1e-6))
    for gradient in gradients.values():
        gradient.mul_(scale)
    return norm


def _is_first_copy(tensor: Tensor) -> bool:
    """Return True if no process before this one has the same part of a tensor."""
    if not isinstance(tensor, DTensor):
        return True
    axes = enumerate(tensor.placements)
    return all(not p.is_replicate() or tensor.device_mesh.get_local_rank(i) == 0 for i, p in axes)
