"""Modules that programs, pickles and checkpoints import under an earlier path.

To move a module whose path is stored or imported elsewhere, add a row to `OLD_MODULES`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OLD_MODULES: dict[str, str] = {
    "chop.cli.old_files": "chop.compat.old_files",
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
    "chop.ir.applied": "chop.ir.applied_function",
    "chop.ir.builtin_names": "chop.ir.trace.builtin_names",
    "chop.ir.checkpoint": "chop.ir.store.checkpoint",
    "chop.ir.codec": "chop.ir.store.codec",
    "chop.ir.decisions": "chop.ir.trace.decisions",
    "chop.ir.effects": "chop.ir.trace.effects",
    "chop.ir.environment": "chop.ir.trace.environment",
    "chop.ir.experts": "chop.ir.expert_layer",
    "chop.ir.graph.generation": "chop.ir.graph.generating_model",
    "chop.ir.inputs": "chop.ir.trace.inputs",
    "chop.ir.kernels": "chop.ir.ops.compute",
    "chop.ir.leaves": "chop.ir.store.modules",
    "chop.ir.linear": "chop.ir.trace.size_relations",
    "chop.ir.moved": "chop.compat.old_modules",
    "chop.ir.nodes": "chop.ir.store.node_records",
    "chop.ir.past": "chop.ir.kv_cache",
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
    "chop.ir.training": "chop.ir.trace.training_mode",
    "chop.ir.twins": "chop.ir.reclass",
    "chop.ir.typed": "chop.ir.store.type_hints",
    "chop.ir.vocabulary": "chop.ir.store.vocabulary",
    "chop.models.old": "chop.compat.old_models",
    "chop.old_names": "chop.compat.old_names",
    "chop.passes.graph.analysis.statistics": "chop.passes.ptq.observe.tensor_statistics",
    "chop.passes.graph.observers": "chop.passes.ptq.observe.observers",
    "chop.passes.graph.transforms.patterns": "chop.passes.rewrite.node_patterns",
    "chop.passes.graph.transforms.prune.importance": "chop.passes.prune.importance",
    "chop.passes.graph.transforms.prune.schedule": "chop.passes.prune.schedule",
    "chop.passes.old_configs": "chop.compat.old_configs",
    "chop.report.records": "chop.report.page_records",
    "chop.report.search": "chop.report.search_figures",
    "chop.tools.checkpoint_load": "chop.compat.checkpoint_load",
    "chop.tools.get_input": "chop.compat.get_input",
    "chop.tools.logger": "chop.log",
}
"""Earlier path of a module -> its path now."""


def current_path(name: str) -> str:
    """Return the dotted path now of an object that is stored under an earlier path.

    >>> current_path("chop.ir.past.update_past")
    'chop.ir.kv_cache.update_past'
    """
    module, dot, attribute = name.rpartition(".")
    return f"{OLD_MODULES.get(module, module)}{dot}{attribute}"


class OldModules(MetaPathFinder, Loader):
    """Import hook that returns the module itself, not a second copy, under its earlier path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for the modules of `OLD_MODULES`, None for others."""
        return ModuleSpec(fullname, self) if fullname in OLD_MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module at its path now."""
        module = importlib.import_module(OLD_MODULES[spec.name])
        spec.loader_state = module.__spec__  # the import system replaces it by `spec`
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec; its code has run already."""
        alias: Any = module.__spec__
        module.__spec__ = alias.loader_state


def find_old_modules() -> None:
    """Register the import hook, once."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.append(OldModules())
