"""Products with constant weights by shifted additions: area, pace, exactness, accuracy.

    python bench/constant_weights.py [--quick]

1. Linear(16 -> 16) + ReLU, 8 bits, full-range random weights, a vector per cycle: cells on xc7,
   with a register behind every addition, every two and every three.
2. The digits MLP 64-32-10, an image per cycle: test images right in software and in RTL, cells on
   xc7, at weights of 8, 6 and 4 bits (left out with --quick); and mixed, with the second layer in a
   folded array of multipliers.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loading import load
from record import save_section
from torch import Tensor, nn

from chop import MaseGraph
from chop.actions import build_hardware
from chop.hw.components import Relu, ShiftAdd, Weights
from chop.hw.design import Builder, Design
from chop.hw.emit import emit
from chop.hw.golden import Fixed
from chop.hw.simulate import Simulator, random_inputs
from chop.hw.stream import Stream
from chop.hw.synth import Area, synthesize
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

digits = load("examples/digits_hardware.py")
BYTE = Fixed(8, 4)


def linear_relu(adders_per_stage: int) -> Design:
    """Linear(16 -> 16) with full-range random weights and bias, and a rectifier."""
    rng = np.random.default_rng(0)
    weight, bias = rng.integers(-128, 128, (16, 16)), rng.integers(-128, 128, 16)
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((16,), 16, BYTE))
    weights = Weights(weight, BYTE, bias, BYTE)
    y = builder.add("fc1", ShiftAdd(builder.stream(x), weights, BYTE, adders_per_stage), x)
    builder.output("data_out_0", builder.add("relu", Relu(builder.stream(y), BYTE), y))
    return builder.build()


def cells(area: Area) -> dict[str, int]:
    """The counts of an area."""
    return {name: getattr(area, name) for name in ("lut", "ff", "dsp", "lutram", "bram")}


def measure_linear(adders_per_stage: int, scratch: Path) -> dict[str, Any]:
    """Exactness, pace and cells of the linear layer."""
    design = linear_relu(adders_per_stage)
    directory = emit(design, scratch / f"linear{adders_per_stage}")
    verdict = Simulator(design, directory).run(random_inputs(design, 2000)).require_exact()
    ends = verdict.timing.tensor_ends("data_out_0", 1)
    layer = design.stage("fc1").component
    return {
        "adders_per_stage": adders_per_stage,
        "adders": len(layer.network.nodes),
        "levels": max(layer.network.levels),
        "values_exact": verdict.compared - verdict.mismatches,
        "values_compared": verdict.compared,
        "cycles_per_vector": (ends[-1] - ends[1]) / (len(ends) - 2),
        "first_vector_cycles": int(ends[0]) + 1,
        "xc7": cells(synthesize(directory)),
    }


class FlatMlp(nn.Module):
    """The digits MLP on vectors: a whole image is one beat."""

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2 = copy.deepcopy(trained.fc1), copy.deepcopy(trained.fc2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def quantize(model: nn.Module, example: Tensor, width: int) -> MaseGraph:
    """Weights of `width` bits, below 2; data of 8."""
    graph = MaseGraph(model, dummy_in=example)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    data = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5}
    weight = {"weight_width": width, "weight_frac_width": width - 2}
    layer = data | weight | {"bias_width": 8, "bias_frac_width": 6}
    rules = {
        "linear": {"config": layer},
        "relu": {"config": data},
        "fc2": {"config": layer | digits.OUTPUT},
        "default": {"config": {"name": None}},
    }
    return quantize_transform_pass(graph, {"by": ["name", "type"], **rules})[0]


def measure_mlp(
    model: nn.Module, data: Any, width: int, multiplier: dict[str, str], scratch: Path
) -> dict[str, Any]:
    """Every test image through the RTL."""
    images = data.test_images.flatten(1)
    graph = quantize(FlatMlp(model).eval(), images[:2], width)
    folding = {"max_parallelism": 64, "multiplier": multiplier}
    start = time.perf_counter()
    built = build_hardware(graph, scratch, inputs=images, parallelism=folding)
    (outputs,) = built.lowered.decode(built.verdict.outputs)
    with torch.no_grad():
        software = graph.model(images)
    right = [int((answer.argmax(1) == data.test_labels).sum()) for answer in (software, outputs)]
    return {
        "weight_bits": width,
        "multiplier": multiplier,
        "right_in_software": right[0],
        "right_in_rtl": right[1],
        "images": len(images),
        "verdict": str(built.verdict),
        "cycles_per_image": built.lowered.design.cycles(),
        "xc7": cells(built.area),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as scratch:
        for step in (2,) if quick else (1, 2, 3):
            row = measure_linear(step, Path(scratch))
            print(row, flush=True)
            save_section("constant_weights", f"linear_16_16_every_{step}", row)
        if quick:
            return
        torch.manual_seed(0)
        data = digits.load()
        model = digits.train(digits.DigitsMlp(), data)
        every, first = {"*": "shift_add"}, {"fc1": "shift_add"}
        for width, how in ((4, every), (6, every), (8, every), (6, first)):
            name = f"digits_mlp_{width}_bits{'' if how is every else '_mixed'}"
            row = measure_mlp(model, data, width, how, Path(scratch, name))
            print(row, flush=True)
            save_section("constant_weights", name, row)


if __name__ == "__main__":
    main()
