"""A training loop without overhead: on a GPU each step is one replay of a captured CUDA graph."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import torch
from batches import Batch, Reviews
from torch import Tensor, nn


class CaptureError(RuntimeError):
    """A step could not be captured as a CUDA graph; the process should start again without."""


@dataclass(frozen=True)
class Recipe:
    """How to train: AdamW, a short warm-up, then linear decay to zero."""

    learning_rate: float
    epochs: int = 1
    batch_size: int = 32
    warm_up: float = 0.05
    max_norm: float = 1.0


@dataclass
class Stepper:
    """Takes optimiser steps; the first of each length runs as it is, later ones are replayed."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    max_norm: float
    use_graphs: bool
    seen: set[int] = field(default_factory=set)
    captured: dict[int, tuple[Any, Batch]] = field(default_factory=dict)
    pool: Any = None

    def step(self, batch: Batch) -> None:
        """One step on `batch`."""
        size = batch["input_ids"].shape[1]
        if not self.use_graphs or size not in self.seen:
            self.seen.add(size)
            self._work(batch)
            return
        if size not in self.captured:
            self.captured[size] = self._capture(batch)
        graph, inputs = self.captured[size]
        for name, value in batch.items():
            inputs[name].copy_(value)
        graph.replay()

    def _work(self, batch: Batch) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(**batch).loss.backward()
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(trained, self.max_norm)
        self.optimizer.step()

    def _capture(self, batch: Batch) -> tuple[Any, Batch]:
        inputs = {name: value.clone() for name, value in batch.items()}
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)  # gradients belong to the graph's own memory
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        gc.disable()  # freeing a graph while another is captured would end the capture
        try:
            graph.capture_begin(pool=self.pool)
            self._work(inputs)
            graph.capture_end()
        except RuntimeError as error:
            raise CaptureError(str(error)) from error
        finally:
            gc.enable()
        return graph, inputs


def train(model: nn.Module, reviews: Reviews, recipe: Recipe, seed: int, use_graphs: bool) -> int:
    """Train `model`, which is on the device of `reviews`, in place; the number of steps taken."""
    device = reviews.tokens.device
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    epochs = [reviews.shuffled(recipe.batch_size, generator) for _ in range(recipe.epochs)]
    plan = [rows for epoch in epochs for rows in epoch]
    on_gpu = device.type == "cuda"
    model.train()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=torch.zeros((), device=device),  # a tensor, so that replayed steps see it change
        weight_decay=0.0,
        capturable=on_gpu,
        fused=on_gpu,
    )
    rate = optimizer.param_groups[0]["lr"]
    stepper = Stepper(model, optimizer, recipe.max_norm, use_graphs and on_gpu)
    stream = torch.cuda.Stream() if on_gpu else None
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number, rows in enumerate(plan):
            rate.fill_(learning_rate(recipe, number, len(plan)))
            stepper.step(reviews.batch(rows))
    if on_gpu:
        torch.cuda.synchronize()
    return len(plan)


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The rate at `step`: up in a straight line, then down to zero."""
    rising = max(1, round(recipe.warm_up * steps))
    share = (step + 1) / rising if step < rising else (steps - step) / max(1, steps - rising)
    return recipe.learning_rate * share


@torch.no_grad()
def evaluate(model: nn.Module, reviews: Reviews, batch_size: int = 200) -> float:
    """Share of reviews classified rightly, in full float32."""
    model.eval()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    right: Tensor = torch.zeros((), dtype=torch.long, device=reviews.tokens.device)
    for batch in reviews.in_order(batch_size):
        right += (model(**batch).logits.argmax(-1) == batch["labels"]).sum()
    torch.set_float32_matmul_precision(before)
    return int(right) / len(reviews)
