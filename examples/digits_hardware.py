"""From a network trained on scikit-learn's digits to SystemVerilog, checked on every test image.

    python examples/digits_hardware.py [--model mlp|cnn] [--out out/digits] [--waves]

Trains, quantises to 8 bits, emits the RTL, runs all 360 test images through it, synthesises it, and
writes a report, a diagram and the test bench.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from chop import MaseGraph
from chop.actions import build_hardware
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass


class DigitsMlp(nn.Module):
    """64-32-10 on images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(hidden)


class DigitsCnn(nn.Module):
    """A convolution, a residual block of two, pooling and a linear layer."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(channels * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.conv2(torch.relu(self.conv1(x))))
        return self.head(torch.flatten(self.pool(x), 1))


MODELS = {"mlp": DigitsMlp, "cnn": DigitsCnn}


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) in 0 … 1 and the digit each shows."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load() -> Digits:
    """The 1797 digits; 360 of them are kept for the test."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16, labels, test_size=360, random_state=0, stratify=labels
    )
    as_images = [
        torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) for x in (train_x, test_x)
    ]
    return Digits(as_images[0], torch.tensor(train_y), as_images[1], torch.tensor(test_y))


def train(model: nn.Module, data: Digits, epochs: int = 8) -> nn.Module:
    """`model` trained on the digits, in evaluation mode."""
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train_images)).split(64):
            optimiser.zero_grad()
            answer = model(data.train_images[batch])
            nn.functional.cross_entropy(answer, data.train_labels[batch]).backward()
            optimiser.step()
    return model.eval()


OUTPUT = {"data_out_width": 16, "data_out_frac_width": 8}
"""Of the last layer: wide enough that no two scores are rounded to the same."""


def quantize(model: nn.Module, example: Tensor) -> MaseGraph:
    """The graph of `model` in fixed point of 8 bits."""
    graph = MaseGraph(model, dummy_in=example)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    data = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5}
    layer = data | {
        f"{of}_{what}": bits
        for of in ("weight", "bias")
        for what, bits in (("width", 8), ("frac_width", 6))
    }
    rules = {"linear": layer, "conv2d": layer, "relu": data, "add": data}
    present = {node.meta["mase"].common.mase_op for node in graph.fx_graph.nodes}
    chosen = {op: {"config": config} for op, config in rules.items() if op in present}
    last = list(graph.fx_graph.nodes)[-1].all_input_nodes[0].name
    chosen |= {last: {"config": layer | OUTPUT}, "default": {"config": {"name": None}}}
    return quantize_transform_pass(graph, {"by": ["name", "type"], **chosen})[0]


def main() -> None:
    """Train, build, check, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument("--out", type=Path, default=Path("out/digits"))
    parser.add_argument("--waves", action="store_true", help="keep waveforms of the first cycles")
    given = parser.parse_args()
    torch.manual_seed(0)
    data = load()
    graph = quantize(train(MODELS[given.model](), data), data.test_images[:2])
    built = build_hardware(graph, given.out, inputs=data.test_images, waves=given.waves)
    (outputs,) = built.lowered.decode(built.verdict.outputs)
    with torch.no_grad():
        software = graph.model(data.test_images)
    for place, answer in (("software", software), ("hardware", outputs)):
        right = int((answer.argmax(1) == data.test_labels).sum())
        print(f"{place}: {right} of {len(answer)} test images right")
    print(f"{built.verdict}\n{built.area}\nreport: {built.report}")


if __name__ == "__main__":
    main()
