"""Area of a product of two computed matrices."""

from __future__ import annotations

from chop.hw.area.area_model import area_model
from chop.hw.area.inventory import Inventory
from chop.hw.library.fixed_linear.area import count_array
from chop.hw.library.fixed_matmul import Matmul
from chop.hw.streams.tile_buffer.area import count_tiles


@area_model(Matmul)
def count_matmul(inventory: Inventory, layer: Matmul) -> None:
    """Add a tile buffer and a folded product."""
    in_folds, out_folds = layer.folds
    rows, row_beats, group = (
        (layer.columns, in_folds, layer.lanes)
        if layer.is_transposed
        else (layer.left.shape[-1], out_folds, layer.left.lanes)
    )
    count_tiles(inventory, layer.right.beat_width, rows, row_beats, group, layer.rows)
    count_array(inventory, layer, layer.frac_width, None)
