"""Modules that programs, pickles and checkpoints import under an earlier path.

To move a module whose path is stored or imported elsewhere, add it to `_MOVED`, or a row to
`OLD_MODULES` if its name changed too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MOVED = {
    ("chop.hw", "chop.hw.design"): "clock component process samples stream",
    ("chop.hw", "chop.hw.flow"): "explore predict route synth",
    ("chop.hw", "chop.hw.reference"): "exact exact_model exact_ops",
    ("chop.hw.library", "chop.hw.streams"): (
        "fifo fixed_to_mxint gearbox mxint_to_fixed skid_buffer stream_cast stream_fork "
        "stream_reorder stream_route stream_slice"
    ),
    ("chop.ir", "chop.ir.store"): "checkpoint codec traced vocabulary",
    ("chop.ir", "chop.ir.trace"): (
        "builtin_names decisions effects environment inputs recapture recorder resolution "
        "size_rules symbolic torch_names tracer tracked"
    ),
}
"""Earlier package and package now -> the modules that moved."""

OLD_MODULES: dict[str, str] = {
    **{
        f"{old}.{name}": f"{new}.{name}"
        for (old, new), names in _MOVED.items()
        for name in names.split()
    },
    "chop.actions.model_under_study": "chop.actions.study_subject",
    "chop.cli.old_files": "chop.compat.old_files",
    "chop.dataset.named": "chop.dataset.built_in",
    "chop.distributed.apply": "chop.distributed.sharded_model",
    "chop.distributed.search": "chop.distributed.solver",
    "chop.distributed.verify": "chop.distributed.verify_plan",
    "chop.export.compressed_tensors_reader": "chop.export.compressed_tensors",
    "chop.export.report": "chop.export.export_report",
    "chop.hw.attached": "chop.hw.lower.design_cache",
    "chop.hw.check": "chop.hw.sim.component_check",
    "chop.hw.components": "chop.hw.library.components",
    "chop.hw.cycles": "chop.hw.timing.cycles",
    "chop.hw.design.twin": "chop.hw.design.cycle_model",
    "chop.hw.emit": "chop.hw.sim.emit",
    "chop.hw.golden": "chop.hw.arith.golden",
    "chop.hw.network": "chop.hw.timing.network",
    "chop.hw.rtl": "chop.hw.library",
    "chop.hw.simulate": "chop.hw.sim.simulate",
    "chop.hw.twin": "chop.hw.design.cycle_model",
    "chop.hw.verify": "chop.hw.lower.verify",
    "chop.ir.applied": "chop.ir.applied_function",
    "chop.ir.experts": "chop.ir.expert_layer",
    "chop.ir.graph.generation": "chop.ir.graph.generating_model",
    "chop.ir.kernels": "chop.ir.ops.compute",
    "chop.ir.leaves": "chop.ir.store.modules",
    "chop.ir.linear": "chop.ir.trace.size_relations",
    "chop.ir.moved": "chop.compat.old_modules",
    "chop.ir.nodes": "chop.ir.store.node_records",
    "chop.ir.past": "chop.ir.kv_cache",
    "chop.ir.sameness": "chop.ir.trace.result_cache",
    "chop.ir.stored": "chop.ir.store.tensors",
    "chop.ir.training": "chop.ir.trace.training_mode",
    "chop.ir.twins": "chop.ir.reclass",
    "chop.ir.typed": "chop.ir.store.type_hints",
    "chop.kernels.experts": "chop.kernels.packed_experts",
    "chop.kernels.formats": "chop.kernels.packed_formats",
    "chop.kernels.integer": "chop.kernels.int8_linear",
    "chop.models.old": "chop.compat.old_models",
    "chop.nn.quantized.function": "chop.nn.quantized.functional",
    "chop.nn.quantizers.base": "chop.nn.quantizers.quantizer",
    "chop.nn.quantizers.log": "chop.nn.quantizers.logarithmic",
    "chop.old_names": "chop.compat.old_names",
    "chop.passes.graph.analysis.statistics": "chop.passes.ptq.observe.tensor_statistics",
    "chop.passes.graph.observers": "chop.passes.ptq.observe.observers",
    "chop.passes.graph.transforms.patterns": "chop.passes.rewrite.node_patterns",
    "chop.passes.graph.transforms.prune.importance": "chop.passes.prune.importance",
    "chop.passes.graph.transforms.prune.schedule": "chop.passes.prune.schedule",
    "chop.passes.graph.utils": "chop.compat.graph_utils",
    "chop.passes.module.quantize": "chop.passes.module.quantize_module",
    "chop.passes.old_configs": "chop.compat.old_configs",
    "chop.pipelines.compression": "chop.pipelines.compression_pipeline",
    "chop.report.records": "chop.report.page_records",
    "chop.report.search": "chop.report.search_figures",
    "chop.report.sweeps": "chop.report.sweep_figures",
    "chop.search.plan": "chop.search.search_plan",
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


def _current_module(name: str) -> str | None:
    """Return the path now of the module `name`, also below a package that moved; None if neither.

    >>> _current_module("chop.hw.explore.best")
    'chop.hw.flow.explore.best'
    """
    if name in OLD_MODULES or not name.startswith("chop."):
        return OLD_MODULES.get(name)
    package, _, module = name.rpartition(".")
    moved = _current_module(package)
    return moved and f"{moved}.{module}"


class OldModules(MetaPathFinder, Loader):
    """Import hook that returns the module itself, not a second copy, under its earlier path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for the modules of `OLD_MODULES` and modules below them, else None."""
        current = _current_module(fullname)
        return ModuleSpec(fullname, self, origin=current) if current else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module at its path now."""
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__  # the import system replaces it by `spec`
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec; its code has run already."""
        alias: Any = module.__spec__
        module.__spec__ = alias.loader_state


def find_old_modules() -> None:
    """Register the import hook, once.

    It is the first: the files of a package that moved would be found, and loaded a second time.
    """
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldModules())
