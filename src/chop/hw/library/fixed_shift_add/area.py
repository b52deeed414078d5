"""Area of a product by shifted additions."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_shift_add import ShiftAdd

BRACKET_BITS = 3
"""Flip-flops of the enable bracket: valid bits at both ends, and its enable."""


@area_model(ShiftAdd)
def count_shift_add(inventory: Inventory, layer: ShiftAdd) -> None:
    """Add the additions of the network, each as wide as its result above the lowest bit added."""
    network, number = layer.network, layer.source.format
    spans = network.spans(number.low, number.high)
    for k, node in enumerate(network.nodes, network.inputs):
        inventory.add("network_sum", spans[k].width - node.shift)
        inventory.add("network_minus", (spans[k].width - node.shift) * (node.sign < 0))
        inventory.add("network_nodes")
        inventory.path("sum", spans[k].width * layer.adders_per_stage)
    for result in network.results:
        if result.node >= 0:
            inventory.add("network_out", layer.acc_width - result.shift)
    inventory.registers(layer.cost().register_bits + layer.timing.stages + BRACKET_BITS)
    has_half, wide = layer.half > 0, layer.acc_width
    lanes = layer.output.lanes
    inventory.cast(wide, layer.frac, True, layer.format, lanes, half=has_half, beside=wide)
    inventory.skid(layer.output.beat_width)
    inventory.registers(-2 * layer.output.beat_width)  # `cost()` has those of the skid buffer
