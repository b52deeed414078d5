"""Modules that lived elsewhere: programs and pickles that name the old place find them.

One table; to move a module, add a row.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, str] = {
    "chop.hw.check": "chop.hw.sim.component_check",
    "chop.hw.clock": "chop.hw.design.clock",
    "chop.hw.component": "chop.hw.design.component",
    "chop.hw.components": "chop.hw.library.components",
    "chop.hw.emit": "chop.hw.sim.emit",
    "chop.hw.exact": "chop.hw.reference.exact",
    "chop.hw.exact_model": "chop.hw.reference.exact_model",
    "chop.hw.exact_ops": "chop.hw.reference.exact_ops",
    "chop.hw.explore": "chop.hw.flow.explore",
    "chop.hw.golden": "chop.hw.arith.golden",
    "chop.hw.network": "chop.hw.timing.network",
    "chop.hw.predict": "chop.hw.flow.predict",
    "chop.hw.process": "chop.hw.design.process",
    "chop.hw.route": "chop.hw.flow.route",
    "chop.hw.samples": "chop.hw.design.samples",
    "chop.hw.simulate": "chop.hw.sim.simulate",
    "chop.hw.stream": "chop.hw.design.stream",
    "chop.hw.twin": "chop.hw.design.twin",
    "chop.hw.verify": "chop.hw.lower.verify",
    "chop.ir.builtin_names": "chop.ir.trace.builtin_names",
    "chop.ir.checkpoint": "chop.ir.store.checkpoint",
    "chop.ir.codec": "chop.ir.store.codec",
    "chop.ir.decisions": "chop.ir.trace.decisions",
    "chop.ir.effects": "chop.ir.trace.effects",
    "chop.ir.environment": "chop.ir.trace.environment",
    "chop.ir.inputs": "chop.ir.trace.inputs",
    "chop.ir.kernels": "chop.ir.ops.compute",
    "chop.ir.leaves": "chop.ir.store.modules",
    "chop.ir.linear": "chop.ir.trace.size_relations",
    "chop.ir.nodes": "chop.ir.store.nodes",
    "chop.ir.recapture": "chop.ir.trace.recapture",
    "chop.ir.recorder": "chop.ir.trace.recorder",
    "chop.ir.resolution": "chop.ir.trace.resolution",
    "chop.ir.sameness": "chop.ir.trace.result_cache",
    "chop.ir.size_rules": "chop.ir.trace.size_rules",
    "chop.ir.stored": "chop.ir.store.tensors",
    "chop.ir.symbolic": "chop.ir.trace.symbolic",
    "chop.ir.torch_names": "chop.ir.trace.torch_names",
    "chop.ir.traced": "chop.ir.store.traced",
    "chop.ir.tracer": "chop.ir.trace.tracer",
    "chop.ir.tracked": "chop.ir.trace.tracked",
    "chop.ir.training": "chop.ir.trace.training",
    "chop.ir.twins": "chop.ir.reclass",
    "chop.ir.typed": "chop.ir.store.type_hints",
    "chop.ir.vocabulary": "chop.ir.store.vocabulary",
    "chop.passes.graph.analysis.statistics": "chop.passes.ptq.observe.tensor_statistics",
    "chop.passes.graph.observers": "chop.passes.ptq.observe.observers",
    "chop.passes.graph.transforms.patterns": "chop.passes.rewrite.node_patterns",
    "chop.passes.graph.transforms.prune.importance": "chop.passes.prune.importance",
    "chop.passes.graph.transforms.prune.schedule": "chop.passes.prune.schedule",
}
"""Old place -> new place."""


class MovedModules(MetaPathFinder, Loader):
    """Gives the module itself, not a second copy, under its old name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for the modules of `MOVED`."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module at its new place."""
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__  # importing puts this one in its place
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run again."""
        given: Any = module.__spec__
        module.__spec__ = given.loader_state


def find_moved_modules() -> None:
    """Let the old places be imported from now on."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
