"""Replace calls of recurrent cells by their parts."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import node_module
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.node_patterns import op_name
from chop.passes.rewrite.surgery import bypass, drop_unused_modules, set_module

CELLS = ("lstm_cell", "gru_cell", "rnn_cell")


@graph_pass("decompose_recurrent_transform_pass", rewrites=True, needs=("common",))
def decompose_recurrent_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Replace LSTM, GRU and RNN cells by linear layers, sigmoid, tanh, sums and products.

    For targets that have these ops and not the cells, such as hardware. Run it before quantising,
    so that each op gets its own formats. The states are inputs and outputs of the graph, or of
    other nodes. Cells without a given state, and quantised ones, stay unchanged; `info["sites"]`
    has a record for each call: decomposed, or the reason why not. The output stays equal up to
    rounding.
    """
    records = []
    for node in [n for n in graph.fx_graph.nodes if op_name(graph, n) in CELLS]:
        reason = _obstacle(node)
        records.append({"name": node.name, "decomposed": not reason, "reason": reason})
        if not reason:
            _write_out(graph, node)
    decomposed = sum(not record["reason"] for record in records)
    if decomposed:
        refresh(graph)
    return graph, {"sites": records, "decomposed": decomposed}


def _obstacle(node: fx.Node) -> str:
    """Return the reason why a call stays unchanged; empty if there is none."""
    if type(node_module(node)) not in WRITTEN:
        return "it is quantised as one layer"
    if dict(named_arguments(node)).get("hx") is None:
        return "it has no given state: its first state depends on the size of the batch"
    return ""


def _write_out(graph: MaseGraph, node: fx.Node) -> None:
    """Replace the call by its parts."""
    cell: Any = node_module(node)
    arguments = dict(named_arguments(node))
    states = arguments["hx"] if isinstance(arguments["hx"], tuple | list) else (arguments["hx"],)
    path = str(node.target)
    products = [
        _linear(graph, node, f"{path}_{name}", source, cell, end)
        for name, source, end in (("of_input", arguments["input"], "ih"),
                                  ("of_state", states[0], "hh"))
    ]  # fmt: skip
    with graph.fx_graph.inserting_before(node):
        results = WRITTEN[type(cell)](graph, cell, *products, *states)
    if len(results) == 1:
        bypass(node, results[0])
    else:
        for user in list(node.users):
            bypass(user, results[user.args[1]])
        graph.fx_graph.erase_node(node)
    drop_unused_modules(graph, [path])


def _linear(
    graph: MaseGraph, node: fx.Node, path: str, source: fx.Node, cell: Any, end: str
) -> fx.Node:
    """Add a linear layer with a cell's weights for the input (`ih`) or the state (`hh`)."""
    weight, bias = getattr(cell, f"weight_{end}"), getattr(cell, f"bias_{end}", None)
    layer: Any = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight, layer.bias = weight, bias
    free = path.replace(".", "_")
    while hasattr(graph.model, free):
        free += "_"
    set_module(graph, free, layer.train(cell.training))
    with graph.fx_graph.inserting_before(node):
        return graph.fx_graph.call_module(free, (source,))


def _parts(graph: MaseGraph, source: fx.Node, count: int) -> list[fx.Node]:
    """Return equal parts of the last dimension."""
    parts = graph.fx_graph.call_method("chunk", (source, count, -1))
    call = graph.fx_graph.call_function
    return [call(getitem, (parts, number)) for number in range(count)]


def _lstm(
    graph: MaseGraph, cell: nn.Module, of_input: fx.Node, of_state: fx.Node, *states: fx.Node
) -> tuple[fx.Node, ...]:
    call = graph.fx_graph.call_function
    i, f, g, o = _parts(graph, call(torch.add, (of_input, of_state)), 4)
    remembered = call(torch.mul, (call(torch.sigmoid, (f,)), states[1]))
    new = call(torch.mul, (call(torch.sigmoid, (i,)), call(torch.tanh, (g,))))
    state = call(torch.add, (remembered, new))
    hidden = call(torch.mul, (call(torch.sigmoid, (o,)), call(torch.tanh, (state,))))
    return hidden, state


def _gru(
    graph: MaseGraph, cell: nn.Module, of_input: fx.Node, of_state: fx.Node, state: fx.Node
) -> tuple[fx.Node, ...]:
    call = graph.fx_graph.call_function
    (reset, update, new), (r, z, n) = _parts(graph, of_input, 3), _parts(graph, of_state, 3)
    gate = call(torch.sigmoid, (call(torch.add, (update, z)),))
    reset = call(torch.sigmoid, (call(torch.add, (reset, r)),))
    candidate = call(torch.tanh, (call(torch.add, (new, call(torch.mul, (reset, n)))),))
    change = call(torch.mul, (gate, call(torch.sub, (state, candidate))))
    return (call(torch.add, (candidate, change)),)


def _rnn(
    graph: MaseGraph, cell: Any, of_input: fx.Node, of_state: fx.Node, state: fx.Node
) -> tuple[fx.Node, ...]:
    call = graph.fx_graph.call_function
    function = torch.relu if cell.nonlinearity == "relu" else torch.tanh
    return (call(function, (call(torch.add, (of_input, of_state)),)),)


WRITTEN: dict[type[nn.Module], Any] = {nn.LSTMCell: _lstm, nn.GRUCell: _gru, nn.RNNCell: _rnn}
"""Writers by the class of a cell: they return the next hidden state, and an LSTM's cell state."""
