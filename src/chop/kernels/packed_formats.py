"""Packed formats of the kernels, from the `packed_forms` of the format registry."""

from __future__ import annotations

from chop.errors import ConfigError
from chop.nn.quantizers import FORMATS, Quantizer, parse_format
from chop.nn.quantizers.packing import PackedFormat as PackedFormat
from chop.nn.quantizers.packing import groups_of as groups_of
from chop.registry import Registry, suggest

GROUP_SIZES = (16, 32, 64, 128)
DEFAULT_GROUP_SIZE = 32
ROW_INTEGERS = {"int8": False, "int8_dynamic": True}
"""Formats of `QLinearInt8`, with a scale per output: True if activations are rounded."""
SCALE_BIAS, SCALE_NAN = 127, 255  # of the E8M0 scale bytes


def _registry(kind: str, *, real_scales: bool) -> Registry[PackedFormat]:
    """Return the packed formats by name, in the order of their kernel codes."""
    formats: Registry[PackedFormat] = Registry(kind)
    rows = [row for form in FORMATS.values() for row in vars(form).get("packed_forms", ())]
    for row in sorted(rows, key=lambda row: row.kernel_code):
        if row.has_real_scales == real_scales:
            formats.register(row.name, row)
    return formats


PACKED_FORMATS = _registry("packed format", real_scales=False)
"""MX formats: a power of two for each group."""
INTEGER_FORMATS = _registry("packed integer format", real_scales=True)
"""Integers with a float32 scale for each group."""
KERNEL_CODES = {
    name: row.kernel_code for name, row in (*PACKED_FORMATS.items(), *INTEGER_FORMATS.items())
}
"""Number of each packed format in the tables of the kernels."""


def packed_format(name: str) -> PackedFormat | None:
    """Return the packed format of that name, None if there is none."""
    row: PackedFormat | None = PACKED_FORMATS.get(name) or INTEGER_FORMATS.get(name)
    return row


def pack_format(text: str, group_size: int, where: str) -> tuple[str, int]:
    """Return the name and the group size of the packed format that `text` means.

    `text` is the name of a packed format, or the spelling of a format that has one.

    >>> pack_format("mxint4/16", 32, "here"), pack_format("int8/channel", 32, "here")
    (('mxint4', 16), ('int8', 32))
    """
    if text in ROW_INTEGERS or packed_format(text) is not None:
        return text, group_size
    form = parse_format(text, where)
    if str(form) == "int8/channel":
        return "int8", group_size
    layout, size = form.packed_layout, form.group_columns
    if layout is None or size is None:
        names = (*PACKED_FORMATS, *INTEGER_FORMATS, *ROW_INTEGERS)
        raise ConfigError(f"{where}: no packed format holds '{text}'. {suggest(text, names)}")
    if group_size not in (DEFAULT_GROUP_SIZE, size):
        raise ConfigError(f"{where}: '{text}' has groups of {size}, and group_size {group_size}.")
    return layout.name, size


def coded_format(text: str, where: str) -> Quantizer | None:
    """Return the block format that `text` spells if it has codes but no packed format, else None.

    A layer stores the codes and decodes them at each call.

    >>> str(coded_format("mxint3", "here")), coded_format("mxint4", "here")
    ('mxint3', None)
    """
    if text in ROW_INTEGERS or packed_format(text) is not None:
        return None
    form = parse_format(text, where)
    return form if has_codes_alone(form) else None


def has_codes_alone(form: Quantizer) -> bool:
    """Return True if blocks in this format have codes, and no kernel multiplies by them."""
    is_coded = form.blocks is not None and form.code_values() is not None
    return is_coded and form.packed_layout is None


def check_pack_format(text: str, where: str) -> None:
    """Raise if weights cannot be packed in the format that `text` means."""
    if coded_format(text, where) is None:
        pack_format(text, DEFAULT_GROUP_SIZE, where)


def check_group_size(group_size: int, where: str, *, is_integer: bool = False) -> None:
    """Raise if the kernels do not have a group size."""
    if isinstance(group_size, int):
        is_power = group_size >= GROUP_SIZES[0] and group_size & (group_size - 1) == 0
        if group_size in GROUP_SIZES or (is_integer and is_power):
            return
    allowed = ", ".join(map(str, GROUP_SIZES))
    more = " and higher powers of two" if is_integer else ""
    raise ConfigError(f"{where}: group_size {group_size} is not allowed. Allowed: {allowed}{more}.")
