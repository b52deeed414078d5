"""Fix everything that depends on the sizes of the inputs alone, for hardware of one size."""

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
from chop.passes.graph.transforms.simplify_graph import drop_modules_of, erase_dead_nodes
from chop.passes.rewrite.annotate import ensure_meta, is_annotated, refresh, replace_by_constant
from chop.passes.rewrite.node_patterns import op_name
from chop.passes.rewrite.surgery import bypass

FACTS = ("shape", "device", "dtype", "ndim")
"""Attributes of a tensor that do not depend on its elements."""


@dataclass(frozen=True)
class _SizedRun:
    """Result of every node for the captured inputs, and for the first of each batch."""

    batch: int
    whole: dict[fx.Node, Any]
    first: dict[fx.Node, Any]


@graph_pass("fix_sizes_transform_pass", rewrites=True)
def fix_sizes_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Replace tensors that depend on the sizes of the inputs alone by buffers; simplify masks.

    Sizes are those of the captured inputs; the batch stays free. Rows that an embedding reads by
    such numbers (positions, types) become constants too. Neutral parts of a padding mask are
    removed: a selection of every element in order, a conjunction with True, copies of its rows. So
    a mask computed from positions becomes the input it comes from. `info["folded"]` and
    `info["simplified"]` name the nodes. The output stays the same at these sizes. For hardware, run
    it before `decompose_attention_transform_pass` and quantising.
    """
    if graph.dummy_in is None:
        raise PassError("fix_sizes_transform_pass: the graph was made without example inputs.")
    run = _run(graph)
    fixed = _fixed_nodes(graph)
    simplified = [
        node.name for node in list(graph.fx_graph.nodes) if _simplify(graph, node, run, fixed)
    ]
    folded = [node.name for node in _frontier(graph, fixed, run) if _fold(graph, node, run)]
    if folded or simplified:
        drop_modules_of(graph, erase_dead_nodes(graph))
        refresh(graph)
    return graph, {"folded": folded, "simplified": simplified}


def _run(graph: MaseGraph) -> _SizedRun:
    inputs = [
        (graph.dummy_in or {}).get(str(n.target))
        for n in graph.fx_graph.find_nodes(op="placeholder")
    ]
    batch = next((len(x) for x in inputs if isinstance(x, Tensor) and x.dim()), 1)
    first = [x[:1] if isinstance(x, Tensor) and x.dim() and len(x) == batch else x for x in inputs]
    results = []
    for values in (inputs, first):
        interpreter = _Results(graph.model)
        with torch.no_grad():
            interpreter.run(*values)
        results.append(interpreter.results)
    return _SizedRun(batch, *results)


class _Results(fx.Interpreter):
    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.results: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.results[n] = super().run_node(n)
        return self.results[n]


def _fixed_nodes(graph: MaseGraph) -> set[fx.Node]:
    """Return the nodes that depend on no element of an input; sizes do not count."""
    written = written_nodes(graph.fx_graph, graph.custom_ops)
    fixed: set[fx.Node] = set()
    for node in graph.fx_graph.nodes:
        if node in written or node.op in ("placeholder", "output"):
            continue
        op, name = find_op(node, graph.custom_ops), op_name(graph, node)
        is_fact = name == "size" or (name == "getattr" and node.args[1] in FACTS)
        is_repeatable = op is None or is_deterministic(node, op)
        is_derived = is_repeatable and all(n in fixed for n in node.all_input_nodes)
        if node.op == "get_attr" or is_fact or is_derived:
            fixed.add(node)
    return fixed


def _frontier(graph: MaseGraph, fixed: set[fx.Node], run: _SizedRun) -> Iterator[fx.Node]:
    """Yield fixed tensors, other than attributes, that a node reads which is not fixed."""
    for node in list(graph.fx_graph.nodes):
        is_made = node in fixed and node.op != "get_attr" and isinstance(run.whole[node], Tensor)
        if is_made and any(user not in fixed for user in node.users):
            yield node


def _fold(graph: MaseGraph, node: fx.Node, run: _SizedRun) -> bool:
    """Replace `node` by its value for a batch of one, if it is the same for the whole batch."""
    whole, value = run.whole[node], run.first[node]
    if whole.dim() != value.dim() or not torch.equal(value.expand_as(whole), whole):
        return False
    replace_by_constant(graph, node, f"fixed_{node.name}", value)
    return True


# -- masks -----------------------------------------------------------------------------------------


def _simplify(graph: MaseGraph, node: fx.Node, run: _SizedRun, fixed: set[fx.Node]) -> bool:
    """Replace `node` by a simpler one; return True if there is one."""
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
    source = None
    if op == "logical":
        source = _without_true(node, run, fixed)
    elif op == "expand":
        operand = node.all_input_nodes[0]
        is_copy = run.whole[operand].dim() == value.dim() and operand not in fixed
        source = operand if is_copy else None
    if source is None:
        return False
    bypass(node, source)
    return True


def _may_have_less(graph: MaseGraph, user: fx.Node, run: _SizedRun) -> bool:
    """Return True if copies of a mask's rows make no difference to `user` and its users."""
    op = op_name(graph, user)
    if op == "getattr":
        return user.args[1] in ("device", "dtype")
    if op in ("logical", "expand", "to"):
        return all(_may_have_less(graph, each, run) for each in user.users)
    if op == "where":  # the numbers alone must have all rows
        numbers = [run.whole[n] for n in user.all_input_nodes[1:]]
        shapes = [x.shape for x in numbers if isinstance(x, Tensor)]
        rows = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        return bool(rows == run.whole[user].shape)
    return op == "scaled_dot_product_attention"


def _pick_all(graph: MaseGraph, node: fx.Node, run: _SizedRun, fixed: set[fx.Node]) -> bool:
    """Replace x[rows, columns] with all rows and columns in order by x with new dimensions."""
    source, index = node.args
    if not isinstance(index, tuple) or len(index) != 2:
        return False
    parts = [run.whole[n] for n in index if isinstance(n, fx.Node) and n in fixed]
    if len(parts) != 2 or not all(map(torch.is_tensor, parts)):
        return False
    x, (rows, columns) = run.whole[node.all_input_nodes[0]], parts
    dims = rows.dim()
    shapes = ((len(x), *[1] * (dims - 1)), (*[1] * (dims - 1), x.shape[-1]))
    if x.dim() != 2 or dims < 2 or (tuple(rows.shape), tuple(columns.shape)) != shapes:
        return False
    places = zip((rows, columns), x.shape, strict=True)
    if not all(torch.equal(each.reshape(-1), torch.arange(size)) for each, size in places):
        return False
    node.args = (source, (slice(None), *[None] * (dims - 2), slice(None)))
    return True


def _bypass_or_compare(graph: MaseGraph, node: fx.Node, run: _SizedRun) -> bool:
    """Replace a cast to bool: compare integers with 0, and use booleans unchanged."""
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


def _without_true(node: fx.Node, run: _SizedRun, fixed: set[fx.Node]) -> fx.Node | None:
    """Return the other operand of a conjunction with True."""
    name = getattr(node.target, "__name__", str(node.target))
    if name not in ("and_", "logical_and", "bitwise_and"):
        return None
    operands = node.all_input_nodes
    true = [n for n in operands if n in fixed and bool(run.whole[n].all())]
    others = [n for n in operands if n not in true]
    return others[0] if len(operands) == 2 and len(true) == 1 else None
