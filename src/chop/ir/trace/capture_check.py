"""A captured graph against the model it was captured from, on the inputs it was captured with.

A model's code may go another way while it is captured than when it runs, without any decision that
the capture could see: it may ask whether it is traced. The graph then is another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.ir.node_arguments import tensors_in
from chop.ir.trace.environment import evaluation_mode, kept_buffers
from chop.ir.trace.inputs import call_with
from chop.log import get_logger

logger = get_logger(__name__)

TOLERANCE = 1e-3
"""Of the largest value: rounding in another order stays far below, another branch seldom does."""


def warn_if_different(
    model: nn.Module, captured: nn.Module, inputs: Mapping[str, Any] | None
) -> None:
    """Say so where the graph gives other values than the model; nothing where that cannot be seen.

    It cannot where there are no inputs or no values, where the model does not run on them, or
    where two runs of the model itself differ.
    """
    if not inputs or not _has_values(model, inputs):
        return
    try:
        expected = _run(model, inputs)
    except Exception as error:  # the model's own affair: it is captured, and may never run so
        logger.warning(
            "%s itself does not run on the inputs it was captured with: %s: %s",
            type(model).__name__,
            type(error).__name__,
            str(error).partition("\n")[0],
        )
        return
    try:
        got = _run(captured, inputs)
        again = expected if _difference(expected, got) == 0 else _run(model, inputs)
    except Exception as error:  # a guard, or a pass's affair
        logger.debug("the graph was not compared with the model: %s", error)
        return
    difference = _difference(expected, got)
    if difference > TOLERANCE and _difference(expected, again) <= TOLERANCE:
        logger.warning(
            "the graph of %s gives other values than the model on the inputs it was captured with "
            "(they differ by %.2g of the largest). The model's code goes another way while it is "
            "traced.",
            type(model).__name__,
            difference,
        )


def _has_values(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    tensors = (*model.parameters(), *model.buffers(), *tensors_in(dict(inputs)))
    return all(type(t) in (Tensor, nn.Parameter) and not t.is_meta for t in tensors)


def _run(model: nn.Module, inputs: Mapping[str, Any]) -> list[Tensor]:
    copies = {k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()}
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        kept_buffers(model),
        evaluation_mode(model),
    ):
        torch.manual_seed(0)
        return [t for t in tensors_in(_plain(call_with(model, copies))) if t.is_floating_point()]


def _plain(result: Any) -> Any:
    return dict(result) if isinstance(result, Mapping) else result


def _difference(expected: list[Tensor], got: list[Tensor]) -> float:
    """The largest difference, relative to the largest value; what both lack does not differ."""
    largest = 0.0
    for a, b in zip(expected, got, strict=False):
        if a.shape != b.shape:
            return float("inf")
        if a.numel():
            a, b = torch.nan_to_num(a.float()), torch.nan_to_num(b.float())
            scale = max(float(a.abs().amax()), 1e-6)
            largest = max(largest, float((a - b).abs().amax()) / scale)
    return largest
