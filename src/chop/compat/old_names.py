"""Names that earlier programs import, and the objects they stand for.

`OLD_NAMES` holds the names of programs written for DeepWok/mase, which the page "Coming from
DeepWok/mase" lists. `RENAMED` holds earlier names of our own. A test imports every row. To add a
name, add a row, and `lazy_names` to its package. If its module does not exist, also add the module
to `chop.compat.old_modules`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OldName:
    """Name `old` in the module `place`, which stands for the object at the dotted path `new`."""

    place: str
    old: str
    new: str

    @property
    def path(self) -> str:
        """Dotted path that programs import."""
        return f"{self.place}.{self.old}"


_ANALYSIS = "chop.passes.graph.analysis"
_TRANSFORMS = "chop.passes.graph.transforms"
_INTERFACE = "chop.passes.graph.interface"
_GRAPH = "chop.ir.graph.MaseGraph"
_INPUTS = "chop.compat.get_input"

_PASSES = {
    "add_hardware_metadata_analysis_pass": f"{_ANALYSIS}.add_hardware_metadata_analysis_pass",
    "conv_bn_fusion_transform_pass": f"{_TRANSFORMS}.fuse_conv_bn_transform_pass",
    "emit_bram_transform_pass": f"{_TRANSFORMS}.emit_bram_transform_pass",
    "emit_cocotb_transform_pass": f"{_TRANSFORMS}.emit_cocotb_transform_pass",
    "emit_internal_rtl_transform_pass": f"{_TRANSFORMS}.emit_internal_rtl_transform_pass",
    "emit_verilog_top_transform_pass": f"{_TRANSFORMS}.emit_verilog_top_transform_pass",
    "verify_common_metadata_analysis_pass": f"{_ANALYSIS}.verify_metadata_analysis_pass",
}
"""Old name of a pass in `chop.passes` and `chop.passes.graph` -> the pass."""

_LAYERS = {
    "Conv1dInteger": "conv1d",
    "Conv2dInteger": "conv2d",
    "LinearBinary": "linear",
    "LinearBlockFP": "linear",
    "LinearInteger": "linear",
    "LinearLog": "linear",
    "LinearMinifloatDenorm": "linear",
    "LinearMinifloatIEEE": "linear",
    "LinearMXFP": "linear",
    "LinearMXInt": "linear",
    "LinearTernary": "linear",
    "ReLUInteger": "relu",
}
"""Examples of the layers in `chop.nn.quantized` -> their files. Every other layer is there too."""

OLD_NAMES: tuple[OldName, ...] = (
    OldName("chop.ir", "MaseGraph", _GRAPH),
    OldName("chop.ir.graph.mase_graph", "MaseGraph", _GRAPH),
    *(
        OldName(place, old, new)
        for place in ("chop.passes", "chop.passes.graph")
        for old, new in _PASSES.items()
    ),
    OldName(_TRANSFORMS, "conv_bn_fusion_transform_pass", _PASSES["conv_bn_fusion_transform_pass"]),
    OldName(
        _TRANSFORMS,
        "summarize_quantization_analysis_pass",
        f"{_ANALYSIS}.summarize_quantization_analysis_pass",
    ),
    OldName(
        _ANALYSIS,
        "verify_common_metadata_analysis_pass",
        _PASSES["verify_common_metadata_analysis_pass"],
    ),
    *(
        OldName("chop.nn.quantized", layer, f"chop.nn.quantized.modules.{file}.{layer}")
        for layer, file in _LAYERS.items()
    ),
    OldName("chop.tools.logger", "get_logger", "chop.log.get_logger"),
    OldName("chop.tools.logger", "set_logging_verbosity", "chop.log.set_logging_verbosity"),
    OldName("chop.tools", "get_logger", "chop.log.get_logger"),
    OldName("chop.tools", "set_logging_verbosity", "chop.log.set_logging_verbosity"),
    OldName("chop.tools", "get_tokenized_dataset", "chop.dataset.get_tokenized_dataset"),
    OldName("chop.tools", "get_trainer", "chop.actions.train.get_trainer"),
    OldName("chop.tools", "get_cf_args", f"{_INPUTS}.get_cf_args"),
    OldName("chop.tools", "get_dummy_input", f"{_INPUTS}.get_dummy_input"),
    OldName("chop.tools", "InputGenerator", f"{_INPUTS}.InputGenerator"),
    OldName("chop.dataset", "MaseDataModule", "chop.dataset.data_module.MaseDataModule"),
    OldName("chop.dataset", "get_dataset_info", "chop.dataset.data_module.get_dataset_info"),
    OldName("chop.models", "get_model_info", "chop.models.model_info.get_model_info"),
    OldName("chop.models", "get_tokenizer", "chop.dataset.tokenized.load_tokenizer"),
)
"""Names of DeepWok/mase."""

RENAMED: tuple[OldName, ...] = (
    OldName("chop.hw.design.component", "Cost", "chop.hw.design.component.ComponentCost"),
    *(
        OldName("chop.hw.design", name, f"chop.hw.design.design.{name}")
        for name in ("Design", "Interface", "Loop", "Stage", "whole_flights")
    ),
    OldName("chop.hw.design", "Builder", "chop.hw.streams.builder.Builder"),
    OldName("chop.hw.design", "with_forks", "chop.hw.streams.builder.with_forks"),
    *(
        OldName(place, "Choice", "chop.hw.flow.explore.best.DesignChoice")
        for place in ("chop.hw.flow.explore", "chop.hw.flow.explore.best")
    ),
    OldName(
        "chop.hw.library.components",
        "Binary",
        "chop.hw.library.fixed_arithmetic.ElementwiseBinary",
    ),
    OldName("chop.hw.proofs", "Verdict", "chop.hw.proofs.prover.ProofVerdict"),
)
"""Earlier names of our own."""


def lazy_names(place: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for the package `place` that imports its old names lazily."""
    paths = {row.old: row.new for row in (*OLD_NAMES, *RENAMED) if row.place == place}

    def answer(name: str) -> Any:
        if name not in paths:
            raise AttributeError(f"module '{place}' has no attribute '{name}'")
        module, _, attribute = paths[name].rpartition(".")
        return getattr(importlib.import_module(module), attribute)

    return answer
