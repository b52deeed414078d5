"""Mixtures of experts as one layer of the graph, so that experts can be split over devices.

The experts of transformers are captured as sorting, products of groups of rows and scattering, and
no part of that can be split: the order of the rows depends on all of them. As one layer they can be
split in two ways. Along the tokens every device has all experts. Along the experts every device has
a part of them, computes the tokens that chose one of its own, and the results are added.

    graph = MaseGraph(model, custom_ops=mixture_ops(model))
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.ops.row import MODULE, Op, Shapes

EXPERTS = "experts"
"""Strategy of a mixture whose experts are split over devices."""
WEIGHTS = ("gate_up_proj", "down_proj")
"""Matrices of all experts, (experts, outputs, inputs)."""


def mixture_ops(model: nn.Module) -> dict[str, dict[type[nn.Module], Op]]:
    """Return the `custom_ops` that capture every mixture of experts of `model` as one layer."""
    classes = tuple(dict.fromkeys(type(m) for m in model.modules() if is_mixture(m)))
    row = Op(
        "expert_mixture",
        MODULE,
        modules=classes,
        parameters=WEIGHTS,
        macs=_macs,
        dims="expert_mixture",
    )
    return {"modules": dict.fromkeys(classes, row)}


def is_mixture(module: nn.Module) -> bool:
    """Return True for experts of transformers with a gate, without biases and further norms."""
    names = {name for name, _ in module.named_parameters()}
    settings = ("has_bias", "is_transposed", "has_post_expert_norm")
    is_plain = not any(getattr(module, name, False) for name in settings)
    return names == set(WEIGHTS) and is_plain and hasattr(module, "_apply_gate")


def _macs(shapes: Shapes) -> int:
    """Return the multiply-accumulates: every token runs through each expert that it chose."""
    tokens, chosen = shapes.inputs[1]
    return tokens * chosen * sum(math.prod(shapes.parameters[name][1:]) for name in WEIGHTS)


def own_experts(
    layer: nn.Module,
    tokens: Tensor,
    chosen: Tensor,
    factors: Tensor,
    weights: tuple[Tensor, Tensor],
    first: int,
) -> Tensor:
    """Return the part of the result that the experts from `first` on compute; `weights`: theirs.

    `chosen` and `factors`: experts of each token, and their shares in the result. Experts without
    a token take part, so that all weights have a gradient.
    """
    mixture: Any = layer
    result = torch.zeros_like(tokens)
    flat, shares = chosen.reshape(-1) - first, factors.reshape(-1, 1)
    for expert, (gate_up, down) in enumerate(zip(*weights, strict=True)):
        places = (flat == expert).nonzero().squeeze(1)
        rows = places // chosen.shape[-1]
        hidden = mixture._apply_gate(F.linear(tokens[rows], gate_up))
        part = F.linear(hidden, down) * shares[places]
        result = result.index_add(0, rows, part.to(result.dtype))
    return result
