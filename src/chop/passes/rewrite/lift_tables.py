"""Tables and experts that a graph reads as parameters, turned into layers that can be packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch.nn.functional as F
from torch import fx, nn

from chop.ir.expert_layer import GROUPED_PRODUCTS, Experts
from chop.ir.graph import MaseGraph
from chop.passes.rewrite.annotate import refresh


def put_module(graph: MaseGraph, path: str, module: nn.Module) -> None:
    """`module` in the place of the parameter at `path`, which nothing else reads."""
    parent, _, name = path.rpartition(".")
    owner = graph.model.get_submodule(parent)
    owner._parameters.pop(name, None)
    owner._modules[name] = module


def lift_tables(graph: MaseGraph, is_chosen: Callable[[str], bool]) -> None:
    """Turn `embedding(ids, parameter)` into an `nn.Embedding` on that parameter, at its path.

    Models whose embedding does more than look up (Gemma's scales its rows) are captured so.
    """
    lifted = False
    for node in list(graph.fx_graph.nodes):
        path = str(node.target)
        if node.op == "get_attr" and is_chosen(path) and _is_table(graph, node):
            _lift_table(graph, node, path)
            lifted = True
    if lifted:
        graph.recompile()
        refresh(graph)


def _is_table(graph: MaseGraph, node: fx.Node) -> bool:
    parameter = dict(graph.model.named_parameters(remove_duplicate=False)).get(str(node.target))
    return (
        parameter is not None and bool(node.users) and all(_looks_up(u, node) for u in node.users)
    )


def _looks_up(user: fx.Node, table: fx.Node) -> bool:
    """Whether `user` is a plain look-up in `table`."""
    if user.target is not F.embedding or len(user.args) < 2 or user.args[1] is not table:
        return False
    given = dict(zip(("padding_idx", "max_norm"), user.args[2:4], strict=False)) | dict(user.kwargs)
    return given.get("max_norm") is None and not given.get("sparse")


def _lift_table(graph: MaseGraph, node: fx.Node, path: str) -> None:
    weight = graph.model.get_parameter(path)
    rows, columns = weight.shape
    table = nn.Embedding(rows, columns, device="meta")
    table.weight = weight
    put_module(graph, path, table.train(graph.model.training))
    for user in list(node.users):
        with graph.fx_graph.inserting_before(user):
            new = graph.fx_graph.call_module(path, (user.args[0],))
        user.replace_all_uses_with(new)
        graph.fx_graph.erase_node(user)
    graph.fx_graph.erase_node(node)


def lift_experts(graph: MaseGraph) -> list[str]:
    """Turn products with a parameter that has a matrix for each expert into `Experts`, at its path;
    the paths. The layer computes the same product on the same memory."""
    lifted = []
    for node, path, is_turned in expert_products(graph):
        given = graph.model.get_parameter(path)
        matrices = given.detach().mT if is_turned else given.detach()
        rows = matrices.reshape(-1, matrices.shape[-1])
        layer = Experts(nn.Parameter(rows, given.requires_grad), matrices.shape[0])
        call_experts(graph, node, path, layer.train(graph.model.training))
        lifted.append(path)
    if lifted:
        graph.recompile()
        refresh(graph)
    return lifted


def expert_products(graph: MaseGraph) -> Iterator[tuple[fx.Node, str, bool]]:
    """The products with the weights of all experts: node, path of the parameter, and whether it is
    (inputs, outputs) for each expert instead of (outputs, inputs)."""
    for node in list(graph.fx_graph.nodes):
        if node.target not in GROUPED_PRODUCTS or node.op != "call_function":
            continue
        given = dict(zip(("x", "weight", "offs"), node.args, strict=False)) | dict(node.kwargs)
        weight = given.get("weight", given.get("mat_b"))
        is_plain = given.get("bias") is None and given.get("out_dtype") is None
        if not is_plain or given.get("offs") is None or not isinstance(weight, fx.Node):
            continue
        is_turned = _is_transpose(weight)
        source = weight.args[0] if is_turned else weight
        alone = isinstance(source, fx.Node) and source.op == "get_attr" and len(source.users) == 1
        if alone and len(weight.users) == 1:
            yield node, str(source.target), not is_turned  # type: ignore[union-attr]


def _is_transpose(node: fx.Node) -> bool:
    is_method = node.op == "call_method" and node.target in ("transpose", "mT")
    return is_method and set(node.args[1:]) in ({-1, -2}, {1, 2})


def call_experts(graph: MaseGraph, node: fx.Node, path: str, module: nn.Module) -> None:
    """Let the layer `module` at `path` compute the product `node`."""
    ends = node.kwargs.get("offs", node.args[2] if len(node.args) > 2 else None)
    put_module(graph, path, module)
    with graph.fx_graph.inserting_before(node):
        new = graph.fx_graph.call_module(path, (node.args[0], ends))
    weight = node.args[1]
    node.replace_all_uses_with(new)
    graph.fx_graph.erase_node(node)
    while isinstance(weight, fx.Node) and not weight.users:
        below = weight.args[0] if weight.args else None
        graph.fx_graph.erase_node(weight)
        weight = below
