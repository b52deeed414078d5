"""Components of random sizes and formats, whose inputs the hand-written cases do not foresee."""

import numpy as np
import pytest
from covering import first_and_slow

from chop.hw.arith.golden import ROUNDINGS, Fixed
from chop.hw.design.samples import codes, stream
from chop.hw.design.stream import divisors
from chop.hw.library.components import AvgPool, LayerNorm, Linear, Matmul, RmsNorm, Softmax, Weights
from chop.hw.library.fixed_norm import Affine
from chop.hw.sim.component_check import check_components


def number(rng, most=12):
    """A format of 2 to `most` bits, with any rounding."""
    width = int(rng.integers(2, most, endpoint=True))
    kinds = {"is_signed": bool(rng.integers(2)), "rounding": str(rng.choice(ROUNDINGS))}
    return Fixed(width, int(rng.integers(0, width, endpoint=True)), **kinds)


def lanes(rng, size):
    return int(rng.choice(divisors(size)))


def affine(rng, size, has_bias):
    weight, bias = number(rng), number(rng)
    given = codes(weight, size, seed=int(rng.integers(99)))
    if not has_bias:
        return Affine(given, weight)
    return Affine(given, weight, codes(bias, size, seed=int(rng.integers(99))), bias)


def layer_norm(rng):
    size = int(rng.integers(2, 12))
    source = stream(3, size, lanes=lanes(rng, size), number=number(rng))
    eps = float(rng.choice([0.0, 1e-5, 1e-2]))
    return LayerNorm(source, affine(rng, size, bool(rng.integers(2))), number(rng, 20), eps)


def rms_norm(rng):
    size = int(rng.integers(2, 12))
    source = stream(3, size, lanes=lanes(rng, size), number=number(rng))
    return RmsNorm(source, affine(rng, size, False), number(rng, 20), 1e-5)


def softmax(rng):
    size = int(rng.integers(2, 12))
    source = stream(3, size, lanes=lanes(rng, size), number=number(rng, 16))
    return Softmax(source, number(rng, 16), has_mask=bool(rng.integers(2)))


def linear(rng):
    inputs, outputs = (int(n) for n in rng.integers(1, 9, 2))
    weight, bias = number(rng), number(rng)
    seed = int(rng.integers(99))
    weights = Weights(codes(weight, outputs, inputs, seed=seed), weight, codes(bias, outputs), bias)
    source = stream(2, inputs, lanes=lanes(rng, inputs), number=number(rng))
    return Linear(source, weights, number(rng, 20), lanes(rng, outputs))


def matmul(rng):
    rows, inner, columns = (int(n) for n in rng.integers(1, 7, 3))
    left = stream(rows, inner, lanes=lanes(rng, inner), number=number(rng))
    right = stream(columns, inner, lanes=left.lanes, number=number(rng))
    return Matmul(left, right, number(rng, 20), True, lanes(rng, columns))


def avg_pool(rng):
    kernel = tuple(int(n) for n in rng.integers(1, 4, 2))
    channels = int(rng.integers(1, 4))
    source = stream(5, 4, channels, lanes=lanes(rng, channels), number=number(rng))
    padding = tuple(size // 2 for size in kernel)
    counts = bool(rng.integers(2))
    return AvgPool(source, kernel, (1, 1), padding, format=number(rng), counts_padding=counts)


KINDS = (layer_norm, rms_norm, softmax, linear, matmul, avg_pool)


@pytest.mark.sim
@pytest.mark.parametrize(
    ("seed", "of_each_kind"), first_and_slow([(0, 1), *((seed, 2) for seed in range(4))])
)
def test_random_components_are_exact_in_values_and_cycles(seed, of_each_kind, tmp_path):
    rng = np.random.default_rng(seed)
    components = [kind(rng) for kind in KINDS for _ in range(of_each_kind)]
    assert all(verdict.is_exact for verdict in check_components(components, tmp_path))
