"""Write the components that a graph's hardware is made of."""

from __future__ import annotations

from chop.hw.sim.emit import component_files, remove_stale, write_files
from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.emit_design import EmitArgs, checked_design


@graph_pass("emit_internal_rtl_transform_pass", EmitArgs, needs=("common", "hardware"))
def emit_internal_rtl_transform_pass(graph: MaseGraph, args: EmitArgs) -> PassResult:
    """Write to `hardware/rtl` exactly the modules that the top module uses, and those they use."""
    design = checked_design(graph, args).design
    files = component_files(design)
    write_files(args.hardware, files)
    remove_stale(args.hardware, "rtl/*.sv", [*files, f"rtl/{design.name}.sv"])
    return graph, {"directory": args.hardware, "files": sorted(files)}
