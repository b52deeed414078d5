"""Metadata of every node: an empty tree, its operator, operands and results, and software facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata, ValueMeta, mase_meta
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import annotate
from chop.passes.rewrite.propagate import bind_inputs


@graph_pass("init_metadata_analysis_pass")
def init_metadata_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Set a new `node.meta["mase"]` on every node, and discard the old one."""
    for node in graph.fx_graph.nodes:
        node.meta["mase"] = MaseMetadata()
    return graph, {}


@dataclass(frozen=True)
class AddCommonMetadataArgs:
    """Settings of `add_common_metadata_analysis_pass`.

    `dummy_in`: a mapping of inputs, a tensor, or a tuple; None uses the inputs of the trace.
    `add_value`: store the tensors themselves, which needs a real run. `force_device_meta`: use fake
    tensors in every case, so that activations need no memory.
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

    Operators come from the op table (`custom_ops` of the graph first), shapes and dtypes from one
    run of the graph. The model, its buffers and the random state stay unchanged.
    """
    inputs = bind_inputs(graph, args.dummy_in, "add_common_metadata")
    annotate(graph, inputs, add_value=args.add_value, retry=not args.force_device_meta)
    return graph, {}


@graph_pass("add_software_metadata_analysis_pass", needs=("common",))
def add_software_metadata_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Add an entry with an empty `stat` to `software` for each tensor operand and result.

    Needs common metadata. Existing statistics stay.
    """
    for node in graph.fx_graph.nodes:
        meta = mase_meta(node)
        meta.software.args = _entries(meta.common.args, meta.software.args)
        meta.software.results = _entries(meta.common.results, meta.software.results)
    return graph, {}


def _entries(
    values: dict[str, ValueMeta] | None, before: dict[str, dict[str, Any]] | None
) -> dict[str, dict[str, Any]]:
    tensors = [name for name, value in (values or {}).items() if value.is_tensor]
    return {name: (before or {}).get(name, {"stat": {}}) for name in tensors}
