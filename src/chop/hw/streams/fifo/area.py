"""Area of a FIFO."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.streams.fifo import Fifo


@area_model(Fifo)
def count_fifo(inventory: Inventory, component: Fifo) -> None:
    """Add a memory between two counters, and the count of its words, which goes up and down.

    `fifo.sv` asks for block RAM above 32 words and from 1024 bits on.
    """
    depth, width = component.depth, component.stream.beat_width
    is_block = depth > 32 and depth * width >= 1024
    slots = depth - (depth > 1 and (is_block or component.has_head))
    inventory.counter(slots)
    inventory.counter(slots)
    inventory.chain(inventory.counter(depth, extra=1))
    if slots < depth:  # the first word has a register
        inventory.add("fifo_head", width)
        inventory.registers(width)
    inventory.ram(slots, width, name="fifo", is_late=not is_block, is_block=is_block)
    if is_block:  # a register for the word that is read ahead, and its valid bit
        inventory.add("fifo_ahead", width)
        inventory.add("fifo_blocks")
        inventory.registers(width + 1)
