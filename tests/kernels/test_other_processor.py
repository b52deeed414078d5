"""The products for processors that this machine is not, run by an emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kernels.test_products import (
    CLOSE,
    EXACT,
    FORMATS,
    int8_activations,
    spread,
    weights,
)
from torch import Tensor

from chop.kernels import GROUP_SIZES, PackedTensor
from chop.kernels.packed_formats import KERNEL_CODES
from chop.native import BASE_FLAGS

SOURCE = Path(__file__).with_name("other_processor.cpp")
COMPILER, EMULATOR = "x86_64-linux-gnu-g++", "qemu-x86_64"
LIBRARIES = "/usr/x86_64-linux-gnu"
WIDE = ("-include", str(SOURCE.with_name("wide_vectors.h")), "-Wno-psabi")
MACHINES = {
    "AVX-512 and VNNI": ("-march=haswell", *WIDE),
    "AVX2": ("-march=haswell",),
    "neither": ("-march=x86-64-v2",),
}
"""What a processor has, and the flags to build for it; the emulator itself has AVX2."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason=f"needs {COMPILER} and {EMULATOR} (Debian: g++-x86-64-linux-gnu, qemu-user)",
    ),
]


def run(machine: str, calls: list[tuple[Tensor, PackedTensor]], folder: Path) -> list[Tensor]:
    """The products as the emulated processor computes them."""
    flags = [flag for flag in BASE_FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
    program, asked, answered = folder / "program", folder / "asked", folder / "answered"
    command = [COMPILER, "-O2", *flags, *MACHINES[machine], str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    with asked.open("wb") as file:
        for x, w in calls:
            format = KERNEL_CODES[w.format]
            sizes = (*x.shape[:1], *w.shape, w.group_size, w.codes.nbytes, w.scales.nbytes)
            file.write(torch.tensor((format, *sizes)).numpy().tobytes())
            for part in (x, w.codes, w.scales):
                file.write(part.contiguous().numpy().tobytes())
    subprocess.run([EMULATOR, "-cpu", "max", "-L", LIBRARIES, program, asked, answered], check=True)
    every = torch.frombuffer(bytearray(answered.read_bytes()), dtype=torch.float32)
    parts = every.split([x.shape[0] * w.shape[0] for x, w in calls])
    return [y.reshape(x.shape[0], -1) for y, (x, _) in zip(parts, calls, strict=True)]


@pytest.mark.parametrize("machine", MACHINES)
def test_products_of_an_emulated_processor_are_those_of_the_definition(
    machine: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    cases = []
    for format in FORMATS:
        for group in GROUP_SIZES:
            for weight, values in weights(format, group):
                for batch in (1, 3, 5):
                    few = int8_activations(batch, weight.columns, spread(format))
                    many = torch.randn(batch, weight.columns)
                    cases += [(few, weight, values, format in EXACT), (many, weight, values, False)]
    results = run(machine, [(x, w) for x, w, *_ in cases], tmp_path)
    for y, (x, _, values, is_exact) in zip(results, cases, strict=True):
        expected = x.double() @ values.t()
        size = x.double().norm(dim=-1, keepdim=True) * values.norm(dim=-1)
        assert ((y.double() - expected).abs() <= (0.0 if is_exact else CLOSE) * size).all()
