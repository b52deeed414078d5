"""The GPU kernels of rounding with feedback: bits of the PyTorch path, which defines them.

Without a GPU, the source of the kernels is compiled for the CPU, with a thread for each lane.
"""

import contextlib
import ctypes
import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chop import native, nvrtc
from chop.nn.quantizers import MXFP, NVFP4, ScaleInteger, parse_format
from chop.passes.ptq.solve import column_kernels
from chop.passes.ptq.solve.column_feedback import rounded_with_feedback
from chop.passes.ptq.solve.element_table import element_scales, element_table
from chop.passes.ptq.solve.rounding_refinement import moved_elements
from chop.passes.ptq.solve.weight_grid import weight_grid

HAS_GPU = torch.cuda.is_available()
INTEGERS = [
    ScaleInteger(4, granularity="group", group_size=32),
    ScaleInteger(3, granularity="group", group_size=24, narrow=False),
    ScaleInteger(8, granularity="channel", rounding="nearest_away"),
    ScaleInteger(12, granularity="tensor", rounding="floor"),
    ScaleInteger(4, granularity="group", group_size=48, rounding="toward_zero", is_signed=False),
]
BLOCKS = [parse_format(text, "here") for text in ("mxint4", "mxfp4/16", "mxfp8", "nvfp4")]
ORDERS = [True, False]


def problem(form, rows=5, columns=200):
    """A weight with a zero group, the Hessian of inputs that are alike, a grid, and a mask."""
    draw = torch.Generator().manual_seed(columns)
    weight = torch.randn(rows, columns, generator=draw).double()
    weight[1, :48] = 0
    x = torch.randn(2 * columns, columns, generator=draw).double()
    x = x + x.roll(1, 1) + 0.1 * x.sum(1, keepdim=True)
    mask = torch.rand(rows, columns, generator=draw) > 0.3
    return weight, x.T @ x, weight_grid(form, weight, "here"), mask


class OnCpu:
    """The compiled kernels for the CPU, in the place of `nvrtc.Function`."""

    def __init__(self, folder, rounding, lanes):
        defines = {**column_kernels.defines(rounding), "LANES": lanes}
        here = Path(__file__).with_name("cuda_lanes.h")
        lines = [f"#define {name} {value}" for name, value in defines.items()]
        lines += [here.read_text(), column_kernels.source()]
        kernels = dict.fromkeys(("round_columns", "move_columns"), "Columns")
        kernels |= dict.fromkeys(("largest_of_groups", "best_of_trials"), "Groups")
        lines += [f"RUNNER({name}, {operands})" for name, operands in kernels.items()]
        file = folder / f"kernels-{rounding}-{lanes}.cpp"
        file.write_text("\n".join(lines))
        self.library = native.load(file, ("-pthread",))

    def named(self, name):
        self.run = getattr(self.library, f"run_{name}")
        return self

    def launch(self, grid, threads, stream, arguments):
        self.run(grid[0], threads, ctypes.byref(*arguments))


@pytest.fixture
def on_cpu(monkeypatch, tmp_path):
    """Kernels that run on the CPU; returns a function that takes the number of lanes."""
    if native.find_compiler() is None:
        pytest.skip("needs a C++ compiler")

    def use(lanes):
        built = functools.cache(lambda rounding: OnCpu(tmp_path, rounding, lanes))
        monkeypatch.setattr(column_kernels, "LANES", lanes)
        monkeypatch.setattr(column_kernels, "THREADS", 2 * lanes)
        monkeypatch.setattr(column_kernels, "is_usable", lambda device: True)
        monkeypatch.setattr(nvrtc, "made_current", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(nvrtc, "raw_stream", lambda device: 0)
        monkeypatch.setattr(
            column_kernels, "kernel", lambda device, name, rounding: built(rounding).named(name)
        )

    return use


def results(form, mask_is_used, by_importance, device="cpu", **sizes):
    """The rounded weight, its ranges, and the nearest values refined."""
    weight, hessian, grid, mask = problem(form, **sizes)
    weight, hessian, mask = (t.to(device) for t in (weight, hessian, mask))
    grid = weight_grid(form, weight, "here")
    kept = mask if mask_is_used else None
    values, ranges = rounded_with_feedback(
        weight, hessian, grid, damping=0.01, by_importance=by_importance, mask=kept
    )
    nearest = grid.round(weight, ranges[:, grid.groups])
    moved = moved_elements(nearest, ranges, weight, hessian, grid, kept)
    assert not torch.equal(moved, nearest)
    return values, ranges, moved


def are_same(ours, plain):
    """True if all bits are equal, those of the signs of zeros included."""
    return all(
        torch.equal(a.view(torch.int64), b.view(torch.int64))
        for a, b in zip(ours, plain, strict=True)
    )


@pytest.mark.parametrize("by_importance", ORDERS)
@pytest.mark.parametrize("form", [*INTEGERS, *BLOCKS], ids=str)
def test_the_source_of_the_kernels_has_the_bits_of_the_plain_path(form, by_importance, on_cpu):
    plain = [results(form, masked, by_importance) for masked in (False, True)]
    on_cpu(1)
    ours = [results(form, masked, by_importance) for masked in (False, True)]
    assert all(map(are_same, ours, plain))


@pytest.mark.parametrize("form", [INTEGERS[0], BLOCKS[1]], ids=str)
def test_several_lanes_have_the_bits_of_the_plain_path(form, on_cpu):
    sizes = {"rows": 3, "columns": 150}
    plain = results(form, True, False, **sizes)
    on_cpu(column_kernels.LANES)
    assert are_same(results(form, True, False, **sizes), plain)


@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("by_importance", ORDERS)
@pytest.mark.parametrize("form", [*INTEGERS, *BLOCKS], ids=str)
def test_the_kernels_have_the_bits_of_the_plain_path_on_a_gpu(form, by_importance, monkeypatch):
    arguments = (form, True, by_importance, "cuda")
    ours = results(*arguments, rows=200, columns=1000)
    monkeypatch.setattr(column_kernels, "is_usable", lambda device: False)
    plain = results(*arguments, rows=200, columns=1000)
    assert are_same(ours, plain)


def test_nan_and_infinity_stay_where_they_are(on_cpu):
    def ranges():
        weight, hessian, grid, _ = problem(INTEGERS[0])
        weight[0, 3], weight[2, 40] = torch.nan, torch.inf
        return grid.chosen_range(weight, hessian.diagonal())

    plain = ranges()
    on_cpu(1)
    assert torch.equal(ranges(), plain) or are_same([ranges()], [plain])
    assert plain[0].isnan().sum() == 1


@pytest.mark.parametrize("form", BLOCKS, ids=str)
def test_a_table_has_the_values_of_the_format_and_rounds_to_the_nearest(form):
    form = form.measured_on(torch.tensor([3.0]))
    table = element_table(form)
    codes = form.code_values()
    assert set(table.values.tolist()) <= set(codes.tolist())
    x = torch.linspace(-1.2, 1.2, 10_001, dtype=torch.double) * codes[codes.isfinite()].max()
    one = torch.ones((), dtype=torch.double)
    distance = (x - table.round(x, one)).abs()
    assert torch.equal(distance, (x[:, None] - table.values).abs().amin(1))


@pytest.mark.parametrize("text", ["mxint8/5", "mxfp6_e2m3", "mxfp8_e5m2", "nvfp4", "fp8_block"])
@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "toward_zero"])
def test_a_table_rounds_as_its_format(text, rounding):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1000, generator=draw).double()
    ranges = torch.rand(1000, generator=draw).double() * 3
    form = replace(parse_format(text, "here").measured_on(x.float()), rounding=rounding)
    rounded = element_table(form).round(x, element_scales(form, ranges))
    assert are_same([rounded], [form.represent_blocks(x, ranges, None)])


@pytest.mark.parametrize(
    "form",
    [
        MXFP("e2m1", rounding="stochastic"),
        MXFP("e2m3", rounding="floor"),  # of a tiny number, whose ratio to the scale is zero
        NVFP4(),  # its scale is measured on a whole weight
        parse_format("mxint12", "here"),
        parse_format("block_fp4", "here"),  # has no exponent to divide by
    ],
    ids=str,
)
def test_formats_that_a_table_cannot_hold_have_none(form):
    assert element_table(form) is None
