"""The exact reference: its numbers, and every op of it against PyTorch in double precision."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_case

from chop.errors import HardwareError
from chop.hw.lower import supported_ops
from chop.hw.reference import exact_ops
from chop.hw.reference.double_model import check_doubles
from chop.hw.reference.exact import Exact, coded, product, quantized
from chop.hw.reference.exact_model import run_exact
from chop.hw.reference.exact_ops import EXACT_OPS, MOVES, UNCHANGED
from chop.nn.quantizers import Integer

SIZES = {"size", "getitem", "getattr", "size_arithmetic"}
ROUNDINGS = ("nearest_even", "nearest_away", "floor", "toward_zero")


def test_every_op_that_hardware_realises_has_an_exact_definition():
    # on doubles and truth values, as the functions of one element that are tables in hardware
    torch_own = {"compare", "logical", "abs", "cos", "erf", "exp", "log", "reciprocal", "round"}
    torch_own |= {"rsqrt", "sign", "sin", "sqrt"}
    assert torch_own | set(EXACT_OPS) | MOVES | UNCHANGED | SIZES >= set(supported_ops())


@st.composite
def formats(draw):
    width, is_signed = draw(st.integers(1, 32)), draw(st.booleans())
    narrow = is_signed and width > 1 and draw(st.booleans())
    wraps = not narrow and width <= 24 and draw(st.booleans())
    return Integer(
        width,
        draw(st.integers(-8, 40)),
        is_signed,
        narrow,
        "wrap" if wraps else "saturate",
        rounding=draw(st.sampled_from(ROUNDINGS)),
    )


@settings(max_examples=150, deadline=None)
@given(formats(), st.integers(0, 2**32 - 1))
def test_numbers_are_brought_to_a_format_as_pytorch_brings_them(form, seed):
    rng = np.random.default_rng(seed)
    reach = 2.0 ** (form.width - form.frac_width)
    x = rng.normal(size=40) * reach * rng.choice([0.01, 0.5, 3.0], 40)
    ties = np.round(np.ldexp(x, form.frac_width + 1)) * 2.0 ** -(form.frac_width + 1)
    both = np.concatenate([x, ties, [0.0]])
    wanted = form.quantize(torch.from_numpy(both)).numpy()
    assert np.array_equal(quantized(Exact.of(both), form).double(), wanted)


@pytest.mark.parametrize("big", [1, 1 << 30, 1 << 60, 1 << 100])
def test_sums_and_products_are_exact_whatever_their_size(big):
    rng = np.random.default_rng(0)
    codes = [rng.integers(-100, 100, (3, 4)).astype(object) * big for _ in range(2)]
    x, y = coded(codes[0], 5), coded(codes[1], -3) / 7
    assert (x + y).fraction(5) == x.fraction(5) + y.fraction(5)
    assert (x * y).fraction(5) == x.fraction(5) * y.fraction(5)
    wanted = sum(x.fraction(4 + k) * y.fraction(8 + k) for k in range(4))
    assert product(x, y).fraction(1 * 3 + 2) == wanted


def test_doubles_are_taken_for_what_they_are():
    x = np.array([0.1, -1e-30, 3e20, 0.0, 5.0])
    assert [Exact.of(x).fraction(k) for k in range(5)] == [Fraction(float(v)) for v in x]
    assert np.array_equal(Exact.of(x).double(), x)


def inputs_of(graph, rows=12):
    found = []
    for node in graph.fx_graph.nodes:
        if node.op == "placeholder":
            shape = node.meta["mase"].common.results["data_out_0"]["shape"][1:]
            x = 3 * torch.randn(rows, *shape, dtype=torch.float64)
            found.append(torch.where(torch.rand_like(x) < 0.5, (16 * x).round() / 16, x))
    return found


def exact_of(graph, inputs):
    return run_exact(graph, [Exact.of(x.numpy()) for x in inputs])


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(40))
def test_the_reference_equals_pytorch_in_double_precision_at_every_node(seed):
    graph = random_case(10_000 + seed).graph
    inputs = inputs_of(graph)
    check_doubles(graph, inputs, exact_of(graph, inputs))


def test_a_reference_that_defines_an_op_otherwise_is_noticed(monkeypatch):
    def sub_the_other_way(arguments):
        return arguments["other"] - arguments["input"]

    case = next(c for c in map(random_case, range(100)) if "x - y[1" in c.text)
    inputs = inputs_of(case.graph)
    monkeypatch.setitem(exact_ops.EXACT_OPS, "sub", sub_the_other_way)
    with pytest.raises(HardwareError, match=r"node 'sub' \(sub\): PyTorch in double precision"):
        check_doubles(case.graph, inputs, exact_of(case.graph, inputs))
