"""What the tutorials share: their two settings, their task, and where they print.

Every tutorial is run from the shell, small (seconds, no network) or full (real data):

    python docs/tutorials/qat.py
    python docs/tutorials/qat.py --model MODELS/bert-tiny --data DATA/imdb
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
import transformers
from tabulate import tabulate
from torch import nn

from chop import MaseGraph
from chop.dataset import get_dataset, get_tokenized_dataset
from chop.log import get_report_logger
from chop.models import get_model
from chop.tools import get_trainer

INPUTS = ["input_ids", "attention_mask", "labels"]


@dataclass(frozen=True)
class Setting:
    """`out`: the folder of figures and printed text. `model` and `data`, each a folder or a name on
    the hub, are given in the full setting and None in the small one."""

    out: Path
    model: str | None = None
    data: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether a real model is studied."""
        return self.model is not None

    def show(self, name: str, text: str) -> None:
        """Print `text`, and keep it as `<out>/<name>.txt`."""
        print(f"\n{text}")
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / f"{name}.txt").write_text(text.rstrip() + "\n")


def start(main: Callable[[Setting], None], name: str, description: str) -> None:
    """Run a tutorial as its command line asks."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--model", help="folder or hub name of a BERT: the full setting")
    parser.add_argument("--data", default="imdb", help="folder or hub name of the text to learn")
    parser.add_argument("--out", type=Path, default=Path("out/tutorials") / name)
    given = parser.parse_args()
    run(main, Setting(given.out, given.model, given.data))


def run(main: Callable[[Setting], None], setting: Setting) -> None:
    """Run a tutorial, seeded; tables of passes are shown by the tutorial alone."""
    transformers.logging.set_verbosity_error()
    matplotlib.rcParams.update({"svg.hashsalt": "mase", "svg.fonttype": "none"})
    report, level = get_report_logger(), get_report_logger().level
    report.setLevel(logging.WARNING)
    torch.manual_seed(0)
    try:
        main(setting)
    finally:
        report.setLevel(level)
    print(f"\nfigures and printed text: {setting.out}")


def table(rows: Iterable[Sequence[Any]], headers: Sequence[str]) -> str:
    """A table for `show`; accuracies have three places."""
    return tabulate(rows, headers=headers, floatfmt=".3f")


@dataclass(frozen=True)
class Task:
    """A model, what it learns, and how it is trained."""

    model: nn.Module
    dataset: Mapping[str, Any]
    tokenizer: Any
    training: Mapping[str, Any]
    epochs: int

    def graph(self) -> MaseGraph:
        """The model as a graph that ends in the loss."""
        return MaseGraph(self.model, hf_input_names=INPUTS)

    def trainer(self, mg: MaseGraph, epochs: float | None = None, **more: Any) -> Any:
        """A trainer for `mg`, as its passes have made it."""
        trainer = get_trainer(
            mg.model,
            self.dataset,
            self.tokenizer,
            evaluate_metric="accuracy",
            num_train_epochs=epochs or self.epochs,
            **{**self.training, **more},
        )
        return quiet(trainer)

    def accuracy(self, mg: MaseGraph) -> float:
        """The share of test samples that `mg` gets right."""
        return self.trainer(mg).evaluate()["eval_accuracy"]


def quiet(trainer: Any) -> Any:
    """The trainer, without the lines it prints for each epoch."""
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


QUIET = {"disable_tqdm": True, "logging_strategy": "no", "log_level": "error"}


def text_task(setting: Setting) -> Task:
    """BERT-tiny on reviews; small: BERT of width 32 tells which of two marks comes first."""
    if setting.is_full:
        dataset, tokenizer = get_tokenized_dataset(
            setting.data, setting.model, return_tokenizer=True
        )
        training = {"learning_rate": 3e-4, "per_device_train_batch_size": 32}
        return Task(get_model(setting.model), dataset, tokenizer, training, epochs=1)
    torch.manual_seed(0)
    model = get_model("tiny_bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    dataset = get_dataset("sequences", train_size=1024, length=8)
    training = {"learning_rate": 3e-3, "per_device_train_batch_size": 32, **QUIET}
    return Task(model, dataset, None, {**training, "per_device_eval_batch_size": 256}, epochs=4)


def fine_tuned(setting: Setting, task: Task) -> MaseGraph:
    """The task's model, trained; kept beside `out`, so that every tutorial starts from the same."""
    kept = setting.out.parent / f"fine_tuned_{'full' if setting.is_full else 'small'}"
    if not kept.with_suffix(".json").is_file():
        mg = task.graph()
        task.trainer(mg).train()
        mg.export(kept)
    return MaseGraph.from_checkpoint(kept)
