"""Areas of sums, differences and products of two streams, or of a stream and constants."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import BESIDE_PRODUCT, CHAINLESS, Inventory, trailing_zeros
from chop.hw.arith.shift_add import signed_digits
from chop.hw.library.fixed_arithmetic import Add, ElementwiseBinary, Mul, WithConstant


@area_model(ElementwiseBinary)
def count_binary(
    inventory: Inventory,
    component: ElementwiseBinary,
    is_registered: bool = False,
    constant: int | None = None,
) -> None:
    """Add a sum, difference or product, its register and its cast.

    `is_registered`: the operands are registered too. `constant`: the number that a sum adds to its
    left operand.
    """
    if is_registered or component.has_operand_register():
        operands = component.left.beat_width + component.right.beat_width
        inventory.registers(operands + 1, by_multiplier=isinstance(component, Mul))
        inventory.path("operand", 0.5)  # two registers share the way to the multiplier
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
        _count_sum(inventory, component, wide, constant)
        inventory.registers(wide * lanes)
    frac, number = exact.frac_width, component.format
    inventory.cast(wide, frac, True, number, lanes, beside=beside, is_positive=is_positive)
    inventory.registers(1)
    inventory.skid(component.outputs[0].beat_width)


def _count_sum(
    inventory: Inventory, component: ElementwiseBinary, wide: int, constant: int | None
) -> None:
    """Add an adder; bits of one operand below the other's lowest bit need none.

    A subtrahend needs an adder for each of its bits.
    """
    left, right, lanes = component.left.format, component.right.format, component.left.lanes
    finer = left.frac_width - right.frac_width
    if constant is not None:
        bits = wide - max(-finer, 0) - trailing_zeros(constant)
        inventory.chain(bits, lanes)
        inventory.add("short_sum", bits * lanes * (bits <= CHAINLESS))
        return
    inventory.carry(wide - (max(finer, 0) if component.kind == "fixed_sub" else abs(finer)), lanes)
    assert isinstance(component, Add), component.kind
    if component.alpha not in (0, 1):  # a shift-and-add product with alpha
        adders = len(signed_digits(component.alpha)) - 1
        inventory.carry(right.signed_width + component.alpha.bit_length(), adders * lanes)


@area_model(WithConstant)
def count_with_constant(inventory: Inventory, component: WithConstant) -> None:
    """Add the same with a table of constants; a table of one word is a constant."""
    memory, binary = component.memories()[0], component.binary
    codes = {int(code) for code in component.constant.reshape(-1)}
    code = next(iter(codes)) if len(codes) == 1 else 0
    constant = _constant_term(binary, code) if len(codes) == 1 else None
    if constant == 0:
        left, right = binary.left.format, binary.right.format
        below = max(right.frac_width - left.frac_width, 0) * (code != 0)  # constant bits
        width, frac = left.width + below, left.frac_width + below
        inventory.cast(width, frac, left.is_signed, binary.format, binary.left.lanes)
        inventory.registers(left.width * binary.left.lanes + 1)
        inventory.skid(component.outputs[0].beat_width)
    else:
        count_binary(inventory, binary, component.has_operand_register, constant)
    inventory.sources(component.memories())
    if len(memory.words) == 1:
        inventory.add("constant_operand", binary.left.beat_width)


def _constant_term(binary: ElementwiseBinary, code: int) -> int | None:
    """Return the term that a constant adds to the left operand; None if the op is no plain sum."""
    if not isinstance(binary, Add) or binary.alpha != 1:
        return None
    value = -code if binary.kind == "fixed_sub" else code
    finer = binary.right.format.frac_width - binary.left.format.frac_width
    return value >> finer if finer > 0 else value << -finer
