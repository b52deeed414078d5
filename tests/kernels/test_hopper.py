"""What can be said of the kernels for compute capability 9.0 without such a GPU.

`check_gpu.py`, run on one, compares its results with the reference.
"""

import ctypes
import itertools
import threading

import pytest
import torch

from chop import nvrtc
from chop.kernels import (
    GROUP_SIZES,
    PACKED_FORMATS,
    hopper,
    hopper_few4,
    hopper_many,
    pack,
    ready,
    reference,
)
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
    assert not tile.is_clustered or parts == 2


@pytest.mark.parametrize("bits", [4, 8])
def test_stages_of_fewer_bits_are_smaller(bits):
    tile = Tile(64, bits=bits)
    assert tile._stage_bytes == 128 * (128 * bits // 8 + 2 * 64)
    assert tile.shared_bytes <= hopper_many.MOST_SHARED


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
    long, short = (hopper_many.choose(128, 4096, n, MULTIPROCESSORS) for n in (14336, 4096))
    assert (long.batch, long.split, long.is_clustered) == (128, 4, False)
    assert (short.batch, short.split, short.is_clustered) == (64, 2, True)


def test_the_instruction_names_every_register():
    text = hopper_many.instruction(32)
    assert "m64n32k16" in text
    assert text.count('"+f"') == 16
    assert "%20, 1, 1, 1, 0" in text  # behind 16 sums and 4 operands
    assert "wgmma(float* d" in hopper_many.source(Tile(32))


ROWS = [3, 16, 1024, 4096, 14336, 18944, 128256]
COLUMNS = [32, 2880, 4096, 14336, hopper_few4.MOST_COLUMNS]


@pytest.mark.parametrize("batch", [1, 8, 9, 16, 17, 32])
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_a_cut_of_4_bits_fits_the_multiprocessor_and_covers_the_product(batch, group_size):
    for rows, columns in itertools.product(ROWS, COLUMNS):
        cut = hopper_few4.choose(batch, rows, columns, group_size, MULTIPROCESSORS)
        assert cut.batch >= batch
        assert cut.grid(rows)[0] * 16 * cut.tiles >= rows
        assert 1 <= cut.tiles <= hopper_few4.TALLEST
        assert cut.slots % cut.warps == 0  # a slot is always emptied by the same warp
        assert cut.shared_bytes(columns, group_size) <= hopper_few4.MOST_SHARED


def test_there_is_a_barrier_for_each_slot_and_each_panel_of_scales():
    panels = hopper_few4.MOST_COLUMNS // min(GROUP_SIZES) // hopper_few4.PANEL
    assert 8 * (16 + panels + 1) <= hopper_few4.BARRIERS


def test_rows_decide_how_tall_a_block_of_4_bits_is():
    tall, split, low = (
        hopper_few4.choose(1, rows, columns, 32, MULTIPROCESSORS)
        for rows, columns in ((14336, 4096), (4096, 14336), (4096, 4096))
    )
    assert (tall.tiles, tall.split) == (7, 1)
    assert (split.tiles, split.split) == (4, 2)
    assert (low.tiles, low.split) == (2, 1)


@pytest.mark.parametrize("format", hopper.FOUR_BITS)
def test_the_kernel_of_4_bits_is_given_every_constant_it_names(format):
    defines = hopper_few4.ChunkCut(8, tiles=2, warps=4).defines(format, 32)
    assert defines["FORMAT"] == {"mxint4": 1, "mxfp4": 3}[format]
    assert all(name in hopper_few4.source() for name in defines)


def _bfloat16(bits):
    return bits.to(torch.int16).view(torch.bfloat16)


def _every_pair(scales):
    return torch.arange(16)[:, None], torch.arange(scales)[None, :]


def _is_the_value(format, values, codes, scales):
    element = PACKED_FORMATS[format].element.decode(codes.to(torch.uint8))
    expected = (element * reference.scale_values(scales.to(torch.uint8))).bfloat16()
    return torch.equal(values.view(torch.int16), expected.view(torch.int16))


def test_mxint4_below_an_exponent_less_its_middle_is_the_value():
    codes, scales = _every_pair(250)
    middle = scales * 0x80 + 0x0288  # 34 times the scale
    values = _bfloat16(codes ^ middle) - _bfloat16(middle)
    assert _is_the_value("mxint4", values, codes, scales)


def test_two_copies_of_an_mxfp4_code_times_the_raised_scale_are_the_value():
    codes, scales = _every_pair(129)
    values = _bfloat16(codes * 0x1040 & 0x81C0) * _bfloat16(scales * 0x80 + 0x3F00)
    assert _is_the_value("mxfp4", values, codes, scales)


def test_a_tensor_map_lies_where_the_copy_engine_can_read_it():
    assert nvrtc.ctypes.addressof(nvrtc._aligned(nvrtc.TensorMap, 64)) % 64 == 0


def test_what_the_driver_reads_of_a_launch_is_kept_but_not_without_end():
    kernel = nvrtc.Function.__new__(nvrtc.Function)
    kernel._configs, kernel._shared_bytes, kernel._early = {}, 512, 1
    first = kernel.config((3, 2, 1), 64, 0)
    assert kernel.config((3, 2, 1), 64, 0) is first
    launch = first.contents
    assert (launch.grid_x, launch.grid_y, launch.block_x, launch.shared_bytes) == (3, 2, 64, 512)
    for n in range(2 * nvrtc.MOST_CONFIGS):
        assert kernel.config((n, 1, 1), 64, 0).contents.grid_x == n
    assert len(kernel._configs) <= nvrtc.MOST_CONFIGS


class _Recorder:
    """Stands for a kernel: what it is queued with."""

    def __init__(self):
        self.queued = []

    def config(self, grid, threads, stream):
        return (grid, threads, stream)

    def queue(self, config, pointers):
        values = [ctypes.c_int64.from_address(pointer).value for pointer in pointers]
        self.queued.append((config, values))


def test_a_launch_is_repeated_with_the_arguments_it_was_given_last():
    kernel = _Recorder()
    launch = nvrtc.Launch(kernel, (3, 1, 1), 64, [ctypes.c_int64(n) for n in (5, 6)])
    launch(9)
    launch.give(1, ctypes.c_int64(7))
    launch(9)
    launch(8)
    sizes = ((3, 1, 1), 64)
    assert kernel.queued == [
        ((*sizes, 9), [5, 6]),
        ((*sizes, 9), [5, 7]),
        ((*sizes, 8), [5, 7]),
    ]


def test_a_product_is_kept_for_what_it_depends_on_alone():
    x, bias = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(8)
    packed = pack(torch.ones(8, 64))
    parts = (packed.codes, packed.scales)
    key = ready.key_of(x, *parts, bias, "mxint8", 32)
    ready.keep(key, "product")
    assert ready.find(ready.key_of(x.clone(), *parts, bias, "mxint8", 32)) == "product"
    others = [
        (x[:1], *parts, bias, "mxint8", 32),
        (x.float(), *parts, bias, "mxint8", 32),
        (x, packed.codes.clone(), packed.scales, bias, "mxint8", 32),
        (x, packed.codes, packed.scales.clone(), bias, "mxint8", 32),
        (x, *parts, None, "mxint8", 32),
        (x, *parts, bias.clone(), "mxint8", 32),
        (x, *parts, bias, "mxfp8", 32),
        (x, *parts, bias, "mxint8", 16),
        (x.T.contiguous().T, *parts, bias, "mxint8", 32),
        (x, packed.codes[:4], packed.scales, bias, "mxint8", 32),
    ]
    assert [ready.find(ready.key_of(*other)) for other in others] == [None] * len(others)
    found = []
    thread = threading.Thread(target=lambda: found.append(ready.find(key)))
    thread.start()
    thread.join()
    assert found == [None]


def test_products_are_not_kept_without_end():
    for n in range(ready.MOST_KEPT + 10):
        ready.keep((n,), "product")
    assert len(ready._cache.products) <= ready.MOST_KEPT


def test_the_constants_of_the_kernel_are_those_of_the_cut():
    defines = Cut(16, tiles=2, warps=4, split=2).defines("mxint8", group_size=64)
    sizes = {"GROUP": 64, "BATCH": 16, "TILES": 2, "WARPS": 4, "SPLIT": 2}
    assert defines == {"FORMAT": 0, **sizes}


@pytest.mark.parametrize(
    "x, format",
    [
        (torch.ones(1, 64, dtype=torch.bfloat16), "mxint8"),  # not on a GPU
        (torch.ones(1, 64), "mxint8"),
        (torch.ones(1, 96, dtype=torch.bfloat16), "mxint8"),
        (torch.ones(1, 64, dtype=torch.bfloat16), "mxint4"),
        (torch.ones(1, 48, dtype=torch.bfloat16), "mxfp4"),
        (torch.ones(1, 64, dtype=torch.bfloat16), "mxfp8"),
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
