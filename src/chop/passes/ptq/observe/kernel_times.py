"""Kernels that run the layers of a quantised model, timed against the float layers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.passes.ptq.observe.quantized_parts import FirstInputs, Part
from chop.passes.rewrite.propagate import bind_inputs

ROUNDS = 5
SIMULATED = "float product of rounded operands (a simulation of the format)"
Program = Callable[[], Any]


def kernel_times(
    graph: MaseGraph,
    parts: Sequence[Part],
    batch: Any,
    float_calls: Mapping[Part, Mapping[fx.Node, Callable[..., Any]]],
) -> list[dict[str, Any]]:
    """One record for each kind of part: what runs, seconds, seconds in float, and their ratio.

    Parts of one class, format, and shapes are of one kind, and the first of them is timed.
    """
    firsts = {part.nodes[0] for part in parts}
    run = FirstInputs(graph.model, firsts)
    run.run(*bind_inputs(graph, batch, "explain.data").values())
    kinds: dict[Any, list[Part]] = {}
    for part in parts:
        kinds.setdefault(_kind(part, run.found[part.nodes[0]]), []).append(part)
    return [
        _timed(graph, same, run.found[same[0].nodes[0]], float_calls) for same in kinds.values()
    ]


def kernel_name(part: Part) -> str:
    """What computes a part."""
    if part.is_packed:
        return f"packed {getattr(part.layer, 'format', 'int8')}"
    return SIMULATED


def _kind(part: Part, given: tuple[Any, ...]) -> tuple[Any, ...]:
    shapes = tuple(tuple(t.shape) for t in tensors_in(given))
    weights = () if part.layer is None else tuple(
        tuple(t.shape) for t in (*part.layer.parameters(), *part.layer.buffers())
    )  # fmt: skip
    target = part.nodes[0].target if part.layer is None else type(part.layer)
    return target, tuple(part.formats.items()), shapes, weights


def _timed(
    graph: MaseGraph,
    same: Sequence[Part],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    float_calls: Mapping[Part, Mapping[fx.Node, Callable[..., Any]]],
) -> dict[str, Any]:
    part, node = same[0], same[0].nodes[0]
    args, kwargs = given
    own: Any = node.target
    if part.layer is not None:
        own = graph.model.get_submodule(str(node.target))
    here, there = float_calls[part][node], own
    seconds, plain = interleaved(lambda: there(*args, **kwargs), lambda: here(*args, **kwargs))
    first = next((t for t in tensors_in(args)), None)
    return {
        "layer": part.name,
        "alike": len(same),
        "kernel": kernel_name(part),
        "device": "cpu" if first is None else first.device.type,
        "input": None if first is None else tuple(first.shape),
        "seconds": seconds,
        "float_seconds": plain,
        "ratio": seconds / plain,
    }


def interleaved(one: Program, other: Program) -> tuple[float, float]:
    """The least seconds of each; calls alternate, so that a busy moment hits both."""
    times: dict[Program, list[float]] = {one: [], other: []}
    for program in (one, other):
        program()
    for _ in range(ROUNDS):
        for program, found in times.items():
            found.append(_seconds(program))
    return min(times[one]), min(times[other])


def _seconds(program: Program) -> float:
    start = time.perf_counter()
    result = program()
    if any(isinstance(t, Tensor) and t.is_cuda for t in tensors_in(result)):
        torch.cuda.synchronize()
    return time.perf_counter() - start
