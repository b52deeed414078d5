"""What can be said of the kernels for compute capability 9.0 without such a GPU.

`check_gpu.py`, run on one, compares its results with the reference.
"""

import pytest
import torch

from chop import nvrtc
from chop.kernels import hopper, hopper_many
from chop.kernels.hopper import Cut, choose
from chop.kernels.hopper_many import Tile

MULTIPROCESSORS = 132


@pytest.mark.parametrize("batch", range(1, hopper.LARGEST_BATCH + 1))
@pytest.mark.parametrize("rows", [16, 4096, 14336, 128256])
def test_a_cut_holds_every_row_of_x_and_reaches_every_row_of_the_weight(batch, rows):
    cut = choose(batch, rows, 4096, MULTIPROCESSORS)
    assert cut.batch >= batch
    assert cut.blocks(rows)[0] * 16 * cut.tiles >= rows
    assert 32 * cut.warps <= 1024
    assert cut.shared_bytes <= hopper_many.MOST_SHARED


def test_few_rows_get_more_warps_each():
    few, many = (choose(1, rows, 4096, MULTIPROCESSORS) for rows in (4096, 14336))
    assert (few.warps, many.warps) == (16, 8)


@pytest.mark.parametrize("rows", [4096, 11008, 14336, 28672])
def test_tall_blocks_are_used_where_all_multiprocessors_end_together(rows):
    cut = choose(16, rows, 4096, MULTIPROCESSORS)
    rounds = -(-cut.blocks(rows)[0] // MULTIPROCESSORS)
    assert rounds * MULTIPROCESSORS * 16 * cut.tiles <= 1.16 * rows


def test_blocks_that_would_not_come_out_even_are_small():
    assert choose(16, 8192, 4096, MULTIPROCESSORS).tiles == 2


def test_two_blocks_share_long_columns_where_rows_are_too_few():
    assert choose(1, 1024, 4096, MULTIPROCESSORS).blocks(1024) == (64, 2, 1)
    assert choose(1, 768, 768, MULTIPROCESSORS).blocks(768) == (48, 1, 1)


SIZES = [(2048, 1024), (4096, 4096), (4096, 14336), (14336, 4096), (128256, 8192)]


@pytest.mark.parametrize("batch", [17, 32, 33, 64, 65, 128, 129, 200, 256])
@pytest.mark.parametrize("rows, columns", SIZES)
def test_a_tile_fits_the_multiprocessor_and_covers_the_product(batch, rows, columns):
    tile = hopper_many.choose(batch, rows, columns, MULTIPROCESSORS)
    along_rows, parts, along_batch = tile.blocks(batch, rows)
    assert along_rows * hopper_many.ROWS >= rows
    assert along_batch * tile.batch >= batch
    assert (columns // hopper_many.SPAN) >= 2 * parts  # no block without work
    assert tile.stages >= 3
    assert tile.shared_bytes <= hopper_many.MOST_SHARED
    assert not tile.is_paired or parts == 2


@pytest.mark.parametrize(
    "batch, rows, columns, is_used",
    [
        (17, 4096, 4096, True),
        (256, 4096, 4096, True),
        (16, 4096, 4096, False),  # for few rows of x
        (257, 4096, 4096, False),
        (64, 1024, 4096, False),  # weights too small
        (64, 4096, 960, False),
    ],
)
def test_products_of_many_rows_and_large_weights_have_a_kernel(batch, rows, columns, is_used):
    x = torch.empty(batch, columns, dtype=torch.bfloat16)
    assert hopper.is_for_many(x, rows) == is_used


def test_long_columns_are_shared_by_more_blocks_than_short_ones():
    long, short = (hopper_many.choose(256, 4096, n, MULTIPROCESSORS) for n in (14336, 4096))
    assert (long.split, long.is_paired) == (4, False)
    assert (short.split, short.is_paired) == (2, True)


def test_the_instruction_names_every_register():
    text = hopper_many.instruction(32)
    assert "m64n32k16" in text
    assert text.count('"+f"') == 16
    assert "%20, 1, 1, 1, 0" in text  # behind 16 sums and 4 operands
    assert "wgmma(float* d" in hopper_many.source(Tile(32))


def test_a_tensor_map_lies_where_the_copy_engine_can_read_it():
    assert nvrtc.ctypes.addressof(nvrtc._aligned(nvrtc.TensorMap, 64)) % 64 == 0


def test_the_constants_of_the_kernel_are_those_of_the_cut():
    defines = Cut(16, tiles=2, warps=4, split=2).defines(group_size=64)
    assert defines == {"GROUP": 64, "BATCH": 16, "TILES": 2, "WARPS": 4, "SPLIT": 2}


@pytest.mark.parametrize(
    "x, format",
    [
        (torch.ones(1, 64, dtype=torch.bfloat16), "mxint8"),  # not on a GPU
        (torch.ones(1, 64), "mxint8"),
        (torch.ones(1, 96, dtype=torch.bfloat16), "mxint8"),
        (torch.ones(1, 64, dtype=torch.bfloat16), "mxint4"),
        (torch.ones(33, 64, dtype=torch.bfloat16), "mxint8"),
        (torch.ones(0, 64, dtype=torch.bfloat16), "mxint8"),
    ],
)
def test_what_it_cannot_do_is_left_to_the_other_kernels(x, format):
    assert not hopper.is_known(x, 4096, format)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a driver is present")
def test_without_a_driver_it_says_what_is_missing():
    assert not nvrtc.is_available()
    with pytest.raises(nvrtc.CudaError, match=r"libcuda\.so\.1|run-time compiler"):
        nvrtc.Function(b"", "kernel")
