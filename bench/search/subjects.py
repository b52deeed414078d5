"""What is searched: BERT-tiny on IMDb, with reviews held out of the training set to choose by."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import functools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop.actions.study_subject import Subject
from chop.dataset import TokenArrays, load_token_arrays
from chop.ir.graph import MaseGraph
from chop.models import get_model
from chop.nn.quantized.layer import QuantizedModule
from chop.passes import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

sys.path.append(str(Path(__file__).parents[1] / "imdb"))
from batches import Reviews, evenly
from loop import CaptureError, Recipe, evaluate, train

INPUTS = ("input_ids", "attention_mask", "labels")
HEAD = ("bert.pooler.dense", "classifier")
HELD_OUT = 4000
"""Reviews of the training set to choose by."""
LEARNING_RATE = 3e-4
"""Of the float model, from bench/imdb."""
RECOVERY = 1e-4
"""After compression."""
ALWAYS_CAPTURED = {"integer"}
"""Formats whose training steps are known to replay as CUDA graphs."""


@dataclass(frozen=True)
class Settings:
    """Where data, model and results are, and how much of the data is used."""

    data: Path
    model: Path
    out: Path
    limit: int | None = None
    max_token_len: int = 512


class Task:
    """Data and models of one process, loaded at need and once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_float32_matmul_precision("high")

    @functools.cached_property
    def _arrays(self) -> dict[str, TokenArrays]:
        folder, limit = self.settings.data / "tokens", self.settings.limit
        found = load_token_arrays(folder, self.settings.max_token_len)
        whole, test = (evenly(found[name], limit) for name in ("train", "test"))
        rows = np.random.default_rng(0).permutation(len(whole))
        cut = len(whole) - min(HELD_OUT, len(whole) // 4)
        chosen = {"train": rows[:cut], "validation": rows[cut:]}
        parts = {name: whole.select(np.sort(each)) for name, each in chosen.items()}
        return {**parts, "whole": whole, "test": test}

    def reviews(self, part: str) -> Reviews:
        """Reviews on the device: "train" and "validation" make up "whole"; "test" is apart."""
        return _on_device(self, part)

    @functools.cached_property
    def pretrained(self) -> nn.Module:
        """The pretrained model, the super-model of every architecture."""
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the head is not in the file, and processes must agree on it
            return get_model(self.settings.model)

    @functools.cached_property
    def graph(self) -> MaseGraph:
        """The pretrained model as a graph; other graphs are copies of it."""
        graph = MaseGraph(self.pretrained, hf_input_names=INPUTS)
        init_metadata_analysis_pass(graph)
        add_common_metadata_analysis_pass(graph, {"add_value": False})
        add_software_metadata_analysis_pass(graph)  # once, so that copies need not
        return graph

    def fresh(self, seed: int) -> MaseGraph:
        """A copy of the pretrained graph whose untrained head is drawn by `seed`."""
        graph = copy.deepcopy(self.graph)
        generator = torch.Generator().manual_seed(seed)
        for name in HEAD:
            layer = graph.modules[name]
            nn.init.normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)
        return graph

    def fine_tuned(self, part: str, seed: int) -> MaseGraph:
        """The float model fine-tuned on `part`, trained once and kept."""
        file = self.settings.out / "base" / f"{part}-{seed}.safetensors"
        with locked(file.with_suffix(".lock")):
            if not file.is_file():
                graph = self.fresh(seed)
                self.subject(part).train(graph, seed)
                _save(graph, file)
        graph = copy.deepcopy(self.graph)
        graph.model.load_state_dict(load_file(file))
        return graph

    def kept(self, part: str, seed: int) -> MaseGraph:
        """The same, one graph for all who copy it before they change it."""
        return _kept(self, part, seed)

    def subject(self, part: str = "train", start: Any = None) -> Subject:
        """Trains on `part`; measures on "validation", or where `part` is "whole" on "test"."""
        measured = "test" if part == "whole" else "validation"

        def train_graph(graph: MaseGraph, seed: int, **chosen: Any) -> None:
            self.train(graph, part, seed, **chosen)

        def evaluate_graph(graph: MaseGraph) -> float:
            value = evaluate(graph.model.to(self.device), self.reviews(measured))
            graph.model.cpu()  # where its example inputs are
            return value

        return Subject(start or self.fresh, train_graph, evaluate_graph, list)

    def train(
        self,
        graph: MaseGraph,
        part: str,
        seed: int,
        learning_rate: float = LEARNING_RATE,
        num_train_epochs: int = 1,
    ) -> None:
        """One epoch or more, as replays of captured steps where the formats allow it."""
        formats = {m.format.name for m in graph.modules.values() if isinstance(m, QuantizedModule)}
        replays = self.device.type == "cuda" and not formats & self.not_captured()
        recipe = Recipe(learning_rate, num_train_epochs)
        try:
            train(graph.model.to(self.device), self.reviews(part), recipe, seed, replays)
        except CaptureError as error:
            self._start_again(formats, error)
        graph.model.cpu()

    def not_captured(self) -> set[str]:
        """Formats whose steps could not be captured on this machine."""
        file = self.settings.out / "not_captured.json"
        return set(json.loads(file.read_text())) if file.is_file() else set()

    def _start_again(self, formats: set[str], error: CaptureError) -> None:
        """A failed capture may leave the device unusable: note it, and start this process anew."""
        suspects = formats - ALWAYS_CAPTURED or formats or {"float"}
        print(f"CUDA graphs are off for {', '.join(sorted(suspects))}: {error}", flush=True)
        file = self.settings.out / "not_captured.json"
        with locked(file.with_suffix(".lock")):
            file.write_text(json.dumps(sorted(self.not_captured() | suspects)))
        os.execv(sys.executable, [sys.executable, *sys.argv])


@functools.cache
def _on_device(task: Task, part: str) -> Reviews:
    return Reviews.on(task._arrays[part], task.device)


@functools.cache
def _kept(task: Task, part: str, seed: int) -> MaseGraph:
    return task.fine_tuned(part, seed)


def _save(graph: MaseGraph, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().cpu().contiguous() for k, v in graph.model.state_dict().items()}
    save_file(state, file.with_suffix(".partial"))
    os.replace(file.with_suffix(".partial"), file)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes wait for; it goes with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
