"""Area of a dot product with its multipliers and adder tree."""

from __future__ import annotations

from chop.hw.area.inventory import Inventory

CHAIN = 4
"""Longest chain of multipliers that add to each other, CHAIN in `fixed_dot_product.sv`."""


def count_dot_product(
    inventory: Inventory,
    x: int,
    w: int,
    lanes: int,
    outputs: int,
    *,
    varied: float = 1.0,
    registers: tuple[int, int] = (1, 1),
) -> None:
    """Add `fixed_dot_product` of signed numbers of `x` and `w` bits.

    `varied`: the share of the weights' bits that are registers; the others equal some of them.
    `registers`: registers of an operand, and levels of the adder tree between two registers.
    """
    chain = min(lanes, CHAIN)
    chains = -(-lanes // chain)
    width = x + w + (lanes - 1).bit_length()
    operand, step = registers
    waits = sum(operand - 1 + max(lane % chain, 1) for lane in range(lanes))
    inventory.registers(waits * x, by_multiplier=True)
    inventory.registers(round(waits * w * outputs * varied), by_multiplier=True)
    inventory.registers(lanes * (x + w) * outputs, by_multiplier=True)
    links = (lanes - chains) * outputs
    inventory.add("chain_sum", links * width)
    inventory.registers(links * width, by_multiplier=True)
    nodes, levels = (chains - 1) * outputs, (chains - 1).bit_length()
    inventory.add("tree_sum", nodes * width)
    inventory.path("tree", width * min(step, levels))
    inventory.registers((nodes if step == 1 else nodes // 2) * width)
    inventory.path("operand", 1 / operand)
    # Each stage has three tags: valid, first and last of a sum.
    inventory.registers(3 * (operand + chain + -(-levels // step)))
