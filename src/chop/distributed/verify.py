"""Run a plan on processes of this machine and compare with the model on one.

A split changes the order of sums and nothing else. Each sum taken in another order moves a value
by some units in the last place, and a deep model adds these up; a wrong layout moves it by whole
digits. `ROUNDINGS` units in the last place of the largest value lie well between the two.
"""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chop.distributed.apply import ShardedModel, apply_plan, whole_tensors
from chop.distributed.plan import Plan
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

ROUNDINGS = 256
"""Units in the last place of the largest value by which results may differ."""
MOST = 0.05
"""The share of the largest value by which results may differ in any precision."""
TASKS = "tasks.pickle"

COLLECTIVES = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
}
"""torch's name of a collective -> that of the cost model. Gloo gathers where others exchange."""


@dataclass(frozen=True)
class Verification:
    """What a run of the plan on real processes gave.

    Differences are shares of the largest output and of the largest gradient of the model;
    `parameter_bytes` has an entry a process, for parameters in the model's own precision;
    `collectives` counts those really called; `seconds` is the time of one step.
    """

    output_difference: float
    gradient_difference: float | None
    parameter_bytes: tuple[int, ...]
    collectives: Mapping[str, int]
    seconds: float
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """Whether the split model computes what the whole one does."""
        worst = max(self.output_difference, self.gradient_difference or 0.0)
        return worst <= self.tolerance

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"is_equal": self.is_equal}


@dataclass(frozen=True)
class Job:
    """A plan to be run: for an annotated graph, on `inputs` (placeholder -> value)."""

    graph: MaseGraph
    plan: Plan
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class _Task:
    """What a process needs of a job: the model, not the graph, which may hold more."""

    model: nn.Module
    custom_ops: Mapping[str, Any]
    plan: Plan
    inputs: Mapping[str, Any]


def verify_plan(graph: MaseGraph, plan: Plan, inputs: Mapping[str, Any]) -> Verification:
    """Run `plan` on `inputs` in as many processes of this machine as it has devices.

    Forward, and in a plan for training backward too, with gloo on the CPU, in evaluation mode.
    Programs that call this must be importable: guard them with `if __name__ == "__main__"`.
    """
    return verify_plans([Job(graph, plan, inputs)])[0]


def verify_plans(jobs: Sequence[Job]) -> list[Verification]:
    """Run some plans for one number of devices, one after another in the same processes."""
    devices = {job.plan.mesh.devices for job in jobs}
    if len(devices) != 1:
        raise ConfigError(f"verify_plans: plans for one number of devices, got {sorted(devices)}.")
    tasks = [_task(job) for job in jobs]
    with tempfile.TemporaryDirectory() as folder:
        _send(tasks, folder)
        spawn(_work, (folder,), nprocs=(count := devices.pop()))  # type: ignore[no-untyped-call]
        found = [_load(folder, rank) for rank in range(count)]
    return [_verification(each) for each in zip(*found, strict=True)]


def _send(tasks: list[_Task], folder: str) -> None:
    try:
        Path(folder, TASKS).write_bytes(pickle.dumps(tasks))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"verify_plan: the model cannot be sent to processes: {error}. Its layers must be "
            "classes of an importable module, without parametrisations."
        ) from error


def _task(job: Job) -> _Task:
    takes = [str(n.target) for n in job.graph.fx_graph.nodes if n.op == "placeholder"]
    for name in takes:
        if name not in job.inputs:
            raise ConfigError(f"verify_plan: no value for input '{name}'. Needs: {takes}.")
    inputs = {n: job.inputs[n] for n in takes}
    return _Task(job.graph.model, job.graph.custom_ops, job.plan, inputs)


def _verification(found: Sequence[Mapping[str, Any]]) -> Verification:
    """What the processes found of one plan; all compare, the first speaks."""
    return Verification(
        output_difference=max(f["output"] for f in found),
        gradient_difference=found[0]["gradient"],
        parameter_bytes=tuple(f["bytes"] for f in found),
        collectives=found[0]["collectives"],
        seconds=found[0]["seconds"],
        tolerance=found[0]["tolerance"],
    )


def _load(folder: str, rank: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = torch.load(Path(folder) / f"{rank}.pt", weights_only=True)
    return found


def _work(rank: int, folder: str) -> None:
    """One process: run its parts, compare, and leave what it found in the folder."""
    tasks: list[_Task] = pickle.loads(Path(folder, TASKS).read_bytes())
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=tasks[0].plan.mesh.devices,
    )
    try:
        torch.save([_compare(task) for task in tasks], Path(folder) / f"{rank}.pt")
    finally:
        distributed.destroy_process_group()


def _compare(task: _Task) -> dict[str, Any]:
    graph = MaseGraph(copy.deepcopy(task.model).eval(), custom_ops=task.custom_ops)
    inputs = task.inputs
    split = apply_plan(graph, task.plan, init_device_mesh("cpu", task.plan.mesh.shape))
    start = time.perf_counter()
    with _Collectives() as talk:
        outputs, gradients = _step(split, inputs, task.plan.training)
    seconds = time.perf_counter() - start
    expected, expected_gradients = _step(graph.model, inputs, task.plan.training)
    gathered = whole_tensors(gradients)
    is_trained = task.plan.training
    return {
        "output": _difference(outputs, expected),
        "gradient": _difference(gathered, expected_gradients) if is_trained else None,
        "tolerance": _tolerance(expected),
        "bytes": split.local_bytes(),
        "collectives": dict(sorted(talk.counts.items())),
        "seconds": seconds,
    }


def _tolerance(outputs: list[Tensor]) -> float:
    coarsest = max((torch.finfo(t.dtype).eps for t in outputs), default=0.0)
    return min(ROUNDINGS * coarsest, MOST)


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
    torch.autograd.backward(torch.stack(terms).sum())
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


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the collectives that are really called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("_c10d_functional", "_dtensor"):
            called = func.name().split("::")[1].split(".")[0]
            self.counts.update([COLLECTIVES[called]] if called in COLLECTIVES else [])
        return func(*args, **(kwargs or {}))
