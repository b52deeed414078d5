"""Write the test bench of a graph's hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.errors import ConfigError
from chop.hw.lower import Lowered
from chop.hw.lower.verify import encoded
from chop.hw.sim.cocotb_run import BENCH
from chop.hw.sim.emit import vector_files, write_files
from chop.hw.sim.simulate import random_inputs
from chop.hw.sim.worst_case import ends_files
from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.emit_design import EmitArgs, checked_design


@dataclass(frozen=True)
class EmitCocotbArgs(EmitArgs):
    """`inputs`: the tensors to test on, a batch or a tuple of them; None draws `num_batches`."""

    inputs: Any = None
    num_batches: int = 10

    def __post_init__(self) -> None:
        if self.num_batches < 1:
            raise ConfigError(f"num_batches must be 1 or more, got {self.num_batches}.")


@graph_pass("emit_cocotb_transform_pass", EmitCocotbArgs, needs=("common", "hardware"))
def emit_cocotb_transform_pass(graph: MaseGraph, args: EmitCocotbArgs) -> PassResult:
    """Write `hardware/test`: the bench, input beats, and the output beats they must give.

    The worst-case inputs of each stage are written too. The outputs are those of the PyTorch
    model: the design is compared with it on these inputs.
    """
    lowered = checked_design(graph, args, args.inputs)
    vectors = vector_files(lowered.design, _codes(lowered, args))
    files = {**vectors, **ends_files(lowered.design), "test/test_top.py": BENCH.read_text()}
    write_files(args.hardware, files)
    return graph, {"directory": args.hardware, "files": sorted(files)}


def _codes(lowered: Lowered, args: EmitCocotbArgs) -> dict[str, Any]:
    if args.inputs is None:
        return random_inputs(lowered.design, args.num_batches)
    return encoded(lowered, args.inputs)
