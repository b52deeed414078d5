"""Whether a design computes what the model in PyTorch does."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.errors import HardwareError
from chop.hw.lower import Lowered
from chop.hw.simulate import random_inputs
from chop.ir.graph import MaseGraph
from chop.nn.quantizers import Integer

DRAWN = 64
"""Inputs to compare on where none are given."""


def require_same(graph: MaseGraph, lowered: Lowered, inputs: Sequence[Tensor] | None) -> int:
    """The number of output values compared; raises where design and model differ.

    The model runs in double precision, where sums of products are exact, and its outputs are
    brought to the format in which the design gives them.
    """
    codes = random_inputs(lowered.design, DRAWN) if inputs is None else lowered.encode(*inputs)
    formats = [lowered.design.inputs[name].format for name in lowered.inputs]
    pairs = zip(lowered.inputs.items(), formats, strict=True)
    tensors = [value.decode(codes[name], number) for (name, value), number in pairs]
    model = copy.deepcopy(graph.model).double().eval()
    with torch.no_grad():
        answer = model(*tensors)
    found = lowered.decode(lowered.design.golden(codes))
    streams = lowered.design.output_streams().values()
    expected = [
        Integer(stream.format.width, stream.format.frac_width).quantize(each)
        for stream, each in zip(streams, _outputs(answer), strict=True)
    ]
    wrong = sum(int((a != b).sum()) for a, b in zip(found, expected, strict=True))
    total = sum(each.numel() for each in found)
    if wrong:
        raise HardwareError(
            f"the design differs from the model in {wrong} of {total} output values: an op between "
            f"two layers has no format of its own. Quantise it too: --type linear,relu,…"
        )
    return total


def _outputs(answer: Any) -> list[Tensor]:
    if isinstance(answer, Tensor):
        return [answer]
    values = answer.values() if isinstance(answer, Mapping) else answer
    return [each for each in values if isinstance(each, Tensor)]
