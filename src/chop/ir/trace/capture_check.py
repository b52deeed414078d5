"""Comparison of a captured graph with its model, on the inputs of the capture.

A model's code may branch on being traced, which the capture cannot see. The graph is then a
different model.
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
"""Allowed difference, relative to the largest value: far above rounding, below most branches."""
ROUNDINGS = 16
"""Allowed difference of values in half precision, in units of their rounding: kernels of a GPU that
sum in another order differ by a few units after some layers."""


def warn_if_different(
    model: nn.Module, captured: nn.Module, inputs: Mapping[str, Any] | None
) -> None:
    """Log a warning if graph and model compute different values.

    Nothing is compared without inputs or values, if the model does not run on them, or if two runs
    of the model differ.
    """
    tensors = (*model.parameters(), *model.buffers(), *tensors_in(dict(inputs or {})))
    has_values = all(type(t) in (Tensor, nn.Parameter) and not t.is_meta for t in tensors)
    if not inputs or not has_values:
        return
    try:
        expected = _run(model, inputs)
    except Exception as error:  # the model may never run like this
        logger.warning(
            "%s itself does not run on the inputs it was captured with: %s: %s",
            type(model).__name__,
            type(error).__name__,
            str(error).partition("\n")[0],
        )
        return
    try:
        actual = _run(captured, inputs)
        again = expected if _difference(expected, actual) == 0 else _run(model, inputs)
    except Exception as error:  # such as a guard
        logger.debug("the graph was not compared with the model: %s", error)
        return
    difference, allowed = _difference(expected, actual), _tolerance(expected)
    if difference > allowed and _difference(expected, again) <= allowed:
        logger.warning(
            "the graph of %s gives other values than the model on the inputs it was captured with "
            "(they differ by %.2g of the largest). The model's code goes another way while it is "
            "traced.",
            type(model).__name__,
            difference,
        )


def _run(model: nn.Module, inputs: Mapping[str, Any]) -> list[Tensor]:
    copies = {k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()}
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=_gpus(copies)),
        kept_buffers(model),
        evaluation_mode(model),
    ):
        torch.manual_seed(0)
        return [t for t in tensors_in(call_with(model, copies)) if t.is_floating_point()]


def _gpus(inputs: Mapping[str, Any]) -> set[int]:
    """Return the numbers of the GPUs that hold inputs: their random numbers are restored."""
    return {t.get_device() for t in tensors_in(dict(inputs)) if t.is_cuda}


def _tolerance(values: list[Tensor]) -> float:
    """Return the allowed difference of values of these types."""
    return max(
        [TOLERANCE, *(ROUNDINGS * torch.finfo(t.dtype).eps for t in values if t.itemsize < 4)]
    )


def _difference(expected: list[Tensor], actual: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest value; NaN counts as zero."""
    largest = 0.0
    for a, b in zip(expected, actual, strict=False):
        if a.shape != b.shape:
            return float("inf")
        if a.numel() and not torch.equal(a, b):  # usually equal: no copies are made
            a, b = torch.nan_to_num(a.float()), torch.nan_to_num(b.float())
            scale = max(float(a.abs().amax()), 1e-6)
            largest = max(largest, float((a - b).abs().amax()) / scale)
    return largest
