"""Checkpoints of a split training: every process writes its parts, and a checkpoint is whole.

The parts are in the files of `torch.distributed.checkpoint` (DCP), which loads them on any number
of processes. A checkpoint is written under another name and renamed when all parts are on the disk,
so that a kill at any moment leaves whole checkpoints only. A parameter that several layers share is
stored once.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts

from chop.actions.trainer import COMPLETE, FILES, PREFIX, last_complete
from chop.errors import CheckpointError
from chop.files import bring_to_disk, make_folder, remove_whole, write_whole

MODEL, STATE = "model", "optimizer"
"""First words of the keys of a checkpoint: parameters, and the state of the optimizer."""
STEP = "step"
KEPT = 2
"""Number of checkpoints that are kept."""
DRAFT = ".draft."


@dataclass(frozen=True)
class TrainingTensors:
    """Tensors of a training on this process: parameters by name, and their optimizer.

    `copies`: name of a parameter -> name of the one with the same values that is stored.
    """

    parameters: Mapping[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    copies: Mapping[str, str]

    def stored(self) -> dict[str, Tensor]:
        """Return all tensors by their keys in a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._by_stored_name():
            tensors[f"{MODEL}/{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{STATE}/{name}/{key}"] = value
        return tensors

    def _by_stored_name(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.parameters.items():
            yield self.copies.get(name, name), parameter

    def load(self, folder: Path) -> None:
        """Load the parts of a checkpoint that this process has, in its own layout."""
        metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
        sources = dict(self._by_stored_name())
        for name, parameter in sources.items():
            if f"{MODEL}/{name}" not in metadata:
                raise CheckpointError(f"{folder}: has no parameter '{name}' of this model.")
            self.optimizer.state[parameter] = _empty_state(metadata, name, parameter)
        load_parts(self.stored(), storage_reader=FileSystemReader(folder))
        for name, parameter in self.parameters.items():  # two copies in one process
            source = sources[self.copies.get(name, name)]
            if source is not parameter:
                parameter.data.copy_(source.data)
                self.optimizer.state[parameter] = {
                    key: value.clone() for key, value in self.optimizer.state[source].items()
                }


def _empty_state(metadata: Mapping[str, Any], name: str, parameter: Tensor) -> dict[str, Tensor]:
    """Return the optimizer state of a parameter before it is loaded."""
    prefix = f"{STATE}/{name}/"
    state: dict[str, Tensor] = {}
    for key, entry in metadata.items():
        if key.startswith(prefix):
            is_like = tuple(entry.size) == tuple(parameter.shape)
            shape = torch.zeros(entry.size, dtype=entry.properties.dtype)
            empty = torch.zeros_like(parameter.detach()) if is_like else shape
            state[key.removeprefix(prefix)] = empty
    return state


class ShardStore:
    """Checkpoints of one run in `folder`; a checkpoint with other facts is an error."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder, self.facts = folder, dict(facts)

    def resume(self, tensors: TrainingTensors) -> int:
        """Load the last complete checkpoint on every process; return its step, or 0."""
        names: list[Any] = [None]
        if distributed.get_rank() == 0:
            make_folder(self.folder)
            for draft in self.folder.glob(f"{DRAFT}*"):
                remove_whole(draft)
            names = [_outcome(self.folder, self.facts)]
        distributed.broadcast_object_list(names)
        if isinstance(names[0], CheckpointError):
            raise names[0]
        if names[0] is None:
            return 0
        tensors.load(self.folder / names[0])
        return int(names[0].removeprefix(PREFIX))

    def save(self, tensors: TrainingTensors, step: int) -> None:
        """Write the checkpoint of a step; every process must call this."""
        draft = self.folder / f"{DRAFT}{step}"
        writer = FileSystemWriter(draft, single_file_per_rank=True, sync_files=True)
        save_parts(tensors.stored(), storage_writer=writer)
        if distributed.get_rank() == 0:
            self._publish(draft, step)

    def _publish(self, draft: Path, step: int) -> None:
        """Give a written checkpoint its name, and delete the oldest."""
        sizes = {file.name: file.stat().st_size for file in draft.iterdir()}
        note = {**self.facts, STEP: step, FILES: sizes}
        write_whole(draft / COMPLETE, json.dumps(note, sort_keys=True))
        bring_to_disk(draft / COMPLETE)
        bring_to_disk(draft)
        target = self.folder / f"{PREFIX}{step}"
        remove_whole(target)
        os.replace(draft, target)
        bring_to_disk(self.folder)
        for old in sorted(self.folder.glob(f"{PREFIX}*"), key=_step_of)[:-KEPT]:
            remove_whole(old)


def _outcome(folder: Path, facts: Mapping[str, Any]) -> str | CheckpointError | None:
    """Return the name of the last complete checkpoint, None, or the error that it raises."""
    try:
        last = last_complete(folder, facts)
    except CheckpointError as error:
        return error
    return None if last is None else last.name


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(PREFIX))


def consolidate(checkpoint: Path, model: nn.Module) -> None:
    """Load the parameters of a checkpoint, all parts of them, into a whole model."""
    if not (checkpoint / COMPLETE).is_file():
        raise CheckpointError(f"{checkpoint}: not a complete checkpoint of a split training.")
    metadata: Any = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    own = dict(model.named_parameters())
    stored = {key.removeprefix(f"{MODEL}/") for key in metadata if key.startswith(f"{MODEL}/")}
    strange = sorted(stored - set(own))
    if strange:
        raise CheckpointError(
            f"{checkpoint}: has parameters that the model does not have: {strange[:3]}. "
            "Give the model that was trained."
        )
    for name in stored:
        size = tuple(metadata[f"{MODEL}/{name}"].size)
        if size != tuple(own[name].shape):
            raise CheckpointError(
                f"{checkpoint}: '{name}' has the shape {list(size)}, and that of the model "
                f"{list(own[name].shape)}. Give the model that was trained."
            )
    state = {f"{MODEL}/{name}": own[name].detach() for name in stored}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one process alone, on purpose
        load_parts(state, storage_reader=FileSystemReader(checkpoint), no_dist=True)
