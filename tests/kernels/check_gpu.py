"""Checks the GPU's kernels against the reference: `python check_gpu.py [cuda|cpu] [format …]`.

A format may name one group size, as in `mxint4/32`; else all are tried.

On the CPU they run in Triton's interpreter, which has no products and no subnormals of bfloat16
and no NaN in 8-bit floats: there, float32 stands in for bfloat16 and those codes are left out.
"""

from __future__ import annotations

import os
import sys
import threading

import torch
import torch.nn.functional as F

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from chop.kernels import (  # noqa: E402
    GROUP_SIZES,
    PACKED_FORMATS,
    QLinearPacked,
    gpu,
    hopper,
    pack,
    packed_linear,
    reference,
)
from chop.kernels.gpu import Config  # noqa: E402

IS_REAL = DEVICE != "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16) if IS_REAL else (torch.float32,)
ERRORS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = ((1, 1, 1), (5, 33, 3), (40, 200, 17), (33, 257, 2), (64, 512, 16))
CONFIGS = (Config(16, 32, 64, 4, 2, split=1), Config(16, 16, 32, 4, 2, split=3))


def check_every_pair(format: str, group_size: int, dtype: torch.dtype) -> None:
    """Every byte of codes under every scale byte, equal but for the payload of a NaN."""
    columns = 256 * PACKED_FORMATS[format].per_byte
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, columns // group_size)
    expected = reference.unpack(codes, scales, format, group_size, columns, dtype)
    on_device = (codes.to(DEVICE), scales.to(DEVICE))
    values = gpu.unpack(*on_device, format, group_size, columns, dtype).cpu()
    if format == "mxfp8" and not IS_REAL:
        is_number = (torch.arange(256) & 127) != 127
        values, expected = values[:, is_number], expected[:, is_number]
    known = ~expected.isnan()
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    assert torch.equal(known, ~values.isnan()), (format, group_size, dtype, "NaN")
    same = values[known].view(bits) == expected[known].view(bits)
    assert same.all(), (format, group_size, dtype, int((~same).sum()))


def check_shapes(format: str, group_size: int) -> None:
    """Unpack and linear at shapes with tails, with and without splitting the columns."""
    for rows, columns, batch in SHAPES:
        packed = pack(torch.randn(rows, columns), format, group_size)
        parts = (packed.codes.to(DEVICE), packed.scales.to(DEVICE))
        values = gpu.unpack(*parts, format, group_size, columns, torch.float32).cpu()
        weight = reference.unpack(
            packed.codes, packed.scales, format, group_size, columns, torch.float32
        )
        assert torch.equal(values, weight), (format, group_size, rows, columns)
        for dtype in DTYPES if group_size == 32 else DTYPES[-1:]:
            for config in CONFIGS:
                x, bias = torch.randn(batch, columns).to(dtype), torch.randn(rows).to(dtype) + 2
                y = gpu.run_linear(
                    x.to(DEVICE), *parts, bias.to(DEVICE), format, group_size, config
                )
                expected = F.linear(x.double(), weight.to(dtype).double(), bias.double())
                error = ((y.cpu().double() - expected).norm() / expected.norm()).item()
                assert error < ERRORS[dtype], (format, group_size, rows, columns, dtype, error)


def check_every_pair_multiplied(format: str, batch: int, rows: int, group_size: int) -> None:
    """Every code under every scale, through a product that has nothing to add up: equal bits."""
    columns, values_of_codes = 1024, 256 * PACKED_FORMATS[format].per_byte
    codes = torch.arange(256, dtype=torch.uint8).repeat(rows, columns // values_of_codes)
    if format == "mxfp8":  # NaN times 0 is NaN as well: see check_nan
        codes[codes & 127 == 127] = 0
    scales = torch.arange(rows).to(torch.uint8)[:, None].repeat(1, columns // group_size)
    weight = reference.unpack(codes, scales, format, group_size, columns, torch.bfloat16)
    is_finite, is_nan = weight.isfinite().all(1), weight.isnan().all(1)  # else 0 x inf is added
    parts = (codes.to(DEVICE), scales.to(DEVICE))
    for start in range(0, values_of_codes, batch):
        one = torch.zeros(batch, columns, dtype=torch.bfloat16)
        one[torch.arange(batch), start + torch.arange(batch)] = 1.0
        values = hopper.linear(one.to(DEVICE), *parts, None, format, group_size).cpu()
        expected = weight[:, start : start + batch].T
        wrong = ((values != expected) & is_finite).nonzero()
        assert not len(wrong), (format, batch, group_size, start, len(wrong), wrong[:3].tolist())
        assert values[:, is_nan].isnan().all(), (format, group_size, start)


def check_nan(format: str, batch: int, rows: int) -> None:
    """Codes that are no numbers make their row of the result none, and no other."""
    packed = pack(torch.randn(rows, 1024), format)
    packed.codes[3, 7], packed.codes[rows - 1, 1023] = 0x7F, 0xFF
    x = torch.randn(batch, 1024).bfloat16().to(DEVICE)
    parts = (packed.codes.to(DEVICE), packed.scales.to(DEVICE))
    is_nan = hopper.linear(x, *parts, None, format, 32).isnan()
    assert is_nan.sum() == 2 * batch, (format, batch)
    assert is_nan[:, [3, rows - 1]].all(), (format, batch)


FEW = (
    (333, 256, 1), (4096, 640, 7), (9000, 128, 8), (40, 1024, 9), (9000, 256, 16), (50, 384, 17),
    (9000, 128, 32), (1000, 2048, 3), (1024, 4096, 16), (5120, 256, 5), (14336, 192, 16),
)  # fmt: skip
MANY = (
    (2048, 1024, 17), (2049, 1152, 32), (4100, 4096, 33), (9000, 1280, 64), (2048, 8192, 100),
    (3000, 1024, 128), (4096, 4096, 129), (20000, 1024, 200), (4090, 8192, 256),
    (2048, 2048, 70), (4096, 4096, 192), (6144, 2048, 190), (12000, 1024, 180), (4096, 14336, 128),
)  # fmt: skip
FEW_OF_4_BITS = (
    (3, 96, 1), (333, 2880, 7), (30, 4160, 16), (2000, 14336, 16), (4096, 16384, 4),
    (20000, 352, 9), (500, 1056, 20), (14336, 4096, 2), (1000, 40960, 3), (5000, 3584, 5),
)  # fmt: skip
"""Rows, columns and batch: tails in each, and every way of splitting the columns."""


def check_products(format: str, shapes: tuple[tuple[int, int, int], ...], group_size: int) -> None:
    """Products with a bias, the same again bit for bit."""
    for rows, columns, batch in shapes:
        packed = pack(torch.randn(rows, columns, device=DEVICE), format, group_size)
        x = torch.randn(batch, columns, device=DEVICE).bfloat16()
        bias = torch.randn(rows, device=DEVICE).bfloat16()
        assert hopper.is_known(x, rows, format)
        parts = (packed.codes, packed.scales)
        first, again = (hopper.linear(x, *parts, bias, format, group_size) for _ in range(2))
        assert torch.equal(first, again), (format, group_size, rows, columns, batch)
        weight = reference.unpack(*parts, format, group_size, columns, torch.bfloat16)
        expected = F.linear(x.double(), weight.double(), bias.double())
        error = ((first.double() - expected).norm() / expected.norm()).item()
        assert error < 2**-8, (format, group_size, rows, columns, batch, error)


def check_again_and_again(format: str, group_size: int) -> None:
    """Large products, often: a race would show as another result."""
    sizes = (
        (14336, 4096, 16),
        (4096, 14336, 16),
        (4096, 4096, 3),
        (4096, 4096, 64),
        (6144, 4096, 64),
    )
    for rows, columns, batch in sizes:
        packed = pack(torch.randn(rows, columns, device=DEVICE), format, group_size)
        x = torch.randn(batch, columns, device=DEVICE).bfloat16()
        parts = (packed.codes, packed.scales, None, format, group_size)
        first = hopper.linear(x, *parts)
        others = [hopper.linear(x, *parts) for _ in range(200)]
        assert all(torch.equal(first, y) for y in others), (format, group_size, rows, columns)


def check_hopper(format: str, group_size: int) -> None:
    """The kernels for compute capability 9.0: codes and scales, tails, bias and NaN."""
    for batch, rows in ((8, 256), (16, 256), (32, 256), (32, 2048), (256, 2048)):
        check_every_pair_multiplied(format, batch, rows, group_size)
        if format == "mxfp8":
            check_nan(format, batch, rows)
    more = FEW_OF_4_BITS if PACKED_FORMATS[format].per_byte == 2 else ()
    check_products(format, FEW + MANY + more, group_size)
    check_again_and_again(format, group_size)


def check_graphs(format: str) -> None:
    """Products whose parts are added up through memory, captured without ever having run, and
    captured by torch.compile: equal to what runs outside."""
    weights = [pack(torch.randn(4096, 14336, device=DEVICE), format) for _ in range(2)]
    x = torch.randn(128, 14336, device=DEVICE).bfloat16()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        captured = [packed_linear(x, weight) for weight in weights]
    graph.replay()
    graph.replay()
    expected = [packed_linear(x, weight) for weight in weights]
    assert all(map(torch.equal, captured, expected)), "captured"
    layers = torch.nn.Sequential(*(QLinearPacked(weight, None) for weight in weights[:1]))
    compiled = torch.compile(layers, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(compiled(x), expected[0]), "compiled"


def check_threads(format: str) -> None:
    """A thread that has not used the GPU yet gets the same result."""
    weight = pack(torch.randn(256, 256, device=DEVICE), format)
    x = torch.ones(4, 256, device=DEVICE)
    expected, got = packed_linear(x.bfloat16(), weight), []
    thread = threading.Thread(target=lambda: got.append(packed_linear(x.bfloat16(), weight)))
    thread.start()
    thread.join()
    assert torch.equal(got[0], expected), "another thread"


def check(format: str, group_sizes: tuple[int, ...], is_hopper: bool) -> None:
    """All of a format's kernels."""
    if is_hopper and format in hopper.STEPS:
        for group_size in group_sizes:
            check_hopper(format, group_size)
        check_graphs(format)
        check_threads(format)
        print(f"{format}: the kernels for compute capability 9.0 are right.")  # noqa: T201
    for group_size in group_sizes:
        for dtype in DTYPES:
            check_every_pair(format, group_size, dtype)
        check_shapes(format, group_size)


def main() -> None:
    torch.manual_seed(0)
    is_hopper = IS_REAL and torch.cuda.get_device_capability()[0] == 9
    assert not is_hopper or hopper.is_present(torch.device(DEVICE))
    for chosen in sys.argv[2:] or PACKED_FORMATS:
        format, _, group_size = chosen.partition("/")
        every = GROUP_SIZES if IS_REAL else (16, 64)
        check(format, (int(group_size),) if group_size else every, is_hopper)
    print(f"Triton kernels on {DEVICE}: all equal to the reference.", *sys.argv[2:])  # noqa: T201


if __name__ == "__main__":
    main()
