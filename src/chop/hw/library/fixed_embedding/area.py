"""Area of an embedding."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory, bits_for, trailing_zeros
from chop.hw.library.fixed_embedding import Embedding


@area_model(Embedding)
def count_embedding(inventory: Inventory, component: Embedding) -> None:
    """Add a table and its address.

    The address is row * beats + beat; if the beats are a power of two, it is only wires.
    """
    memory = component.memories()[0]
    rows, beats = component.table.shape[0], component.table.shape[1] // component.lanes
    bits = component.source.beat_width
    inventory.skid(bits)
    inventory.rom(memory.words, memory.width)
    inventory.counter(beats)
    if beats & (beats - 1):
        inventory.add("embedding_address", bits_for(len(memory.words)))
        inventory.path("address", bits_for(len(memory.words)))
    if rows < 1 << bits:  # a number past the last row is compared and replaced
        inventory.constant_sum(bits, rows)
        inventory.path("bound", bits)
        inventory.add("embedding_bound", bits - trailing_zeros(rows))
    inventory.registers(1)
    inventory.skid(component.output.beat_width)
