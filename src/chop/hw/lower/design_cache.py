"""The design of a graph: made once, kept beside the graph, made again only where that changed.

`attach_design` keeps the design that a graph was lowered to; `attached_design` gives it back while
everything that a lowering reads (nodes, formats, settings, parameters, parallelism) is as it was.
A graph that was copied or loaded has none yet: it gets one from the parallelism in its metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.lower import Lowered, Parallelism, lower
from chop.hw.lower.storage import EXTERNAL
from chop.hw.lower.verify import verify
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta

PLAIN = (bool, int, float, str, tuple, list, type(None))
"""Attributes of a layer that may be settings."""


@dataclass
class _Attached:
    lowered: Lowered
    state: str
    """Of the graph when it was lowered."""
    is_verified: bool = False


_DESIGNS: WeakKeyDictionary[MaseGraph, _Attached] = WeakKeyDictionary()


def attach_design(graph: MaseGraph, lowered: Lowered) -> None:
    """Keep the design of an annotated graph with it."""
    _DESIGNS[graph] = _Attached(lowered, _state(graph))


def attached_design(graph: MaseGraph) -> Lowered:
    """The design of an annotated graph: the one it has, or a new one where the graph changed."""
    return _current(graph).lowered


def verified_design(graph: MaseGraph, inputs: Any = None) -> Lowered:
    """The design of an annotated graph, which is compared with its model first: on `inputs` (a
    batch or a tuple of them), and once on generated ones. Raises where they differ.
    """
    found = _current(graph)
    if inputs is not None or not found.is_verified:
        verify(graph, found.lowered, inputs, is_generated=not found.is_verified)
        found.is_verified = True
    return found.lowered


def _current(graph: MaseGraph) -> _Attached:
    state = _state(graph)
    found = _DESIGNS.get(graph)
    if found is None or found.state != state:
        lanes, places = _parallelism(graph), _storage(graph)
        lowered = lower(graph, lanes, weights=places, share_layers=_in_flight(graph))
        found = _Attached(lowered, state)
        _DESIGNS[graph] = found
    return found


WITHOUT_MULTIPLIERS = {"fixed_shift_add": "shift_add", "fixed_table_sum": "tables"}
"""The `multiplier` that each of these modules comes from."""


def _parallelism(graph: MaseGraph) -> Parallelism:
    """What the metadata tells: lanes, the clock, and which layers have no multipliers."""
    told = {node.name: mase_meta(node).hardware for node in graph.fx_graph.nodes}
    ways = {name: WITHOUT_MULTIPLIERS.get(each.module or "") for name, each in told.items()}
    added = {name: way for name, way in ways.items() if way is not None}
    steps = [int((told[name].cost or {}).get("adders_per_stage", 2)) for name in added]
    packed = {name: "packed" for name, each in told.items() if (each.cost or {}).get("is_packed")}
    clocks = [
        each.cost["clock_khz"] / 1000 for each in told.values() if "clock_khz" in (each.cost or {})
    ]
    return Parallelism(
        1,
        _lanes(graph),
        added | packed,
        steps[0] if steps else 2,
        clocks[0] if clocks else DEFAULT_MHZ,
    )


def _lanes(graph: MaseGraph) -> dict[str, tuple[int, int]]:
    """The parallelism that the metadata tells, by node."""
    told = {node.name: mase_meta(node).hardware.parallelism for node in graph.fx_graph.nodes}
    return {name: (lanes[0], lanes[1]) for name, lanes in told.items() if lanes is not None}


def _storage(graph: MaseGraph) -> dict[str, str]:
    """Where the metadata says that weights lie, by node."""
    told = {node.name: mase_meta(node).hardware.interface for node in graph.fx_graph.nodes}
    storage = {name: (each or {}).get("weight", {}).get("storage") for name, each in told.items()}
    return {name: EXTERNAL for name, place in storage.items() if place == "EXTERNAL"}


def _in_flight(graph: MaseGraph) -> int:
    """How many tensors go together through a block that layers share; 0 where none does."""
    told = [mase_meta(node).hardware.interface or {} for node in graph.fx_graph.nodes]
    return max(int(each.get("shared", {}).get("in_flight", 0)) for each in told)


# -- whether the graph changed ---------------------------------------------------------------------


def _state(graph: MaseGraph) -> str:
    """A digest of everything that a lowering reads."""
    digest = hashlib.sha256()
    for node in graph.fx_graph.nodes:
        digest.update(repr(_told(node)).encode())
    for path, module in graph.model.named_modules():
        digest.update(repr((path, type(module), _settings(module))).encode())
    for name, tensor in _tensors(graph):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _told(node: fx.Node) -> tuple[Any, ...]:
    meta = mase_meta(node)
    values = {**(meta.common.args or {}), **(meta.common.results or {})}
    formats = {name: (v.get("shape"), v.format, v.is_applied) for name, v in values.items()}
    call = (node.name, node.op, node.target, node.args, node.kwargs)
    interface = meta.hardware.interface or {}
    places = (interface.get("weight", {}).get("storage"), interface.get("shared"))
    return (*call, formats, meta.hardware.parallelism, *places)


def _settings(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, PLAIN) and not name.startswith("_") and name != "training"
    }


def _tensors(graph: MaseGraph) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers, and other tensors that nodes read."""
    yield from graph.model.named_parameters()
    yield from graph.model.named_buffers()
    for node in graph.fx_graph.find_nodes(op="get_attr"):
        found: Any = graph.model
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, Tensor):
            yield str(node.target), found
