"""Compute chosen layers and functions of a graph in chosen number formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata
from chop.ir.ops import Op, find_op, node_module
from chop.ir.trace.effects import is_in_place
from chop.kernels.layers import PACKED_LAYERS
from chop.log import get_logger
from chop.nn.modules.lora import LoRALinear, adapted_layer
from chop.nn.quantized.convert import float_class_of, to_format
from chop.nn.quantized.functional import parse_function_config, quantized_function
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers.formats import find_format
from chop.passes.base import PassResult, graph_pass, parse_args
from chop.passes.change_warnings import warn_little
from chop.passes.module.quantize_module import WHERE, quantize_module, warn_unchanged
from chop.passes.ptq.sites.rounded_layers import adopt_scales
from chop.passes.quantization_rules import (
    Candidate,
    FormatChoice,
    QuantizeArgs,
    choose,
    names_one_expert,
    require_rules,
)
from chop.passes.rewrite.lift_layers import lift_experts, lift_products
from chop.passes.rewrite.node_formats import (
    annotate_formats,
    check_scales,
    relink_formats,
    without_masks,
)
from chop.passes.rewrite.split_experts import is_expert, split_experts
from chop.passes.rewrite.surgery import set_module

logger = get_logger(__name__)

CALLS = ("call_function", "call_method")


Change = tuple[Callable[..., Any], dict[str, Any]] | QuantizedModule
"""A quantised layer, or a quantised function and its configuration."""


@graph_pass(
    "quantize_transform_pass",
    QuantizeArgs,
    rewrites=True,
    preserves=False,
    on_module=quantize_module,
)
def quantize_transform_pass(graph: MaseGraph, args: QuantizeArgs) -> PassResult:
    """Quantise everything that the rules match; `info["quantized"]` names each class or function.

        quantize_transform_pass(mg, {
            "by": "type",
            "default": {"config": {"name": None}},
            "linear": {"config": {"name": "integer", "data_in_width": 8, "weight_width": 8}},
        })

    Precedence: name, then regular expression, then type, then default. `by` is how the keys are
    read, in one way or a list of ways.

    Layers become quantised layers; functions and tensor methods become quantised functions. An
    in-place operation becomes one that is not, or stays unchanged if other nodes read its operand.
    A constant that masks a sum (elements of -2**100 or less) keeps its values, and so does the sum.
    A layer with an adapter is quantised inside it. The products that GPT-2 and its relatives write
    (`Conv1D`) first become linear layers, those of a mixture's experts one layer (`experts`), or a
    linear layer for each expert if a rule names one: `model.layers.0.mlp.experts.down_proj.3`. A
    config whose `name` is None leaves its matches unchanged. Quantised layers change their format.
    Existing metadata is updated: type and precision of operands, parameters and results. Scales
    from calibrate_analysis_pass are stored in layers whose config asks for stored ones. A wrong
    argument changes no value. The pass also quantises the layers of a plain module.
    """
    require_rules(args)
    lift_for_rules(graph, args)
    changes = _plan(graph, chosen_formats(graph, args))
    for node, change in changes.items():
        _apply(graph, node, change)
    for node in changes:
        annotate_formats(node)
        relink_formats(node)
    warn_unchanged(changes)
    layers = [adapted_layer(node_module(node)) for node in changes if node.op == "call_module"]
    warn_little(WHERE, "quantised", layers, graph.model)
    named = {n: type(c) if isinstance(c, QuantizedModule) else c[0] for n, c in changes.items()}
    return graph, {"quantized": {node.name: item.__name__ for node, item in named.items()}}


def lift_for_rules(graph: MaseGraph, args: QuantizeArgs) -> None:
    """Turn products with parameters into the layers that the rules name."""
    lift_products(graph)
    split_experts(graph, lambda path, experts: names_one_expert(args, path, experts))
    lift_experts(graph)


def check_quantization(graph: MaseGraph, pass_args: Mapping[str, Any]) -> None:
    """Raise if `quantize_transform_pass` would reject these arguments for this graph.

    Products become layers, as in the pass.
    """
    args = parse_args(QuantizeArgs, pass_args, WHERE)
    require_rules(args)
    lift_for_rules(graph, args)
    _plan(graph, chosen_formats(graph, args))


def chosen_formats(
    graph: MaseGraph, args: QuantizeArgs
) -> list[tuple[fx.Node, Op | None, FormatChoice | None]]:
    """Return every call of the graph with its op and the config that the rules give it."""
    nodes = [n for n in graph.fx_graph.nodes if n.op in (*CALLS, "call_module")]
    ops = [find_op(node, graph.custom_ops) for node in nodes]
    candidates = [_candidate(n, op) for n, op in zip(nodes, ops, strict=True)]
    try:
        return list(zip(nodes, ops, choose(args, candidates, WHERE), strict=True))
    except ConfigError as error:
        if any(isinstance(module, PACKED_LAYERS) for module in graph.model.modules()):
            raise ConfigError(f"{error} Its layers are packed: quantise before packing.") from error
        raise


def _candidate(node: fx.Node, op: Op | None) -> Candidate:
    if node.op == "call_module":
        module = node_module(node)
        name = type(module).__name__ if op is None else op.name
        can = float_class_of(adapted_layer(module)) is not None
        names: tuple[str, ...] = (node.name, str(node.target))
    else:
        name = str(node.target) if op is None else op.name
        can, names = _is_quantizable_call(node, op), (node.name,)
    if can and _is_write_read(node):
        can = False
        logger.warning(
            "node '%s' writes to a tensor in place that others read, so it is not quantised.",
            node.name,
        )
    return Candidate(names, name, can, "experts" if is_expert(node) else "")


def _is_write_read(node: fx.Node) -> bool:
    """Return True if an in-place operation writes to a value of other nodes or of the model.

    A quantised operation writes to the quantised copy, which no other node reads.
    """
    in_place = node.op == "call_module" and getattr(node_module(node), "inplace", False)
    source: Any = node.args[0] if node.args and (in_place or is_in_place(node)) else None
    while isinstance(source, fx.Node):
        if len(source.users) > 1 or source.op == "get_attr":
            return True
        op = find_op(source)
        source = source.args[0] if op is not None and op.is_view and source.args else None
    return False


def _is_quantizable_call(node: fx.Node, op: Op | None) -> bool:
    """Return True if a call on floats has a quantised function with the same argument order."""
    compute = None if op is None else op.compute
    if compute is None or compute.function is None or node.target in compute.unlike:
        return False
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or meta.common.args is None:
        return True
    types = [v.torch_dtype for v in meta.common.args.values() if v.torch_dtype is not None]
    return any(dtype.is_floating_point for dtype in types)


def _plan(
    graph: MaseGraph, choices: list[tuple[fx.Node, Op | None, FormatChoice | None]]
) -> dict[fx.Node, Change]:
    """Return the replacement of each node; the graph is not changed yet, in case of an error."""
    layers: dict[tuple[int, str], QuantizedModule] = {}
    places: dict[str, tuple[fx.Node, FormatChoice | None]] = {}
    changes: dict[fx.Node, Change] = {}
    for node, op, choice in choices:
        if node.op == "call_module":
            first, expected = places.setdefault(str(node.target), (node, choice))
            if expected != choice:
                where = next(c.where for c in (choice, expected) if c is not None)
                raise ConfigError(
                    f"{where}: nodes '{first.name}' and '{node.name}' call one module, "
                    f"'{node.target}', and get different configs. Name the module instead."
                )
        if choice is None:
            continue
        if node.op == "call_module":
            module = adapted_layer(node_module(node))
            key = (id(module), choice.where)  # a layer called twice stays one layer
            if key not in layers:
                layers[key] = to_format(module, choice.config, where=choice.where)
            changes[node] = layers[key]
            check_scales(node, layers[key].quantizers, choice.where)
        else:
            assert op is not None, f"node '{node.name}' was chosen without an op"
            config = without_masks(graph, node, op, choice.config)
            form = find_format(config["name"], f"{choice.where}.name")
            check_scales(node, parse_function_config(op, form, config, choice.where), choice.where)
            changes[node] = (quantized_function(op, form), config)
    return changes


def _apply(graph: MaseGraph, node: fx.Node, change: Change) -> None:
    if isinstance(change, QuantizedModule):
        has_adapter = isinstance(node_module(node), LoRALinear)
        set_module(graph, f"{node.target}.base_layer" if has_adapter else str(node.target), change)
        adopt_scales(node, change)
    else:
        node.op, node.target = "call_function", change[0]
        node.kwargs = {**node.kwargs, "config": change[1]}
