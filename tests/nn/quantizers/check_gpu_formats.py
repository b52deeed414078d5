"""Checks the number formats on a GPU against their definitions on the CPU: run it on one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
from torch import Tensor, nn

from chop.nn.quantized import training_step
from chop.nn.quantizers import FP8, Integer, MXInt, Quantizer, gpu_formats, kernels
from chop.nn.quantizers import quantizer as quantizer_module
from chop.nn.quantizers.together import quantize_together
from chop.passes import quantize_transform_pass

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


def operands(dtype: torch.dtype, columns: int) -> list[Tensor]:
    """An input, a weight and a bias, some of whose values are outside the range of a format."""
    shapes = ((3, 5, columns), (7, columns), (7,))
    return [(8 * torch.randn(s, device=DEVICE)).to(dtype).requires_grad_() for s in shapes]


def check_operands_of_a_layer() -> int:
    """One launch for all operands: values, gradients and second gradients of one at a time."""
    count = 0
    for quantizer in (q for q in ELEMENT_CASES + BLOCK_CASES if q.gpu_training is not None):
        for dtype, columns in itertools.product(DTYPES, (96, 37)):
            leaves = operands(dtype, columns)
            found = quantize_together(tuple(leaves), (quantizer.gpu_training,) * 3)
            if found is None:  # a bias shorter than a block
                assert quantizer in BLOCK_CASES, label(quantizer)
                leaves = operands(dtype, columns)[:2]
                found = quantize_together(tuple(leaves), (quantizer.gpu_training,) * 2)
            assert found is not None, label(quantizer)
            expected = [quantizer(leaf) for leaf in leaves]
            where = (label(quantizer), dtype, columns)
            assert all(map(same, detached(found), detached(expected))), where
            ours, theirs = (squared_gradients(values, leaves) for values in (found, expected))
            assert all(map(same, ours, theirs)), where
            count += len(leaves)
    return count


def squared_gradients(values: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """First gradients of the sum of cubes, and the gradients of the sum of their squares."""
    total = sum((y**3).sum() for y in values)
    first = torch.autograd.grad(total, leaves, create_graph=True, retain_graph=True)
    plain = torch.autograd.grad(total, leaves, retain_graph=True)
    assert all(map(same, detached(first), plain))
    second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
    return [*detached(first), *second]


def detached(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors without their graph."""
    return [tensor.detach() for tensor in tensors]


def check_layers() -> int:
    """Layers that train on a GPU use one launch, and give the same as one launch per operand."""
    count = 0
    for form, layer in itertools.product(("fixed8.4", "mxint8", "fp8_e4m3"), ("linear", "conv")):
        torch.manual_seed(1)
        model = nn.Linear(64, 32) if layer == "linear" else nn.Conv2d(3, 32, 3)
        shape = (4, 64) if layer == "linear" else (2, 3, 8, 32)
        rule = {"by": "type", "default": {"config": {"format": form}}}
        net, _ = quantize_transform_pass(nn.Sequential(model).to(DEVICE), rule)
        x = (4 * torch.randn(shape, device=DEVICE)).requires_grad_()
        results = []
        for is_joined in (True, False):
            spy = mock.Mock(wraps=quantize_together if is_joined else lambda *rest: None)
            with mock.patch.object(training_step, "quantize_together", spy):
                y = net(x)
            assert spy.call_count == 1
            results.append(
                [y.detach(), *torch.autograd.grad(y.square().sum(), (x, *net.parameters()))]
            )
        assert all(map(same, *results)), (form, layer)
        assert all(g.abs().sum() > 0 for g in results[0])
        count += 1
    return count


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
    count = check_values() + check_gradients() + check_operands_of_a_layer() + check_layers()
    check_operators()
    print(f"Number formats on the GPU: {count} tensors equal to the definitions.")  # noqa: T201


if __name__ == "__main__":
    main()
