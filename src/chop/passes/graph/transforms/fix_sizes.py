"""Settle what depends on the sizes of the inputs alone, as hardware of one size wants it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op
from chop.ir.trace.effects import is_deterministic, written_nodes
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.graph.transforms.eliminate_dead_code import erase_dead_nodes
from chop.passes.rewrite.annotate import ensure_meta, is_annotated, refresh, replace_by_constant
from chop.passes.rewrite.node_patterns import op_name
from chop.passes.rewrite.surgery import bypass, drop_unused_modules

FACTS = ("shape", "device", "dtype", "ndim")
"""Attributes of a tensor that its numbers do not change."""


@dataclass(frozen=True)
class _Run:
    """What every node gives for the captured inputs, and for the first of each batch."""

    batch: int
    whole: dict[fx.Node, Any]
    first: dict[fx.Node, Any]


@graph_pass("fix_sizes_transform_pass", rewrites=True)
def fix_sizes_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Replace tensors that depend on the sizes of the inputs alone by buffers; plain masks.

    Sizes are those that the graph was captured with; the batch stays free. Rows that an embedding
    reads by such numbers (positions, types) are a constant too. Of a padding mask what says nothing
    is left out: a choice of every element in turn, truth that is joined to it, copies of its rows.
    So a mask that was put together from numbers of places is what it comes from: an input.
    `info["folded"]` and `info["simplified"]` name the nodes. The output stays the same at these
    sizes. For hardware: before `decompose_attention_transform_pass` and quantising.
    """
    if graph.dummy_in is None:
        raise PassError("fix_sizes_transform_pass: the graph was made without example inputs.")
    run = _run(graph)
    fixed = _fixed_nodes(graph)
    simplified = [
        node.name for node in list(graph.fx_graph.nodes) if _simplify(graph, node, run, fixed)
    ]
    folded = [node.name for node in _frontier(graph, fixed, run) if _fold(graph, node, run)]
    removed = erase_dead_nodes(graph) if folded or simplified else []
    drop_unused_modules(graph, [str(n.target) for n in removed if n.op == "call_module"])
    if folded or simplified:
        refresh(graph)
    return graph, {"folded": folded, "simplified": simplified}


def _run(graph: MaseGraph) -> _Run:
    inputs = [
        (graph.dummy_in or {}).get(str(n.target))
        for n in graph.fx_graph.find_nodes(op="placeholder")
    ]
    batch = next((len(x) for x in inputs if isinstance(x, Tensor) and x.dim()), 1)
    first = [x[:1] if isinstance(x, Tensor) and x.dim() and len(x) == batch else x for x in inputs]
    found = []
    for given in (inputs, first):
        watched = _Watched(graph.model)
        with torch.no_grad():
            watched.run(*given)
        found.append(watched.seen)
    return _Run(batch, *found)


class _Watched(fx.Interpreter):
    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


def _fixed_nodes(graph: MaseGraph) -> set[fx.Node]:
    """Nodes that no number of an input reaches; sizes and the like are none."""
    written = written_nodes(graph.fx_graph, graph.custom_ops)
    found: set[fx.Node] = set()
    for node in graph.fx_graph.nodes:
        op = find_op(node, graph.custom_ops)
        if node in written or node.op in ("placeholder", "output"):
            continue
        is_known = op is None or is_deterministic(node, op)
        is_fact = op_name(graph, node) == "size" or (
            op_name(graph, node) == "getattr" and node.args[1] in FACTS
        )
        if (
            node.op == "get_attr"
            or is_fact
            or (is_known and all(n in found for n in node.all_input_nodes))
        ):
            found.add(node)
    return found


def _frontier(graph: MaseGraph, fixed: set[fx.Node], run: _Run) -> Iterator[fx.Node]:
    """Fixed tensors, other than attributes, that something reads which is not fixed."""
    for node in list(graph.fx_graph.nodes):
        is_made = node in fixed and node.op != "get_attr" and isinstance(run.whole[node], Tensor)
        if is_made and any(user not in fixed for user in node.users):
            yield node


def _fold(graph: MaseGraph, node: fx.Node, run: _Run) -> bool:
    """Put the value for a batch of one in the place of `node`, where it is that for all."""
    whole, value = run.whole[node], run.first[node]
    if whole.dim() != value.dim() or not torch.equal(value.expand_as(whole), whole):
        return False
    replace_by_constant(graph, node, f"fixed_{node.name}", value)
    return True


# -- masks -----------------------------------------------------------------------------------------


def _simplify(graph: MaseGraph, node: fx.Node, run: _Run, fixed: set[fx.Node]) -> bool:
    """Whether a simpler node stands for `node` now."""
    value = run.whole.get(node)
    if node in fixed or not isinstance(value, Tensor) or value.dtype is not torch.bool:
        return False
    op = op_name(graph, node)
    if op == "getitem":
        return _pick_all(graph, node, run, fixed)
    if op == "to" and not run.whole[node.all_input_nodes[0]].is_floating_point():
        return _bypass_or_compare(graph, node, run)
    if not all(_may_have_less(graph, user, run) for user in node.users):
        return False
    source = {"logical": _beside_truth, "expand": _as_it_is}.get(str(op), _nothing)(
        node, run, fixed
    )
    if source is None:
        return False
    bypass(node, source)
    return True


def _may_have_less(graph: MaseGraph, user: fx.Node, run: _Run) -> bool:
    """Whether it is one to `user`, and all behind it, if the rows of a mask are copied or not."""
    op = op_name(graph, user)
    if op == "getattr":
        return user.args[1] in ("device", "dtype")
    if op in ("logical", "expand", "to"):
        return all(_may_have_less(graph, each, run) for each in user.users)
    if op == "where":  # the numbers alone have all rows
        numbers = [run.whole[n] for n in user.all_input_nodes[1:]]
        shapes = [x.shape for x in numbers if isinstance(x, Tensor)]
        rows = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        return bool(rows == run.whole[user].shape)
    return op == "scaled_dot_product_attention"


def _pick_all(graph: MaseGraph, node: fx.Node, run: _Run, fixed: set[fx.Node]) -> bool:
    """x[rows, columns] with every row and every column, in turn, is x with dimensions between."""
    source, chosen = node.args
    if not isinstance(chosen, tuple) or len(chosen) != 2:
        return False
    found = [run.whole[n] for n in chosen if isinstance(n, fx.Node) and n in fixed]
    if len(found) != 2 or not all(map(torch.is_tensor, found)):
        return False
    x, (rows, columns) = run.whole[node.all_input_nodes[0]], found
    dims = rows.dim()
    shapes = ((len(x), *[1] * (dims - 1)), (*[1] * (dims - 1), x.shape[-1]))
    if x.dim() != 2 or dims < 2 or (tuple(rows.shape), tuple(columns.shape)) != shapes:
        return False
    places = zip((rows, columns), x.shape, strict=True)
    if not all(torch.equal(each.reshape(-1), torch.arange(size)) for each, size in places):
        return False
    node.args = (source, (slice(None), *[None] * (dims - 2), slice(None)))
    return True


def _bypass_or_compare(graph: MaseGraph, node: fx.Node, run: _Run) -> bool:
    """Whole numbers as truth are those that are not 0; truth is what it is on any device."""
    source = node.all_input_nodes[0]
    if run.whole[source].dtype is not torch.bool:
        with graph.fx_graph.inserting_before(node):
            compared = graph.fx_graph.call_function(torch.ne, (source, 0))
        run.whole[compared], run.first[compared] = run.whole[node], run.first[node]
        if is_annotated(graph):
            ensure_meta(compared)
        source = compared
    bypass(node, source)
    return True


def _beside_truth(node: fx.Node, run: _Run, fixed: set[fx.Node]) -> fx.Node | None:
    """What is joined by `and` with nothing but truth."""
    if getattr(node.target, "__name__", str(node.target)) not in (
        "and_",
        "logical_and",
        "bitwise_and",
    ):
        return None
    operands = node.all_input_nodes
    true = [n for n in operands if n in fixed and bool(run.whole[n].all())]
    others = [n for n in operands if n not in true]
    return others[0] if len(operands) == 2 and len(true) == 1 else None


def _as_it_is(node: fx.Node, run: _Run, fixed: set[fx.Node]) -> fx.Node | None:
    source = node.all_input_nodes[0]
    same = run.whole[source].dim() == run.whole[node].dim()
    return source if same and source not in fixed else None


def _nothing(node: fx.Node, run: _Run, fixed: set[fx.Node]) -> fx.Node | None:
    return None
