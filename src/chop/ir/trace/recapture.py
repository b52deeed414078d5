"""Captures a model again when its graph is called with sizes it does not hold for.

A graph that has been annotated or changed stands for more than the model: it is left alone, and
such a call raises.
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
    """Makes a module the graph for the sizes it is called with; it keeps those it had."""

    def __init__(self, module: TracedModule, model: nn.Module, capture: Capture) -> None:
        self.module = module
        self.model = model
        self.capture = capture
        self.known: list[tuple[Guards, _State]] = []
        self.mark: Any = None
        self._keep()

    def __call__(self, inputs: Mapping[str, Any]) -> None:
        """Replace the graph where these inputs are outside its guards and it is as captured."""
        guards = guards_of(self.module)
        if guards is None or guards.broken(inputs) is None or self.mark != _mark(self.module):
            return
        for other, state in self.known:
            if other.broken(inputs) is None:
                state.install(self.module, self.model)
                self.mark = _mark(self.module)
                return
        _State(self.capture(inputs)).install(self.module, self.model)
        self._keep()

    def _keep(self) -> None:
        guards = guards_of(self.module)
        if guards is not None:
            self.known.append((guards, _State(self.module)))
        self.mark = _mark(self.module)


class _State:
    """What makes a traced module the graph it is."""

    def __init__(self, module: TracedModule) -> None:
        self.tables = {name: module.__dict__[name] for name in OWN_TABLES}
        self.graph = module.graph
        self.template = template_of(module)
        self.guards = guards_of(module) or Guards((), {})

    def install(self, module: TracedModule, model: nn.Module) -> None:
        """Make `module` this graph; parts that are not the model's take its mode."""
        module.__dict__.update(self.tables)
        module.graph = self.graph
        hooks = module._forward_hooks
        for key in [k for k, hook in hooks.items() if isinstance(hook, OutputTemplate)]:
            del hooks[key]
        if self.template is not None:
            self.template.attach(module)
        replace_guards(module, self.guards)
        known = set(model.modules())
        for part in module.modules():
            if part not in known:
                part.training = module.training


def _mark(module: TracedModule) -> Any:
    """Equal as long as nobody changes the graph, its parts or what is known of its nodes."""
    nodes = [
        (n.name, n.op, n.target, str(n.args), str(n.kwargs), "mase" in n.meta)
        for n in module.graph.nodes
    ]
    return nodes, [(name, id(part)) for name, part in module.named_modules()][1:]
