"""Low-rank adapters: insert them beside linear layers, and fuse them into the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from chop.errors import ConfigError, PassError
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.kernels import QLinearInt8, QLinearPacked
from chop.log import get_logger
from chop.nn.modules.lora import LoRALinear, is_packed, stored_weight
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.change_warnings import warn_little
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_layers import lift_products
from chop.passes.rewrite.module_patterns import select
from chop.passes.rewrite.surgery import replace_modules, set_module

logger = get_logger(__name__)

LINEAR_LAYERS = (nn.Linear, QLinearPacked, QLinearInt8)
"""Layers that can have an adapter."""


@dataclass(frozen=True)
class InsertLoraArgs:
    """Adapters and their places."""

    rank: Annotated[int, "Columns of A and rows of B."] = 8
    alpha: Annotated[float, "Scale: the output of an adapter is multiplied by alpha / rank."] = 8.0
    dropout: Annotated[float, "Dropout of the adapter's input during training."] = 0.0
    target_modules: Annotated[
        tuple[str, ...] | None,
        "Patterns of module paths: a path, its last names, or a regular expression. Default: every "
        "linear layer.",
    ] = None
    modules_to_save: Annotated[
        tuple[str, ...], "Patterns of modules that train as a whole, such as a classifier."
    ] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"rank must be at least 1, got {self.rank}.")
        if self.alpha <= 0:
            raise ConfigError(f"alpha must be above 0, got {self.alpha}.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}.")


@graph_pass("insert_lora_adapter_transform_pass", InsertLoraArgs, rewrites=True)
def insert_lora_adapter_transform_pass(graph: MaseGraph, args: InsertLoraArgs) -> PassResult:
    """Insert an adapter into each chosen linear layer; afterwards only adapters train.

        insert_lora_adapter_transform_pass(mg, {"rank": 6, "alpha": 1.0, "dropout": 0.5})

    The output does not change, because B starts at zero. Every other parameter is frozen, except
    those of `modules_to_save`; fusing restores the previous state. Layers with an adapter keep it.
    Packed layers can have adapters too. Products that some models write instead of linear layers
    become linear layers first. `info` has the paths (`adapters`) and the numbers of `trainable`
    and all (`total`) parameters with their `share`.
    """
    lift_products(graph)
    saved = []
    if args.modules_to_save:
        modules = [path for path, _ in graph.model.named_modules() if path]
        saved = select(args.modules_to_save, modules, "insert_lora_adapter.modules_to_save")
    chosen = select(args.target_modules, linear_paths(graph), "insert_lora_adapter.target_modules")
    chosen = [p for p in chosen if not any(_is_within(p, s) for s in saved)]
    if not chosen:
        raise PassError("insert_lora_adapter: the graph has no linear layer to adapt.")
    layers = [graph.model.get_submodule(path) for path in chosen]
    warn_little("insert_lora_adapter", "given an adapter", layers, graph.model)
    before = trained_names(graph)
    adapters = insert_adapters(graph, chosen, args)
    train_only_adapters(graph, saved)
    if not adapters:
        logger.warning("insert_lora_adapter: every chosen layer has an adapter already.")
    elif before is not None:
        adapters[0].trained_before = before
    refresh(graph)
    counts = count_trainable(graph.model)
    logger.info("insert_lora_adapter: %.2f %% of parameters train.", 100 * counts["share"])
    return graph, {"adapters": chosen, **counts}


def linear_paths(graph: MaseGraph) -> list[str]:
    """Return the paths of the linear layers that nodes call, adapted or not."""
    calls = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    linear = [str(n.target) for n in calls if isinstance(node_module(n), LINEAR_LAYERS)]
    return list(dict.fromkeys(linear))


def adapted_layers(graph: MaseGraph) -> dict[str, LoRALinear]:
    """Return the layers with adapters, by path."""
    layers = {path: graph.model.get_submodule(path) for path in linear_paths(graph)}
    return {path: layer for path, layer in layers.items() if isinstance(layer, LoRALinear)}


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def trained_names(graph: MaseGraph) -> list[str] | None:
    """Return the names of the parameters that train; None if adapters froze the others already."""
    if adapted_layers(graph):
        return None
    return [name for name, p in graph.model.named_parameters() if p.requires_grad]


def insert_adapters(
    graph: MaseGraph, paths: Sequence[str], args: InsertLoraArgs
) -> list[LoRALinear]:
    """Insert adapters at `paths`, one per layer; return the new ones."""
    layers = {path: graph.model.get_submodule(path) for path in paths}
    plain = {path: layer for path, layer in layers.items() if not isinstance(layer, LoRALinear)}

    def make(path: str, layer: nn.Module) -> LoRALinear:
        assert isinstance(layer, LINEAR_LAYERS), f"'{path}' is a {type(layer).__name__}"
        return LoRALinear(layer, args.rank, args.alpha, args.dropout)

    return replace_modules(graph, plain, make)


def train_only_adapters(graph: MaseGraph, saved: Sequence[str]) -> None:
    """Freeze every parameter but those of adapters and of the modules at the paths `saved`."""
    layers = adapted_layers(graph).values()
    parts = (part for layer in layers for part in (layer.lora_A, layer.lora_B))
    adapters = {id(p) for part in parts for p in part.parameters()}
    for name, parameter in graph.model.named_parameters():
        is_saved = any(_is_within(name, path) for path in saved)
        if id(parameter) not in adapters and not is_saved:
            parameter.requires_grad_(False)


def count_trainable(model: nn.Module) -> dict[str, Any]:
    """Return the number of trainable parameters, of all, and their ratio."""
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    trainable = sum(p.numel() for p in parameters if p.requires_grad)
    return {"trainable": trainable, "total": total, "share": trainable / max(total, 1)}


@graph_pass("fuse_lora_weights_transform_pass", rewrites=True)
def fuse_lora_weights_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Add each adapter to its weight and remove it; the output stays equal up to rounding.

    The graph has its original layers again, and the parameters that trained before the insertion
    train again. A quantised or packed layer rounds the sum, so its output moves by its format's
    error. A shared weight, such as an embedding's, is not changed: the fused layer gets a copy. A
    graph without adapters stays unchanged. `info["fused"]` has the paths, `untied` those whose
    weight was shared.
    """
    layers = adapted_layers(graph)
    trained = {name for layer in layers.values() for name in layer.trained_before}
    tables = [table for m in graph.model.modules() for table in (m._parameters, m._buffers)]
    owners = Counter(id(t) for table in tables for t in table.values() if t is not None)
    shared = {key for key, count in owners.items() if count > 1}
    fused: dict[int, Any] = {}
    untied = []
    for path, layer in layers.items():
        weight = _stored(layer.base_layer)
        if id(layer) not in fused:
            fused[id(layer)] = layer.fuse(in_place=id(weight) not in shared)
        if id(weight) in shared and _stored(fused[id(layer)]) is not weight:
            untied.append(path)
        set_module(graph, path, fused[id(layer)])
    for name, parameter in graph.model.named_parameters():
        if name in trained:
            parameter.requires_grad_(True)
    for layer in (layers[path] for path in untied):
        if not is_packed(layer.base_layer):  # an untied weight trains if its original does
            trains = stored_weight(layer.base_layer).requires_grad
            stored_weight(fused[id(layer)]).requires_grad_(trains)
    if layers:
        refresh(graph)
    else:
        logger.warning("fuse_lora_weights: the graph has no adapters.")
    return graph, {"fused": list(layers), "untied": untied}


def _stored(layer: Any) -> Tensor:
    """Return the tensor that layers with one weight have in common."""
    return layer.codes if is_packed(layer) else stored_weight(layer)
