"""Whole designs, to hold the sums of predicted stages against: five, and variants for fitting.

Weights are those of a seed, not trained: no dataset is needed, and the sizes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from hardware import linear_relu
from loading import load
from torch import nn
from transformer_formats import fixed_rules
from transformer_models import DigitsVit, EncoderLayer

from chop import MaseGraph
from chop.hw.design import Design
from chop.hw.lower import Parallelism, lower
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

WIDTHS: dict[str, dict[str, int]] = {
    op: {} for op in ("conv2d", "linear", "layer_norm", "softmax", "gelu", "matmul", "add")
}


def _digits(name: str, lanes: int, multiplier: str = "array") -> Design:
    """A network of examples/digits_hardware.py."""
    torch.manual_seed(0)
    digits = load("examples/digits_hardware.py")
    graph = digits.quantize(digits.MODELS[name](), torch.rand(2, 1, 8, 8))
    return lower(graph, Parallelism(lanes, multiplier={"*": multiplier})).design


def _transformer(model: nn.Module, shape: tuple[int, ...], lanes: int) -> Design:
    graph = MaseGraph(model.eval(), dummy_in=torch.rand(4, *shape))
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    rules = fixed_rules(graph, (torch.rand(16, *shape),), WIDTHS)
    graph, _ = quantize_transform_pass(graph, rules)
    return lower(graph, Parallelism(lanes)).design


def _vit(lanes: int) -> Design:
    torch.manual_seed(0)
    return _transformer(DigitsVit(), (1, 8, 8), lanes)


def _encoder(lanes: int, size: int = 32) -> Design:
    torch.manual_seed(0)
    return _transformer(EncoderLayer(size, 2, 2 * size), (16, size), lanes)


CHECKED: Mapping[str, Callable[[], Design]] = {
    "Linear 16-16 + ReLU": linear_relu,
    "digits MLP, 4 lanes": lambda: _digits("mlp", 4),
    "digits CNN, 4 lanes": lambda: _digits("cnn", 4),
    "ViT, 2 lanes": lambda: _vit(2),
    "encoder layer, 2 lanes": lambda: _encoder(2),
}
FITTED: Mapping[str, Callable[[], Design]] = {
    "digits MLP, 2 lanes": lambda: _digits("mlp", 2),
    "digits MLP, 8 lanes": lambda: _digits("mlp", 8),
    "digits MLP, shift-add": lambda: _digits("mlp", 4, "shift_add"),
    "digits CNN, 1 lane": lambda: _digits("cnn", 1),
    "digits CNN, 8 lanes": lambda: _digits("cnn", 8),
    "encoder layer, 4 lanes": lambda: _encoder(4),
    "encoder layer of 8, 1 lane": lambda: _encoder(1, 8),
}
DESIGNS = {**CHECKED, **FITTED}
