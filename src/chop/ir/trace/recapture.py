"""Recapture of a model when its graph is called with sizes outside its guards.

A graph that was annotated or changed is not replaced; such a call raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from chop.ir.guards import Guards, guards_of, replace_guards
from chop.ir.outputs import OutputTemplate, template_of
from chop.ir.reclass import OWN_TABLES
from chop.ir.store.traced import TracedModule

Capture = Callable[[Mapping[str, Any]], TracedModule]


class CaptureAgain:
    """Replacement of a module's graph by one for the sizes of a call; graphs are cached."""

    def __init__(self, module: TracedModule, model: nn.Module, capture: Capture) -> None:
        self.module = module
        self.model = model
        self.capture = capture
        self.graphs: list[tuple[Guards, _GraphState]] = []
        self.mark: Any = None
        self._store()

    def __call__(self, inputs: Mapping[str, Any]) -> None:
        """Replace the graph if these inputs are outside its guards and it is unchanged."""
        guards = guards_of(self.module)
        if guards is None or guards.broken(inputs) is None or self.mark != _mark(self.module):
            return
        for other, state in self.graphs:
            if other.broken(inputs) is None:
                state.install(self.module, self.model)
                self.mark = _mark(self.module)
                return
        _GraphState(self.capture(inputs)).install(self.module, self.model)
        self._store()

    def _store(self) -> None:
        guards = guards_of(self.module)
        if guards is not None:
            self.graphs.append((guards, _GraphState(self.module)))
        self.mark = _mark(self.module)


class _GraphState:
    """Graph, modules, output classes and guards of a traced module."""

    def __init__(self, module: TracedModule) -> None:
        self.tables = {name: module.__dict__[name] for name in OWN_TABLES}
        self.graph = module.graph
        self.template = template_of(module)
        self.guards = guards_of(module) or Guards((), {})

    def install(self, module: TracedModule, model: nn.Module) -> None:
        """Give `module` this graph; parts that are not the model's get its mode."""
        module.__dict__.update(self.tables)
        module.graph = self.graph
        hooks = module._forward_hooks
        for key in [k for k, hook in hooks.items() if isinstance(hook, OutputTemplate)]:
            del hooks[key]
        if self.template is not None:
            self.template.attach(module)
        replace_guards(module, self.guards)
        parts = set(model.modules())
        for part in module.modules():
            if part not in parts:
                part.training = module.training


def structure_of(module: TracedModule) -> Any:
    """Return a value that changes with the graph or its modules."""
    nodes = [(n.name, n.op, n.target, str(n.args), str(n.kwargs)) for n in module.graph.nodes]
    return nodes, [(name, id(part)) for name, part in module.named_modules()][1:]


def _mark(module: TracedModule) -> Any:
    """Return a value that changes with the graph, its modules or its metadata."""
    return structure_of(module), ["mase" in n.meta for n in module.graph.nodes]
