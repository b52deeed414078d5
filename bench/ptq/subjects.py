"""What is quantised, on which tokens, and how it is measured: the same code for every tool.

Only numpy, torch and transformers are needed, so that other tools' environments can import it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

Batch = dict[str, Tensor]
SEEDS = (0, 1, 2)
"""Of the calibration data."""
WINDOW = 512
REVIEW = 128
"""Tokens of a window of text, and of a review."""
CALIBRATION = {"llama-imdb": 32, "bert-tiny": 128}
"""Windows or reviews to calibrate on, unless a number is given."""
HELD = {"llama-imdb": 32, "bert-tiny": 2000}
"""Windows or reviews to measure on, unless a number is given."""
COMPARED = {"llama-imdb": 64, "bert-tiny": 2000, "smollm2": 8}
"""Of those, the first so many whose logits are compared with the float model's."""
HEADS = {
    "llama-imdb": ("lm_head",),
    "bert-tiny": ("bert.pooler.dense", "classifier"),
    "smollm2": ("lm_head",),
    "minilm": (),
}
"""Layers that no tool quantises."""


@dataclass(frozen=True)
class Subject:
    """One model with its calibration data and its test."""

    name: str
    folder: Path
    data: Path
    held: int
    device: str = "cpu"

    def load(self) -> nn.Module:
        """The float32 model, ready to evaluate."""
        kind = AutoModelForCausalLM if self.is_language else AutoModelForSequenceClassification
        model: Any = kind.from_pretrained(self.folder, dtype=torch.float32)
        model.config.use_cache = False
        return model.to(self.device).eval()  # type: ignore[no-any-return]

    @property
    def is_language(self) -> bool:
        """Whether it predicts the next token; else it classifies reviews."""
        return self.name in ("llama-imdb", "smollm2")

    @property
    def head(self) -> tuple[str, ...]:
        """Layers that stay in float."""
        return HEADS[self.name]

    def calibration(self, seed: int, rows: int | None = None) -> list[Batch]:
        """Batches of windows or reviews of the training text, drawn by `seed`."""
        count = rows or CALIBRATION[self.name]
        draw = np.random.default_rng(seed)
        if self.is_language:
            text = _windows(self.data / "lm" / "calibration.npz")
            ids = text[np.sort(draw.permutation(len(text))[:count])]
            return self._batches({"input_ids": ids}, 4)
        reviews = _Reviews(self.data / "tokens" / "train.npz")
        return self._batches(reviews.padded(draw.permutation(len(reviews))[:count]), 32)

    def evaluation(self) -> Iterator[Batch]:
        """Batches of held-out text with `labels`."""
        if self.is_language:
            ids = _windows(self.data / "lm" / "held.npz")[: self.held]
            yield from self._batches({"input_ids": ids}, 4)
            return
        reviews = _Reviews(self.data / "tokens" / "test.npz")
        rows = np.linspace(0, len(reviews) - 1, self.held).astype(int)  # sorted by label: evenly
        chosen = {**reviews.padded(rows), "labels": reviews.labels[rows]}
        yield from self._batches(chosen, 50)

    def _batches(self, arrays: dict[str, np.ndarray[Any, Any]], size: int) -> list[Batch]:
        tensors = {k: torch.from_numpy(v.astype(np.int64)) for k, v in arrays.items()}
        count = len(next(iter(tensors.values())))
        return [
            {k: v[i : i + size].to(self.device) for k, v in tensors.items()}
            for i in range(0, count, size)
        ]

    @torch.no_grad()
    def measured(self, model: Callable[..., Any], reference: list[Tensor]) -> dict[str, float]:
        """Perplexity or accuracy, and how far the logits are from `reference`."""
        sums = _Sums()
        for number, batch in enumerate(self.evaluation()):
            labels = batch.pop("labels", None)
            logits = model(**batch)["logits"].float()
            sums.score(logits, labels, batch["input_ids"])
            if number < len(reference):
                sums.compare(logits, reference[number].to(logits.device))
        return sums.result(self.is_language)

    @torch.no_grad()
    def reference(self, model: nn.Module) -> list[Tensor]:
        """The float model's logits on the batches whose logits are compared."""
        found: list[Tensor] = []
        seen = 0
        for batch in self.evaluation():
            if seen >= COMPARED[self.name]:
                break
            batch.pop("labels", None)
            found.append(model(**batch)["logits"].float())
            seen += len(found[-1])
        return found


class _Sums:
    """Sums over batches, in double precision."""

    def __init__(self) -> None:
        self.surprise = self.tokens = self.right = self.rows = 0.0
        self.signal = self.noise = self.divergence = self.compared = 0.0

    def score(self, logits: Tensor, labels: Tensor | None, ids: Tensor) -> None:
        if labels is not None:
            self.right += float((logits.argmax(-1) == labels).sum())
            self.rows += len(labels)
            return
        flat, target = logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        self.surprise += float(nn.functional.cross_entropy(flat, target, reduction="sum"))
        self.tokens += target.numel()

    def compare(self, logits: Tensor, right: Tensor) -> None:
        p, q = right.log_softmax(-1), logits.log_softmax(-1)
        self.divergence += float((p.exp() * (p - q)).sum(-1).double().sum())
        self.compared += right[..., 0].numel()
        self.signal += float(right.double().square().sum())
        self.noise += float((logits.double() - right.double()).square().sum())

    def result(self, is_language: bool) -> dict[str, float]:
        found = {"divergence": self.divergence / max(self.compared, 1)}
        if self.noise:
            found["sqnr"] = 10 * math.log10(self.signal / self.noise)
        if is_language:
            return {"perplexity": math.exp(self.surprise / self.tokens), **found}
        return {"accuracy": self.right / self.rows, **found}


def _windows(file: Path) -> np.ndarray[Any, Any]:
    ids = np.load(file)["ids"]
    return ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)  # type: ignore[no-any-return]


class _Reviews:
    """Reviews of one split, cut to `REVIEW` tokens."""

    def __init__(self, file: Path) -> None:
        stored = np.load(file)
        self.ids, self.offsets, self.labels = (stored[k] for k in ("ids", "offsets", "labels"))

    def __len__(self) -> int:
        return len(self.labels)

    def padded(self, rows: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Tokens and mask of the reviews `rows`."""
        ids = np.zeros((len(rows), REVIEW), dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            found = self.ids[self.offsets[row] : self.offsets[row + 1]][:REVIEW]
            ids[i, : len(found)], mask[i, : len(found)] = found, 1
        return {"input_ids": ids, "attention_mask": mask}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options that say where models and data are, and how much is measured."""
    parser.add_argument("--llama", type=Path, help="folder of llama-imdb")
    parser.add_argument("--bert", type=Path, help="folder that fine_tune.py wrote")
    parser.add_argument("--data", type=Path, required=True, help="folder with lm/ and tokens/")
    parser.add_argument("--windows", type=int, default=HELD["llama-imdb"])
    parser.add_argument("--reviews", type=int, default=HELD["bert-tiny"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)


def subjects(args: argparse.Namespace) -> list[Subject]:
    """The models that the options name."""
    torch.set_num_threads(args.threads)
    given = (("llama-imdb", args.llama, args.windows), ("bert-tiny", args.bert, args.reviews))
    return [
        Subject(name, folder, args.data, held, args.device)
        for name, folder, held in given
        if folder
    ]
