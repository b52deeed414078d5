"""The zoo, traced: shared by tests and by the coverage table."""

from __future__ import annotations

import functools
from typing import Any

import torch
import zoo
from torch import nn
from torch.utils._pytree import tree_leaves

from chop import MaseGraph


def traced(name: str) -> MaseGraph:
    """The case `name` as a graph, traced once."""
    return traced_with_changes(name)[0]


@functools.cache
def traced_with_changes(name: str) -> tuple[MaseGraph, list[str]]:
    """Return the case `name` as a graph, and what its capture changed outside the graph."""
    case = zoo.case(name)
    before = _state_around(case.model)
    graph = MaseGraph(case.model, case.hf_input_names, case.inputs, **case.options)
    after = _state_around(case.model)
    return graph, [what for what in before if not _equal(before[what], after.get(what))]


def _state_around(model: nn.Module) -> dict[str, Any]:
    """Return what a capture must leave alone: state, attributes, random numbers."""
    attributes = {f"attributes of {k}": sorted(vars(m)) for k, m in model.named_modules()}
    state = {f"state {k}": v.clone() for k, v in model.state_dict().items()}
    return {"modules": list(attributes), **attributes, **state, "rng": torch.get_rng_state()}


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return type(before) is type(after) and torch.equal(before, after)
    return before == after


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in a nested output."""
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def same(ours: Any, theirs: Any) -> bool:
    """Bit-equal outputs."""
    a, b = tensors(ours), tensors(theirs)
    return (
        bool(a) and len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    )


def equal_at(name: str, inputs: dict[str, Any]) -> bool:
    """Whether graph and model agree, in evaluation, on these inputs."""
    with torch.no_grad():
        return same(traced(name).model(**inputs), zoo.case(name).model(**inputs))


def training_step(module: nn.Module, inputs: dict[str, Any], parameters: list[Any]) -> Any:
    """Outputs and gradients of one step in training mode from a fixed random state."""
    torch.manual_seed(1)
    outputs = tensors(module(**inputs))
    loss = sum(t.float().square().mean() for t in outputs if t.requires_grad)
    return outputs, torch.autograd.grad(loss, parameters, allow_unused=True)


def trains_alike(name: str) -> tuple[bool, bool]:
    """Whether (outputs, gradients) in training mode are those of the model."""
    case, graph = zoo.case(name), traced(name)
    parameters = list(case.model.parameters())
    buffers = {k: v.clone() for k, v in case.model.named_buffers()}
    case.model.train()
    graph.model.train()
    try:
        outputs, gradients = training_step(case.model, case.inputs, parameters)
        ours, our_gradients = training_step(graph.model, case.inputs, parameters)
    finally:
        case.model.eval()
        graph.model.eval()
        for key, buffer in case.model.named_buffers():
            buffer.copy_(buffers[key])
    return same(ours, outputs), close(gradients, our_gradients)


def close(ours: Any, theirs: Any) -> bool:
    """Gradients agree to rounding: sums over several users may run in another order."""
    pairs = zip(ours, theirs, strict=True)
    return all(
        (a is None) == (b is None) and (a is None or torch.allclose(a, b, rtol=1e-4, atol=1e-5))
        for a, b in pairs
    )
