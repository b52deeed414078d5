"""The design of a graph: lowered once, cached beside the graph, lowered again where that changed.

Its settings are the `DesignSpec` in the metadata of the output node, which copies and checkpoints
of a graph have too. The cache holds while everything that a lowering reads (nodes, formats,
settings, parameters) is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx

from chop.errors import HardwareError
from chop.hw.lower.engine import lower
from chop.hw.lower.supported import attribute
from chop.hw.lower.values import Lowered
from chop.hw.lower.verify import verify
from chop.ir.design_spec import DesignSpec
from chop.ir.graph import MaseGraph
from chop.ir.meta import HardwareMeta, mase_meta

PLAIN = (bool, int, float, str, tuple, list, type(None))
"""Attributes of a layer that may be settings."""


@dataclass
class _Cached:
    lowered: Lowered
    state: str
    """Digest of the graph when it was lowered."""
    is_verified: bool = False


_DESIGNS: WeakKeyDictionary[MaseGraph, _Cached] = WeakKeyDictionary()


def has_design(graph: MaseGraph) -> bool:
    """Return whether the metadata of `graph` has the settings of a design."""
    return _graph_meta(graph).design is not None


def design_spec(graph: MaseGraph) -> DesignSpec:
    """Return the settings of the design of an annotated graph."""
    spec = _graph_meta(graph).design
    if spec is None:
        raise HardwareError(
            "node 'output': its hardware metadata has no settings of a design. Run "
            "add_hardware_metadata_analysis_pass."
        )
    return spec


def _graph_meta(graph: MaseGraph) -> HardwareMeta:
    (output,) = graph.fx_graph.find_nodes(op="output")
    return mase_meta(output).hardware


def attach_design(graph: MaseGraph, spec: DesignSpec, lowered: Lowered) -> None:
    """Store the settings of an annotated graph in its metadata, and cache its design."""
    _graph_meta(graph).design = spec
    _DESIGNS[graph] = _Cached(lowered, _state(graph))


def attached_design(graph: MaseGraph) -> Lowered:
    """Return the design of an annotated graph; lower it again if the graph changed."""
    return _current(graph).lowered


def verified_design(graph: MaseGraph, inputs: Any = None) -> Lowered:
    """Return the design of an annotated graph after a comparison with its model.

    They are compared on `inputs` (a batch or a tuple of them), and once on generated inputs. Raise
    if they differ.
    """
    current = _current(graph)
    if inputs is not None or not current.is_verified:
        verify(graph, current.lowered, inputs, is_generated=not current.is_verified)
        current.is_verified = True
    return current.lowered


def _current(graph: MaseGraph) -> _Cached:
    state, cached = _state(graph), _DESIGNS.get(graph)
    if cached is None or cached.state != state:
        lowered = lower(graph, design_spec(graph))
        _check_lanes(graph, lowered)
        cached = _DESIGNS[graph] = _Cached(lowered, state)
    return cached


def _check_lanes(graph: MaseGraph, lowered: Lowered) -> None:
    """Raise if a node's metadata has other lanes than the design: the settings alone decide."""
    for node in graph.fx_graph.nodes:
        written, lanes = mase_meta(node).hardware.parallelism, lowered.lanes(node)
        if written is not None and (lanes is None or list(written) != lanes):
            raise HardwareError(
                f"node '{node.name}': hardware.parallelism is {written}, and its design has "
                f"{lanes}. Run add_hardware_metadata_analysis_pass again; its argument "
                f"'parallelism' sets the lanes of nodes."
            )


# -- whether the graph changed ---------------------------------------------------------------------


def _state(graph: MaseGraph) -> str:
    """Return a digest of everything that a lowering reads."""
    digest = hashlib.sha256()
    for node in graph.fx_graph.nodes:
        digest.update(repr(_facts(node)).encode())
    for path, module in graph.model.named_modules():
        settings = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, PLAIN) and not name.startswith("_") and name != "training"
        }
        digest.update(repr((path, type(module), settings)).encode())
    for name, tensor in _tensors(graph):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _facts(node: fx.Node) -> tuple[Any, ...]:
    meta = mase_meta(node)
    values = {**(meta.common.args or {}), **(meta.common.results or {})}
    formats = {name: (v.get("shape"), v.format, v.is_applied) for name, v in values.items()}
    call = (node.name, node.op, node.target, node.args, node.kwargs)
    return (*call, formats, meta.hardware.parallelism, meta.hardware.design)


def _tensors(graph: MaseGraph) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, buffers, and other tensors that nodes read."""
    yield from graph.model.named_parameters()
    yield from graph.model.named_buffers()
    for node in graph.fx_graph.find_nodes(op="get_attr"):
        value = attribute(graph, node)
        if isinstance(value, Tensor):
            yield str(node.target), value
