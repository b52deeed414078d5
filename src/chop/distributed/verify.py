"""Run a plan on processes of this machine and compare with the model on one.

Both runs are in double precision: a split changes the order of sums, which costs some 1e-15 of
the largest value there, while a wrong layout costs whole digits. `TOLERANCE` lies between the two
and still admits a graph that rounds to single precision somewhere inside.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.distributed.apply import ShardedModel, apply_plan, whole_tensors
from chop.distributed.plan import Plan
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

TOLERANCE = 1e-6
"""Largest difference allowed, as a share of the largest value compared."""


@dataclass(frozen=True)
class Verification:
    """What a run of the plan on real processes gave.

    Differences are shares of the largest output and of the largest gradient of the model;
    `parameter_bytes` has an entry a process, for parameters in the model's own precision.
    """

    output_difference: float
    gradient_difference: float | None
    parameter_bytes: tuple[int, ...]
    collectives: Mapping[str, int]
    seconds: float
    tolerance: float = TOLERANCE

    @property
    def is_equal(self) -> bool:
        """Whether the split model computes what the whole one does."""
        worst = max(self.output_difference, self.gradient_difference or 0.0)
        return worst <= self.tolerance

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"is_equal": self.is_equal}


@dataclass(frozen=True)
class _Task:
    """What a process needs: it gets the model, not the graph, which may hold more."""

    model: nn.Module
    custom_ops: Mapping[str, Any]
    plan: Plan
    inputs: Mapping[str, Any]
    folder: str


def verify_plan(graph: MaseGraph, plan: Plan, inputs: Mapping[str, Any]) -> Verification:
    """Run `plan` on `inputs` (placeholder -> value) in as many processes as it has devices.

    Forward, and in a plan for training backward too, with gloo on the CPU, in evaluation mode.
    Programs that call this must be importable: guard them with `if __name__ == "__main__"`.
    """
    takes = [str(n.target) for n in graph.fx_graph.nodes if n.op == "placeholder"]
    missing = [n for n in takes if n not in inputs]
    if missing:
        raise ConfigError(f"verify_plan: no value for input '{missing[0]}'. Needs: {takes}.")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        chosen = {n: inputs[n] for n in takes}
        task = _Task(graph.model, graph.custom_ops, plan, chosen, folder)
        torch.multiprocessing.spawn(_work, (task,), nprocs=plan.mesh.devices)
        found = [_load(folder, rank) for rank in range(plan.mesh.devices)]
    return Verification(
        output_difference=found[0]["output"],
        gradient_difference=found[0]["gradient"],
        parameter_bytes=tuple(f["bytes"] for f in found),
        collectives=found[0]["collectives"],
        seconds=time.perf_counter() - start,
    )


def _load(folder: str, rank: int) -> dict[str, Any]:
    return torch.load(Path(folder) / f"{rank}.pt", weights_only=True)


def _work(rank: int, task: _Task) -> None:
    """One process: run its part, compare, and leave what it found in the folder."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{task.folder}/meeting",
        rank=rank,
        world_size=task.plan.mesh.devices,
    )
    try:
        torch.save(_compare(task), Path(task.folder) / f"{rank}.pt")
    finally:
        distributed.destroy_process_group()


def _compare(task: _Task) -> dict[str, Any]:
    graph = MaseGraph(task.model.eval(), custom_ops=task.custom_ops)
    mesh = init_device_mesh("cpu", task.plan.mesh.shape)
    held = apply_plan(graph, task.plan, mesh).local_bytes()
    graph.model.double()
    inputs = tree_map_only(Tensor, _double, dict(task.inputs))
    split = apply_plan(graph, task.plan, mesh)
    with CommDebugMode() as talk:
        outputs, gradients = _step(split, inputs, task.plan.training)
    expected, expected_gradients = _step(graph.model, inputs, task.plan.training)
    return {
        "output": _difference(outputs, expected),
        "gradient": _difference(whole_tensors(gradients), expected_gradients)
        if task.plan.training
        else None,
        "bytes": held,
        "collectives": _counts(talk),
    }


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _step(
    model: nn.Module | ShardedModel, inputs: Mapping[str, Any], training: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, and the gradients of a sum of them in which every element has its own weight."""
    with torch.set_grad_enabled(training):
        found = [t for t in tree_leaves(model(**inputs)) if isinstance(t, Tensor)]
    outputs = [t for t in found if t.is_floating_point()]
    if not training:
        return outputs, []
    weights = torch.Generator().manual_seed(0)
    terms = [(t * torch.rand(t.shape, generator=weights, dtype=t.dtype)).sum() for t in outputs]
    torch.stack(terms).sum().backward()
    return outputs, [p.grad for p in model.parameters() if p.grad is not None]


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, as a share of the largest value expected."""
    if len(found) != len(expected):
        return float("inf")
    if not expected:
        return 0.0
    scale = max(float(t.detach().abs().max()) for t in expected) or 1.0
    pairs = zip(found, expected, strict=True)
    worst = max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
    return worst / scale


def _counts(talk: CommDebugMode) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for op, number in talk.get_comm_counts().items():
        counts[str(op).split(".")[-1]] += number
    return dict(sorted(counts.items()))
