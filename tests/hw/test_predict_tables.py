"""LUTs of tables against what Yosys made of them, and against tables whose LUTs are known."""

import itertools
import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from chop.hw.area.inventory import block_shape, is_block_rom, varied_columns
from chop.hw.area.lut_cover import mapped_luts
from chop.hw.streams.stream_reorder.area import choices

BENCH = Path(__file__).parents[2] / "bench"
CONTROL = 3
"""LUTs of a skid buffer besides those of its bits."""


def table(function, bits, columns=1):
    """`columns` functions of an address of so many bits."""
    words = [[function(a, c) & 1 for a in range(1 << bits)] for c in range(columns)]
    return np.array(words, np.uint8)


@pytest.mark.parametrize(
    ("function", "bits", "luts"),
    [
        (lambda a, c: a >> 3, 4, 0),  # a bit of the address
        (lambda a, c: a >> 5, 6, 0),
        (lambda a, c: ~(a >> 1), 5, 1),  # its opposite
        (lambda a, c: a.bit_count(), 4, 1),
        (lambda a, c: a.bit_count(), 7, 2),  # a parity of seven: of four, and of that and the rest
        (lambda a, c: a.bit_count(), 10, 3),
        (lambda a, c: a & 15 == 9, 8, 1),  # four bits matter
    ],
)
def test_known_functions_take_the_fewest_luts(function, bits, luts):
    assert mapped_luts(table(function, bits), 4, 7)[0] == luts


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_what_has_no_structure_takes_a_whole_wide_lut(bits):
    random = np.random.default_rng(bits).integers(0, 2, (3, 1 << bits)).astype(np.uint8)
    assert mapped_luts(random, 4, 7) == (3 << (bits - 4), 0)


def test_a_table_of_constants_takes_nothing():
    assert mapped_luts(varied_columns([3, 3, 3, 3], 2), 4, 7) == (0, 0)


def test_equal_and_opposite_columns_are_there_once():
    column = np.random.default_rng(0).integers(0, 2, (1, 64)).astype(np.uint8)
    alone, _ = mapped_luts(column, 4, 7)
    assert mapped_luts(np.concatenate([column, column]), 4, 7)[0] == alone
    assert mapped_luts(np.concatenate([column, 1 - column]), 4, 7)[0] == alone + 1


def test_a_constant_half_is_a_register_that_is_cleared():
    low = np.random.default_rng(1).integers(0, 2, (2, 32)).astype(np.uint8)
    assert mapped_luts(np.concatenate([low, np.zeros_like(low)], axis=1), 4, 7) == (
        mapped_luts(low, 4, 7)[0],
        1,
    )


def test_parts_that_repeat_are_numbered():
    rng = np.random.default_rng(2)
    kinds = rng.integers(0, 2, (2, 12, 16)).astype(np.uint8)  # two parts of twelve columns
    order = rng.integers(0, 2, 16)
    whole = kinds[order].transpose(1, 0, 2).reshape(12, -1)
    assert mapped_luts(whole, 4, 7) == (12 * 2 + 1, 0)  # LUTs of five inputs, and the number


@pytest.fixture(scope="module")
def measured():
    """Tables that are LUTs: of one lane, LUTs measured and counted, and those of the component."""
    sys.path.insert(0, str(BENCH))
    try:
        from area_instances import make
    finally:
        sys.path.remove(str(BENCH))
    rows = json.loads((BENCH / "results" / "area_grid.json").read_text())["results"]["area"]
    found = []
    for row in (r for r in rows if r["kind"] == "fixed_lut" and r["on"] == "ecp5"):
        component = make(row["kind"], row["number"])
        memory, lanes = component.memories()[0], component.source.lanes
        varied = varied_columns(memory.words, memory.width)
        if not is_block_rom(len(memory.words), len(varied), lanes):
            rest = row["lut"] - component.outputs[0].beat_width - CONTROL
            counted = sum(mapped_luts(np.unique(varied, axis=0), 4, 7)) * lanes
            found.append((rest, counted, row["lut"]))
    return found


def test_tables_of_functions_are_as_yosys_maps_them(measured):
    errors = [abs(counted - rest) / whole for rest, counted, whole in measured]
    assert len(errors) >= 40
    assert statistics.median(errors) <= 0.08
    assert sum(error <= 0.2 for error in errors) >= 0.95 * len(errors)
    ratio = sum(c for _, c, _ in measured) / sum(r for r, _, _ in measured)
    assert ratio == pytest.approx(1.0, abs=0.08)  # neither too many nor too few


@pytest.mark.parametrize(
    ("depth", "width", "copies", "shape"),
    [  # as Yosys mapped them: blocks, parts side by side
        (1056, 10, 1, (1, 3)),
        (1184, 24, 1, (2, 3)),
        (1488, 8, 1, (1, 1)),
        (4096, 34, 1, (8, 2)),
        (4096, 31, 4, (14, 2)),
        (4096, 32, 3, (16, 1)),
    ],
)
def test_tables_lie_in_block_ram_as_yosys_lays_them(depth, width, copies, shape):
    found = block_shape(depth, width, copies)
    assert (found.blocks, found.banks) == shape


def test_more_of_a_table_takes_no_fewer_luts():
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 2, (6, 128)).astype(np.uint8)
    counts = [mapped_luts(columns[:k], 4, 7)[0] for k in range(1, 7)]
    assert all(a <= b for a, b in itertools.pairwise(counts))


@pytest.mark.parametrize(
    ("taken", "lanes", "count"),
    [
        (lambda lane, beat: lane, 4, 0),  # wires
        (lambda lane, beat: lane ^ beat, 2, 2),
        (lambda lane, beat: lane ^ beat, 8, 3 * 8),  # a butterfly
        (lambda lane, beat: (lane + beat) % 8, 8, 3 * 8),  # a barrel
        (lambda lane, beat: (lane + beat) % 3, 3, 3 * 2),  # one in three for each lane
        (lambda lane, beat: lane ^ 4 * (beat & 1), 8, 8),  # each from one of two
    ],
)
def test_a_crossbar_has_each_choice_once(taken, lanes, count):
    bits = (lanes - 1).bit_length()
    words = [sum(taken(x, beat) << x * bits for x in range(lanes)) for beat in range(lanes)]
    assert choices(words, lanes) == count
