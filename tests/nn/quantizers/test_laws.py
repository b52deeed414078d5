"""Laws that hold for every format, run over a table that covers the registry."""

import copy
import math
import pickle
from dataclasses import replace

import pytest
import torch
from covering import first_and_slow
from format_cases import (
    BLOCK_CASES,
    CASES,
    DETERMINISTIC,
    ELEMENT_CASES,
    MEASURED_CASES,
    awkward_blocks,
    awkward_points,
    finite_points,
    label,
    same,
    with_rounding,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from chop.errors import ConfigError
from chop.nn.quantizers import (
    FORMATS,
    FP8,
    MXFP,
    Binary,
    BinaryResidual,
    BinaryScaling,
    BlockFP,
    BlockQuantizer,
    Bypass,
    Integer,
    MinifloatIEEE,
    MXInt,
    RoundingQuantizer,
    ScaleInteger,
    Ternary,
)

pytestmark = pytest.mark.share(2)

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def inputs(quantizer):
    """Awkward numbers for formats of single elements, awkward blocks for the others."""
    return awkward_points() if quantizer in ELEMENT_CASES else awkward_blocks(37)


def test_the_cases_cover_the_registry():
    assert {type(case).name for case in CASES} == set(FORMATS)


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_registry_knows_names_aliases_and_class_suffixes(name):
    found = FORMATS[name]
    assert found.name == name
    assert all(FORMATS[alias] is found for alias in found.aliases)
    assert [f.class_suffix for f in FORMATS.values()].count(found.class_suffix) == 1


@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_formats_are_values(quantizer):
    quantizer(torch.randn(3))
    for twin in (copy.deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert twin == quantizer and hash(twin) == hash(quantizer)


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", ELEMENT_CASES + BLOCK_CASES, ids=label)
def test_quantising_twice_is_quantising_once(quantizer, rounding):
    quantizer = with_rounding(quantizer, rounding)
    once = quantizer.quantize(inputs(quantizer))
    if getattr(quantizer, "overflow", None) == "special":
        once = once[once.isfinite()]
    if quantizer.name == "scale_integer":  # q * scale / scale may fall short of q
        quantizer = replace(quantizer, rounding="nearest_even")
    assert same(quantizer.quantize(once), once)


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", ELEMENT_CASES, ids=label)
def test_larger_inputs_give_no_smaller_values(quantizer, rounding):
    quantizer = with_rounding(quantizer, rounding)
    if getattr(quantizer, "overflow", "saturate") != "saturate":
        quantizer = replace(quantizer, overflow="saturate")
    y = quantizer.quantize(finite_points().sort().values)
    assert (y[1:] >= y[:-1]).all()


ENUMERATED = [
    q
    for q in ELEMENT_CASES
    if q.value_set() is not None and getattr(q, "domain", "linear") == "linear"
]
NEAREST = [q for q in ENUMERATED if getattr(q, "overflow", None) not in ("wrap", "special")]


@pytest.mark.parametrize("quantizer", [q for q in NEAREST if q.name != "binary"], ids=label)
@given(x=floats)
@settings(max_examples=40)
def test_no_value_is_nearer_than_the_one_given(quantizer, x):
    if quantizer.name == "ternary":
        quantizer = Ternary(threshold=0.5)
    y = quantizer.quantize(torch.tensor(x)).item()
    assert abs(x - y) == (x - quantizer.value_set()).abs().min().item()


@pytest.mark.parametrize("quantizer", ENUMERATED, ids=label)
def test_values_lie_in_the_value_set_and_all_are_reached(quantizer):
    values = quantizer.value_set()
    assert torch.equal(values, values.sort().values)
    y = quantizer.quantize(finite_points())
    assert torch.isin(y[y.isfinite()].double(), values).all()
    assert torch.equal(quantizer.quantize(values.float()).double(), values)


@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_value_sets_have_at_most_one_value_per_code(quantizer):
    values = quantizer.value_set()
    assert (values is not None) <= (quantizer.bits <= 8)
    assert values is None or values.numel() <= 2**quantizer.bits


MIRRORED = ("minifloat_ieee", "minifloat_denorm", "fp8", "mxint", "mxfp", "block_fp")


@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "toward_zero"])
@pytest.mark.parametrize("quantizer", [q for q in CASES if q.name in MIRRORED], ids=label)
def test_values_change_sign_with_the_input(quantizer, rounding):
    quantizer = with_rounding(quantizer, rounding)
    x = inputs(quantizer)
    assert torch.equal(quantizer.quantize(-x).nan_to_num(), -quantizer.quantize(x).nan_to_num())


# --- shapes, dtypes, memory -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_shape_and_dtype_are_kept(quantizer, dtype):
    for shape in [(), (1,), (0,), (3, 0), (5,), (2, 37), (2, 3, 5), (2, 3, 4, 5)]:
        y = quantizer(torch.randn(shape).to(dtype))
        assert y.shape == shape and y.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("quantizer", ELEMENT_CASES + BLOCK_CASES, ids=label)
def test_half_precision_is_float32_rounded_once(quantizer, dtype):
    x = awkward_blocks(37).to(dtype)
    assert same(quantizer.quantize(x), quantizer.quantize(x.float()).to(dtype))


EXACT = [q for q in ELEMENT_CASES + BLOCK_CASES if q.bits <= 8.5 and q.name != "scale_integer"]


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("quantizer", EXACT, ids=label)
def test_double_precision_gives_the_same_values(quantizer, rounding):
    x = inputs(quantizer)
    quantizer = with_rounding(quantizer, rounding)
    assert same(quantizer.quantize(x.double()).float(), quantizer.quantize(x))


@pytest.mark.parametrize("quantizer", ELEMENT_CASES + BLOCK_CASES, ids=label)
def test_memory_layout_does_not_matter(quantizer):
    x = torch.randn(7, 6, 5)
    for view in (x.transpose(0, 2), x[::2, 1:, ::2], x[:, :, :1].expand(7, 6, 5)):
        assert same(quantizer(view), quantizer.quantize(view.contiguous()))


@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_the_input_is_left_alone(quantizer):
    x = awkward_blocks(8)
    before = x.clone()
    quantizer(x)
    assert same(x, before)


def test_integer_tensors_are_refused():
    message = r"integer: expected a floating-point tensor, got torch\.int64"
    with pytest.raises(ConfigError, match=message):
        Integer(8).quantize(torch.tensor([1]))


# --- special numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("quantizer", ELEMENT_CASES, ids=label)
def test_nan_stays_nan_and_touches_nothing_else(quantizer):
    y = quantizer(torch.tensor([math.nan, 0.5]))
    assert y[0].isnan() and same(y[1], quantizer(torch.tensor([0.5]))[0])


@pytest.mark.parametrize("quantizer", BLOCK_CASES, ids=label)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_block_with_inf_or_nan_is_nan_and_the_others_are_not(quantizer, bad):
    quantizer = replace(quantizer, block_size=4, axis=-1)
    x = torch.ones(2, 8)
    x[0, 1] = bad
    y = quantizer(x)
    assert y[0, :4].isnan().all()
    assert not y[0, 4:].isnan().any() and not y[1].isnan().any()


SATURATING = [q for q in NEAREST if not isinstance(q, Bypass)]


@pytest.mark.parametrize("quantizer", SATURATING, ids=label)
def test_infinity_saturates(quantizer):
    values = quantizer.value_set()
    y = quantizer(torch.tensor([-math.inf, math.inf]))
    assert torch.equal(y.double(), values[[0, -1]])


def test_integers_and_mxint_have_one_zero():
    x = torch.tensor([-0.0, -1e-9, 0.0, 1.0])
    for quantizer in (Integer(8, 4), MXInt(8, block_size=4)):
        assert not quantizer(x)[:3].signbit().any()
        assert not quantizer.quantize(x)[:3].signbit().any()


def test_floats_keep_the_sign_of_zero():
    x = torch.tensor([-0.0, -1e-9, 0.0, 1.0])
    for quantizer in (FP8(), MinifloatIEEE(8, 4), MXFP(block_size=4), BlockFP(8, block_size=4)):
        assert quantizer(x).signbit().tolist() == [True, True, False, False]
        assert quantizer.quantize(x).signbit().tolist() == [True, True, False, False]


# --- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("quantizer", BLOCK_CASES, ids=label)
def test_a_short_last_block_is_padded_with_zeros(quantizer):
    quantizer = replace(quantizer, block_size=4, axis=-1)
    x = torch.randn(3, 6)
    padded = torch.nn.functional.pad(x, (0, 2))
    assert same(quantizer.quantize(x), quantizer.quantize(padded)[:, :6])


@pytest.mark.parametrize("quantizer", BLOCK_CASES, ids=label)
def test_a_block_does_not_cross_a_row(quantizer):
    quantizer = replace(quantizer, block_size=4, axis=-1)
    x = torch.randn(5, 6) * torch.logspace(-9, 9, 5)[:, None]
    rows = torch.stack([quantizer.quantize(row) for row in x])
    assert same(quantizer.quantize(x), rows)


@pytest.mark.parametrize("quantizer", BLOCK_CASES, ids=label)
def test_a_tile_is_a_block_of_its_elements(quantizer):
    tiled = replace(quantizer, block_size=(2, 3), axis=-1)
    flat = replace(quantizer, block_size=6, axis=-1)
    x = torch.randn(4, 6)
    y = tiled.quantize(x)
    for r, c in [(0, 0), (0, 3), (2, 0), (2, 3)]:
        tile = x[r : r + 2, c : c + 3]
        assert same(y[r : r + 2, c : c + 3], flat.quantize(tile.reshape(-1)).reshape(2, 3))


@pytest.mark.parametrize("quantizer", BLOCK_CASES, ids=label)
def test_blocks_along_another_axis_are_blocks_of_the_transpose(quantizer):
    along = replace(quantizer, block_size=4, axis=0)
    last = replace(quantizer, block_size=4, axis=-1)
    x = torch.randn(9, 5)
    assert same(along.quantize(x), last.quantize(x.t().contiguous()).t())


@pytest.mark.parametrize("size, same_as", [([16], 16), ((1, 16), 16), (-1, 40)])
def test_block_sizes_have_several_spellings(size, same_as):
    x = torch.randn(3, 40)
    size = tuple(size) if isinstance(size, list) else size
    assert same(BlockFP(8, block_size=size)(x), BlockFP(8, block_size=same_as)(x))


def test_shared_bits_count_towards_the_average():
    assert MXInt(8, block_size=32).bits == 8.25
    assert MXFP("e2m1", block_size=16).bits == 4.5
    assert BlockFP(8, block_size=(4, 4)).bits == 8.5
    assert BlockFP(8, block_size=-1).bits == 8.0
    assert Integer(5).bits == 5 and Bypass().bits == 32


# --- scales and statistics --------------------------------------------------------------------


def test_a_measured_scale_reaches_the_largest_magnitude():
    x = torch.tensor([[1.0, -2.54], [0.02, 0.0]])
    y = ScaleInteger(8).quantize(x)
    assert torch.allclose(y, torch.tensor([[1.0, -2.54], [0.02, 0.0]]), atol=1e-6)


def test_given_scales_apply_per_channel_and_per_group():
    x = torch.ones(2, 4) * 0.26
    by_channel = ScaleInteger(8, scale=(0.1, 0.25), granularity="channel").quantize(x)
    assert torch.allclose(by_channel, torch.tensor([[0.3] * 4, [0.25] * 4]))
    by_group = ScaleInteger(8, scale=(0.1, 0.25), granularity="group", group_size=2).quantize(x)
    assert torch.allclose(by_group, torch.tensor([[0.3, 0.3, 0.25, 0.25]] * 2))


def test_a_scale_divides_rather_than_multiplies_by_its_inverse():
    # 0.35 / 0.1 in float32 is exactly 3.5 or not, depending on which of the two is done
    x = torch.arange(-40, 41) * 0.5 * torch.tensor(0.1)
    expected = (x / torch.tensor(0.1)).round().clamp(-127, 127) * torch.tensor(0.1)
    assert torch.equal(ScaleInteger(8, scale=0.1).quantize(x), expected)


def test_binary_scaling_is_the_mean_magnitude_per_channel():
    x = torch.tensor([[1.0, -3.0], [0.5, 0.5]])
    expected = torch.tensor([[2.0, -2.0], [0.5, 0.5]])
    assert torch.equal(BinaryScaling(axis=0).quantize(x), expected)


def test_more_residual_levels_come_nearer():
    x = torch.randn(100)
    errors = [(BinaryResidual(n).quantize(x) - x).square().mean() for n in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)


def test_ternary_scale_is_the_mean_of_what_is_kept_and_zero_if_nothing_is():
    x = torch.tensor([1.0, 0.1, -3.0])
    y = Ternary(scaling_factor=True, threshold=0.5).quantize(x)
    assert torch.equal(y, torch.tensor([2.0, 0.0, -2.0]))
    assert torch.equal(Ternary(scaling_factor=True, threshold=9.0).quantize(x), torch.zeros(3))


def test_ternary_threshold_follows_the_mean_or_a_given_maximum():
    x = torch.tensor([0.1, 0.2, 0.3, 1.0])
    assert Ternary().quantize(x).tolist() == [0, 0, 0, 1]
    assert Ternary(maximum=3.0).quantize(x).tolist() == [0, 1, 1, 1]


# --- chance -----------------------------------------------------------------------------------

ROUNDED = [q for q in CASES if isinstance(q, RoundingQuantizer)]


@pytest.mark.parametrize("quantizer", ROUNDED, ids=label)
def test_a_seed_fixes_stochastic_rounding(quantizer):
    seeded = replace(quantizer, rounding="stochastic", seed=3)
    x = torch.randn(8, 40)
    assert same(seeded(x), seeded(x))


def test_without_a_seed_torch_gives_the_random_numbers():
    quantizer, x = Integer(8, 2, rounding="stochastic"), torch.rand(1000)
    torch.manual_seed(1)
    first = quantizer(x)
    assert not torch.equal(quantizer(x), first)
    torch.manual_seed(1)
    assert torch.equal(quantizer(x), first)


def test_supplied_noise_decides_stochastic_rounding():
    quantizer = Integer(8, 0, rounding="stochastic")
    x = torch.tensor([0.25, 0.25, -0.25, -0.25, 3.0])
    noise = torch.tensor([0.74, 0.75, 0.74, 0.75, 0.9999])
    assert quantizer.quantize(x, noise).tolist() == [0, 1, 0, -1, 3]


@pytest.mark.parametrize("seed", [None, 5])
def test_stochastic_rounding_keeps_the_mean(seed):
    torch.manual_seed(0)
    x = torch.full((200_000,), 0.3)
    y = Integer(8, 0, rounding="stochastic", seed=seed).quantize(x)
    assert abs(y.mean().item() - 0.3) < 0.005  # five standard deviations


def test_stochastic_binary_follows_its_probability():
    x = torch.tensor([-2.0, -0.5, 0.5, 2.0]).repeat_interleave(50_000)
    y = Binary(stochastic=True, seed=1).quantize(x).reshape(4, -1).mean(1)
    assert torch.allclose(y, torch.tensor([-1.0, -0.5, 0.5, 1.0]), atol=0.02)


# --- compilers and tracers --------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self, quantizer):
        super().__init__()
        self.quantizer = quantizer

    def forward(self, x):
        return self.quantizer(x) * 1.0


ONE_PER_FORMAT = list({q.name: q for q in reversed(CASES)}.values())


@pytest.mark.share(2)
@pytest.mark.parametrize("quantizer", first_and_slow(ONE_PER_FORMAT, 8), ids=label)
def test_formats_trace_into_one_graph_with_their_gradient(quantizer):
    torch._dynamo.reset()
    traced = torch.compile(Layer(quantizer), fullgraph=True, backend="eager")
    x, twin = (torch.linspace(-3, 3, 24).reshape(2, 12).requires_grad_() for _ in range(2))
    y, expected = traced(x), quantizer(twin)
    assert same(y.detach(), expected.detach())
    y.sum().backward()
    expected.sum().backward()
    assert torch.equal(x.grad, twin.grad)


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_compiled_formats_give_the_same_bits(quantizer, rounding):
    torch._dynamo.reset()
    quantizer = with_rounding(quantizer, rounding)
    x = inputs(quantizer)
    y = torch.compile(quantizer.quantize, fullgraph=True)(x)
    if quantizer in MEASURED_CASES:  # a mean may be summed in another order
        assert torch.allclose(y, quantizer.quantize(x), rtol=1e-5, equal_nan=True)
    else:
        assert same(y, quantizer.quantize(x))


@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_fake_tensors_pass_through(quantizer):
    with FakeTensorMode():
        y = quantizer(torch.empty(4, 33))
    assert y.shape == (4, 33) and y.dtype == torch.float32


def test_blocks_are_told_by_their_base_class():
    assert all(isinstance(q, BlockQuantizer) for q in BLOCK_CASES)
