"""Write the memories of a graph's hardware."""

from __future__ import annotations

from chop.hw.sim.emit import memory_files, remove_stale, write_files
from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.emit_design import EmitArgs, checked_design


@graph_pass("emit_bram_transform_pass", EmitArgs, needs=("common", "hardware"))
def emit_bram_transform_pass(graph: MaseGraph, args: EmitArgs) -> PassResult:
    """Write weights, biases and tables to `hardware/mem`, one hexadecimal word per line."""
    files = memory_files(checked_design(graph, args).design)
    write_files(args.hardware, files)
    remove_stale(args.hardware, "mem/*.mem", files)
    return graph, {"directory": args.hardware, "files": sorted(files)}
