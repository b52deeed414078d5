"""Arithmetic modules of the decode engine, alone, on random and extreme values."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.hw.decode.decode_emit import RTL
from chop.hw.design.component import Memory
from chop.hw.design.memories import memory_text
from chop.hw.reference.plain_llama import inverse_root, rotate, to_16_bits, to_blocks
from chop.hw.sim.verilate import build_program
from chop.nn.quantizers.arithmetic.tables import root_table

HERE = Path(__file__).parent
MODULES = (
    "shift_cast", "block_collector", "pair_rotator", "inverse_root", "highest_bit", "wide_product"
)  # fmt: skip
COUNT = 4000
LAYOUT = np.dtype([("wide", "<i8"), ("u", "<u8"), ("code", "<i4"), ("shift", "<i4")])
CODES = (0, 1, -1, 127, 128, -127, -128, 255, 32767, -32768)


def inputs():
    """Return numbers of all magnitudes; ties, powers of two and the ends of the range are often."""
    rng = np.random.default_rng(0)
    rows = np.zeros(COUNT, LAYOUT)
    rows["shift"] = rng.integers(0, 64, COUNT)
    wide = rng.integers(-(1 << 55), 1 << 55, COUNT) >> rng.integers(0, 56, COUNT)
    shift = np.minimum(rows["shift"], 54).astype(np.int64)
    ties = (rng.integers(-9, 9, COUNT) << shift) + (np.int64(1) << shift >> 1)
    ties = np.clip(ties + rng.integers(-1, 2, COUNT), -(1 << 55), (1 << 55) - 1)
    rows["wide"] = np.where(rng.random(COUNT) < 0.5, wide, ties)
    codes = rng.integers(-32768, 32768, COUNT) >> np.repeat(rng.integers(0, 16, COUNT // 8), 8)
    rows["code"] = np.where(rng.random(COUNT) < 0.1, rng.choice(CODES, COUNT), codes)
    u = rng.integers(0, 1 << 62, COUNT) >> rng.integers(0, 63, COUNT)
    power = np.uint64(1) << rng.integers(0, 62, COUNT).astype(np.uint64)
    near = power - rng.integers(0, 2, COUNT).astype(np.uint64)
    rows["u"] = np.where(rng.random(COUNT) < 0.3, near, u.astype(np.uint64))
    return rows


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the inputs, and the results of each module in order."""
    folder, rows = tmp_path_factory.mktemp("units"), inputs()
    (folder / "root.mem").write_text(memory_text(Memory("root", root_table(), 17)))
    rows.tofile(folder / "inputs.bin")
    sources = [*(RTL / f"{name}.sv" for name in MODULES), HERE / "unit_bench.sv"]
    program = build_program("unit_bench", sources, HERE / "unit_driver.cpp", folder)
    done = subprocess.run(
        [program, "inputs.bin"], cwd=folder, capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    names = ("cast", "block", "rotated", "product", "root")
    return rows, {n: [tuple(map(int, v)) for k, *v in lines if k == n] for n in names}


@pytest.mark.sim("verilator")
def test_casts_round_half_to_even_and_saturate(results):
    rows, outputs = results
    expected = [to_16_bits(int(r["wide"]), int(r["shift"])) for r in rows]
    assert outputs["cast"] == [(code,) for code in expected]


@pytest.mark.sim("verilator")
def test_blocks_have_the_smallest_exponent(results):
    rows, outputs = results
    blocks = to_blocks(rows["code"].tolist(), 8)
    assert outputs["block"] == [(m, exponent) for mantissas, exponent in blocks for m in mantissas]


@pytest.mark.sim("verilator")
def test_pairs_are_rotated(results):
    rows, outputs = results
    second = torch.from_numpy(rows["wide"][1::2].copy())
    cos, sin = ((second >> place).to(torch.int16).tolist() for place in (0, 16))
    expected = rotate(rows["code"].tolist(), list(zip(cos, sin, strict=True)))
    assert outputs["rotated"] == [(code,) for code in expected]


@pytest.mark.sim("verilator")
def test_inverse_roots_are_those_of_the_reference(results):
    rows, outputs = results
    assert outputs["root"] == [inverse_root(int(u)) for u in rows["u"][7::8]]


def signed(number, width):
    """Return the low bits of a number as a signed number."""
    return (number + (1 << width - 1)) % (1 << width) - (1 << width - 1)


@pytest.mark.sim("verilator")
def test_products_of_pieces_are_exact(results):
    rows, outputs = results
    expected = []
    for row in rows:
        wide, code = int(row["wide"]), int(row["code"])
        expected.append((signed(wide, 40) * signed(code << 8 | wide >> 40 & 255, 24),))
    assert outputs["product"] == expected
