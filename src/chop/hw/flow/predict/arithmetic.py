"""What sums, products, batch normalisation and the leaky rectifier are made of."""

from __future__ import annotations

from chop.hw.arith.shift_add import signed_digits
from chop.hw.design.component import Unary
from chop.hw.flow.predict.inventory import CHAINLESS, Inventory, trailing_zeros
from chop.hw.flow.predict.products import count_sources
from chop.hw.library.fixed_arithmetic import Add, Binary, Mul, WithConstant
from chop.hw.library.fixed_batch_norm import BatchNorm
from chop.hw.library.fixed_leaky_relu import LeakyRelu, PRelu

BESIDE_PRODUCT = 20
"""A multiplier is as slow as a carry chain of so many bits."""


def count_binary(
    inventory: Inventory,
    component: Binary,
    is_registered: bool = False,
    added: int | None = None,
) -> None:
    """A sum, difference or product, a register, and a cast; operands may be registered too.

    `added`: the constant that a sum adds to its left operand.
    """
    if is_registered or component.has_operand_register():
        operands = component.left.beat_width + component.right.beat_width
        inventory.registers(operands + 1, by_multiplier=isinstance(component, Mul))
        inventory.path("operand", 0.5)
    left, right, lanes = component.left.format, component.right.format, component.left.lanes
    exact = component.span(left, right)
    a, b = left.signed_width, right.signed_width
    wide, beside = exact.width, exact.width
    is_positive = not left.is_signed and not right.is_signed
    if isinstance(component, Mul):
        wide, beside = a + b - is_positive, BESIDE_PRODUCT
        inventory.multiplier(a, b, lanes)
        inventory.registers((a + b) * lanes, by_multiplier=True)
    else:
        is_positive &= component.kind == "fixed_add"
        inventory.path("sum", wide)
        _count_sum(inventory, component, wide, added)
        inventory.registers(wide * lanes)
    inventory.cast(
        wide,
        exact.frac_width,
        True,
        component.format,
        lanes,
        beside=beside,
        is_positive=is_positive,
    )
    inventory.registers(1)
    inventory.skid(component.outputs[0].beat_width)


def _count_sum(inventory: Inventory, component: Binary, wide: int, added: int | None) -> None:
    """An addition; bits that one operand alone has below the other's are no part of it.

    What is taken away counts with all its bits.
    """
    left, right, lanes = component.left.format, component.right.format, component.left.lanes
    finer = left.frac_width - right.frac_width
    if added is not None:
        bits = wide - max(-finer, 0) - trailing_zeros(added)
        inventory.chain(bits, lanes)
        inventory.add("short_sum", bits * lanes * (bits <= CHAINLESS))
        return
    inventory.carry(wide - (max(finer, 0) if component.kind == "fixed_sub" else abs(finer)), lanes)
    assert isinstance(component, Add), component.kind
    if component.alpha != 1 and component.alpha:
        adders = len(signed_digits(component.alpha)) - 1
        inventory.carry(right.signed_width + component.alpha.bit_length(), adders * lanes)


def count_with_constant(inventory: Inventory, component: WithConstant) -> None:
    """The same with a table; one word is a constant."""
    memory, binary = component.memories()[0], component.binary
    codes = {int(code) for code in component.constant.reshape(-1)}
    code = next(iter(codes)) if len(codes) == 1 else 0
    added = _added(binary, code) if len(codes) == 1 else None
    if added == 0:
        left, right = binary.left.format, binary.right.format
        below = max(right.frac_width - left.frac_width, 0) * (code != 0)  # constant bits
        width, frac = left.width + below, left.frac_width + below
        inventory.cast(width, frac, left.is_signed, binary.format, binary.left.lanes)
        inventory.registers(left.width * binary.left.lanes + 1)
        inventory.skid(component.outputs[0].beat_width)
    else:
        count_binary(inventory, binary, component.has_operand_register, added)
    count_sources(inventory, component.memories())
    if len(memory.words) == 1:
        inventory.add("constant_operand", binary.left.beat_width)


def _added(binary: Binary, code: int) -> int | None:
    """What a constant adds to the bits of the other operand; None: no sum of one constant."""
    if not isinstance(binary, Add) or binary.alpha != 1:
        return None
    value = -code if binary.kind == "fixed_sub" else code
    finer = binary.right.format.frac_width - binary.left.format.frac_width
    return value >> finer if finer > 0 else value << -finer


def count_batch_norm(inventory: Inventory, component: BatchNorm) -> None:
    """A product, a sum and a cast for each lane."""
    number, lanes = component.source.format, component.source.lanes
    w, b = component.weight_format, component.bias_format
    product = number.signed_width + w.width
    frac = max(number.frac_width + w.frac_width, b.frac_width)
    wide = max(product + frac - number.frac_width - w.frac_width, b.width + frac - b.frac_width) + 1
    inventory.multiplier(number.signed_width, w.width, lanes)
    inventory.registers((product + b.width) * lanes, by_multiplier=True)
    shifts = (frac - number.frac_width - w.frac_width, frac - b.frac_width)
    inventory.carry(wide - max(shifts), lanes)
    inventory.registers(wide * lanes + 2)
    inventory.path("sum", wide)
    inventory.cast(wide, frac, True, component.format, lanes, beside=wide)
    inventory.skid(component.outputs[0].beat_width)
    count_sources(inventory, component.memories())


def count_leaky(inventory: Inventory, component: LeakyRelu) -> None:
    """Count a product with a constant, a choice and a cast."""
    number, lanes = component.source.format, component.source.lanes
    x = number.signed_width
    slope = component.slope.bit_length() + 1
    digits = len(signed_digits(component.slope))
    # Yosys cannot know that the two highest bits of a product in a DSP are the same.
    wide = x + max(slope - (digits == 1), component.slope_frac)
    if number.is_signed and digits > 1:
        inventory.multiplier(x, slope, lanes)
        inventory.add("choice", x * lanes)
    elif number.is_signed:  # where both overlap; the other bits are set or cleared together
        lowest = component.slope_frac
        if component.format.rounding == "floor":
            lowest += max(number.frac_width - component.format.frac_width, 0)
        inventory.add("choice_shift", (max(x - lowest, 0) + 1) * lanes)
    inventory.registers((wide + 1) * lanes + 1)
    _count_rectified(inventory, component, wide, component.slope_frac)


def count_prelu(inventory: Inventory, component: PRelu) -> None:
    """Count a product with streamed slopes, a choice, a cast and the memory of slopes."""
    number, lanes, slope = component.source.format, component.source.lanes, component.weight_format
    x = number.signed_width
    wide = x + max(slope.width, slope.frac_width)
    if number.is_signed:
        inventory.multiplier(x, slope.width, lanes)
        inventory.add("choice", wide * lanes)
        inventory.registers(wide * lanes + 1)
        count_sources(inventory, component.memories())
    else:  # nothing is below zero: the memory keeps its valid bit alone
        inventory.registers(number.width * lanes + 2)
    _count_rectified(inventory, component, wide, slope.frac_width)


def _count_rectified(inventory: Inventory, component: Unary, wide: int, slope_frac: int) -> None:
    """Count the cast of a leaky rectifier from `wide` bits, and its skid buffer."""
    number, lanes = component.source.format, component.source.lanes
    if number.is_signed:
        frac = number.frac_width + slope_frac
        inventory.cast(wide, frac, True, component.format, lanes, beside=BESIDE_PRODUCT)
    else:  # nothing is below zero: the number itself
        inventory.cast(number.width, number.frac_width, False, component.format, lanes)
    inventory.skid(component.outputs[0].beat_width)
