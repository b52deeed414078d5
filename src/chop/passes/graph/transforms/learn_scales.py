"""Train the scales of integers together with the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.nn.modules.lora import adapted_layer
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import ScaleInteger
from chop.nn.quantizers.scale_integer import STORED
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.sites.rounded_layers import store_scale
from chop.passes.rewrite.annotate import refresh


@dataclass(frozen=True)
class LearnScalesArgs:
    """Settings of `learn_scales_transform_pass`.

    `operands`: operands whose scales train. `zero_points`: also train the zero points of unsigned
    integers.
    """

    operands: tuple[str, ...] = ("data_in", "weight")
    zero_points: bool = True


@graph_pass("learn_scales_transform_pass", LearnScalesArgs, rewrites=True, preserves=False)
def learn_scales_transform_pass(graph: MaseGraph, args: LearnScalesArgs) -> PassResult:
    """Make the scales of quantised layers trainable parameters.

        _, info = calibrate_analysis_pass(mg, {"data": batches, "linear": {"config": int4}})
        quantize_transform_pass(mg, info["config"])
        learn_scales_transform_pass(mg)   # then train

    Scales start at the values of calibration or rounding, so the output does not change. Their
    gradient is that of a learned step size. A scale that is measured at each call cannot be
    learned: calibrate first. `info["parameters"]` names the new parameters.
    """
    names = [f"{node.target}.{name}" for node, name in _learned(graph, args)]
    if not names:
        raise ConfigError(
            f"learn_scales: no layer has a scale for {' or '.join(args.operands)} that is given "
            "or stored. Run calibrate_analysis_pass and quantize_transform_pass with its config."
        )
    refresh(graph)
    return graph, {"parameters": names}


def _learned(graph: MaseGraph, args: LearnScalesArgs) -> Iterator[tuple[fx.Node, str]]:
    """Turn scales into parameters, each layer once; yield the node and name of each."""
    visited: set[int] = set()
    for node in graph.fx_graph.nodes:
        layer = adapted_layer(node_module(node)) if node.op == "call_module" else None
        if not isinstance(layer, QuantizedModule) or id(layer) in visited:
            continue
        visited.add(id(layer))
        for role, form in list(layer.quantizers.items()):
            if role in args.operands and form.scaled is not None:
                yield from ((node, name) for name in _learn(layer, role, form.scaled, args))


def _learn(
    layer: QuantizedModule, role: str, form: ScaleInteger, args: LearnScalesArgs
) -> Iterator[str]:
    if form.scale is None:
        return
    reference = next((p for p in layer.parameters(recurse=False)), torch.zeros(()))
    if not form.is_stored:
        store_scale(layer, role, torch.tensor(form.scale).to(reference.device))
    name = f"{role}_scale"
    scale = getattr(layer, name)
    if not isinstance(scale, nn.Parameter):
        _as_parameter(layer, name, scale)
        yield name
    if args.zero_points and not form.is_signed and not hasattr(layer, f"{role}_zero_point"):
        zero = torch.tensor(float(form.zero_point)).to(reference.device)
        layer.set_formats(
            {k: v for k, v in layer.config.items() if k != f"{role}_zero_point"},
            {**layer.quantizers, role: replace(form, scale=STORED, zero_point=0)},
        )
        _as_parameter(layer, f"{role}_zero_point", zero)
        yield f"{role}_zero_point"


def _as_parameter(layer: nn.Module, name: str, value: Tensor) -> None:
    if name in layer._buffers:
        delattr(layer, name)
    setattr(layer, name, nn.Parameter(value.detach().clone()))
