"""Softmax, norms and tables in integers: within their stated bounds of the real functions."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chop.errors import ConfigError
from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic import fixed_codes, function, integer_softmax, norm, tables

pytestmark = pytest.mark.share(2)

BYTE, FINE, HALF = Integer(8, 4), Integer(12, 8), Integer(16, 9)
COUNT, PART = Integer(7, 3, is_signed=False), Integer(8, 7, is_signed=False)


def places(y, wanted, out):
    """The largest distance in last places of `out`, of numbers inside its range."""
    low, high = out.range
    away = (y.double() - wanted.clamp(low, high)).abs().max()
    return float(away * 2.0**out.frac_width)


def all_numbers(number):
    codes_of = np.arange(2**number.width) - (2 ** (number.width - 1) if number.is_signed else 0)
    return codes_of * 2.0**-number.frac_width


def rows_of(number, size, seed=0):
    """Random rows and those that are hard: all equal, one hot, extremes, half and half."""
    rng = np.random.default_rng(seed)
    low = -(2 ** (number.width - 1)) if number.is_signed else 0
    high = low + 2**number.width - 1
    made = [rng.integers(low, high, (200, size), endpoint=True)]
    made.append(np.clip(rng.normal(0, 2.0**number.frac_width, (200, size)).round(), low, high))
    made.append(rng.integers(-1, 1, (50, size), endpoint=True).clip(low, high))
    made += [np.full((1, size), c) for c in (low, 0, high)]
    hot = np.full((4, size), low)
    hot[1:] += np.array([[0], [1], [2]])
    hot[:, size // 2] = high
    ends = np.where(np.arange(size) % 2, low, high)[None]
    tail = np.full((1, size), max(high - int(11.78 * 2**number.frac_width), low))
    tail[:, 0] = high
    small = np.zeros((2, size), dtype=int)
    small[1, -1] = 1
    return torch.from_numpy(np.concatenate([*made, hot, ends, tail, small]).astype(np.int64))


# -- tables ----------------------------------------------------------------------------------------


def test_reciprocals_of_all_mantissas_are_within_their_bound():
    total = torch.arange(2**16, 2**17) << 8
    for rest in (0, 255):  # what is cut off behind the mantissa
        sums = total + rest
        p = 24
        exact = 2.0**33 / sums.double()
        bound = exact * tables.RECIPROCAL_ERROR + 1
        assert bool(((tables.reciprocal(sums).double() - exact).abs() <= bound).all()), p


def test_roots_of_all_mantissas_are_within_their_bound():
    for scale in (0, 8, 20):
        for rest in (0, (1 << scale) - 1):
            u = (torch.arange(2**16, 2**18) << scale) + rest
            r, k = tables.inverse_root(u)
            relative = r.double() * 2.0 ** (-18.0 - k) * u.double().sqrt() - 1
            assert float(relative.abs().max()) <= tables.ROOT_ERROR
            assert int(r.max()) < 2**18


def test_small_numbers_have_roots_too():
    u = torch.arange(1, 2**12)
    r, k = tables.inverse_root(u)
    relative = r.double() * 2.0 ** (-18.0 - k) * u.double().sqrt() - 1
    assert float(relative.abs().max()) <= tables.ROOT_ERROR


@pytest.mark.parametrize(
    "number", [BYTE, Integer(8, 9), Integer(16, 4), Integer(16, -3), FINE, HALF, Integer(16, 15)]
)
def test_exponentials_of_all_differences_are_within_their_bound(number):
    distance = torch.arange(2**number.width)
    exact = 65535 * torch.exp(-distance.double() * 2.0**-number.frac_width)
    away = (integer_softmax.exponential(distance, number) - exact).abs().max()
    assert float(away) <= (1.5 if integer_softmax.has_two_tables(number) else 0.5) + 1e-9
    assert integer_softmax.exponential(torch.tensor([0]), number).item() == 65535


# -- softmax ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 16, 197])
@pytest.mark.parametrize("number", [BYTE, COUNT, FINE, HALF, Integer(6, -1)])
@pytest.mark.parametrize("out", [PART, Integer(8, 7), Integer(16, 15), Integer(6, 5)])
def test_softmax_is_within_its_bound(size, number, out):
    rows = rows_of(number, size)
    x = rows.double() * 2.0**-number.frac_width
    y = integer_softmax.softmax(x, -1, number, out)
    assert torch.equal(y, out.quantize(y))
    assert places(y, F.softmax(x, -1), out) <= integer_softmax.error_bound(number, out, size)


def test_the_bound_of_a_byte_is_below_one_last_place():
    assert integer_softmax.error_bound(BYTE, PART, 128) < 0.64
    assert integer_softmax.error_bound(BYTE, Integer(8, 7), 197) < 0.7


def test_masked_elements_are_exactly_zero_and_take_no_part():
    x = rows_of(BYTE, 12).double() / 16
    keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    keep[:, 3] = True
    y = integer_softmax.softmax(x.masked_fill(~keep, -math.inf), -1, BYTE, PART)
    assert bool((y[~keep] == 0).all())
    for row, mask, given in zip(x, keep, y, strict=True):
        assert torch.equal(given[mask], integer_softmax.softmax(row[mask], -1, BYTE, PART))


def test_a_row_that_is_masked_whole_is_zero():
    x = torch.full((2, 5), -math.inf)
    x[1, 2] = -8.0
    assert integer_softmax.softmax(x, -1, BYTE, PART).tolist() == [[0.0] * 5, [0, 0, 1.0, 0, 0]]


def test_softmax_goes_over_the_dimension_asked_for():
    x = rows_of(BYTE, 6)[:24].double().reshape(4, 6, 6) / 16
    y = integer_softmax.softmax(x, 1, BYTE, PART)
    assert torch.equal(y, integer_softmax.softmax(x.mT, -1, BYTE, PART).mT)


# -- normalisation ---------------------------------------------------------------------------------


def real_norm(x, eps, is_centred):
    centred = x - x.mean(-1, keepdim=True) if is_centred else x
    return centred / ((centred * centred).mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("size", [2, 3, 8, 128, 200])
@pytest.mark.parametrize("number", [BYTE, COUNT, FINE, HALF, Integer(6, -1)])
@pytest.mark.parametrize("is_centred", [True, False], ids=["layer_norm", "rms_norm"])
def test_normalised_rows_are_within_their_bound(size, number, is_centred):
    rows = rows_of(number, size)
    for eps in (1e-5, 1e-2):
        wanted = real_norm(rows.double() * 2.0**-number.frac_width, eps, is_centred)
        z = norm.normalise_codes(rows, number, eps, is_centred).double() * 2.0**-16
        bound = wanted.abs() * (tables.ROOT_ERROR + 2.0**-18) + 2.0**-16 + 1e-12
        assert bool(((z - wanted).abs() <= bound).all())


@pytest.mark.parametrize("out", [BYTE, Integer(16, 11), Integer(6, 2, rounding="floor")])
def test_layer_norm_is_within_its_bound(out):
    generator = torch.Generator().manual_seed(0)
    x = rows_of(BYTE, 48).double() / 16
    weight, bias = (torch.randn(48, generator=generator).double() for _ in range(2))
    formats = {"data_in": BYTE, "weight": Integer(8, 5), "bias": Integer(8, 6), "data_out": out}
    y = norm.layer_norm(x, [48], weight, bias, 1e-5, formats)
    weight, bias = formats["weight"].quantize(weight), formats["bias"].quantize(bias)
    wanted = F.layer_norm(x, [48], weight, bias, 1e-5)
    assert places(y, wanted, out) <= norm.error_bound(out, 48, float(weight.abs().max()))
    assert torch.equal(y, out.quantize(y))


def test_rms_norm_is_within_its_bound_and_has_the_eps_of_float32():
    x = rows_of(BYTE, 32).double() / 16
    weight = torch.linspace(-2, 2, 32).double()
    formats = {"data_in": BYTE, "weight": Integer(8, 5), "data_out": Integer(12, 7)}
    y = norm.rms_norm(x, [32], weight, None, formats)
    wanted = F.rms_norm(x, [32], formats["weight"].quantize(weight), 2.0**-23)
    assert places(y, wanted, formats["data_out"]) <= norm.error_bound(Integer(12, 7), 32, 2.0)


def test_a_row_of_equal_elements_gives_the_bias():
    formats = dict.fromkeys(("data_in", "weight", "bias", "data_out"), BYTE)
    x, bias = torch.full((1, 4), 3.0), torch.tensor([0.5, -1.0, 2.0, 0.0])
    for eps in (0.0, 1e-5):
        assert torch.equal(norm.layer_norm(x, [4], bias, bias, eps, formats)[0], bias)


def test_norms_go_over_several_dimensions():
    formats = dict.fromkeys(("data_in", "weight", "bias", "data_out"), BYTE)
    x = rows_of(BYTE, 12)[:8].double() / 16
    flat = norm.layer_norm(x, [12], None, None, 1e-5, formats)
    assert torch.equal(
        norm.layer_norm(x.view(8, 3, 4), [3, 4], None, None, 1e-5, formats).view(8, 12), flat
    )


# -- functions of one element ----------------------------------------------------------------------

REAL = {
    "gelu": (F.gelu, lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2))),
    "silu": (F.silu, lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0),
    "tanh": (torch.tanh, math.tanh),
    "sigmoid": (torch.sigmoid, lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0),
    "exp": (torch.exp, lambda x: math.exp(min(x, 300.0))),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    ("number", "out"),
    [
        (BYTE, BYTE),
        (COUNT, PART),
        (FINE, Integer(12, 9)),
        (Integer(14, 10), Integer(14, 10)),
        (HALF, BYTE),
    ],
    ids=str,
)
def test_every_code_is_within_the_bound(name, number, out):
    evaluate, real = REAL[name]
    x = torch.from_numpy(all_numbers(number))
    wanted = torch.tensor([real(v) for v in x.tolist()], dtype=torch.float64)
    y = function.function_by_table(x, evaluate, number, out, name)
    assert places(y, wanted, out) <= (0.5 if number.width <= 12 else 0.75) + 1e-9
    assert torch.equal(y, out.quantize(y))


def test_lines_are_as_few_as_will_do():
    lines = function.fit_lines(F.gelu, HALF, Integer(16, 9))
    assert len(lines.bases) == 2048 and lines.error <= 0.25
    assert len(function.fit_lines(F.gelu, HALF, BYTE).bases) < len(lines.bases)


# -- codes, refusals -------------------------------------------------------------------------------


def test_bit_length_is_pythons():
    numbers = [0, 1, 2, 3, *(2**k + d for k in range(2, 62) for d in (-1, 0, 1))]
    assert fixed_codes.bit_length(torch.tensor(numbers)).tolist() == [
        n.bit_length() for n in numbers
    ]


def test_not_a_number_stays_one():
    x = torch.tensor([[0.0, math.nan], [1.0, 2.0]])
    formats = dict.fromkeys(("data_in", "weight", "bias", "data_out"), BYTE)
    assert integer_softmax.softmax(x, -1, BYTE, PART).isnan().tolist() == [
        [True, True],
        [False, False],
    ]
    assert norm.layer_norm(x, [2], None, None, 0.1, formats).isnan().sum() == 2
    assert function.function_by_table(x, torch.tanh, BYTE, BYTE, "tanh").isnan().sum() == 1


def test_what_is_too_wide_is_refused():
    wide, x = Integer(17, 4), torch.zeros(2, 1 << 13)
    formats = {"data_in": Integer(16, 4), "data_out": BYTE}
    with pytest.raises(ConfigError, match=r"data_in_width must be at most 16 .* got 17"):
        integer_softmax.softmax(x, -1, wide, PART)
    with pytest.raises(ConfigError, match=r"rows of 4194304 elements of 16 bits .* 62 bits"):
        norm.check_settings(Integer(16, 4), 1 << 22, 1e-5, True)
    with pytest.raises(ConfigError, match="rows of at most 16384 elements, got 16385"):
        integer_softmax.check_settings(BYTE, 16385)
    assert norm.rms_norm(x, [1 << 13], None, 1e-5, formats).abs().max() == 0


def test_masks_of_hugging_face_models_are_masks():
    x = torch.tensor([[1.0, 2.0, 3.0]]) + torch.tensor([0.0, 0.0, torch.finfo(torch.float32).min])
    wanted = integer_softmax.softmax(torch.tensor([[1.0, 2.0, -math.inf]]), -1, BYTE, PART)
    assert torch.equal(integer_softmax.softmax(x, -1, BYTE, PART), wanted)
    assert torch.equal(integer_softmax.softmax(x.double(), -1, BYTE, PART), wanted.double())


# -- the page --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_table_of_the_page_is_what_is_measured():
    docs = Path(__file__).parents[3] / "docs"
    spec = importlib.util.spec_from_file_location("make_arithmetic", docs / "make_arithmetic.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (docs / "hardware_numbers.md").read_text()
    assert module.page_with(page, module.table()) == page
