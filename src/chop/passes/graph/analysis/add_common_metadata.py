"""Annotate every node with its operator, its operands and its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.rewrite.annotate import annotate
from chop.passes.rewrite.propagate import bind_inputs


@dataclass(frozen=True)
class AddCommonMetadataArgs:
    """What to run the graph on, and what to keep of the run.

    `dummy_in`: a mapping of inputs, a tensor, or a tuple; None takes the inputs of the trace.
    `add_value`: keep the tensors themselves, which needs a real run. `force_device_meta`: stay on
    fake tensors, whatever the graph does; no memory is used for activations.
    """

    dummy_in: Any = None
    add_value: bool = False
    force_device_meta: bool = False

    def __post_init__(self) -> None:
        if self.add_value and self.force_device_meta:
            raise ConfigError(
                "add_value keeps real tensors and force_device_meta makes none; set one of them."
            )


@graph_pass("add_common_metadata_analysis_pass", AddCommonMetadataArgs, needs=("init",))
def add_common_metadata_analysis_pass(graph: MaseGraph, args: AddCommonMetadataArgs) -> PassResult:
    """Write `common.mase_op`, `mase_type`, `args` and `results` of every node.

    Operators come from the op table (`custom_ops` of the graph first); shapes and dtypes from one
    run of the graph. The model, its buffers and the random state are left as they were.
    """
    inputs = bind_inputs(graph, args.dummy_in, "add_common_metadata")
    annotate(graph, inputs, add_value=args.add_value, retry=not args.force_device_meta)
    return graph, {}
