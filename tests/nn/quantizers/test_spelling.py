"""Every format has one spelling: it parses and prints as the same text everywhere."""

import dataclasses
import functools
import typing
from typing import ClassVar, Literal

import pytest
from format_cases import CASES, label
from hypothesis import given
from hypothesis import strategies as st

from chop.config import parse
from chop.errors import ConfigError, RegistryError
from chop.nn.quantizers import (
    FORMATS,
    FP8,
    MXFP,
    NVFP4,
    Bypass,
    FP8Block,
    Integer,
    MXInt,
    Quantizer,
    ScaleInteger,
    parse_format,
)
from chop.nn.quantizers.formats import make_quantizer
from chop.nn.quantizers.spelling import examples, own_stem

pytestmark = pytest.mark.share(2)

SPELLINGS = {
    "fixed8.4": Integer(8, 4),
    "ufixed8.4": Integer(8, 4, is_signed=False),
    "fixed4.-3": Integer(4, -3),
    "int8": ScaleInteger(8),
    "int8/channel": ScaleInteger(8, granularity="channel"),
    "int4/128": ScaleInteger(4, granularity="group", group_size=128),
    "uint8": ScaleInteger(8, is_signed=False),
    "int8:scale=stored": ScaleInteger(8, scale="stored"),
    "int8/channel:scale=0.1x0.25": ScaleInteger(8, scale=(0.1, 0.25), granularity="channel"),
    "mxint4": MXInt(4),
    "mxint8/16": MXInt(8, block_size=16),
    "mxint8/4x4": MXInt(8, block_size=(4, 4)),
    "mxint8/-1": MXInt(8, block_size=-1),
    "mxint4:exponent_width=5:rounding=floor": MXInt(4, exponent_width=5, rounding="floor"),
    "mxfp4": MXFP("e2m1"),
    "mxfp6": MXFP("e3m2"),
    "mxfp6_e2m3": MXFP("e2m3"),
    "mxfp8": MXFP("e4m3"),
    "mxfp8_e5m2/16": MXFP("e5m2", block_size=16),
    "fp8_e4m3": FP8("e4m3"),
    "nvfp4": NVFP4(),
    "nvfp4/32": NVFP4(block_size=32),
    "nvfp4:tensor_scale=0.25": NVFP4(tensor_scale=0.25),
    "fp8_block": FP8Block(),
    "fp8_block/64x64:element=e5m2": FP8Block("e5m2", block_size=(64, 64)),
    "float": Bypass(),
}


@pytest.mark.parametrize(("text", "form"), SPELLINGS.items())
def test_a_spelling_parses_and_prints(text, form):
    assert parse_format(text) == form
    assert str(form) == form.spelling == text


@pytest.mark.parametrize(
    ("text", "form"),
    {
        "mxint8/32": MXInt(8),
        "fixed8.0": Integer(8),
        "mxfp8_e4m3": MXFP("e4m3"),
        "int8/tensor": ScaleInteger(8),
        "mxint": MXInt(),
        "mxint/16": MXInt(block_size=16),
        "fp8": FP8(),
        "bypass": Bypass(),
        "integer:width=8:frac_width=4": Integer(8, 4),
        "fixed:width=8": Integer(8),
    }.items(),
)
def test_defaults_and_registered_names_are_read_and_not_printed(text, form):
    assert parse_format(text) == form
    assert str(form) != text


@pytest.mark.parametrize("form", CASES, ids=label)
def test_every_case_reads_back(form):
    assert parse_format(str(form)) == form
    assert parse_format(form.file_spelling) == form
    assert not set(form.file_spelling) & set('/\\:*?"<>| ,')


NUMBERS = {
    int: st.integers(-2, 40),
    float: st.floats(allow_nan=False, width=32),
    bool: st.booleans(),
    type(None): st.none(),
}


def values_of(hint):
    """Values of a field's type."""
    if typing.get_origin(hint) is Literal:
        return st.sampled_from(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return st.lists(values_of(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if hint in NUMBERS:
        return NUMBERS[hint]
    return st.one_of(*map(values_of, typing.get_args(hint)))


@functools.cache
def settings_of(cls):
    """Settings of a format, some left at their defaults; not all of them make a format."""
    hints = typing.get_type_hints(cls)
    drawn = {f.name: values_of(hints[f.name]) for f in dataclasses.fields(cls)}
    needed = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
    return st.fixed_dictionaries(
        {name: drawn[name] for name in needed},
        optional={name: s for name, s in drawn.items() if name not in needed},
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_all_settings_read_back(name, data):
    settings = data.draw(settings_of(FORMATS[name]))
    try:
        form = parse(FORMATS[name], settings, name)
    except ConfigError:
        return  # these settings make no format
    text = str(form)
    assert parse_format(text) == form
    assert str(parse_format(text)) == text
    assert parse_format(form.file_spelling) == form
    assert "," not in text and " " not in text  # lists on the command line


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_an_example_of_its_own(name):
    example = examples(FORMATS)[name]
    form = parse_format(example)
    assert type(form) is FORMATS[name]
    assert str(form) == example


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mxnt4", "format: Unknown format 'mxnt4'. Did you mean 'mxint4'? Known: binary,"),
        ("MXINT6", "Did you mean 'mxint6'?"),
        ("intger", "Did you mean 'integer'?"),
        ("fixed8,4", "Did you mean 'fixed8.4'?"),
        ("fp8_e3m4", "Did you mean 'fp8_e4m3'?"),
        ("mxint4.2", "Did you mean 'mxint8'?"),
        ("", "Unknown format ''. Known: binary,"),
        ("mxint99", "format: width must be from 2 to 32, got 99."),
        ("mxfp8_e2m1", "format: 'mxfp8_e2m1': mxfp8 has no element 'e2m1'."),
        ("fixed8.4/32", "'fixed8.4/32': format 'integer' has no groups: leave out '/32'."),
        ("mxint8/big", "'/big' is not a block size, such as '/16' or '/4x4'."),
        ("int8/big", "'/big' is not a group size, such as '/128', or '/channel'."),
        ("mxint4:width=8", "'mxint4:width=8': 'width=8' is given twice."),
        ("mxint4:floor", "'mxint4:floor': 'floor' is not <setting>=<value>."),
        ("mxint4:axs=0", "format: unknown key 'axs'. Did you mean 'axis'?"),
        ("mxint" + "9" * 5000, "Unknown format 'mxint999"),
        (8, "format: expected the spelling of a format, got 8."),
    ],
)
def test_a_wrong_spelling_is_an_error_with_the_nearest_one(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_format(text)
    assert message in str(caught.value)


def test_settings_beside_a_spelling_win():
    assert make_quantizer("mxint4/16", {"width": 8}, "here") == MXInt(8, block_size=16)


def test_a_format_of_ones_own_is_spelled_by_its_name_and_settings():
    with FORMATS.restored():

        @dataclasses.dataclass(frozen=True)
        class Odd(MXInt):
            name: ClassVar[str] = "odd"
            class_suffix: ClassVar[str] = "Odd"
            step: float = 0.5

        form = Odd(4, step=0.25, block_size=16)
        assert own_stem(Odd) is None
        assert str(form) == "odd/16:width=4:step=0.25"
        assert parse_format(str(form)) == form


def test_a_name_that_spells_another_format_is_refused():
    with FORMATS.restored(), pytest.raises(RegistryError) as caught:

        class Eight(Quantizer):
            name: ClassVar[str] = "mxint8"
            class_suffix: ClassVar[str] = "Eight"

    assert "format 'mxint8': 'mxint8' is a spelling of format 'mxint'." in str(caught.value)
