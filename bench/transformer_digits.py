"""A vision transformer on the 8 x 8 digits: trained, and in the arithmetic of the hardware."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring.loading import load
from torch import Tensor, nn
from transformer_formats import fixed_rules, mxint_rules
from transformer_models import DigitsVit

from chop import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass


def train(model: nn.Module, data: Any, epochs: int, rate: float) -> None:
    """Train in place; the rate rises and falls once."""
    optimiser = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.02)
    steps = epochs * -(-len(data.train_images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train_images)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(model(data.train_images[batch]), data.train_labels[batch]).backward()
            optimiser.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: Any, images: Tensor, labels: Tensor) -> float:
    """The part of the images that the model names rightly."""
    return float((model(images).argmax(1) == labels).double().mean())


VIT_WIDTHS: dict[str, dict[str, int]] = {
    op: {} for op in ("conv2d", "linear", "layer_norm", "softmax", "gelu", "matmul", "add")
}


def quantized_graph(
    model: nn.Module, inputs: tuple[Tensor, ...], widths: Any, repeated: str = ""
) -> MaseGraph:
    """The graph of `model` in fixed point whose places come from `inputs`."""
    graph = MaseGraph(model.eval(), dummy_in=inputs if len(inputs) > 1 else inputs[0])
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    graph, _ = quantize_transform_pass(graph, fixed_rules(graph, inputs, widths, repeated))
    return graph


def in_mxint(model: nn.Module, inputs: Tensor, widths: Any) -> MaseGraph:
    """The graph of `model` with products in MXINT and the rest in fixed point."""
    graph = MaseGraph(model.eval(), dummy_in=inputs)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    rules = mxint_rules(graph, fixed_rules(graph, (inputs,), widths))
    graph, _ = quantize_transform_pass(graph, rules)
    return graph


def trained_vit(folder: Path, repeated: str = "") -> tuple[MaseGraph, Any, dict[str, Any]]:
    """The quantised graph, the digits, and what training reached; kept in `folder`."""
    torch.manual_seed(0)
    data = load("examples/digits_hardware.py").load()
    model, file = DigitsVit(), folder / ("vit_alike.pt" if repeated else "vit.pt")
    kept = torch.load(file) if file.exists() else None
    if kept is None:
        train(model, data, epochs=30, rate=4e-3)
    else:
        model.load_state_dict(kept["float"])
    state = copy.deepcopy(model.state_dict())
    told = {"float": accuracy(model, data.test_images, data.test_labels)}
    graph = quantized_graph(model, (data.train_images[:128],), VIT_WIDTHS, repeated)
    told["rounded"] = accuracy(graph.model, data.test_images, data.test_labels)
    if kept is None:
        train(graph.model, data, epochs=4, rate=5e-4)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"float": state, "integers": graph.model.state_dict()}, file)
    else:
        graph.model.load_state_dict(kept["integers"])
    told["trained_in_integers"] = accuracy(graph.model, data.test_images, data.test_labels)
    return graph, data, told
