"""Accumulators that are too short are noticed: by the verdict, and before anything is emitted."""

import re
from dataclasses import replace

import numpy as np
import pytest
from designs import mlp

from chop.actions import simulate
from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint_wire import of_values, on_wire
from chop.hw.design.component import COMPONENTS
from chop.hw.design.samples import BYTE, matched_ends, stream
from chop.hw.design.stream import Stream
from chop.hw.library.components import (
    Add,
    AvgPool,
    BatchNorm,
    BlockLinear,
    BlockMatmul,
    BlockWeights,
    Conv2d,
    ExternalLinear,
    LayerNorm,
    Linear,
    Matmul,
    Mul,
    RmsNorm,
    ShiftAdd,
    Softmax,
    TableSum,
    Weights,
)
from chop.hw.library.fixed_norm import Affine
from chop.hw.sim.component_check import bench_design
from chop.hw.sim.emit import emit, vector_files, write_files
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.sim.worst_case import check_widths, design_ends
from chop.nn.quantizers import MXInt

pytestmark = pytest.mark.share(2)

WIDE = Fixed(24, 8)
"""Results that keep every bit of a sum."""
NAMES = sorted(name for name, cls in COMPONENTS.items() if cls.__module__.startswith("chop."))


def lowest_weights(outputs, inputs):
    """Rows of the lowest code and rows of the highest: sums as large as the formats allow."""
    rows = np.where(np.arange(outputs)[:, None] % 2, BYTE.high, BYTE.low)
    return Weights(np.broadcast_to(rows, (outputs, inputs)).astype(np.int64), BYTE)


def accumulating():
    """One of each component that adds products or elements up."""
    image, weights, eight = stream(5, 5, 2, lanes=2), lowest_weights(2, 18), MXInt(8, block_size=4)
    wire = on_wire(eight, Fixed(16, 9), 8)
    affine = Affine(np.full(6, BYTE.low), BYTE, np.full(6, BYTE.low), BYTE)
    largest, codes = of_values(eight, np.full((4, 8), 127 / 64), 8)
    return {
        "linear": Linear(stream(8, lanes=4), lowest_weights(4, 8), WIDE, 2),
        "linear_external": ExternalLinear(
            stream(2, 8, lanes=4), lowest_weights(4, 8).external(), WIDE, 2
        ),
        "conv": Conv2d(image, (3, 3), (1, 1), (1, 1), weights=weights, format=WIDE, lanes=1),
        "matmul": Matmul(stream(2, 8, lanes=2), stream(4, 8, lanes=2), WIDE, True, 2),
        "block_linear": BlockLinear(Stream((8,), 4, wire), BlockWeights(codes, largest), WIDE, 2),
        "block_matmul": BlockMatmul(Stream((2, 8), 2, wire), Stream((4, 8), 2, wire), WIDE, 2),
        "shift_add": ShiftAdd(stream(2, 4, lanes=4), lowest_weights(2, 4), WIDE),
        "table_sum": TableSum(stream(2, 4, lanes=4), lowest_weights(2, 4), WIDE),
        "layer_norm": LayerNorm(stream(2, 6, lanes=2), affine, WIDE),
        "rms_norm": RmsNorm(stream(2, 6, lanes=2), replace(affine, bias=None), WIDE),
        "softmax": Softmax(stream(2, 8, lanes=2), Fixed(16, 15, is_signed=False)),
        "pool": AvgPool(stream(4, 4, 2, lanes=2), (2, 2), (2, 2), format=WIDE),
        "add": Add(stream(8, lanes=2), stream(8, lanes=2), WIDE),
        "mul": Mul(stream(8, lanes=2), stream(8, lanes=2), WIDE),
        "batch_norm": BatchNorm(
            stream(4, lanes=2), WIDE, np.full(4, BYTE.low), np.full(4, BYTE.high), BYTE, BYTE
        ),
    }


def test_matched_inputs_reach_the_ends_of_every_sum():
    rng = np.random.default_rng(0)
    weight, starts = rng.integers(-9, 9, (5, 7)), rng.integers(-50, 50, 5)
    number = Fixed(4, 0)
    sums = matched_ends(weight, starts, number) @ weight.T + starts
    exact = Weights(weight, Fixed(5, 0), starts, Fixed(7, 0)).span(number)
    assert (sums.min(), sums.max()) == (exact.low, exact.high)


@pytest.mark.parametrize("name", NAMES)
def test_ends_are_inputs_of_the_component(name):
    for component in COMPONENTS[name].cases():
        ends = component.ends()
        for codes, taken in zip(ends, component.inputs, strict=bool(ends)):
            assert codes.shape[1:] == taken.shape
            assert taken.format.low <= codes.min() and codes.max() <= taken.format.high
        if ends:
            assert component.golden(*ends).shape[1:] == component.output.shape


@pytest.mark.parametrize("name", NAMES)
def test_no_emitted_sum_is_wider_than_its_width(name):
    for component in COMPONENTS[name].cases():
        widths = component.parameters()
        assert set(component.intervals()) == {"ACC_WIDTH"} & set(widths)
        check_widths(bench_design([component]))


def test_a_sum_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    design = mlp((4, 8), (4, 4))
    component = design.stages[0].component
    needed = component.intervals()["ACC_WIDTH"]
    short = {**component.parameters(), "ACC_WIDTH": needed.width - 1}
    monkeypatch.setattr(Linear, "parameters", lambda self: short)
    told = rf"stage 'fc1' \(fixed_linear\): ACC_WIDTH is {needed.width - 1} bits\. Its sums lie "
    told += rf"between {needed.low} and {needed.high}, which need {needed.width}\."
    with pytest.raises(HardwareError, match=told):
        emit(design, tmp_path)
    assert not list(tmp_path.iterdir())


def shorten_parameters(directory, bits):
    """Take `bits` off every accumulator whose width the top module says."""
    path = directory / "rtl" / "top.sv"
    text, count = re.subn(
        r"(\.ACC_WIDTH\s*)\((\d+)\)", lambda m: f"{m[1]}({int(m[2]) - bits})", path.read_text()
    )
    path.write_text(text)
    return count


INNER = {
    "fixed_dot_product": (r"(\$clog2\(DATA_IN_0_PARALLELISM_DIM_0\))", 0),
    "fixed_linear": (r"(\$clog2\(IN_LANES\))", 0),
    "fixed_norm": (r"(localparam int SQUARES_WIDTH = SQUARE_WIDTH \+ GROWTH)", 2),
    "fixed_softmax": (r"(localparam int SUM_WIDTH = EXP_WIDTH \+ \$clog2\(SIZE\))", 0),
    "fixed_pool": (r"(X_WIDTH \+ \$clog2\(AREA\))", 0),
    "fixed_arithmetic": (r"(\(IS_PRODUCT \? A_SIGNED \+ B_SIGNED : SUM_WIDTH\))", 0),
    "fixed_batch_norm": (
        r"(\(PRODUCT_WIDTH > BIAS_WIDTH \? PRODUCT_WIDTH : BIAS_WIDTH\) \+ 1)", 1,
    ),
}  # fmt: skip
"""Where a component's own source says the width of a sum, and the bits that it has to spare.

A square of n bits has 2n - 2 bits and no sign; the sum of a product and a shorter bias needs no
bit more than the wider has.
"""


def shorten_sources(directory, bits):
    """Leave every sum whose width a component works out itself `bits` short."""
    for module, (place, spare) in INNER.items():
        path = directory / "rtl" / f"{module}.sv"
        text = path.read_text().replace(
            "= IS_PRODUCT ? A_SIGNED + B_SIGNED : SUM_WIDTH",
            "= (IS_PRODUCT ? A_SIGNED + B_SIGNED : SUM_WIDTH)",
        )
        text, count = re.subn(place, rf"\1 - {spare + bits}", text)
        assert count == 1, module
        path.write_text(text)


def noticed(names, directory):
    """Names of the components whose worst-case results are not the golden ones."""
    design = bench_design(list(accumulating().values()))
    verdict = Simulator(design, directory).run_ends(design_ends(design))
    expected = {case.outputs[0][0]: case.outputs[0][2] for case in design_ends(design)}
    return {
        name
        for k, name in enumerate(names)
        if not np.array_equal(
            verdict.outputs[f"case{k}_data_out_0"].reshape(-1),
            expected[f"case{k}_stream"].reshape(-1),
        )
    }


OWN_WIDTH = {"layer_norm", "rms_norm", "softmax", "pool", "add", "mul", "batch_norm"}
"""Components without a parameter for the width of their sums."""


@pytest.mark.sim
@pytest.mark.parametrize("bits", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_short_accumulator_is_noticed(bits, tmp_path):
    cases = accumulating()
    with_parameter = set(cases) - OWN_WIDTH
    emit(bench_design(list(cases.values())), tmp_path)
    assert shorten_parameters(tmp_path, bits) == len(with_parameter)
    assert noticed(cases, tmp_path) == with_parameter


@pytest.mark.sim
@pytest.mark.parametrize("bits", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_short_sum_inside_a_component_is_noticed(bits, tmp_path):
    cases = accumulating()
    emit(bench_design(list(cases.values())), tmp_path)
    shorten_sources(tmp_path, bits)
    spared = {"block_linear", "block_matmul"} if bits == 1 else set()  # no mantissa is -2**(n-1)
    assert noticed(cases, tmp_path) == set(cases) - {"shift_add", "table_sum"} - spared


@pytest.mark.sim
@pytest.mark.slow
def test_nothing_is_noticed_where_no_sum_is_short(tmp_path):
    cases = accumulating()
    emit(bench_design(list(cases.values())), tmp_path)
    assert noticed(cases, tmp_path) == set()


@pytest.mark.sim
@pytest.mark.parametrize("stage", ["fc1", "fc3"])
def test_a_short_accumulator_in_any_layer_fails_a_simulation_from_files(stage, tmp_path):
    """Random inputs do not reach the ends of the sums; of `fc3` no input of the design does."""
    design, hardware = mlp((8, 6, 6, 3), (4, 2, 2, 1)), tmp_path / "hardware"
    emit(design, hardware)
    write_files(hardware, vector_files(design, random_inputs(design, 10)))
    needed = design.stage(stage).component.intervals()["ACC_WIDTH"].width
    path = hardware / "rtl" / "top.sv"
    old = re.search(rf"\.ACC_WIDTH\s*\((\d+)\)[^;]*u_{stage} ", path.read_text())[0]
    short = re.sub(r"(\.ACC_WIDTH\s*)\(\d+\)", rf"\1({needed - 1})", old)
    path.write_text(path.read_text().replace(old, short))
    with pytest.raises(HardwareError, match=r"first mismatch: (fc1_stream_tap_out|data_out_0)"):
        simulate(tmp_path, trust=True)
