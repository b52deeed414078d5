"""Networks of other authors for boards: read from their packages, quantised with calibration data.

Each function returns a `Network`: the quantised graph, the inputs of its simulation and what was
measured of its outputs against the float network. The packages are unpacked in one folder; none of
their weights or data is part of this project.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.actions.fixed_point import fitted_fixed_point, observe_ranges
from chop.export import from_onnx
from chop.ir.graph import MaseGraph
from chop.passes.graph.transforms import quantize_transform_pass


@dataclass(frozen=True)
class Network:
    """A quantised graph, its test inputs, the multipliers to use and further facts.

    `inputs`: a batch, or a tuple of one for each input of the graph. `seconds_per_input`: sound
    that one inference is for.
    """

    graph: MaseGraph
    inputs: Any
    max_multipliers: int
    facts: dict[str, Any]
    seconds_per_input: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of the hardware."""


def read_open(file: Path, **shapes: tuple[int, ...]) -> MaseGraph:
    """Return the graph of an ONNX file with a batch of any size.

    Some files state a batch of 1, in the shapes of inputs and outputs and in constants of
    `Reshape`. `shapes`: sizes of the example inputs, by the name of an input.
    """
    import onnx

    model = onnx.load(str(file))
    for value in (*model.graph.input, *model.graph.output):
        sizes = value.type.tensor_type.shape.dim
        for place in range(len(sizes) if value.name in shapes else min(len(sizes), 1)):
            sizes[place].dim_param = f"{value.name}_{place}"
    reshaped = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    own = {each.name: each for each in model.graph.initializer}
    weights = {name for node in model.graph.node for name in node.input[:1]} & set(own)
    fixed = {
        node.input[1] for node in model.graph.node if set(node.input) & weights
    }  # shapes of weights, which have no batch
    for name in (reshaped - fixed) & set(own):
        numbers = onnx.numpy_helper.to_array(own[name]).copy()
        numbers[0] = -1
        own[name].CopyFrom(onnx.numpy_helper.from_array(numbers, name))
    with tempfile.TemporaryDirectory() as scratch:
        opened = Path(scratch) / file.name
        onnx.save(model, str(opened))
        examples = {name: torch.zeros(shape) for name, shape in shapes.items()}
        return from_onnx(opened, inputs=examples or None)


def in_batches(model: Any, x: Tensor, size: int = 250) -> Tensor:
    """Return the outputs of a model, computed in batches."""
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(size)])


def mnist_conv(models: Path, data: Path) -> Network:
    """Return the CNN for MNIST of the ONNX model zoo, as the package qonnx has it."""
    from mnist_tables import load

    graph = read_open(models / "qonnx/qonnx/data/onnx/mnist-conv/model.onnx", Input3=(2, 1, 28, 28))
    tests = load(data, "t10k")
    images = tests.pixels[:, None].float()
    calibration = load(data, "train").pixels[:256, None].float()
    exact = in_batches(graph.model, images)
    rules = fitted_fixed_point(observe_ranges(graph, [calibration]), 8)
    graph, _ = quantize_transform_pass(graph, rules)
    logits = in_batches(graph.model, images)
    facts = {
        "licence": "MIT (ONNX model zoo), in qonnx 1.0 (Apache-2.0)",
        "data": "MNIST, 10,000 test images",
        "accuracy": {
            "float": (exact.argmax(1) == tests.labels).double().mean().item(),
            "quantised": (logits.argmax(1) == tests.labels).double().mean().item(),
        },
    }
    return Network(graph, images[:12], 40, facts)
