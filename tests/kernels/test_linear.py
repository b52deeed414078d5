"""Multiplying packed weights equals multiplying their values."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from chop.errors import ConfigError
from chop.kernels import (
    GROUP_SIZES,
    PACKED_FORMATS,
    PackedTensor,
    cpu,
    pack,
    packed_embedding,
    packed_linear,
    reference,
    unpack,
)

FORMAT_NAMES = tuple(PACKED_FORMATS)
SHAPES = ((1, 1, 1), (5, 33, 3), (8, 200, 2), (7, 257, 1), (16, 128, 40), (6, 2100, 1))
"""Rows, columns, batch."""
CLOSE = 3e-6
"""Relative error of float32 arithmetic on a few hundred terms, with room for cancellation."""


def error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def exact(x: Tensor, packed: object, bias: Tensor | None = None) -> Tensor:
    weight = unpack(packed, torch.float64)  # type: ignore[arg-type]
    return F.linear(x.double(), weight, None if bias is None else bias.double())


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_linear_equals_the_product_with_the_unpacked_weight(format: str, group_size: int) -> None:
    torch.manual_seed(0)
    for rows, columns, batch in SHAPES:
        packed = pack(torch.randn(rows, columns), format, group_size)
        x, bias = torch.randn(batch, columns), torch.randn(rows) + 2
        assert error(packed_linear(x, packed, bias), exact(x, packed, bias)) < CLOSE


@pytest.mark.parametrize("size", [1e-29, 1e-20, 1e15, 1e25])
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_small_and_large_activations_keep_their_precision(format: str, size: float) -> None:
    torch.manual_seed(0)
    packed = pack(torch.randn(6, 64), format)
    x = torch.randn(2, 64) * size
    assert error(packed_linear(x, packed), exact(x, packed)) < CLOSE


def test_sums_at_the_limit_of_the_integers_do_not_overflow() -> None:
    codes = torch.full((4, 128), 0x80, dtype=torch.uint8)  # -128, the largest magnitude there is
    scales = torch.full((4, 8), 127, dtype=torch.uint8)
    x = torch.full((1, 128), 2 - 2.0**-23)
    for sign in (1, -1):
        y = torch.ops.mase.packed_linear(x * sign, codes, scales, None, "mxint8", 16)
        assert torch.allclose(y, torch.full((1, 4), -512.0 * sign))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_activations_that_are_no_numbers_pass_through(format: str, bad: float) -> None:
    packed = pack(torch.ones(3, 48), format)
    x = torch.ones(2, 48)
    x[0, 7] = bad
    y = packed_linear(x, packed)
    assert not y[0].isfinite().any() and torch.equal(y[1], torch.full((3,), 48.0))
    assert not packed_linear(x[:1], packed).isfinite().any()


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_a_nan_group_of_the_weight_spoils_its_row_alone(format: str) -> None:
    weight = torch.ones(5, 64)
    weight[2, 40] = math.nan
    y = packed_linear(torch.ones(1, 64), pack(weight, format))
    assert y.isnan().tolist() == [[False, False, True, False, False]]


def product_with_each_mxfp8_code(scale: int) -> tuple[Tensor, Tensor]:
    codes = torch.zeros(256, 16, dtype=torch.uint8)
    codes[:, 3] = torch.arange(256)
    packed = PackedTensor(codes, torch.full((256, 1), scale, dtype=torch.uint8), "mxfp8", 16, 16)
    values = codes[:, 3].view(torch.float8_e4m3fn).double() * 2.0 ** (scale - 127)
    return packed_linear(torch.eye(16)[3:4], packed)[0], values.float()


@pytest.mark.parametrize("scale", [0, 1, 127, 134, 135, 234, 235, 240])
def test_every_mxfp8_code_times_one_is_its_value(scale: int) -> None:
    assert torch.equal(*(t.nan_to_num(123.0) for t in product_with_each_mxfp8_code(scale)))


def test_flushing_subnormals_leaves_subnormal_mxfp8_codes() -> None:
    torch.set_flush_denormal(True)
    try:
        y, values = product_with_each_mxfp8_code(127)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(y.nan_to_num(123.0), values.nan_to_num(123.0))


class Names(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_the_operator() -> None:
    packed = pack(torch.randn(4, 32))
    with Names() as names:
        packed_linear(torch.ones(1, 32), packed)
    assert "mase.packed_linear.default" in names.seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_output_has_the_type_of_the_input(dtype: torch.dtype) -> None:
    packed, x = pack(torch.randn(5, 64)), torch.randn(3, 64).to(dtype)
    y = packed_linear(x, packed)
    assert y.dtype == dtype and error(y, exact(x, packed)) < 8 * torch.finfo(dtype).eps + 1e-12


@pytest.mark.parametrize("shape", [(64,), (0, 64), (2, 3, 64)])
def test_leading_dimensions_are_kept(shape: tuple[int, ...]) -> None:
    packed, x = pack(torch.randn(5, 64)), torch.randn(shape)
    assert packed_linear(x, packed).shape == F.linear(x, unpack(packed)).shape


def test_no_input_columns_leave_the_bias() -> None:
    bias = torch.randn(3)
    assert torch.equal(packed_linear(torch.randn(2, 0), pack(torch.randn(3, 0)), bias)[0], bias)


def test_activations_that_are_not_contiguous_give_the_same_result() -> None:
    packed, x = pack(torch.randn(5, 64)), torch.randn(64, 3).t()
    assert torch.equal(packed_linear(x, packed), packed_linear(x.contiguous(), packed))


def test_gradients_reach_input_and_bias() -> None:
    packed = pack(torch.randn(5, 40))
    x, bias = torch.randn(2, 3, 40, requires_grad=True), torch.randn(5, requires_grad=True)
    packed_linear(x, packed, bias).square().sum().backward()
    x2, bias2 = x.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()
    F.linear(x2, unpack(packed), bias2).square().sum().backward()
    assert torch.allclose(x.grad, x2.grad, atol=1e-4)
    assert torch.allclose(bias.grad, bias2.grad, atol=1e-4)


def test_the_operators_keep_torchs_contract() -> None:
    packed = pack(torch.randn(5, 64))
    parts = (packed.codes, packed.scales)
    x = torch.randn(2, 64, requires_grad=True)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        torch.ops.mase.packed_linear, (x, *parts, None, "mxint8", 32), test_utils=checks
    )
    torch.library.opcheck(
        torch.ops.mase.unpack, (*parts, "mxint8", 32, 64, torch.bfloat16), test_utils=checks
    )


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_embedding_gives_the_unpacked_rows(format: str) -> None:
    packed = pack(torch.randn(10, 40), format)
    indices = torch.tensor([[1, 9], [0, 1]])
    assert torch.equal(packed_embedding(indices, packed), unpack(packed)[indices])


@pytest.mark.slow
def test_without_a_compiler_the_reference_computes_the_same(tmp_path: object) -> None:
    program = (
        "import torch; from chop.kernels import *; from chop.kernels import cpu; "
        "assert cpu.library() is None; torch.manual_seed(0); w = torch.randn(5, 70); "
        "x = torch.randn(2, 70); p = pack(w); y = packed_linear(x, p); "
        "assert torch.allclose(y, torch.nn.functional.linear(x, unpack(p)), atol=1e-5)"
    )
    environment = {**os.environ, "MASE_NATIVE": "0", "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.skipif(cpu.library() is None, reason="needs a C++ compiler")
def test_the_float_path_equals_the_reference() -> None:
    packed = pack(torch.randn(6, 100), "mxint8")
    x = torch.randn(2, 100)
    x[0, 0] = 1e30  # too large for the integer path
    parts = (packed.codes, packed.scales, None, "mxint8", 32)
    y, expected = cpu.linear(x, *parts), reference.linear(x, *parts)
    assert all(error(a, b.double()) < CLOSE for a, b in zip(y, expected, strict=True))


X = torch.randn(2, 64)
BAD_CALLS = {
    r"x must be floating-point of shape \(…, 64\), got torch.int64": lambda p: packed_linear(
        X.long(), p
    ),
    r"x must be floating-point of shape \(…, 64\), got torch.float32 \(2, 32\)": lambda p: (
        packed_linear(X[:, :32], p)
    ),
    r"bias must be floating-point of shape \(5,\)": lambda p: packed_linear(X, p, torch.zeros(4)),
    "all tensors must be on one device, got meta and cpu": lambda p: packed_linear(X.to("meta"), p),
    "must have two dimensions, got shape": lambda p: packed_linear(X, pack(torch.randn(2, 5, 64))),
    "indices must be int32 or int64, got torch.float32": lambda p: packed_embedding(X, p),
}


@pytest.mark.parametrize("message", BAD_CALLS)
def test_a_bad_call_says_what_is_allowed(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BAD_CALLS[message](pack(torch.randn(5, 64)))
