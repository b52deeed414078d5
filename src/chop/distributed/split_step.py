"""One training step of a split model: gradients of the loss of a whole batch.

The processes form a mesh with one more axis in front, the stages of a pipeline. Every process has
the whole batch; the plan says which part of it each device works on. Stages run the 1F1B schedule
of `torch.distributed.pipelining`, and device i of a stage sends to device i of the next one.

A batch is cut into micro-batches by rows. The loss of a micro-batch is its share of the loss of the
batch: a loss of classes is divided by the labels that the whole batch counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, fx, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._pytree import tree_leaves

from chop.distributed.layouts import local_shape
from chop.distributed.sharded_model import ShardedModel, apply_plan, whole_tensors
from chop.distributed.split_plan import SplitPlan
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import find_op

STAGE = "stage"
"""Name of the mesh axis of the pipeline's stages."""


LossOf = Callable[[Sequence[Tensor]], Tensor]
"""Loss of the outputs of a micro-batch, as a mean over its rows."""


class SplitStep:
    """The part of a split model on this process: `gradients` runs a step.

    The graph returns the loss alone, or `loss_of` computes it from the float tensors that the graph
    returns. `device_type`: cpu or cuda.
    """

    def __init__(
        self,
        graph: MaseGraph,
        split: SplitPlan,
        device_type: str = "cpu",
        loss_of: LossOf | None = None,
    ) -> None:
        shape = split.plan.mesh.shape
        _check_processes(len(split.parts), shape)
        names = tuple(f"axis{i}" for i in range(len(shape)))
        self.mesh = init_device_mesh(
            device_type, (len(split.parts), *shape), mesh_dim_names=(STAGE, *names)
        )
        self.split, self.loss_of = split, loss_of
        self.stage = self.mesh.get_local_rank(STAGE)
        self.part = split.parts[self.stage]
        self.model = apply_plan(graph, split.plan, self.mesh[names], self.part)
        is_counted = split.micro_batches > 1 and loss_of is None
        self.counter = _LabelCounter(graph) if is_counted else None
        self.schedule = self._schedule() if len(split.parts) > 1 else None
        self.ties = _Ties(self, graph) if split.copies else None

    @property
    def stages(self) -> int:
        """Number of stages of the pipeline."""
        return len(self.split.parts)

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return next(iter(self.model.parameters())).device

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of this process by their names in the graph."""
        return dict(self.model.model.named_parameters())

    def gradients(self, inputs: Mapping[str, Any]) -> float:
        """Compute the gradients of a batch; return its loss, the same on every process."""
        rows = {len(v) for v in inputs.values() if isinstance(v, Tensor) and v.dim()}
        if any(n % self.split.micro_batches for n in rows):
            raise ConfigError(
                f"training: a batch of {sorted(rows)} rows cannot be cut into "
                f"{self.split.micro_batches} micro-batches. Allowed: a multiple of it."
            )
        self.model.totals = self.counter.totals(inputs) if self.counter is not None else {}
        has_many = self.split.micro_batches > 1
        if has_many:
            self.model.begin_step()
        losses = self._pipelined(inputs) if self.schedule else self._accumulated(inputs)
        if has_many:
            self.model.end_step()
        if self.ties is not None:
            self.ties.add_gradients()
        return self._shared(losses)

    # -- micro-batches -------------------------------------------------------------------------

    def _share(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the share that a micro-batch has in the loss of its batch."""
        loss = outputs[0] if self.loss_of is None else self.loss_of(outputs)
        is_share = self.counter is not None and self.counter.is_exact
        return loss if is_share else loss / self.split.micro_batches

    def _accumulated(self, inputs: Mapping[str, Any]) -> list[Tensor]:
        losses = []
        for chunk in _chunks(inputs, self.split.micro_batches):
            loss = self._share(_float_tensors(self.model(**chunk)))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses

    def _schedule(self) -> Schedule1F1B:
        if self.split.micro_batches < self.stages:
            raise ConfigError(
                f"training: {self.split.micro_batches} micro-batches for {self.stages} stages. "
                f"Allowed: at least {self.stages}, so that every stage has work."
            )
        stage = PipelineStage(
            _Returning(self.model),
            self.stage,
            self.stages,
            self.device,
            input_args=self._examples(self.part.receives),
            output_args=self._outputs(),
            group=self.mesh[STAGE].get_group(),
        )
        return Schedule1F1B(
            stage,
            self.split.micro_batches,
            loss_fn=lambda outputs, target: self._share(_float_tensors(outputs)).sum(),
            scale_grads=False,
        )

    def _examples(self, names: Sequence[str]) -> tuple[Tensor, ...]:
        """Return tensors with the shapes of the local parts of values that pass between stages."""
        plan, examples = self.split.plan, []
        for name in names:
            shared = plan.published.get(name)
            layouts = plan.layouts(name) if shared is None else [use.layout for use in shared]
            facts = self.part.facts[name]
            shape = local_shape(facts.shape, zip(layouts, plan.mesh.shape, strict=True))
            examples.append(_example(shape, facts.torch_dtype, facts.has_gradient))
        return tuple(examples)

    def _outputs(self) -> tuple[Tensor, ...]:
        """Return tensors with the shapes of the outputs of this stage."""
        if not self.part.is_last:
            return self._examples(self.part.sends)
        return tuple(_example(f.shape or (1,), f.torch_dtype, True) for f in self.part.outputs)

    def _pipelined(self, inputs: Mapping[str, Any]) -> list[Tensor]:
        assert self.schedule is not None
        first = next(v for v in inputs.values() if isinstance(v, Tensor) and v.dim())
        losses: list[Tensor] = []
        # the schedule wants a target where there is a loss, which the graph has computed
        target = first if self.part.is_last else None
        self.schedule.step(target=target, losses=losses, return_outputs=False, **inputs)
        return [loss.detach() for loss in losses]

    def _shared(self, losses: Sequence[Tensor]) -> float:
        """Return the loss of the last stage on every stage."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for each in losses:
            loss += each.double().sum()
        if self.stages > 1:
            distributed.all_reduce(loss, group=self.mesh[STAGE].get_group())
        return float(loss)


class _Returning(nn.Module):
    """Stage as the schedule calls it: outputs have a dimension, so that they can be joined."""

    def __init__(self, model: ShardedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *received: Tensor, **inputs: Any) -> Any:
        """Return the tensors to send, or the loss as one element."""
        result = self.model(*received, **inputs)
        if not self.model.part.is_last:
            return result
        tensors = _float_tensors(result)
        return tuple(t if t.dim() else t.reshape(1) for t in tensors)


def _example(shape: Sequence[int], dtype: torch.dtype, has_gradient: bool) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=has_gradient)


def _float_tensors(outputs: Any) -> list[Tensor]:
    leaves = tree_leaves(outputs)
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


def _chunks(inputs: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yield the micro-batches of a batch."""
    for index in range(count):
        yield {
            name: value.chunk(count)[index] if isinstance(value, Tensor) and value.dim() else value
            for name, value in inputs.items()
        }


def _check_processes(stages: int, shape: Sequence[int]) -> None:
    count, needed = distributed.get_world_size(), stages
    for devices in shape:
        needed *= devices
    if count != needed:
        text = "x".join(map(str, shape))
        raise ConfigError(
            f"training: a mesh of {text} with {stages} stages is for {needed} processes, got "
            f"{count}. Start {needed} processes, or give another mesh or number of stages."
        )


class _LabelCounter:
    """Labels that the losses of classes of a graph count, before the losses are computed.

    `is_exact`: the loss of the graph depends on parameters through losses of classes only, so the
    losses of micro-batches add up to that of the batch.
    """

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        self.losses = [
            node
            for node in graph.fx_graph.nodes
            if (op := find_op(node, graph.custom_ops)) is not None and op.dims == "class_loss"
        ]
        self.is_exact = bool(self.losses) and self._only_losses()

    def _only_losses(self) -> bool:
        """Return True if every path from the loss to an input passes a loss of classes."""
        waiting: list[fx.Node] = list(next(iter(reversed(self.graph.nodes))).all_input_nodes)
        while waiting:
            node = waiting.pop()
            if node in self.losses:
                continue
            if node.op in ("placeholder", "get_attr", "call_module"):
                return False
            waiting += node.all_input_nodes
        return True

    def totals(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the number of labels that each loss counts, or their weights, by node."""
        if not self.is_exact:
            return {}
        return {node.name: self._total(node, inputs) for node in self.losses}

    def _total(self, node: fx.Node, inputs: Mapping[str, Any]) -> Tensor:
        settings = dict(named_arguments(node))
        if node.op == "call_module":
            layer = self.graph.model.get_submodule(str(node.target))
            settings |= {**vars(layer), "weight": layer._buffers.get("weight")}
        sources = node.all_input_nodes
        labels = _Values(self.graph.model, inputs).of(sources[1])
        counted = labels[labels != settings.get("ignore_index", -100)]
        weight = settings.get("weight")
        if isinstance(weight, fx.Node):
            weight = _Values(self.graph.model, inputs).of(weight)
        return torch.tensor(len(counted)) if weight is None else weight[counted].sum()


class _Values(fx.Interpreter):
    """Values of single nodes, computed with what they depend on alone."""

    def __init__(self, model: fx.GraphModule, inputs: Mapping[str, Any]) -> None:
        super().__init__(model)
        self.inputs = inputs

    def of(self, target: fx.Node) -> Any:
        """Return the value of a node."""
        needed, waiting = {target}, [target]
        while waiting:
            for node in waiting.pop().all_input_nodes:
                if node not in needed:
                    needed.add(node)
                    waiting.append(node)
        self.env = {}
        with torch.no_grad():
            for node in self.graph.nodes:
                if node in needed:
                    is_input = node.op == "placeholder"
                    value = self.inputs[str(node.target)] if is_input else self.run_node(node)
                    self.env[node] = value
        return self.env[target]


class _Ties:
    """Sum of the gradients of parameters that share their values, over all stages."""

    def __init__(self, step: SplitStep, graph: MaseGraph) -> None:
        self.step = step
        self.groups: dict[str, list[str]] = {}
        for copy, first in step.split.copies.items():
            self.groups.setdefault(first, [first]).append(copy)
        whole = dict(graph.model.named_parameters())  # a masked layer answers with its values
        self.examples = {name: whole[name] for name in self.groups}

    def add_gradients(self) -> None:
        """Replace the gradients of each group by their sum."""
        own = self.step.parameters()
        for first, names in self.groups.items():
            here = [own[name] for name in names if name in own]
            if self.examples[first].requires_grad:
                total = self._total(first, here)
                for parameter in here:
                    parameter.grad = _part_like(total, parameter)

    def _total(self, first: str, here: Sequence[nn.Parameter]) -> Tensor:
        """Return the whole sum; all stages take part, also those without a gradient."""
        total = torch.zeros_like(self.examples[first])
        for parameter in here:
            if parameter.grad is not None:
                total += whole_tensors([parameter.grad])[0]
        if self.step.stages > 1:
            distributed.all_reduce(total, group=self.step.mesh[STAGE].get_group())
        return total


def _part_like(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of `whole`, split like `parameter`."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh, part = parameter.device_mesh, whole
    axes = enumerate(parameter.placements)
    # FSDP2 divides what the other axes have divided already
    for axis, placement in sorted(axes, key=lambda pair: isinstance(pair[1], _StridedShard)):
        if isinstance(placement, Shard | _StridedShard):
            rank = mesh.get_local_rank(axis)
            part = part.chunk(mesh.size(axis), placement.dim)[rank]
    return DTensor.from_local(
        part.contiguous(),
        mesh,
        parameter.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
