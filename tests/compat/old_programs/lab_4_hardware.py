"""Quantise from an old file, set metadata by hand, emit, simulate."""

import tomllib
from pathlib import Path

import torch
import torch.nn as nn

from chop.actions import simulate
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
    init_metadata_analysis_pass,
    report_node_type_analysis_pass,
)
from chop.passes.graph.transforms import (
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_verilog_top_transform_pass,
    quantize_transform_pass,
)
from chop.tools.logger import set_logging_verbosity

set_logging_verbosity("debug")
torch.manual_seed(0)
FILE = """
model = "toy"
dataset = "toy-tiny"
[passes.quantize]
by = "type"
report = true
[passes.quantize.default.config]
name = "fixed"
data_in_width = 8
data_in_frac_width = 3
weight_width = 8
weight_frac_width = 3
bias_width = 8
bias_frac_width = 3
data_out_width = 8
data_out_frac_width = 3
floor = true
"""


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)

    def forward(self, x):
        x = torch.flatten(x, start_dim=1, end_dim=-1)
        return torch.nn.functional.relu(self.fc1(x))


mg = MaseGraph(model=MLP())
dummy_in = {"x": torch.randn((1, 2, 2))}
mg, _ = init_metadata_analysis_pass(mg, None)
mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in, "add_value": False})
mg, _ = quantize_transform_pass(mg, tomllib.loads(FILE)["passes"]["quantize"])
_ = report_node_type_analysis_pass(mg)
changed = 0
for node in mg.fx_graph.nodes:
    for branch in ("args", "results"):
        for info in node.meta["mase"]["common"][branch].values():
            if isinstance(info, dict):
                info["type"] = "fixed"
                info["precision"] = [8, 3]
                changed += 1
assert changed
mg, _ = add_hardware_metadata_analysis_pass(mg)
mg, _ = emit_verilog_top_transform_pass(mg)
mg, _ = emit_internal_rtl_transform_pass(mg)
mg, _ = emit_bram_transform_pass(mg)
mg, _ = emit_cocotb_transform_pass(mg)
assert list(Path.cwd().rglob("top.sv"))
simulate(skip_build=False, skip_test=False)
