"""Hardware: from a trained network to SystemVerilog whose every output bit is checked.

python docs/tutorials/hardware.py
"""

from __future__ import annotations

import shutil

import torch
from lesson import QUIET, Setting, quiet, start, table

import chop.passes as passes
from chop import MaseGraph
from chop.actions import build_hardware
from chop.dataset import get_dataset
from chop.models import get_model
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.report import Axes, Curve, draw_curves
from chop.tools import get_trainer


def train() -> tuple[torch.nn.Module, dict]:
    """A perceptron 64-32-10 on scikit-learn's digits."""
    data = get_dataset("digits")
    model = get_model("mlp", hidden=(32,))
    settings = {"learning_rate": 1e-2, "per_device_train_batch_size": 64, **QUIET}
    quiet(get_trainer(model, data, num_train_epochs=6, **settings)).train()
    return model.eval(), data


def quantize(model: torch.nn.Module, images: torch.Tensor) -> MaseGraph:
    mg = MaseGraph(model, dummy_in={"x": images[:2]})
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    data_in = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    weight = {"weight_width": 8, "weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6}
    result = {"data_out_width": 16, "data_out_frac_width": 8}
    mg, _ = passes.quantize_transform_pass(
        mg,
        {
            "by": ["name", "type"],
            "linear": {"config": data_in | weight},
            "relu": {"config": data_in},
            "layers.3": {"config": data_in | weight | result},
        },
    )
    return mg


def explore(mg: MaseGraph) -> list[tuple[int, int]]:
    """Multipliers and cycles per image of the cheapest design for each pace asked for."""
    found = []
    for interval in (8, 16, 32, 64, 128, 256, 512):
        _, info = add_hardware_metadata_analysis_pass(mg, {"target_interval": interval})
        found.append((info["multipliers"], info["cycles"]))
    return sorted(set(found))


def right(answers: torch.Tensor, labels: torch.Tensor) -> str:
    return f"{int((answers.argmax(1) == labels).sum())} of {len(labels)}"


def main(setting: Setting) -> None:
    """Train, quantise, explore, emit, simulate."""
    model, data = train()
    columns = data["test"].columns
    images, labels = columns["pixel_values"], columns["labels"]
    mg = quantize(model, images)

    points = explore(mg)
    setting.show("designs", table(points, ["multipliers", "cycles per image"]))
    cycles = tuple(float(c) for _, c in points)
    curve = Curve("designs", tuple(float(m) for m, _ in points), cycles, cycles, cycles)
    axes = Axes("Twice the multipliers, half the cycles", "multipliers", "cycles per image")
    draw_curves(setting.out / "designs", [curve], axes)

    built = build_hardware(
        mg, setting.out / "project", inputs=images, parallelism={"target_interval": 64}
    )
    (outputs,) = built.lowered.decode(built.verdict.outputs)
    with torch.no_grad():
        software = mg.model(images)
    assert torch.equal(outputs, software)
    setting.show("verdict", f"{built.verdict}\n{built.area}")
    rows = [["software", right(software, labels)], ["hardware", right(outputs, labels)]]
    setting.show("accuracy", table(rows, ["where", "test images right"]))
    shutil.copy(built.directory / "dataflow.svg", setting.out / "dataflow.svg")


if __name__ == "__main__":
    start(main, "hardware", __doc__)
