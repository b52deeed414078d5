"""Names that programs written for DeepWok/mase import, and what each is here.

One table: the packages answer the names of theirs from it, the page "Coming from DeepWok/mase" is
written from it, and a test imports every row. To add a name, add a row; where its module is not a
package of ours, add a module that imports the new thing under the old name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OldName:
    """`old` is imported from the module `place`; it is `new`, a dotted path, here."""

    place: str
    old: str
    new: str

    @property
    def path(self) -> str:
        """The dotted path that programs import."""
        return f"{self.place}.{self.old}"

    @property
    def thing(self) -> Any:
        """What the name stands for; imported now."""
        module, _, name = self.new.rpartition(".")
        return getattr(importlib.import_module(module), name)


_ANALYSIS = "chop.passes.graph.analysis"
_TRANSFORMS = "chop.passes.graph.transforms"
_INTERFACE = "chop.passes.graph.interface"
_GRAPH = "chop.ir.graph.MaseGraph"
_INPUTS = "chop.tools.get_input"

_PASSES = {
    "add_hardware_metadata_analysis_pass": f"{_ANALYSIS}.add_hardware_metadata_analysis_pass",
    "conv_bn_fusion_transform_pass": f"{_TRANSFORMS}.fuse_conv_bn_transform_pass",
    "emit_bram_transform_pass": f"{_TRANSFORMS}.emit_bram_transform_pass",
    "emit_cocotb_transform_pass": f"{_TRANSFORMS}.emit_cocotb_transform_pass",
    "emit_internal_rtl_transform_pass": f"{_TRANSFORMS}.emit_internal_rtl_transform_pass",
    "emit_verilog_top_transform_pass": f"{_TRANSFORMS}.emit_verilog_top_transform_pass",
    "verify_common_metadata_analysis_pass": f"{_ANALYSIS}.verify_metadata_analysis_pass",
}
"""Passes that `chop.passes` and `chop.passes.graph` have under these names too."""

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
"""Layers that `chop.nn.quantized` has too, as examples: it has every other one as well."""

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
"""Every old name that is imported from a module of ours."""


def lazy_names(place: str) -> Callable[[str], Any]:
    """A `__getattr__` for the package `place`: the old names it has, imported when asked for."""
    rows = {row.old: row for row in names_of(place)}

    def answer(name: str) -> Any:
        if name not in rows:
            raise AttributeError(f"module '{place}' has no attribute '{name}'")
        return rows[name].thing

    return answer


def names_of(place: str) -> Iterator[OldName]:
    """The rows of one module."""
    return (row for row in OLD_NAMES if row.place == place)
