"""Second capture of a checkpoint that has no key-value cache, with one.

The model's class is built again from the config, captured with its cache, and gets the layers of
the checkpoint: quantised, pruned or trained ones, too. That is exact if passes changed layers
only, so the rest of the graph is compared first.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import transformers
from torch import fx, nn

from chop.cli.failures import SourceError
from chop.errors import ChopError
from chop.ir.graph import MaseGraph
from chop.ir.store.traced import TracedModule


def captured_with_cache(graph: MaseGraph, name: str) -> MaseGraph:
    """Return the model of a graph without a cache as one with a cache; they share layers."""
    model = _new_model(graph.model, name)
    try:
        plain = MaseGraph(model, hf_input_names=list(graph.model.input_names))
        result = MaseGraph(model, cache=True)
    except ChopError as error:
        raise SourceError(_refusal(name, f"it cannot be captured again ({error})")) from error
    _check_same_steps(graph.model, plain.model, name)
    for path in _targets(result.model, "call_module"):
        result.model.set_submodule(path, graph.model.get_submodule(path))
    for path in _targets(result.model, "get_attr"):
        _copy_tensor(graph.model, result.model, path, name)
    result.model.generation_config = graph.model.generation_config or model.generation_config
    return result


def _new_model(captured: TracedModule, name: str) -> Any:
    kind, config = type(captured).__name__, getattr(captured, "config", None)
    cls = getattr(transformers, kind, None)
    if config is None or cls is None or not issubclass(cls, transformers.PreTrainedModel):
        raise SourceError(_refusal(name, f"{kind} is no model of transformers"))
    return cls(config).eval()


def _check_same_steps(captured: TracedModule, plain: TracedModule, name: str) -> None:
    """Raise if the graphs differ in more than the classes of their layers."""
    steps = [[_step(node) for node in each.graph.nodes] for each in (captured, plain)]
    if steps[0] != steps[1]:
        pairs = zip(*steps, strict=False)
        other = next((a for a, b in pairs if a != b), f"{len(steps[0])} nodes")
        raise SourceError(_refusal(name, f"its graph was changed, as in '{other}'"))


def _step(node: fx.Node) -> str:
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return f"{node.op} {target}"


def _targets(module: TracedModule, op: str) -> list[str]:
    return sorted({str(node.target) for node in module.graph.nodes if node.op == op})


def _copy_tensor(source: TracedModule, result: TracedModule, path: str, name: str) -> None:
    """Give `result` the tensor of `source`; a buffer that follows from the config may be new."""
    owner, _, leaf = path.rpartition(".")
    try:
        value = operator.attrgetter(path)(source)
    except AttributeError:
        if isinstance(operator.attrgetter(path)(result), nn.Parameter):
            raise SourceError(_refusal(name, f"it has no parameter '{path}'")) from None
        return
    if isinstance(value, torch.Tensor):
        setattr(result.get_submodule(owner), leaf, value)


def _refusal(name: str, reason: str) -> str:
    return (
        f"model '{name}': the checkpoint was captured without its cache, and {reason}. Capture the "
        "model with MaseGraph(model, cache=True), compress that, and export it."
    )
