"""Products with constant weights by shifted additions: area, pace, exactness, accuracy.

    python bench/constant_weights.py [--quick]
    python bench/constant_weights.py --emit out/constant   # in three steps: the RTL of all designs,
    python bench/constant_weights.py --count out/constant  # its cells, on many cores,
    python bench/constant_weights.py --areas out/constant/areas.json  # the rest, without Yosys

1. Linear(16 -> 16) + ReLU, 8 bits, full-range random weights, a vector per cycle: cells on xc7,
   with a register behind every addition, every two and every three.
2. The digits MLP 64-32-10, an image per cycle: test images right in software and in RTL, cells on
   xc7, at weights of 8, 6 and 4 bits (left out with --quick); and mixed, with the second layer in a
   folded array of multipliers.
3. The digits CNN at weights of 4 bits, a pixel per cycle in every convolution; and mixed, with the
   linear layer in an array.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measuring.checked import once
from measuring.loading import load
from measuring.record import save_section
from torch import Tensor, nn

from chop import MaseGraph
from chop.actions import build_hardware
from chop.hw.arith.golden import Fixed
from chop.hw.design.design import Design
from chop.hw.design.stream import Stream
from chop.hw.flow.synth import Area, synthesize
from chop.hw.library.components import Relu, ShiftAdd, Weights
from chop.hw.lower.design_cache import attached_design
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.streams.builder import Builder
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
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


def quantize(model: nn.Module, example: Tensor, width: int, last: str) -> MaseGraph:
    """Weights of `width` bits, below 2; data of 8."""
    graph = MaseGraph(model, dummy_in=example)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    data = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5}
    weight = {"weight_width": width, "weight_frac_width": width - 2}
    layer = data | weight | {"bias_width": 8, "bias_frac_width": 6}
    present = {node.meta["mase"].common.mase_op for node in graph.fx_graph.nodes}
    rules = {"linear": layer, "conv2d": layer, "relu": data, "add": data}
    chosen = {op: {"config": config} for op, config in rules.items() if op in present}
    chosen |= {last: {"config": layer | digits.OUTPUT}, "default": {"config": {"name": None}}}
    return quantize_transform_pass(graph, {"by": ["name", "type"], **chosen})[0]


class Case(NamedTuple):
    """A design: a trained network, how wide its weights are and how it multiplies."""

    network: str
    width: int
    multiplier: dict[str, str]

    @property
    def name(self) -> str:
        """Of its section."""
        is_mixed = len(self.multiplier) > 1 or "*" not in self.multiplier
        return f"digits_{self.network}_{self.width}_bits{'_mixed' if is_mixed else ''}"

    @property
    def folding(self) -> dict[str, Any]:
        """The arguments of the hardware pass."""
        most = {"mlp": 64, "cnn": 8}[self.network]
        return {"max_parallelism": most, "multiplier": self.multiplier}


EVERY = {"*": "shift_add"}
CASES = [
    Case("mlp", 4, EVERY),
    Case("mlp", 6, EVERY),
    Case("mlp", 8, EVERY),
    Case("mlp", 6, {"fc1": "shift_add"}),
    Case("cnn", 4, EVERY),
    Case("cnn", 4, {"*": "shift_add", "head": "array"}),
]


def trained(network: str, data: Any) -> tuple[nn.Module, Tensor, str]:
    """A network, its test images, and its last layer."""
    torch.manual_seed(0)
    model = digits.train(digits.MODELS[network](), data)
    if network == "mlp":
        return FlatMlp(model).eval(), data.test_images.flatten(1), "fc2"
    return model, data.test_images, "head"


def emit_case(case: Case, folder: Path) -> None:
    """The RTL of a design."""
    model, images, last = trained(case.network, digits.load())
    graph = quantize(model, images[:2], case.width, last)
    add_hardware_metadata_analysis_pass(graph, case.folding)
    emit(attached_design(graph).design, folder / case.name)


def measure_case(case: Case, data: Any, areas: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Every test image through the RTL."""
    model, images, last = trained(case.network, data)
    graph = quantize(model, images[:2], case.width, last)
    known = areas.get(case.name)
    family = "xc7" if known is None else None
    run = once(
        case.name,
        lambda: build_hardware(
            graph, scratch, inputs=images, parallelism=case.folding, family=family
        ),
        lambda built: built.verdict.require_exact(),  # raises if a value differs
    )
    built = run.result
    (outputs,) = built.lowered.decode(built.verdict.outputs)
    with torch.no_grad():
        software = graph.model(images)
    right = [int((answer.argmax(1) == data.test_labels).sum()) for answer in (software, outputs)]
    timing = built.verdict.timing
    ends = timing.tensor_ends("data_out_0", len(timing.outputs["data_out_0"]) // len(images))
    return {
        "weight_bits": case.width,
        "multiplier": case.multiplier,
        "right_in_software": right[0],
        "right_in_rtl": right[1],
        "images": len(images),
        "verdict": str(built.verdict),
        "cycles_per_image": built.lowered.design.cycles(),
        "first_image_cycles": int(ends[0]) + 1,
        "xc7": known or cells(built.area),
        "seconds": round(run.seconds, 1),
    }


def count(folder: Path) -> None:
    """The cells of every design in `folder`, each in a process of its own."""
    names = sorted(path.name for path in folder.iterdir() if (path / "rtl").is_dir())
    with ThreadPoolExecutor() as pool:
        found = {pool.submit(synthesize, folder / name): name for name in names}
        areas = {}
        for done in as_completed(found):
            areas[found[done]] = cells(done.result())
            (folder / "areas.json").write_text(json.dumps(areas, indent=1))


def measure(is_quick: bool, areas: dict[str, Any]) -> None:
    """Measure, print and write down."""
    with tempfile.TemporaryDirectory() as scratch:
        for step in () if areas else (2,) if is_quick else (1, 2, 3):
            row = measure_linear(step, Path(scratch))
            print(row, flush=True)
            save_section("constant_weights", f"linear_16_16_every_{step}", row)
        data = digits.load()
        for case in () if is_quick else CASES:
            if areas and case.name not in areas:
                continue
            row = measure_case(case, data, areas, Path(scratch, case.name))
            print(row, flush=True)
            save_section("constant_weights", case.name, row)


def main() -> None:
    """All in turn, or one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    for name in ("--emit", "--count", "--areas"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    if args.emit:
        for case in CASES:
            emit_case(case, args.emit)
    elif args.count:
        count(args.count)
    else:
        measure(args.quick, json.loads(args.areas.read_text()) if args.areas else {})


if __name__ == "__main__":
    main()
