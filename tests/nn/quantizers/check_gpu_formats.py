"""Checks the number formats on a GPU against their definitions on the CPU: run it on one."""

from __future__ import annotations

import itertools
from unittest import mock

import torch
from format_cases import (
    BLOCK_CASES,
    DETERMINISTIC,
    ELEMENT_CASES,
    awkward_blocks,
    awkward_points,
    label,
    same,
    with_rounding,
)
from torch import Tensor

from chop.nn.quantizers import FP8, Integer, MXInt, Quantizer, gpu_formats, kernels
from chop.nn.quantizers import quantizer as quantizer_module

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEVICE = torch.device("cuda", 0)


def inputs(quantizer: Quantizer) -> list[Tensor]:
    """What formats get wrong; with and without a tail, and so that vectors cannot be used."""
    if quantizer in ELEMENT_CASES:
        points = awkward_points(randoms=20_000)
        return [points, points[1:], points[:1]]
    ordinary = torch.randn(16, 1056)
    rows = [awkward_blocks(37), awkward_blocks(512), awkward_blocks(96).flatten()[1:], ordinary]
    return [*rows, ordinary.T, ordinary.reshape(4, 4, 1056)]


def on_gpu(x: Tensor) -> Tensor:
    """The same values at the same place of their storage: an odd one stays odd."""
    if not x.is_contiguous():
        return x.T.to(DEVICE).T
    padded = torch.cat([x.new_zeros(x.storage_offset() % 8), x.flatten()]).to(DEVICE)
    return padded[x.storage_offset() % 8 :].view(x.shape)


def check_values() -> int:
    """Every format, rounding and dtype: the bits of the definition."""
    count = 0
    for quantizer, rounding in itertools.product(ELEMENT_CASES + BLOCK_CASES, DETERMINISTIC):
        chosen = with_rounding(quantizer, rounding)
        if chosen.kernel() is None:
            continue
        for dtype, x in itertools.product(DTYPES, inputs(quantizer)):
            there = on_gpu(x.to(dtype))
            expected = chosen.quantize(there.cpu())
            assert same(chosen(there).cpu(), expected), (label(chosen), dtype, tuple(x.shape))
            count += 1
    return count


def check_gradients() -> int:
    """Every format and dtype: values and gradient of the definition, without native code."""
    count = 0
    for quantizer in (q for q in ELEMENT_CASES + BLOCK_CASES if q.kernel() is not None):
        for dtype, x in itertools.product(DTYPES, inputs(quantizer)):
            leaf = on_gpu(x.to(dtype)).requires_grad_()
            gradient = torch.randn_like(leaf)
            (found,) = torch.autograd.grad(values := quantizer(leaf), leaf, gradient)
            with mock.patch.multiple(
                quantizer_module, can_run=never, can_train=never, can_mask=never
            ):
                (expected,) = torch.autograd.grad(plain := quantizer(leaf), leaf, gradient)
            where = (label(quantizer), dtype, tuple(x.shape))
            assert same(values.detach(), plain.detach()), where
            assert same(found, expected), where
            count += 1
    return count


def never(*tensors: Tensor) -> bool:
    """Return False: no native code."""
    return False


def check_operators() -> None:
    """What tracers see and torch.compile makes of it gives the same; the gradient is masked."""
    x = torch.randn(64, 256, device=DEVICE)
    for quantizer in (MXInt(8), Integer(8, 4), FP8()):
        compiled = torch.compile(quantizer.__call__)
        assert same(compiled(x), quantizer.quantize(x)), label(quantizer)
        with torch.inference_mode():
            assert same(quantizer(x.bfloat16()), quantizer.quantize(x.bfloat16()))
    gradient, low, high = torch.randn_like(x), -0.5, 1.0
    x[0, :2] = torch.tensor([torch.nan, 1.0])
    expected = torch.where((x >= low) & (x <= high), gradient, 0.0)
    assert same(kernels.mask(gradient, x, low, high), expected)
    leaf = (3 * x).requires_grad_()
    Integer(4, 2)(leaf).backward(gradient)
    inside = (leaf >= Integer(4, 2).range[0]) & (leaf <= Integer(4, 2).range[1])
    assert same(leaf.grad, torch.where(inside, gradient, 0.0))


def main() -> None:
    torch.manual_seed(0)
    assert gpu_formats.is_usable(DEVICE), "the run-time compiler is missing"
    count = check_values() + check_gradients()
    check_operators()
    print(f"Number formats on the GPU: {count} tensors equal to the definitions.")  # noqa: T201


if __name__ == "__main__":
    main()
