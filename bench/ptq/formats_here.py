"""The formats of the table by this package: rounding to nearest, GPTQ, and the K-quant Q4_K."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from methods import rules
from schemes import Scheme, name_of
from subjects import Subject
from torch import Tensor, nn

from chop import MaseGraph
from chop.actions.post_training import quantize_with_data
from chop.export.gguf_k_types import K_BLOCK
from chop.export.gguf_types import TYPES

K_QUANT = "Q4_K"


def nearest(subject: Subject, scheme: Scheme, seed: int) -> Callable[..., Any]:
    """Return the model rounded without data; `seed` has no effect."""
    if scheme.form == K_QUANT:
        return in_k_quant(subject.load(), subject.head, {})
    return _quantised(subject, scheme, seed, "nearest")


def gptq(subject: Subject, scheme: Scheme, seed: int) -> Callable[..., Any]:
    """Return the model rounded by `mase quantize --method gptq`."""
    return _quantised(subject, scheme, seed, "gptq")


def importance(subject: Subject, scheme: Scheme, seed: int) -> Callable[..., Any]:
    """Return the model in a K-quant fitted with the mean squares of each layer's inputs."""
    model = subject.load()
    squares = input_squares(model, subject.head, subject.calibration(seed))
    return in_k_quant(model, subject.head, squares)


def _quantised(subject: Subject, scheme: Scheme, seed: int, method: str) -> Callable[..., Any]:
    graph = copy.deepcopy(_graph(subject))
    chosen = rules(subject, graph.model, name_of(scheme))
    quantize_with_data(graph, chosen, subject.calibration(seed), method)
    return graph.model


@functools.cache
def _graph(subject: Subject) -> MaseGraph:
    """Return the graph of the float model."""
    dummy = {k: v[:2] for k, v in subject.calibration(0)[0].items()}
    return MaseGraph(subject.load(), list(dummy), dummy)


# -- K-quants --------------------------------------------------------------------------------------


def _layers(model: nn.Module, head: tuple[str, ...]) -> Iterator[tuple[str, nn.Linear]]:
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name not in head:
            yield name, layer


@torch.no_grad()
def input_squares(model: nn.Module, head: tuple[str, ...], batches: list[Any]) -> dict[str, Tensor]:
    """Return the mean square of each input of every linear layer but the head."""
    sums: dict[str, Tensor] = {}

    def add(name: str, rows: Tensor) -> None:
        square = rows.double().square().flatten(0, -2)
        sums[name] = sums.get(name, 0) + square.mean(0) / len(batches)

    with ExitStack() as stack:
        for name, layer in _layers(model, head):
            hook = layer.register_forward_pre_hook(lambda _, args, name=name: add(name, args[0]))
            stack.callback(hook.remove)
        for batch in batches:
            model(**batch)
    return sums


@torch.no_grad()
def in_k_quant(model: nn.Module, head: tuple[str, ...], squares: dict[str, Tensor]) -> nn.Module:
    """Round the linear layers to what a GGUF file of the type Q4_K stores, and return the model.

    Blocks are cut from the whole matrix, as in auto-round: one may hold the end of a row and the
    beginning of the next. `squares`: the mean squares of the inputs of layers.
    """
    for name, layer in _layers(model, head):
        weight = layer.weight.detach().cpu().numpy()
        own = squares.get(name)
        spread = None if own is None else np.broadcast_to(own.cpu().numpy(), weight.shape)
        layer.weight.copy_(torch.from_numpy(_k_rounded(weight, spread)))
    return model


def _k_rounded(weight: Any, spread: Any) -> Any:
    kind = TYPES[K_QUANT]
    blocks, importances = (
        None if values is None else values.reshape(-1, K_BLOCK) for values in (weight, spread)
    )
    values = kind.decode(kind.nearest(blocks, importances))
    return values.reshape(weight.shape).astype(np.float32)
