"""How the conformance test runs each registered pass: add a row for a new pass.

A case names the zoo's models to run on, makes the arguments for a graph, and says whether running
the pass twice is the same as once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from passes.graphs import BERT, CNN, MLP
from scratch import new_folder
from torch import nn

from chop import MaseGraph
from chop.passes import PASSES

Arguments = Callable[[MaseGraph], dict[str, Any]]


@dataclass(frozen=True)
class PassCase:
    """One way to run a pass that should work."""

    arguments: Arguments = lambda graph: {}
    models: tuple[str, ...] = (CNN, BERT)
    is_idempotent: bool = True


def _statistics(graph: MaseGraph) -> dict[str, Any]:
    everything = {"device": "cpu", "dims": "all"}
    return {
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["linear"],
        "weight_statistics": {"range_min_max": everything},
        "activation_statistics": {"variance_online": everything},
        "input_generator": [graph.dummy_in],
    }


def _adapter(graph: MaseGraph) -> dict[str, Any]:
    """A folder with an adapter for `graph`."""
    folder = new_folder()
    adapted, _ = PASSES["insert_lora_adapter_transform_pass"](copy.deepcopy(graph), {"rank": 2})
    PASSES["save_lora_adapter_interface_pass"](adapted, {"path": folder})
    return {"path": folder}


def _saved_adapter(graph: MaseGraph) -> dict[str, Any]:
    """A folder for the adapter that `graph` gets."""
    PASSES["insert_lora_adapter_transform_pass"](graph, {"rank": 2})
    return {"path": new_folder()}


def _saved_metadata(graph: MaseGraph) -> dict[str, Any]:
    """A file with the metadata of `graph`."""
    file = new_folder() / "nodes.toml"
    PASSES["save_node_meta_param_interface_pass"](graph, {"save_path": file})
    return {"load_path": file}


def _quantize(graph: MaseGraph) -> dict[str, Any]:
    return {"by": "type", "default": {"config": {"name": "mxint"}}}


FINE = {f"{of}_{what}": bits for of in ("data_in", "weight", "bias")
        for what, bits in (("width", 32), ("frac_width", 24))}  # fmt: skip


def _explained(graph: MaseGraph) -> dict[str, Any]:
    """Data for a graph whose layers are quantised by now, so finely that its output stays."""
    config = {"name": "integer", **FINE}
    PASSES["quantize_transform_pass"](graph, {"linear": {"config": config}})
    return {"data": [graph.dummy_in], "times": False}


def _rounded(graph: MaseGraph) -> dict[str, Any]:
    """Data for a graph whose layers are quantised by now."""
    PASSES["quantize_transform_pass"](graph, {"linear": {"config": {"name": "mxint"}}})
    return {"data": [graph.dummy_in]}


SCALED = {"name": "scale_integer", "weight_granularity": "channel"}


def _with_scales(graph: MaseGraph) -> dict[str, Any]:
    """No arguments, for a graph whose layers have scales by now."""
    config = {"name": "scale_integer", "data_in_scale": 0.05, "weight_scale": 0.01}
    PASSES["quantize_transform_pass"](graph, {"linear": {"config": config}})
    return {}


FORMATS = {f"w{w}": {"name": "mxint", "weight_width": w} for w in (4, 8)}


def _allocated(graph: MaseGraph) -> dict[str, Any]:
    """A table of losses, made up: what it says does not matter here."""
    linear = [n for n in graph.nodes if n.name.startswith(("fc", "classifier"))][:2]
    table = [
        {"node": n.name, "format": f, "loss": 1.0 / w, "elements": 10, "bits": float(w)}
        for n in linear
        for f, w in (("w4", 4), ("w8", 8))
    ]
    return {"table": table, "formats": FORMATS, "budget": 6.0}


def _fixed(graph: MaseGraph) -> dict[str, Any]:
    """Every tensor of an annotated graph becomes fixed point of 8 bits."""
    for node in graph.nodes:
        common = node.meta["mase"].common if "mase" in node.meta else None
        for value in (*common.args.values(), *common.results.values()) if common else ():
            if value.is_tensor:
                value.type, value.precision = "fixed", [8, 4]
    return {}


def _emitted(graph: MaseGraph) -> dict[str, Any]:
    """A project directory, for a graph that knows its hardware."""
    _fixed(graph)
    if all("mase" in node.meta for node in graph.nodes):
        PASSES["add_hardware_metadata_analysis_pass"](graph)
    return {"project_dir": new_folder()}


EMIT = PassCase(_emitted, models=(MLP,))

CASES: dict[str, PassCase] = {
    "add_hardware_metadata_analysis_pass": PassCase(_fixed, models=(MLP, CNN)),
    "emit_bram_transform_pass": EMIT,
    "emit_cocotb_transform_pass": EMIT,
    "emit_internal_rtl_transform_pass": EMIT,
    "emit_verilog_top_transform_pass": EMIT,
    "add_common_metadata_analysis_pass": PassCase(lambda graph: {"dummy_in": graph.dummy_in}),
    "add_software_metadata_analysis_pass": PassCase(),
    "allocate_bits_analysis_pass": PassCase(_allocated, models=(MLP,)),
    "autosharding_analysis_pass": PassCase(lambda graph: {"mesh_shape": [1, 2]}),
    "calculate_sparsity_analysis_pass": PassCase(),
    "calculate_avg_bits_mg_analysis_pass": PassCase(),
    "compile_transform_pass": PassCase(lambda graph: {"backend": "eager", "report_breaks": False}),
    "eliminate_common_subexpressions_transform_pass": PassCase(),
    "eliminate_dead_code_transform_pass": PassCase(),
    "extract_subgraph_transform_pass": PassCase(
        lambda graph: {"inputs": ["relu"], "outputs": ["fc2"]}, models=(MLP,), is_idempotent=False
    ),
    "fix_sizes_transform_pass": PassCase(),
    "fold_constants_transform_pass": PassCase(),
    "decompose_attention_transform_pass": PassCase(),
    "decompose_recurrent_transform_pass": PassCase(),
    "fuse_attention_transform_pass": PassCase(),
    "fuse_conv_bn_transform_pass": PassCase(),
    "fuse_lora_weights_transform_pass": PassCase(),
    "learned_rounding_transform_pass": PassCase(
        lambda graph: {**_rounded(graph), "steps": 2}, models=(MLP, BERT), is_idempotent=False
    ),
    "clip_transform_pass": PassCase(_rounded, models=(MLP,), is_idempotent=False),
    "correct_bias_transform_pass": PassCase(_rounded, models=(MLP,), is_idempotent=False),
    "equalize_transform_pass": PassCase(models=(MLP, CNN, BERT), is_idempotent=False),
    "rotate_transform_pass": PassCase(models=(BERT,), is_idempotent=False),
    "gptq_transform_pass": PassCase(_rounded, models=(MLP,), is_idempotent=False),
    "calibrate_analysis_pass": PassCase(
        lambda graph: {"data": [graph.dummy_in], "linear": {"config": SCALED}},
        models=(MLP, BERT),
    ),
    "explain_analysis_pass": PassCase(_explained, models=(MLP,)),
    "init_metadata_analysis_pass": PassCase(),
    "insert_lora_adapter_transform_pass": PassCase(lambda graph: {"rank": 2}),
    "learn_scales_transform_pass": PassCase(_with_scales, models=(MLP,), is_idempotent=False),
    "load_lora_adapter_interface_pass": PassCase(_adapter, models=(BERT,)),
    "fuse_patterns_transform_pass": PassCase(),
    "pack_semi_structured_transform_pass": PassCase(models=(MLP,)),
    "pack_weights_transform_pass": PassCase(),
    "profile_statistics_analysis_pass": PassCase(_statistics),
    "prune_detach_hook_transform_pass": PassCase(),
    "prune_transform_pass": PassCase(
        lambda graph: {"weight": {"sparsity": 0.5, "granularity": "row"}}, is_idempotent=False
    ),
    "quantize_transform_pass": PassCase(_quantize),
    "remove_dropout_transform_pass": PassCase(),
    "replace_module_transform_pass": PassCase(
        lambda graph: {"by": "type", "target": nn.Linear, "factory": lambda module: module}
    ),
    "report_graph_analysis_pass": PassCase(),
    "report_node_hardware_type_analysis_pass": PassCase(),
    "report_node_meta_param_analysis_pass": PassCase(lambda graph: {"which": ("software",)}),
    "report_node_shape_analysis_pass": PassCase(),
    "report_node_type_analysis_pass": PassCase(),
    "save_lora_adapter_interface_pass": PassCase(_saved_adapter),
    "runtime_analysis_pass": PassCase(lambda graph: {"num_batches": 1, "num_warmup_batches": 0}),
    "save_node_meta_param_interface_pass": PassCase(
        lambda graph: {"save_path": new_folder() / "nodes.toml"}
    ),
    "load_node_meta_param_interface_pass": PassCase(_saved_metadata),
    "sensitivity_analysis_pass": PassCase(
        lambda graph: {"data": [graph.dummy_in], "formats": FORMATS}, models=(MLP, BERT)
    ),
    "smooth_transform_pass": PassCase(
        lambda graph: {"data": [graph.dummy_in], "alpha": 0.5},
        models=(MLP, BERT),
        is_idempotent=False,
    ),
    "summarize_graph_analysis_pass": PassCase(),
    "summarize_quantization_analysis_pass": PassCase(),
    "verify_metadata_analysis_pass": PassCase(),
}
