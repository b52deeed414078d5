"""Checks attention of few queries on a GPU against its definition in float64:
`python check_gpu_attention.py [cuda|cpu]`; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import itertools
import os
import sys

import torch
from torch import Tensor

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from chop.kernels import attention, attention_gpu  # noqa: E402

IS_REAL = DEVICE != "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16) if IS_REAL else (torch.float32,)
ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
SHAPES = (
    # batch, heads, heads of keys, queries, keys, size, size of values
    (1, 1, 1, 1, 1, 16, 16),
    (2, 8, 2, 1, 70, 32, 32),
    (1, 4, 4, 3, 129, 24, 40),
    (2, 6, 2, 5, 65, 80, 80),
    (1, 32, 8, 1, 256, 128, 128),
    (3, 2, 1, 16, 300, 64, 64),
)
if IS_REAL:
    SHAPES += (
        (1, 32, 8, 1, 5000, 128, 128),
        (4, 40, 8, 2, 1023, 256, 256),
        (16, 8, 8, 1, 40, 64, 64),
    )


def defined(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Head for head; 0 where no key is allowed."""
    group, out = query.shape[1] // key.shape[1], []
    for head in range(query.shape[1]):
        scores = query[:, head].double() @ key[:, head // group].double().mT * scale
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask[:, head % mask.shape[1]], -torch.inf)
        elif mask is not None:
            scores = scores + mask[:, head % mask.shape[1]].double()
        weights = torch.softmax(scores, -1).nan_to_num(0.0)
        out.append(weights @ value[:, head // group].double())
    return torch.stack(out, 1)


def masks(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor | None]:
    """None, padding on the left with a row that sees nothing, random numbers for each head."""
    batch, heads, _, queries, keys = shape[:5]
    padding = torch.ones(batch, 1, 1, keys, dtype=torch.bool)
    padding[0, :, :, : keys // 2] = False
    blind = torch.rand(batch, 1, queries, keys) < 0.7
    blind[-1, :, 0] = False
    return [None, padding, blind, torch.randn(batch, heads, queries, keys).to(dtype)]


def check(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Every mask, with operands that are transposed views as in a model."""
    batch, heads, key_heads, queries, keys, size, value_size = shape
    query = torch.randn(batch, queries, heads, size).to(dtype).transpose(1, 2)
    key = torch.randn(batch, keys + 3, key_heads, size).to(dtype).transpose(1, 2)[:, :, 3:]
    value = torch.randn(batch, key_heads, keys, value_size).to(dtype)
    for mask in masks(shape, dtype):
        expected = defined(query, key, value, mask, 0.2)
        given = [None if t is None else t.to(DEVICE) for t in (query, key, value, mask)]
        strides = attention._mask_strides(given[3])
        runs = [attention_gpu.run(*given, strides, False, 0.2).cpu() for _ in range(2)]
        assert torch.equal(*runs), (shape, dtype)
        assert runs[0].dtype == dtype and runs[0].shape == expected.shape
        kind = None if mask is None else (mask.dtype, mask.shape)
        error = (runs[0].double() - expected).norm() / expected.norm().clamp(min=1e-9)
        assert error < ERRORS[dtype], (shape, dtype, kind, error.item())
    causal = torch.ones(queries, keys, dtype=torch.bool).tril().expand(batch, 1, queries, keys)
    operands = [t.to(DEVICE) for t in (query, key, value)]
    got = attention_gpu.run(*operands, None, (0, 0, 0, 0), True, 0.2).cpu()
    error = (got.double() - defined(query, key, value, causal, 0.2)).norm()
    assert error < ERRORS[dtype] * got.double().norm(), (shape, dtype, "causal")


def check_dispatch() -> None:
    """The public function runs the kernel, and so it does compiled and captured in a graph."""
    sizes = {"query": 32, "key": 8, "value": 8}
    q, k, v = (
        torch.randn(2, n, 1 if name == "query" else 256, 128, device=DEVICE).bfloat16()
        for name, n in sizes.items()
    )
    mask = torch.rand(2, 1, 1, 256, device=DEVICE) < 0.9
    assert attention._fits(q, k, v, mask, True)

    def call(*given: Tensor) -> Tensor:
        return attention.scaled_dot_product_attention(
            *given[:3], attn_mask=given[3], enable_gqa=True
        )

    expected = attention_gpu.run(q, k, v, mask, attention._mask_strides(mask), False, 128**-0.5)
    assert torch.equal(call(q, k, v, mask), expected)
    plain = attention._torch_attention(
        q, k, v, mask, 0.0, False, scale=None, enable_gqa=True
    ).double()
    assert (expected.double() - plain).norm() < 1e-2 * plain.norm()
    compiled = torch.compile(call, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        assert all(torch.equal(compiled(q, k, v, mask), expected) for _ in range(4))


def main() -> None:
    torch.manual_seed(0)
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        check(shape, dtype)
    if IS_REAL:
        check_dispatch()
    print(f"attention on {DEVICE}: all equal to its definition.")  # noqa: T201


if __name__ == "__main__":
    main()
