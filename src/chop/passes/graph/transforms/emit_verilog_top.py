"""Write the top module of a graph's hardware."""

from __future__ import annotations

from chop.hw.flow.project import remember_project
from chop.hw.sim.emit import require_sound, top_files, write_files
from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.emit_design import EmitArgs, checked_design


@graph_pass("emit_verilog_top_transform_pass", EmitArgs, needs=("common", "hardware"))
def emit_verilog_top_transform_pass(graph: MaseGraph, args: EmitArgs) -> PassResult:
    """Write `hardware/rtl/top.sv` and `hardware/design.json` under the project directory."""
    design = checked_design(graph, args).design
    require_sound(design)
    files = top_files(design)
    write_files(args.hardware, files)
    remember_project(args.project_dir)
    return graph, {"directory": args.hardware, "files": sorted(files)}
