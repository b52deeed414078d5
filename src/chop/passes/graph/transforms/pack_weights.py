"""Store a model's weights as packed bytes, and report the memory before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import nn

from chop.ir.graph import MaseGraph
from chop.ir.ops import op_of_module
from chop.kernels.layers import PACKED_LAYERS
from chop.kernels.packed_formats import ROW_INTEGERS
from chop.log import get_logger
from chop.nn.modules.coded import CodedLinear
from chop.nn.modules.lora import LoRALinear
from chop.nn.modules.transposed import is_transposed_linear
from chop.passes.base import PassResult, graph_pass
from chop.passes.pack.weight_packer import KEPT, MAKERS, MemoryRecord, PackWeightsArgs, WeightPacker
from chop.passes.report_table import draw_table, show
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_layers import lift_experts, lift_products, lift_tables

logger = get_logger(__name__)

HEADERS = ("module", "class", "elements", "before", "after", "share", "packed", "reason")


def pack_module(module: nn.Module, args: PackWeightsArgs) -> tuple[nn.Module, dict[str, Any]]:
    """Pack the layers of a plain module, in place; return the packed layer for a single layer.

    Reads of a layer's weight in its forward function are not detected.
    """
    holder = nn.Module()
    holder.add_module("module", module)
    packer = WeightPacker(holder, args, set())
    packer.reason_for_rest = "not in a layer that can be packed"
    for path in list(_layer_paths(module, "module")):
        packer.visit(path)
    info = _report(packer, args)
    for record in info["modules"]:
        record["module"] = record["module"].removeprefix("module").removeprefix(".")
    return holder.get_submodule("module"), info


def _layer_paths(module: nn.Module, path: str) -> Iterator[str]:
    """Yield the paths of layers, without the modules inside them."""
    op = op_of_module(module)
    is_layer = op is not None and op.name in MAKERS
    is_layer = is_layer or isinstance(module, (LoRALinear, CodedLinear, *PACKED_LAYERS))
    if is_layer or is_transposed_linear(module) or not any(True for _ in module.children()):
        yield path
        return
    for name, child in module._modules.items():  # named_children() skips what is shared
        if child is not None:
            yield from _layer_paths(child, f"{path}.{name}")


@graph_pass(
    "pack_weights_transform_pass",
    PackWeightsArgs,
    rewrites=True,
    preserves=False,
    on_module=pack_module,
)
def pack_weights_transform_pass(graph: MaseGraph, args: PackWeightsArgs) -> PassResult:
    """Replace linear layers, experts and embeddings by layers on packed weights.

    Float layers are rounded to `format`. A layer quantised to an MX format that can be packed, or
    to integers with scales, keeps its format and its values bit for bit. Its scales, per group,
    output or tensor, may come from calibration, GPTQ or training. Layers that share a weight share
    its bytes; pruned weights are packed with their zeros; an adapter of a packed layer stays. A
    layer whose weight other nodes read is kept. The graph releases the model it was captured from
    (`graph.original`), which has the float weights.

    `info["modules"]` has one record per module: bytes before and after, and the reason if it was
    kept; `info["before"]`, `info["after"]` and `info["kept"]` are bytes of the whole model, and
    `info["not_packed"]` has the reasons for kept modules. Convolutions and recurrent layers have no
    packed layer and are kept. The pass also packs the layers of a plain module, in place.
    """
    lift_products(graph)
    if args.embeddings and args.format not in ROW_INTEGERS:
        lift_tables(graph, lambda path: not args.skips(path))
    if args.format not in ROW_INTEGERS:
        lift_experts(graph)
    packer = WeightPacker(graph.model, args, _read_modules(graph))
    calls = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    for target in dict.fromkeys(str(n.target) for n in calls):
        packer.visit(target)
    refresh(graph)
    info = _report(packer, args)
    if packer.packed_modules:
        graph.original = None
    return graph, info


def _report(packer: WeightPacker, args: PackWeightsArgs) -> dict[str, Any]:
    info = _summary(packer.records())
    if not packer.packed_modules:
        logger.warning("pack_weights: no layer was packed. Reasons: %s.", info["not_packed"])
    if args.show_table:
        show(memory_table(info))
    return info


def memory_table(info: dict[str, Any]) -> str:
    """Return the records of the pass as a table, in MiB, largest after packing first."""
    rows = [
        {
            **row,
            "class": row["kind"],
            "before": f"{row['before'] / 2**20:.3f}",
            "after": f"{row['after'] / 2**20:.3f}",
            "share": f"{row['share']:.1%}",
        }
        for row in sorted(info["modules"], key=lambda r: -r["after"])
    ]
    total = (
        f"{info['before'] / 2**20:.2f} MiB before, {info['after'] / 2**20:.2f} MiB after "
        f"({info['ratio']:.3f}); not packed: {info['kept'] / 2**20:.2f} MiB; all packed it would "
        f"be {info['ideal'] / 2**20:.2f} MiB."
    )
    return f"{draw_table(rows, HEADERS)}\n{total}"


def _summary(records: list[MemoryRecord]) -> dict[str, Any]:
    before, after = sum(r.before for r in records), sum(r.after for r in records)
    packed = [r for r in records if r.packed != KEPT]
    packed_before = sum(r.before for r in packed)
    rate = sum(r.after for r in packed) / packed_before if packed_before else 1.0
    shared = [dataclasses.replace(r, share=r.after / max(after, 1)) for r in records]
    return {
        "modules": [dataclasses.asdict(r) for r in shared],
        "before": before,
        "after": after,
        "kept": sum(r.after for r in records if r.packed == KEPT),
        "ratio": after / max(before, 1),
        "ideal": round(rate * before),
        "not_packed": _kept_reasons(records),
    }


def _kept_reasons(records: list[MemoryRecord]) -> str:
    """Return the reasons for kept modules with their bytes, the largest share first."""
    sizes: dict[str, int] = {}
    for record in (r for r in records if r.packed == KEPT):
        sizes[record.reason] = sizes.get(record.reason, 0) + record.after
    ordered = sorted(sizes.items(), key=lambda pair: -pair[1])
    return "; ".join(f"{reason} ({size:,} bytes)" for reason, size in ordered)


def _read_modules(graph: MaseGraph) -> set[int]:
    """Return the ids of modules with a parameter that nodes read directly, under any name."""
    paths = {str(n.target) for n in graph.fx_graph.nodes if n.op == "get_attr"}
    owners = {path.rpartition(".")[0] for path in paths} - {""}
    parameters = dict(graph.model.named_parameters(remove_duplicate=False))
    read = {id(parameters[path]) for path in paths if path in parameters}
    sharing = (
        m for m in graph.model.modules() if any(id(p) in read for p in m._parameters.values())
    )
    return {id(m) for m in (*map(graph.model.get_submodule, owners), *sharing)}
