"""Quantisation of several tensors in a training step on a GPU: one launch, one gradient function.

Between the small kernels of an eager step the GPU waits for Python. The operands of a layer are
therefore rounded together, and the checks below are few.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from chop.nn.quantizers.gpu_formats import JointLaunch, KernelSettings, joint_launch
from chop.nn.quantizers.kernels import PLAIN, can_train


def quantize_together(
    tensors: tuple[Tensor, ...], settings: tuple[KernelSettings, ...]
) -> tuple[Tensor, ...] | None:
    """Return the values of tensors that require gradients; None if one launch cannot.

    `settings` are the `gpu_training` of their formats.
    """
    first = tensors[0]
    if not can_train(first) or forward_ad._current_level >= 0:
        return None
    device, dtype, shapes = first.device, first.dtype, []
    for x in tensors:
        if type(x) not in PLAIN or x.dtype is not dtype or not x.is_contiguous():
            return None
        if x.device != device or not x.numel():
            return None
        shapes.append(x.shape)
    launch = joint_launch(device, dtype, tuple(shapes), settings)
    if launch is None:
        return None
    values: tuple[Tensor, ...] = _Together.apply(launch, *tensors)  # type: ignore[attr-defined]
    return values


class _Together(_SingleLevelFunction):
    """The gradient function; without the public class's care for functorch, which `can_train` does.

    That care takes a tenth of the time of a call.
    """

    @staticmethod
    def forward(ctx: Any, launch: JointLaunch, *tensors: Tensor) -> tuple[Tensor, ...]:
        values, flags = launch.quantize(tensors)
        ctx.launch = launch
        if flags is not None:
            ctx.save_for_backward(flags)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        launch = ctx.launch
        if not launch.has_range:
            return (None, *gradients)
        (flags,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient
            outside = launch.split_flags(flags)
            return (None, *(g.masked_fill(o, 0.0) for g, o in zip(gradients, outside, strict=True)))
        return (None, *launch.clear_outside([g.contiguous() for g in gradients], flags))
