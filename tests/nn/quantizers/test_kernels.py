"""Native code gives the bits of the PyTorch definitions."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from format_cases import (
    BLOCK_CASES,
    CASES,
    DETERMINISTIC,
    ELEMENT_CASES,
    awkward_blocks,
    awkward_points,
    label,
    points_of,
    same,
    with_rounding,
)

from chop.nn.quantizers import (
    FP8,
    MXFP,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    kernels,
)

pytestmark = pytest.mark.share(2)

needs_library = pytest.mark.skipif(
    kernels.library() is None, reason="no C++ compiler here; install one to run this"
)
NATIVE = (
    Integer(8, 4),
    FP8(),
    MinifloatIEEE(8, 4),
    MinifloatDenorm(8, 4),
    Log(8),
    MXInt(8),
    BlockFP(8),
    MXFP("e4m3"),
    BlockMinifloat(8, 4),
    BlockLog(8),
)

WATCHFUL = NATIVE[:5]
"""Formats that clip the gradient."""


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", NATIVE, ids=label)
def test_the_formats_that_must_be_fast_have_native_code(quantizer, rounding):
    assert with_rounding(quantizer, rounding).kernel() is not None


@needs_library
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", ELEMENT_CASES, ids=label)
def test_native_elements_are_bit_equal(quantizer, rounding):
    quantizer = with_rounding(quantizer, rounding)
    x = awkward_points(randoms=20_000)
    assert same(quantizer(x), quantizer.quantize(x))


def inside(quantizer):
    """Points in the range of a format, more than the native code looks at in one go."""
    low, high = quantizer.range
    points = torch.cat([awkward_points(randoms=20_000), points_of_a_small_set(quantizer)])
    points = points[(points >= low) & (points <= high)]
    order = torch.randperm(points.numel(), generator=torch.Generator().manual_seed(3))
    return points[order]


def points_of_a_small_set(quantizer):
    values = quantizer.value_set()
    return torch.empty(0) if values is None else points_of(values)


@needs_library
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", ELEMENT_CASES, ids=label)
def test_native_elements_inside_the_range_are_bit_equal(quantizer, rounding):
    quantizer = with_rounding(quantizer, rounding)
    x = inside(quantizer)
    assert same(quantizer(x), quantizer.quantize(x))
    small = x[x.abs() <= quantizer.range[1] / 2.001]
    assert same(quantizer(small), quantizer.quantize(small))


@needs_library
@pytest.mark.parametrize("quantizer", WATCHFUL, ids=label)
@pytest.mark.parametrize("outsider", ["high", "low", "nan"])
def test_native_code_knows_whether_all_lies_in_the_range(quantizer, outsider):
    x = inside(quantizer)[:5000]
    assert quantizer.kernel().run(x)[1]
    low, high = quantizer.range
    x[4321] = {"high": high * 1.0001, "low": low * 1.0001, "nan": float("nan")}[outsider]
    y, is_inside = quantizer.kernel().run(x)
    assert not is_inside
    assert same(y, quantizer.quantize(x))


@needs_library
@pytest.mark.parametrize("quantizer", WATCHFUL, ids=label)
def test_one_element_outside_the_range_is_seen_wherever_it_is(quantizer):
    low, high = quantizer.range
    for place, outsider in itertools.product(range(40), (low * 1.0001, high * 1.0001, math.nan)):
        x = inside(quantizer)[:64].clone()
        x[place] = outsider
        y, is_inside = quantizer.kernel().run(x)
        assert not is_inside and same(y, quantizer.quantize(x))


@needs_library
@pytest.mark.parametrize("columns", [37, 512])
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", BLOCK_CASES, ids=label)
def test_native_blocks_are_bit_equal(quantizer, rounding, columns):
    quantizer = with_rounding(quantizer, rounding)
    x = awkward_blocks(columns)
    assert same(quantizer(x), quantizer.quantize(x))
    ordinary = torch.randn(16, columns, generator=torch.Generator().manual_seed(1))
    assert same(quantizer(ordinary), quantizer.quantize(ordinary))


@needs_library
@pytest.mark.parametrize("quantizer", BLOCK_CASES, ids=label)
def test_blocks_whose_largest_is_next_to_a_round_number_are_bit_equal(quantizer):
    torch.manual_seed(0)
    round_numbers = (1 + torch.arange(256) / 256).view(torch.int32)
    largest = torch.cat([round_numbers + step for step in (-1, 0, 1)]).view(torch.float32)[:, None]
    x = largest * (2 * torch.rand(len(largest), 96) - 1)
    x[:, ::16] = largest
    assert same(quantizer(x), quantizer.quantize(x))


@needs_library
@pytest.mark.parametrize("bias", [-120, -60, 0, 60, 120, 149])
def test_shared_exponents_far_from_the_data_are_bit_equal(bias):
    x = awkward_blocks(512)
    for width in (3, 8, 24):
        quantizer = BlockFP(width, exponent_width=2, exponent_bias=bias)
        assert same(quantizer(x), quantizer.quantize(x))


@needs_library
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", NATIVE, ids=label)
def test_random_bit_patterns_are_bit_equal(quantizer, rounding):
    quantizer = with_rounding(quantizer, rounding)
    bits = torch.randint(-(2**31), 2**31, (64, 1024), generator=torch.Generator().manual_seed(2))
    x = bits.to(torch.int32).view(torch.float32)
    x = torch.where(x.isfinite(), x, 0.5)
    assert same(quantizer(x), quantizer.quantize(x))


@needs_library
def test_threads_do_not_change_the_values():
    x = torch.randn(300, 1000)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([quantizer(x) for quantizer in NATIVE])
    finally:
        torch.set_num_threads(before)
    assert all(same(a, b) for row in results for a, b in zip(row, results[0], strict=True))


@needs_library
def test_the_mask_is_the_torch_formula():
    x, gradient = torch.randn(2, 70_001)
    x[0], gradient[1] = float("nan"), float("nan")
    expected = torch.where((x >= -0.5) & (x <= 1.0), gradient, 0.0)
    assert same(kernels.mask(gradient, x, -0.5, 1.0), expected)


def test_other_tensors_use_the_definition():
    assert not kernels.can_run(torch.empty(3, dtype=torch.float64))
    assert not kernels.can_run(torch.empty(0))
    assert not kernels.can_run(torch.empty(3, device="meta"))


@pytest.mark.slow
def test_without_native_code_the_values_are_the_same(tmp_path):
    program = (
        "import torch, sys; from chop.nn.quantizers import MXInt, kernels;"
        "x = torch.linspace(-3, 3, 200).reshape(4, 50);"
        "torch.save((MXInt(8)(x), kernels.library() is None), sys.argv[1])"
    )
    saved = tmp_path / "values.pt"
    environment = {**os.environ, "MASE_NATIVE": "0"}
    subprocess.run([sys.executable, "-c", program, str(saved)], check=True, env=environment)
    values, has_no_library = torch.load(saved)
    assert has_no_library
    assert same(values, MXInt(8)(torch.linspace(-3, 3, 200).reshape(4, 50)))


def test_every_case_has_a_label_of_its_own():
    assert len({label(case) for case in CASES}) == len(CASES)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantizer", [MXInt(8), BlockFP(6), MXFP("e2m1"), BlockLog(8)], ids=label)
def test_compiled_inference_calls_the_kernel_of_a_block_format(quantizer, dtype):
    seen = []

    def keep(module, inputs):
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module

    torch.compiler.reset()
    compiled = torch.compile(lambda x: quantizer(x), backend=keep, fullgraph=True)
    x = awkward_blocks(96).to(dtype).T
    with torch.no_grad():
        assert same(compiled(x), quantizer.quantize(x))
    assert "mase.quantize" in " ".join(seen)


def test_compiled_training_keeps_the_definition():
    x = torch.randn(4, 64, requires_grad=True)
    assert not kernels.can_call(x)
    with torch.no_grad():
        assert not kernels.can_call(x.double())


@needs_library
def test_compiled_inference_takes_an_empty_tensor():
    quantizer = MXInt(8)
    compiled = torch.compile(lambda x: quantizer(x), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for shape in ((0, 64), (3, 0)):
            assert compiled(torch.empty(shape)).shape == shape


def test_what_is_exported_needs_no_kernel_of_ours():
    class Rounded(torch.nn.Module):
        def forward(self, x):
            return MXInt(8)(x)

    x = torch.randn(4, 64)
    with torch.no_grad():
        program = torch.export.export(Rounded(), (x,))
    assert "mase" not in str(program.graph)
    assert same(program.module()(x), MXInt(8).quantize(x))


@pytest.mark.slow
def test_the_compiler_is_imported_by_who_compiles():
    code = "import sys, chop.passes; chop.MaseGraph; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_constant_result_is_marked_as_torch_marks_it():
    ours, torchs = (lambda: True), (lambda: True)
    kernels.assume_constant_result(ours)
    torch.compiler.assume_constant_result(torchs)
    assert vars(ours) == vars(torchs) != {}
