"""Products, tables and experts that a graph computes from parameters, turned into layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir.expert_layer import GROUPED_PRODUCTS, Experts
from chop.ir.graph import MaseGraph
from chop.nn.modules.transposed import as_linear
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import replace_by_module, set_module


def put_module(graph: MaseGraph, path: str, module: nn.Module) -> None:
    """Replace the parameter at `path`, which nothing else reads, by `module`."""
    parent, _, name = path.rpartition(".")
    owner = graph.model.get_submodule(parent)
    owner._parameters.pop(name, None)
    owner._modules[name] = module


def lift_tables(graph: MaseGraph, is_chosen: Callable[[str], bool]) -> None:
    """Turn `embedding(ids, parameter)` into an `nn.Embedding` on that parameter, at its path.

    Models whose embedding is more than a look-up (Gemma's scales its rows) are captured this way.
    """
    parameters = dict(graph.model.named_parameters(remove_duplicate=False))
    tables = [
        node
        for node in graph.fx_graph.nodes
        if node.op == "get_attr" and str(node.target) in parameters and is_chosen(str(node.target))
        if node.users and all(_looks_up(user, node) for user in node.users)
    ]
    for node in tables:
        _lift_table(graph, node, str(node.target))
    if tables:
        graph.recompile()
        refresh(graph)


def _looks_up(user: fx.Node, table: fx.Node) -> bool:
    """Return True if `user` is a plain look-up in `table`."""
    if user.target is not F.embedding or len(user.args) < 2 or user.args[1] is not table:
        return False
    names = ("padding_idx", "max_norm")
    settings = dict(zip(names, user.args[2:4], strict=False)) | dict(user.kwargs)
    return settings.get("max_norm") is None and not settings.get("sparse")


def _lift_table(graph: MaseGraph, node: fx.Node, path: str) -> None:
    weight = graph.model.get_parameter(path)
    rows, columns = weight.shape
    table = nn.Embedding(rows, columns, device="meta")
    table.weight = weight
    put_module(graph, path, table.train(graph.model.training))
    for user in list(node.users):
        replace_by_module(graph, user, path, (user.args[0],))
    graph.fx_graph.erase_node(node)


def lift_experts(graph: MaseGraph) -> list[str]:
    """Turn products with a parameter that has a matrix per expert into `Experts`, at its path.

    Return the paths. The layer computes the same product on the same memory.
    """
    lifted = []
    for node, path, is_turned in expert_products(graph):
        parameter = graph.model.get_parameter(path)
        matrices = parameter.detach().mT if is_turned else parameter.detach()
        rows = matrices.reshape(-1, matrices.shape[-1])
        layer = Experts(nn.Parameter(rows, parameter.requires_grad), matrices.shape[0])
        call_experts(graph, node, path, layer.train(graph.model.training))
        lifted.append(path)
    if lifted:
        graph.recompile()
        refresh(graph)
    return lifted


def expert_products(graph: MaseGraph) -> Iterator[tuple[fx.Node, str, bool]]:
    """Yield the products with the weights of all experts: node, and path of the parameter.

    The third item is True if it has the shape (inputs, outputs) per expert, not (outputs, inputs).
    """
    for node in list(graph.fx_graph.nodes):
        if node.target not in GROUPED_PRODUCTS or node.op != "call_function":
            continue
        names = ("x", "weight", "offs")
        arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        weight = arguments.get("weight", arguments.get("mat_b"))
        is_plain = arguments.get("bias") is None and arguments.get("out_dtype") is None
        if not is_plain or arguments.get("offs") is None or not isinstance(weight, fx.Node):
            continue
        is_method = weight.op == "call_method" and weight.target in ("transpose", "mT")
        is_turned = is_method and set(weight.args[1:]) in ({-1, -2}, {1, 2})
        source = weight.args[0] if is_turned else weight
        alone = isinstance(source, fx.Node) and source.op == "get_attr" and len(source.users) == 1
        if alone and len(weight.users) == 1:
            yield node, str(source.target), not is_turned  # type: ignore[union-attr]


def call_experts(graph: MaseGraph, node: fx.Node, path: str, module: nn.Module) -> None:
    """Replace the product `node` by the layer `module`, stored at `path`."""
    ends = node.kwargs.get("offs", node.args[2] if len(node.args) > 2 else None)
    put_module(graph, path, module)
    weight = node.args[1]
    replace_by_module(graph, node, path, (node.args[0], ends))
    while isinstance(weight, fx.Node) and not weight.users:
        below = weight.args[0] if weight.args else None
        graph.fx_graph.erase_node(weight)
        weight = below


def lift_products(graph: MaseGraph) -> list[str]:
    """Turn `addmm(bias, x, weight)` with parameters of one module into an `nn.Linear`.

    The layer replaces that module; return the paths. GPT-2 and its relatives write their linear
    layers this way (`Conv1D`). The layer computes the same product, bit for bit, on the same
    memory; its weight is a new parameter, the transpose. A shared weight stays unchanged.
    """
    owned = Counter(id(p) for _, p in graph.model.named_parameters(remove_duplicate=False))
    lifted = []
    for node in list(graph.fx_graph.nodes):
        owner = _owner(graph, node)
        if owner is not None and owned[id(graph.model.get_parameter(f"{owner}.weight"))] == 1:
            lifted.append(owner)
            set_module(graph, owner, as_linear(graph.model.get_submodule(owner)))
            bias, x, weight = node.args
            replace_by_module(graph, node, owner, (x,))
            for part in (bias, weight):
                graph.fx_graph.erase_node(part)
    if lifted:
        graph.recompile()
        refresh(graph)
    return lifted


def _owner(graph: MaseGraph, node: fx.Node) -> str | None:
    """Return the module whose `weight` and `bias` only this product reads; else None."""
    if node.target is not torch.addmm or len(node.args) != 3 or node.kwargs:
        return None
    bias, _, weight = node.args
    owners = set()
    for part, leaf in ((bias, "bias"), (weight, "weight")):
        if not isinstance(part, fx.Node) or part.op != "get_attr" or len(part.users) != 1:
            return None
        owner, _, name = str(part.target).rpartition(".")
        owners.add(owner)
        if name != leaf:
            return None
    if len(owners) != 1 or not owner:
        return None
    module = graph.model.get_submodule(owner)
    names = {name for name, _ in module.named_parameters()}
    return owner if names == {"weight", "bias"} and not list(module.buffers()) else None
