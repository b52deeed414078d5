"""A layer of your own: a new op in software, its module in SystemVerilog, and the check.

python docs/tutorials/own_layer.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lesson import Setting, start

import chop.passes as passes
from chop import MaseGraph
from chop.actions import build_hardware
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import Unary
from chop.hw.lower import LOWERINGS, Value, lowers
from chop.hw.sim.component_check import check_components
from chop.hw.sim.emit import add_library
from chop.ir.ops import Op

WIDTH, FRACTION = 8, 4


class Shrink(torch.nn.Module):
    """x where |x| >= threshold, 0 elsewhere."""

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() >= self.threshold, x, 0.0)


OWN_OPS = {"modules": {Shrink: Op("shrink", "module", rtl="fixed_shrink", flops_per_output=2.0)}}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.shrink, self.head = torch.nn.Linear(16, 16), Shrink(), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.shrink(self.fc(x)))


@dataclass(frozen=True)
class HardShrink(Unary):
    threshold: int = 0
    """In steps of the format."""

    module = "fixed_shrink"

    def golden(self, *data):
        x = data[0].astype(np.int64)
        return np.where(np.abs(x) >= self.threshold, x, 0)

    def parameters(self):
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "THRESHOLD": self.threshold,
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }


def lower_shrink(low, node) -> Value:
    value = low.operand(node)
    source = low.stream(value)
    steps = low.setting(node, "threshold", 0.5) * 2**source.format.frac_width
    component = HardShrink(source, source.format, threshold=int(np.ceil(steps)))
    return Value(low.add(node, component, value), value.shape, value.order)


def register() -> None:
    """Once for each process: where the module is, and how a node becomes a component."""
    add_library(Path(__file__).parent / "rtl")
    if "fixed_shrink" not in LOWERINGS:
        lowers("fixed_shrink")(lower_shrink)


def capture(x: torch.Tensor) -> MaseGraph:
    mg = MaseGraph(Net().eval(), dummy_in={"x": x}, custom_ops=OWN_OPS)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return mg


def quantize(mg: MaseGraph) -> MaseGraph:
    """Fixed point for the layers by the pass, and for the op of our own by hand."""
    parts = ("data_in", "weight", "bias", "data_out")
    config = {"name": "integer"}
    for part in parts:
        config |= {f"{part}_width": WIDTH, f"{part}_frac_width": FRACTION}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": config}})
    node = next(n for n in mg.fx_graph.nodes if n.target == "shrink")
    common = node.meta["mase"]["common"]
    for value in (common["args"]["data_in_0"], common["results"]["data_out_0"]):
        value["type"], value["precision"] = "fixed", [WIDTH, FRACTION]
    return mg


def main(setting: Setting) -> None:
    """Capture, check the component alone, then the whole network."""
    register()
    x = torch.randn(64, 16)
    mg = capture(x)
    node = next(n for n in mg.fx_graph.nodes if n.target == "shrink")
    common = node.meta["mase"]["common"]
    shape = common["results"]["data_out_0"]["shape"]
    setting.show("op", f"{node.name}: {common['mase_type']}, {common['mase_op']}, {shape}")

    byte = Fixed(WIDTH, FRACTION)
    alone = HardShrink(Stream((64,), 4, byte), byte, threshold=8)
    verdicts = check_components([alone], setting.out / "alone")
    setting.show("alone", "\n".join(str(verdict) for verdict in verdicts))

    mg = quantize(mg)
    built = build_hardware(mg, setting.out / "project", inputs=x, family=None)
    (hardware,) = built.lowered.decode(built.verdict.outputs)
    with torch.no_grad():
        same = torch.equal(hardware, mg.model(x))
    setting.show("network", f"{built.verdict}\nequal to torch on every bit: {same}")


if __name__ == "__main__":
    start(main, "own_layer", __doc__)
