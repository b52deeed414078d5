"""Formats answer for themselves: back ends derive their tables from the registry, and ask."""

import ast
from pathlib import Path

import pytest
import torch
from format_cases import CASES, label
from sources import nodes_of, tree_of

from chop.errors import ConfigError, ExportError
from chop.export.gguf_reader import FORMATS as GGUF_CONFIGS
from chop.export.gguf_types import TYPES, type_named
from chop.kernels import cpu, hopper
from chop.kernels.packed_formats import (
    GROUP_SIZES,
    INTEGER_FORMATS,
    KERNEL_CODES,
    PACKED_FORMATS,
    pack_format,
)
from chop.nn.quantizers import FORMATS, Quantizer, operand_quantizers, parse_format
from chop.nn.quantizers.codes import decode, encode

pytestmark = pytest.mark.share(2)

SOURCE = Path(__file__).parents[3] / "src"
ROWS = {**PACKED_FORMATS, **INTEGER_FORMATS}
MAY_SWITCH: dict[str, tuple[int, str]] = {
    "chop/passes/ptq/solve/element_table.py": (3, "elements and scales of blocks, one by one"),
}
"""Files that may ask for the class of a format: how often, and why no face answers."""


# -- one list --------------------------------------------------------------------------------------


def format_classes() -> set[str]:
    """Names of the classes that formats are made of, without `Quantizer` itself."""
    classes = [cls for form in FORMATS.values() for cls in form.__mro__]
    ours = [cls for cls in classes if issubclass(cls, Quantizer) and cls is not Quantizer]
    return {cls.__name__ for cls in ours}


def switches(tree: ast.Module, names: set[str]) -> int:
    """Count `isinstance` and `issubclass` calls and class patterns that ask for these classes."""
    nodes = nodes_of(tree)
    own = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and "quantizers" in (node.module or "")
        for alias in node.names
        if alias.name in names
    }
    asked = [
        node.args[1]
        for node in nodes
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("isinstance", "issubclass")
    ]
    asked += [node.cls for node in nodes if isinstance(node, ast.MatchClass)]
    return sum(any(getattr(n, "id", "") in own for n in ast.walk(each)) for each in asked)


def test_nothing_outside_the_formats_asks_for_their_class():
    found, classes = {}, format_classes()
    for file in sorted(SOURCE.glob("*/**/*.py")):
        place = str(file.relative_to(SOURCE))
        if not place.startswith("chop/nn/quantizers/"):
            count = switches(tree_of(file), classes)
            found |= {place: count} if count else {}
    assert found == {place: count for place, (count, _) in MAY_SWITCH.items()}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from chop.nn.quantizers import MXInt\nisinstance(x, MXInt)", 1),
        ("from chop.nn.quantizers.mxint import MXInt as M\nisinstance(x, int | M)", 1),
        ("from chop.nn.quantizers import MXFP\nmatch x:\n  case MXFP():\n    pass", 1),
        ("from chop.nn.quantizers import Quantizer\nisinstance(x, Quantizer)", 0),
        ("from chop.search.space import Integer\nisinstance(x, Integer)", 0),
    ],
)
def test_a_switch_on_a_class_is_seen(text, count):
    assert switches(ast.parse(text), format_classes()) == count


# -- packed layouts and kernels --------------------------------------------------------------------


def test_kernel_codes_are_those_of_the_native_tables():
    assert sorted(KERNEL_CODES.values()) == list(range(len(ROWS)))
    assert list(PACKED_FORMATS) == ["mxint8", "mxint4", "mxfp8", "mxfp4"]  # in `cpu.cpp`, `gpu.py`
    assert list(INTEGER_FORMATS) == ["int8_group", "int4"]
    assert cpu.KERNEL_CODES is KERNEL_CODES
    assert set(hopper.STEPS) == set(PACKED_FORMATS)
    declared = [row.name for form in FORMATS.values() for row in form.packed_forms]
    assert sorted(declared) == sorted(ROWS)


@pytest.mark.parametrize("size", GROUP_SIZES)
@pytest.mark.parametrize("name", ROWS)
def test_a_packed_format_is_the_layout_of_its_format(name, size):
    form = ROWS[name].quantizer(size)
    assert form.packed_layout is ROWS[name]
    assert form.group_columns == size
    assert form.code_bits == ROWS[name].element.bits
    assert pack_format(f"{ROWS[name].stem}/{size}", 32, "here") == (name, size)


@pytest.mark.parametrize("form", CASES, ids=label)
def test_a_layout_is_of_just_these_values(form):
    layout = form.packed_layout
    if layout is not None:
        assert layout.quantizer(form.group_columns) == form


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mxint4", ("mxint4", 32)),
        ("mxint4/16", ("mxint4", 16)),
        ("int4/64", ("int4", 64)),
        ("int8/64", ("int8_group", 64)),
        ("int8/channel", ("int8", 32)),
        ("int8_dynamic", ("int8_dynamic", 32)),
    ],
)
def test_packed_formats_are_named_or_spelled(text, expected):
    assert pack_format(text, 32, "here") == expected


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("mxint5", 32, "here: no packed format holds 'mxint5'. Did you mean 'mxint8'?"),
        ("fixed8.4", 32, "here: no packed format holds 'fixed8.4'."),
        ("mxnt4", 32, "here: Unknown format 'mxnt4'. Did you mean 'mxint4'?"),
        ("mxint4/16", 64, "here: 'mxint4/16' has groups of 16, and group_size 64."),
    ],
)
def test_a_format_that_cannot_be_packed_is_an_error(text, size, message):
    with pytest.raises(ConfigError) as caught:
        pack_format(text, size, "here")
    assert message in str(caught.value)


# -- codes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", CASES, ids=label)
def test_codes_stand_for_values_of_the_format(form):
    table = form.code_values()
    if table is None:
        assert form.code_bits > 8 or form.values_by_code() is None
        return
    assert len(table) == 2**form.code_bits
    if form.has_range:
        return
    finite = table[table.isfinite()].float()
    low, high = form.range
    inside = finite[(finite >= low) & (finite <= high)]
    assert torch.equal(form.quantize(inside), inside + 0.0 if form.fixed_point else inside)


@pytest.mark.parametrize("form", [f for f in CASES if f.integer_step() is not None], ids=label)
def test_codes_are_multiples_of_the_integer_step(form):
    table = form.code_values()
    if table is not None:
        steps = table / form.integer_step()
        assert torch.equal(steps, steps.round())


def test_blocks_with_codes_have_a_lowest_exponent():
    for form in CASES:
        if form.blocks is not None and form.code_values() is not None:
            values = form.quantize(torch.randn(4, 32))
            coded = encode(values, form)
            assert form.blocks.lowest_exponent is not None or not form.blocks.has_powers
            assert coded is not None and torch.equal(decode(coded), values), form


# -- files and hardware ----------------------------------------------------------------------------


def test_types_of_gguf_files_are_those_of_the_formats():
    for kind, config in GGUF_CONFIGS.items():
        assert operand_quantizers(config, ("weight",), kind)["weight"].gguf_type == kind
    assert {f.gguf_type for f in CASES} - {None} <= set(TYPES)
    spelled = ("mxfp4", "int8/32", "int4/32")
    assert {type_named(text, "here") for text in spelled} == set(GGUF_CONFIGS)
    assert type_named("F16", "here") == "F16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Q8", "here: unknown format 'Q8'. Did you mean 'Q8_0'?"),
        ("mxint4", "here: GGUF has no type for 'mxint4'."),
    ],
)
def test_a_type_that_gguf_lacks_is_an_error(text, message):
    with pytest.raises(ExportError) as caught:
        type_named(text, "here")
    assert message in str(caught.value)


def test_types_of_onnx_hold_the_codes():
    onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
    for form in CASES:
        kind = form.onnx_type
        if kind is not None:
            assert hasattr(onnx.TensorProto, kind), f"{form}: {kind}"
            bits = int("".join(filter(str.isdigit, kind))[0])
            assert bits >= form.code_bits, f"{form}: {kind}"
        if form.float_dtype is not None:
            assert form.float_dtype.itemsize * 8 == form.code_bits


def test_hardware_streams_fixed_point_and_mxint():
    wires = {name: form.wire for name, form in FORMATS.items() if form.wire is not None}
    assert wires == {"integer": "fixed", "mxint": "mxint"}


def test_faces_agree():
    for form in CASES:
        assert form.has_range == (form.scaled is not None or form.blocks is not None)
        assert form.is_bypass == (form == parse_format("float"))
        assert not form.is_stored
        for face in (form.scaled, form.blocks, form.fixed_point):
            assert face is None or face is form
