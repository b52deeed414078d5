"""Verification of a plan: run it on local processes and compare with the unsplit model.

A split only changes the order of sums. Each reordered sum changes a value by some units in the last
place, and a deep model accumulates them; a wrong layout changes leading digits. `ROUNDINGS` units
in the last place of the largest value separate the two.
"""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chop.distributed.cost import COLLECTIVES as PASSES
from chop.distributed.plan import Plan
from chop.distributed.sharded_model import ShardedModel, apply_plan, whole_tensors
from chop.distributed.split_plan import SplitPlan
from chop.distributed.split_step import SplitStep
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

ROUNDINGS = 256
"""Units in the last place of the largest value that results may differ by."""
MOST = 0.05
"""Largest allowed difference in any precision, as a share of the largest value."""
TASKS = "tasks.pickle"

COLLECTIVES = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
}
"""Collective of torch -> collective of the cost model."""


@dataclass(frozen=True)
class Verification:
    """Result of a run of the plan on real processes.

    Differences are relative to the largest output and the largest gradient. `parameter_bytes` and
    `sent_bytes`, of one step, have one entry per process. `collectives` counts the calls made;
    `seconds` is the time of one step.
    """

    output_difference: float
    gradient_difference: float | None
    parameter_bytes: tuple[int, ...]
    collectives: Mapping[str, int]
    seconds: float
    tolerance: float
    sent_bytes: tuple[int, ...] = ()

    @property
    def is_equal(self) -> bool:
        """True if the split model computes the same as the whole model."""
        return max(self.output_difference, self.gradient_difference or 0.0) <= self.tolerance

    def record(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"is_equal": self.is_equal}


@dataclass(frozen=True)
class PlanRun:
    """Plan to run: for an annotated graph, on `inputs` (placeholder -> value)."""

    graph: MaseGraph
    plan: Plan
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class SplitRun:
    """Training step to run with micro-batches, in a pipeline if the plan has stages.

    `inputs` have the rows of all micro-batches. Rows of a batch must not depend on each other.
    """

    graph: MaseGraph
    split: SplitPlan
    inputs: Mapping[str, Any]

    @property
    def plan(self) -> Plan:
        """Plan of one stage."""
        return self.split.plan


@dataclass(frozen=True)
class Task:
    """Plan to run, without the parts of the graph that processes do not need."""

    model: nn.Module
    custom_ops: Mapping[str, Any]
    plan: Plan
    inputs: Mapping[str, Any]
    split: SplitPlan | None = None

    @property
    def graph(self) -> MaseGraph:
        """Graph of a copy of the model, in evaluation mode."""
        return MaseGraph(copy.deepcopy(self.model).eval(), custom_ops=self.custom_ops)


def verify_plan(graph: MaseGraph, plan: Plan, inputs: Mapping[str, Any]) -> Verification:
    """Run `plan` on `inputs` in one local process per device.

    It runs forward, and backward too if the plan is for training, with gloo on the CPU in
    evaluation mode. The calling program must be importable: guard it with
    `if __name__ == "__main__"`.
    """
    return verify_plans([PlanRun(graph, plan, inputs)])[0]


def verify_plans(jobs: Sequence[PlanRun | SplitRun]) -> list[Verification]:
    """Run several plans for one number of devices, in sequence in the same processes."""
    results = run_in_processes(jobs, _compare)
    return [_verification(each) for each in zip(*results, strict=True)]


def run_in_processes(
    jobs: Sequence[PlanRun | SplitRun], run: Callable[[Task], dict[str, Any]]
) -> list[list[dict[str, Any]]]:
    """Return the results of `run` for every job, one list per process.

    `run`: a function of a module.
    """
    devices = {processes_of_run(job) for job in jobs}
    if len(devices) != 1:
        raise ConfigError(f"verify_plans: plans for one number of devices, got {sorted(devices)}.")
    tasks = [_task(job) for job in jobs]
    with tempfile.TemporaryDirectory() as folder:
        _send(tasks, folder)
        count = devices.pop()
        spawn(_work, (folder, count, run), nprocs=count)  # type: ignore[no-untyped-call]
        files = [Path(folder) / f"{rank}.pt" for rank in range(count)]
        return [torch.load(file, weights_only=True) for file in files]


def processes_of_run(job: PlanRun | SplitRun) -> int:
    """Return the number of processes of a run."""
    return job.split.processes if isinstance(job, SplitRun) else job.plan.mesh.devices


def _send(tasks: list[Task], folder: str) -> None:
    try:
        Path(folder, TASKS).write_bytes(pickle.dumps(tasks))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"verify_plan: the model cannot be sent to processes: {error}. Its layers must be "
            "classes of an importable module, without parametrisations."
        ) from error


def _task(job: PlanRun | SplitRun) -> Task:
    names = [str(n.target) for n in job.graph.fx_graph.nodes if n.op == "placeholder"]
    for name in names:
        if name not in job.inputs:
            raise ConfigError(f"verify_plan: no value for input '{name}'. Needs: {names}.")
    inputs = {n: job.inputs[n] for n in names}
    split = job.split if isinstance(job, SplitRun) else None
    return Task(job.graph.model, job.graph.custom_ops, job.plan, inputs, split)


def _verification(results: Sequence[Mapping[str, Any]]) -> Verification:
    """Merge the results of all processes for one plan."""
    first = results[0]
    return Verification(
        output_difference=max(result["output"] for result in results),
        gradient_difference=_largest([result["gradient"] for result in results]),
        parameter_bytes=tuple(result["bytes"] for result in results),
        collectives=first["collectives"],
        seconds=first["seconds"],
        tolerance=first["tolerance"],
        sent_bytes=tuple(result["sent"] for result in results),
    )


def _largest(differences: Sequence[float | None]) -> float | None:
    """Return the largest difference that a process saw; None without gradients."""
    return max((d for d in differences if d is not None), default=None)


def _work(rank: int, folder: str, count: int, run: Callable[[Task], dict[str, Any]]) -> None:
    """Run the tasks in one process and save the results to the folder."""
    tasks: list[Task] = pickle.loads(Path(folder, TASKS).read_bytes())
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=count,
    )
    try:
        torch.save([run(task) for task in tasks], Path(folder) / f"{rank}.pt")
    finally:
        distributed.destroy_process_group()


def _compare(task: Task) -> dict[str, Any]:
    if task.split is not None:
        return _compare_step(task, task.split)
    graph = task.graph
    is_trained = task.plan.training
    split = apply_plan(graph, task.plan, init_device_mesh("cpu", task.plan.mesh.shape))
    start = time.perf_counter()
    with _CollectiveCounter() as counter:
        outputs, gradients = _step(split, task.inputs, is_trained)
    seconds = time.perf_counter() - start
    expected, expected_gradients = _step(graph.model, task.inputs, is_trained)
    gathered = whole_tensors(gradients)
    coarsest = max((torch.finfo(t.dtype).eps for t in expected), default=0.0)
    return {
        "output": _difference(outputs, expected),
        "gradient": _difference(gathered, expected_gradients) if is_trained else None,
        "tolerance": min(ROUNDINGS * coarsest, MOST),
        "bytes": split.local_bytes(),
        "collectives": dict(sorted(counter.counts.items())),
        "sent": round(counter.sent),
        "seconds": seconds,
    }


def _compare_step(task: Task, split: SplitPlan) -> dict[str, Any]:
    """Compare a step with that of the whole model: outputs of the last stage, own gradients."""
    parts: list[list[Tensor]] = []

    def loss_of(outputs: Sequence[Tensor]) -> Tensor:
        # a stage returns numbers, such as the model's own loss, as vectors of one element
        shapes = [facts.shape for facts in step.part.outputs] or [t.shape for t in outputs]
        compared = [t for t, shape in zip(outputs, shapes, strict=True) if shape]
        parts.append([t.detach() for t in compared])
        return mean_squares(compared)

    graph = task.graph
    step = SplitStep(graph, split, loss_of=loss_of)
    step.model.eval()
    start = time.perf_counter()
    with _CollectiveCounter() as counter:
        step.gradients(task.inputs)
    seconds = time.perf_counter() - start
    outputs = [torch.cat(each) for each in zip(*parts, strict=True)]
    expected, gradients = _whole_step(task)
    own = {n: p.grad for n, p in step.parameters().items() if p.grad is not None}
    actual = [gradient.detach() for gradient in whole_tensors(list(own.values()))]
    coarsest = max((torch.finfo(t.dtype).eps for t in expected), default=0.0)
    is_last = step.part.is_last
    return {
        "output": _difference(outputs, expected) if is_last else 0.0,
        "gradient": _difference(actual, [gradients[name] for name in own]) if own else None,
        "tolerance": min(ROUNDINGS * coarsest, MOST),
        "bytes": step.model.local_bytes(),
        "collectives": dict(sorted(counter.counts.items())),
        "sent": round(counter.sent),
        "seconds": seconds,
    }


def mean_squares(outputs: Sequence[Tensor]) -> Tensor:
    """Return the mean of squares over the rows of outputs, added up over the outputs."""
    squares = [t.double().square().mean() for t in outputs if t.dim()]
    return torch.stack(squares).sum()


def _whole_step(task: Task) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the outputs and the gradients of the whole model, by the names of parameters."""
    model = task.graph.model
    leaves = [t for t in tree_leaves(model(**task.inputs)) if isinstance(t, Tensor)]
    outputs = [t for t in leaves if t.is_floating_point() and t.dim()]
    mean_squares(outputs).backward()  # type: ignore[no-untyped-call]
    copies = task.split.copies if task.split is not None else {}
    own = dict(model.named_parameters())
    gradients: dict[str, Tensor] = {}
    for name, parameter in own.items():
        group = [n for n in own if copies.get(n, n) == copies.get(name, name)]
        terms = [g for n in group if (g := own[n].grad) is not None]
        if terms and parameter.requires_grad:
            gradients[name] = torch.stack(terms).sum(0)
    return outputs, gradients


def _step(
    model: nn.Module | ShardedModel, inputs: Mapping[str, Any], training: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs, and the gradients of their sum with a random weight per element."""
    with torch.set_grad_enabled(training):
        tensors = [t for t in tree_leaves(model(**inputs)) if isinstance(t, Tensor)]
    outputs = [t for t in tensors if t.is_floating_point()]
    if not training:
        return outputs, []
    weights = torch.Generator().manual_seed(0)
    terms = [(t * torch.rand(t.shape, generator=weights, dtype=t.dtype)).sum() for t in outputs]
    torch.autograd.backward(torch.stack(terms).sum())
    return outputs, [p.grad for p in model.parameters() if p.grad is not None]


def _difference(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference relative to the largest expected value."""
    if len(actual) != len(expected):
        return float("inf")
    if not expected:
        return 0.0
    scale = max(float(t.detach().abs().max()) for t in expected) or 1.0
    pairs = zip(actual, expected, strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs) / scale


class _CollectiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the collectives that are called, and of the bytes that this process sends.

    `counts` has the functional collectives; those of FSDP2 and of pipelines count in `sent` only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("_c10d_functional", "_dtensor", "c10d"):
            called = func.name().split("::")[1].split(".")[0]
            if func.namespace != "c10d":
                self.counts.update([COLLECTIVES[called]] if called in COLLECTIVES else [])
            self.sent += SENT[called](args) if called in SENT else 0
        return func(*args, **(kwargs or {}))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _members(group: Any) -> int:
    """Return the number of processes of a group, or of the group with a name."""
    if isinstance(group, str):
        c10d: Any = distributed.distributed_c10d
        group = c10d._resolve_process_group(group)
    elif not isinstance(group, distributed.ProcessGroup):
        group = distributed.ProcessGroup.unbox(group)
    return int(group.size())


def _all_reduced(tensors: Sequence[Tensor], group: Any) -> float:
    share = 1 - 1 / _members(group)
    return PASSES["all_reduce"] * share * sum(_bytes(tensor) for tensor in tensors)


SENT: dict[str, Callable[[Any], float]] = {
    "all_gather_into_tensor": lambda args: _bytes(args[0]) * (args[1] - 1),
    "reduce_scatter_tensor": lambda args: _bytes(args[0]) * (1 - 1 / args[2]),
    "all_reduce": lambda args: _all_reduced(args[:1], args[2]),
    "allreduce_": lambda args: _all_reduced(args[0], args[1]),
    "_allgather_base_": lambda args: _bytes(args[0]) - _bytes(args[1]),
    "_reduce_scatter_base_": lambda args: _bytes(args[1]) - _bytes(args[0]),
    "send": lambda args: sum(_bytes(tensor) for tensor in args[0]),
}
"""Call of torch -> bytes that a process sends, on a ring."""
