"""Memory that one training step really holds, on processes of this machine.

Held are the parameters, their gradients, the states of Adam, and everything that is alive between
forward and backward. On a CPU all of it can be counted exactly: a mode of torch sees every storage
that is made, and a weak reference tells whether it is still alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chop.distributed.local_calls import local_part
from chop.distributed.split_step import SplitStep
from chop.distributed.verify_plan import SplitRun, Task, mean_squares, run_in_processes


@dataclass(frozen=True)
class HeldBytes:
    """Bytes that a process holds in one training step.

    `parameters`: local parts. `states`: gradients and states of Adam. `activations`: most bytes
    alive at the end of a forward pass, with the inputs. `peak`: most bytes of activations and
    gradients alive at any time.
    """

    parameters: int
    states: int
    activations: int
    peak: int

    @property
    def total(self) -> int:
        """All bytes that the plan predicts."""
        return self.parameters + self.states + self.activations

    def record(self) -> dict[str, int]:
        """Return plain data."""
        return {**asdict(self), "total": self.total}


def held_bytes(jobs: Sequence[SplitRun]) -> list[list[HeldBytes]]:
    """Run one training step of each job; return what every process holds.

    The jobs are for one number of processes. Models are in training mode.
    """
    results = run_in_processes(jobs, _held)
    return [[HeldBytes(**rank) for rank in each] for each in zip(*results, strict=True)]


def _held(task: Task) -> dict[str, int]:
    assert task.split is not None, "a step has a split"
    step = SplitStep(task.graph, task.split, loss_of=_loss)
    step.model.train()
    own = [*step.model.parameters(), *step.model.buffers()]
    parameters = step.model.local_bytes()
    inputs = [t for t in tree_leaves(dict(task.inputs)) if isinstance(t, Tensor)]
    with StorageWatch(own) as watch:
        watch.see(inputs)
        step.model.register_forward_hook(watch.at_end_of_forward)
        step.gradients(task.inputs)
    learnt = [p for p in step.parameters().values() if p.grad is not None]
    optimizer = torch.optim.Adam(learnt, foreach=False)
    optimizer.step()
    moments = tree_leaves([optimizer.state[p] for p in learnt])
    states = [t for t in [*moments, *(p.grad for p in learnt)] if isinstance(t, Tensor) and t.dim()]
    return {
        "parameters": parameters,
        "states": sum(map(_bytes, map(local_part, states))),
        "activations": watch.at_end,
        "peak": watch.peak,
    }


def _loss(outputs: Sequence[Tensor]) -> Tensor:
    """Return the loss of the graph, or the mean of squares of its outputs."""
    numbers = [t for t in outputs if t.numel() == 1]
    return numbers[0] if numbers else mean_squares(outputs).to(outputs[0].dtype)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class StorageWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that are alive, except those of the tensors `left_out`.

    `at_end`: most bytes at the end of a forward pass. `peak`: most bytes at any time.
    """

    def __init__(self, left_out: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left_out = {_storage(t)._cdata for t in left_out}
        self.alive: dict[int, Any] = {}
        self.at_end = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.see([t for t in tree_leaves(result) if isinstance(t, Tensor)]):
            self.peak = max(self.peak, self.bytes())
        return result

    def see(self, tensors: Iterable[Tensor]) -> bool:
        """Note the storages of tensors; return True if one is new."""
        is_new = False
        for tensor in tensors:
            storage = _storage(tensor)
            place = storage._cdata
            before = self.alive.get(place)
            if place not in self.left_out and (before is None or before.expired()):
                self.alive[place] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                is_new = True
        return is_new

    def bytes(self) -> int:
        """Return the bytes that are alive."""
        total = 0
        for place, reference in list(self.alive.items()):
            storage: Any = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.alive[place]
            else:
                total += storage.nbytes()
        return total

    def at_end_of_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """Note the bytes at the end of a forward pass."""
        self.at_end = max(self.at_end, self.bytes())


def _storage(tensor: Tensor) -> Any:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()


def predicted_bytes(job: SplitRun) -> Mapping[str, int]:
    """Return the bytes of a device by the plan of a job without stages."""
    cost = job.plan.cost
    return {
        "parameters": cost.parameter_bytes,
        "states": cost.state_bytes,
        "activations": cost.activation_bytes,
        "total": cost.parameter_bytes + cost.state_bytes + cost.activation_bytes,
    }
