"""Outputs of two models on the same inputs: equality, largest difference, SQNR, agreement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.actions.trainer import scores_of
from chop.errors import DataError
from chop.ir.trace.environment import evaluation_mode
from chop.ir.trace.inputs import Signature
from chop.passes.graph.analysis.sensitivity import difference


@dataclass(frozen=True)
class OutputComparison:
    """Difference of the scores of two models.

    `sqnr_db`: signal-to-quantisation-noise ratio in dB; None if the scores are equal.
    `agreement`: share of the rows whose largest score is at the same index; None for scores of one
    number.
    """

    is_equal: bool
    largest_difference: float
    sqnr_db: float | None
    agreement: float | None


def compare_outputs(
    model: nn.Module, reference: nn.Module, inputs: Mapping[str, Any]
) -> OutputComparison:
    """Run both models on `inputs` and compare their scores.

    A model receives the inputs that its `forward` has, so that only one of them may need labels.
    """
    scores, expected = _scores(model, inputs), _scores(reference, inputs)
    if scores.shape != expected.shape:
        raise DataError(
            f"the outputs of the models have shapes {list(scores.shape)} and "
            f"{list(expected.shape)}; they can be compared if both are the same."
        )
    is_equal = torch.equal(scores, expected)
    ratio = difference([scores], [expected])["sqnr"]
    several = scores.dim() > 1 and scores.shape[-1] > 1
    same = (scores.argmax(-1) == expected.argmax(-1)).double().mean() if several else None
    return OutputComparison(
        is_equal,
        float((scores.double() - expected.double()).abs().max()) if scores.numel() else 0.0,
        ratio if math.isfinite(ratio) else None,
        None if same is None else float(same),
    )


@torch.no_grad()
def _scores(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    accepted = Signature.of(model).names
    arguments = {name: value for name, value in inputs.items() if name in accepted}
    with evaluation_mode(model):
        return scores_of(model(**arguments)).float().cpu()
