"""Settings that make no sense are refused, and the message says what is allowed."""

import re

import pytest
import torch

from chop.errors import ConfigError
from chop.nn.quantizers import Log, ScaleInteger, make_quantizer

REFUSED = [
    ("integer", {"width": 0}, "width must be from 1 to 32, got 0."),
    ("integer", {"width": 8, "frac_width": 500}, "frac_width must be from -90 to 126, got 500."),
    ("integer", {"width": 8, "is_signed": False, "narrow": True}, "narrow needs is_signed = true."),
    ("integer", {"width": 1, "narrow": True}, "narrow needs a width of at least 2, got 1."),
    (
        "integer",
        {"width": 8, "narrow": True, "overflow": "wrap"},
        "overflow = 'wrap' and narrow exclude each other.",
    ),
    (
        "integer",
        {"width": 25, "overflow": "wrap"},
        "width with overflow = 'wrap' must be from 1 to 24, got 25.",
    ),
    (
        "integer",
        {"width": 8, "rounding": "up"},
        "'up' (str) is not allowed. Allowed: 'nearest_even'",
    ),
    (
        "minifloat_ieee",
        {"width": 8, "exponent_width": 0},
        "exponent_width must be from 1 to 8, got 0.",
    ),
    (
        "minifloat_ieee",
        {"width": 4, "exponent_width": 4},
        "width must be at least exponent_width + 1.",
    ),
    (
        "minifloat_ieee",
        {"width": 8, "exponent_width": 4, "exponent_bias": 200},
        "exponent_bias 200 gives values that float32 cannot hold (largest 1.912e-56",
    ),
    (
        "minifloat_ieee",
        {"width": 2, "exponent_width": 1},
        "exponent_width 1 with special = 'ieee' leaves no value but zero.",
    ),
    (
        "minifloat_ieee",
        {"width": 8, "exponent_width": 4, "special": "none", "overflow": "special"},
        "overflow = 'special' needs a special other than 'none'.",
    ),
    (
        "minifloat_denorm",
        {"width": 6, "exponent_width": 4},
        "width must be at least exponent_width + 3.",
    ),
    (
        "minifloat_denorm",
        {"width": 8, "exponent_width": 4, "exponent_bias": -200},
        "exponent_bias -200 gives values that float32 cannot hold",
    ),
    ("log", {"width": 1}, "width must be from 2 to 9, got 1."),
    (
        "log",
        {"width": 9},
        "exponents -127 to 128 must lie within -126 to 127; set exponent_bias.",
    ),
    ("block_fp", {"width": 1}, "width must be from 2 to 32, got 1."),
    (
        "block_fp",
        {"width": 8, "block_size": 0},
        "block_size must be one or two positive sizes (-1: the whole dimension), got 0.",
    ),
    (
        "block_fp",
        {"width": 8, "block_size": [2, 3, 4]},
        "block_size must be one or two positive sizes (-1: the whole dimension), got (2, 3, 4).",
    ),
    (
        "block_fp",
        {"width": 8, "block_size": [2, 3], "axis": 0},
        "axis needs a block_size of one dimension.",
    ),
    (
        "block_fp",
        {"width": 8, "exponent_width": 5, "exponent_bias": 300},
        "exponent_bias must be from -97 to 149, got 300.",
    ),
    (
        "block_minifloat",
        {"width": 5, "exponent_width": 4},
        "width must be at least exponent_width + 2.",
    ),
    ("block_log", {"width": 9}, "width must be from 2 to 8, got 9."),
    ("mxint", {"width": 1}, "width must be from 2 to 32, got 1."),
    ("mxfp", {"element": "e1m1"}, "'e1m1' (str) is not allowed. Allowed: 'e4m3', 'e5m2'"),
    ("fp8", {"element": "e2m1"}, "'e2m1' (str) is not allowed. Allowed: 'e4m3', 'e5m2'."),
    ("nvfp4", {"tensor_scale": 0.0}, "tensor_scale must be positive, got 0.0."),
    ("fp8_block", {"element": "e2m1"}, "'e2m1' (str) is not allowed. Allowed: 'e4m3', 'e5m2'."),
    ("binary_residual", {"levels": 0}, "levels must be from 1 to 8, got 0."),
    ("scale_integer", {"width": 1}, "width must be from 2 to 16, got 1."),
    ("scale_integer", {"group_size": 0}, "group_size must be positive, got 0."),
    ("scale_integer", {"scale": -1.0}, "scale must be positive, got -1.0."),
    (
        "scale_integer",
        {"scale": [0.1, 0.2]},
        "scale must be one number for granularity = 'tensor'.",
    ),
    ("scale_integer", {"zero_point": 3}, "zero_point needs a given scale."),
    (
        "scale_integer",
        {"scale": 1.0, "zero_point": 300},
        "zero_point must be from -127 to 127, got 300.",
    ),
]


@pytest.mark.parametrize("name, given, message", REFUSED)
def test_impossible_settings_are_refused(name, given, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        make_quantizer(name, given, "here")
    assert str(caught.value).startswith("here")


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"here: unknown key 'widht'. Did you mean 'width'\?"):
        make_quantizer("integer", {"widht": 8}, "here")


def test_an_unknown_format_is_refused_with_the_nearest():
    message = r"here\.name: Unknown format 'mxnt'. Did you mean 'mxint'\?"
    with pytest.raises(ConfigError, match=message):
        make_quantizer("mxnt", {}, "here")


def test_scales_that_do_not_fit_the_tensor_are_refused():
    quantizer = ScaleInteger(scale=(0.1, 0.2, 0.3), granularity="channel")
    message = r"scale_integer: 3 scales do not fit dimension 0 of size 2 \(channels\)\."
    with pytest.raises(ConfigError, match=message):
        quantizer(torch.ones(2, 5))


def test_powers_of_two_that_float32_has_no_normal_number_for_are_not_used():
    quantizer = Log(8, exponent_bias=128)
    assert quantizer.exponents == (-126, -1)
    values = quantizer.quantize(torch.tensor([0.0, 1.0, -0.3, 2.0**-126]))
    assert values.tolist() == [2.0**-126, 0.5, -0.25, 2.0**-126]
    with pytest.raises(ConfigError, match=r"exponents -128 to -1 must lie within -126 to 127"):
        Log(8, exponent_bias=128, domain="linear")
