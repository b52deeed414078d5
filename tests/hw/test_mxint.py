"""MXINT in hardware: the format on wires, its casts, products of blocks, mixed designs."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from covering import first_and_slow
from mxint_reference import dot, fixed, row_of
from torch import nn

from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.arith.mxint_wire import Mxint, on_wire
from chop.hw.design.stream import Stream, from_bytes, to_bytes
from chop.hw.flow.explore import for_target
from chop.hw.library.components import (
    BlockLinear,
    BlockMatmul,
    BlockWeights,
    FromMxint,
    Linear,
    Matmul,
    ToMxint,
)
from chop.hw.library.fixed_linear import bias_codes, sample_blocks, sample_weights, weight_codes
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.component_check import bench_design, check_components
from chop.hw.sim.emit import emit, read_interface
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, lint
from chop.hw.timing.cycles import interval, simulate_control
from chop.ir.graph import MaseGraph
from chop.nn.quantizers import MXInt
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

FIXED_OUT = Fixed(8, 4)
ROUNDINGS = ("nearest_even", "floor", "toward_zero", "nearest_away")


def random_format(rng):
    """Widths, blocks and roundings of any kind."""
    return MXInt(
        int(rng.integers(2, 13)),
        exponent_width=int(rng.integers(1, 9)),
        block_size=int(rng.choice([-1, 1, 2, 3, 4, 8])),
        rounding=str(rng.choice(ROUNDINGS)),
    )


def random_source(rng):
    width = int(rng.integers(1, 24))
    is_signed = bool(rng.integers(2)) or width == 1
    return Fixed(width, int(rng.integers(-8, width + 8)), is_signed)


def random_codes(rng, number, shape):
    """Codes of every size: blocks of small ones, ends, zeros."""
    shift = rng.integers(0, number.width + 1, shape[:-1])[..., None]
    codes = rng.integers(number.low, number.high, shape, endpoint=True) >> shift
    return np.where(rng.random(shape) < 0.05, rng.choice([number.low, number.high, 0]), codes)


def fractions(codes, frac_width):
    return [Fraction(int(c)) / Fraction(2) ** frac_width for c in codes]


@pytest.mark.parametrize("seed", range(24))
def test_casts_are_the_format_and_the_definition(seed):
    rng = np.random.default_rng(seed)
    number, source = random_format(rng), random_source(rng)
    row = int(rng.integers(1, 13))
    cast = ToMxint(Stream((row,), 1, source), number)
    codes = random_codes(rng, source, (12, row))
    found = cast.golden(codes)
    x = torch.from_numpy(source.decode(codes))
    assert torch.equal(torch.from_numpy(cast.format.decode(found)), number.quantize(x))
    wanted = [row_of(fractions(each, source.frac_width), number) for each in codes]
    assert [fractions(each, cast.format.frac_width) for each in found] == wanted
    back = FromMxint(cast.output, Fixed(7, 3)).golden(found)
    assert back.tolist() == [[fixed(x, 7, 3) for x in each] for each in wanted]
    beats = cast.output
    assert np.array_equal(from_bytes(to_bytes(found, beats), beats).reshape(found.shape), found)
    assert np.array_equal(beats.codes(beats.words(found)).reshape(found.shape), found)


@pytest.mark.parametrize("seed", range(12))
def test_products_are_the_definition(seed):
    """Exact sums of the definition's numbers, rounded once; the accumulator holds every sum."""
    rng = np.random.default_rng(seed)
    x_format, w_format, b_format = (random_format(rng) for _ in range(3))
    inputs, outputs, source = int(rng.integers(1, 10)), 3, Fixed(12, int(rng.integers(0, 12)))
    out = Fixed(9, int(rng.integers(-2, 12)))
    wire = on_wire(x_format, source, inputs)
    weight = rng.normal(0, 1, (outputs, inputs)) * 2.0 ** rng.integers(-5, 3, (outputs, 1))
    bias = rng.normal(0, 1, outputs)
    form, bias_found = bias_codes(b_format, bias)
    matrix_wire, matrix = weight_codes(w_format, weight)
    weights = BlockWeights(matrix, matrix_wire, bias_found, form)
    layer = BlockLinear(Stream((inputs,), 1, wire), weights, out)
    codes = ToMxint(Stream((inputs,), 1, source), x_format).golden(
        random_codes(rng, source, (6, inputs))
    )
    rows = [row_of([Fraction(float(w)) for w in row], w_format) for row in weight]
    start = row_of([Fraction(float(b)) for b in bias], b_format)
    for given, results in zip(codes, layer.golden(codes), strict=True):
        x = fractions(given, wire.frac_width)
        sums = [dot(x, row, b) for row, b in zip(rows, start, strict=True)]
        assert results.tolist() == [fixed(s, 9, out.frac_width) for s in sums]
    largest = [Fraction(wire.high) / Fraction(2) ** wire.frac_width] * inputs
    step = Fraction(2) ** -weights.frac(wire)
    pairs = zip(rows, start, strict=True)
    most = max(dot(largest, [abs(w) for w in row], abs(b)) for row, b in pairs)
    assert most / step < 2 ** (layer.acc_width - 1)


def test_a_wire_has_the_mantissas_and_the_exponent_of_their_block():
    number = MXInt(8, block_size=4)
    cast = ToMxint(Stream((6,), 2, Fixed(16, 8)), number)  # a block of 4 and one of 2
    codes = np.array([[1, -300, 20, 5, 3, -128]])
    (first, second, third) = cast.output.words(cast.golden(codes))
    assert cast.output.beat_width == 2 * 8 + 4
    assert first >> 16 == second >> 16 == 2 and third >> 16 == 1
    assert (first & 255, second & 255, third >> 8 & 255) == (0, 5, 256 - 64)


def test_exponents_that_change_nothing_are_not_on_the_wire():
    assert on_wire(MXInt(8), Fixed(8, 4), 32).top == 1  # -128 alone has a larger one
    assert on_wire(MXInt(8), Fixed(8, 4, narrow=True), 32).top == 0
    assert on_wire(MXInt(8), Fixed(20, 4), 32).top == 13
    assert on_wire(MXInt(8, exponent_width=3), Fixed(20, 4), 32).top == 1
    with pytest.raises(ConfigError, match=r"56 exponents, .* 63 bits. Allowed: 62. Lower exponent"):
        on_wire(MXInt(8), Fixed(62, 4), 32)


# -- designs ---------------------------------------------------------------------------------------


def mxint(width=8, block=4, **more):
    """A config of MXINT for operands and parameters alike."""
    settings = {"width": width, "block_size": block, "exponent_width": 5}
    roles = ["data_in", "weight", *(["data_out"] if more.pop("data_out", False) else [])]
    config = {f"{role}_{key}": value for role in roles for key, value in settings.items()}
    return {"name": "mxint", **config, **more}


FIXED = {"name": "integer", "data_in_width": 10, "data_in_frac_width": 5}
for role in ("weight", "bias"):
    FIXED |= {f"{role}_width": 8, f"{role}_frac_width": 6}


def graph_of(model, x, configs, precision=(12, 8)):
    """The graph of `model` quantised by name, with inputs in fixed point."""
    graph = MaseGraph(model.eval(), dummy_in=x)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    rules = {name: {"config": config} for name, config in configs.items()}
    quantize_transform_pass(graph, {"by": "name", **rules})
    for node in graph.fx_graph.find_nodes(op="placeholder"):
        value = node.meta["mase"]["common"]["results"]["data_out_0"]
        value["type"], value["precision"] = "fixed", list(precision)
    return graph


class Mixed(nn.Module):
    """MXINT and fixed-point layers, a rectifier, a product of two results, two outputs."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 8), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        y = torch.relu(self.fc1(x))
        z = self.fc2(y)
        return self.fc3(torch.relu(z)), z @ y[..., :6].transpose(-1, -2)


MIXED = {
    "fc1": mxint(),
    "fc2": mxint(6, 4, data_out=True, data_out_block_size=2),
    "fc3": FIXED,
    "matmul": mxint(8, 4, weight_axis=-2, data_out=True, data_out_block_size=3),
}


def draw(*shape, seed=0):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def mixed():
    torch.manual_seed(0)
    return graph_of(Mixed(), draw(2, 3, 12), MIXED)


def test_a_mixed_design_is_the_model(mixed):
    lowered = lower(mixed, Parallelism(2))
    assert verify(mixed, lowered, draw(8, 3, 12)).values == 72 * 3 * (4 + 3)
    assert interval(lowered.design) == lowered.design.cycles()
    kinds = [stage.component.kind for stage in lowered.design.stages]
    assert kinds.count("mxint_linear") == 2 and "fixed_linear" in kinds and "mxint_matmul" in kinds


@pytest.mark.sim
def test_a_mixed_design_is_exact_in_rtl_with_and_without_stalls(mixed, tmp_path):
    lowered = lower(mixed, Parallelism(2))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert lint(tmp_path) == ""
    assert exercise(simulator, lowered.encode(draw(8, 3, 12, seed=2))).is_exact
    assert read_interface(tmp_path).control == lowered.design.control()


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("clock_mhz", first_and_slow([150, 50]))  # test_clock.py simulates at 50
def test_a_mixed_design_is_exact_in_rtl_at_a_slow_and_a_fast_clock(mixed, clock_mhz, tmp_path):
    lowered = lower(mixed, Parallelism(2, clock_mhz=clock_mhz))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    assert exercise(simulator, lowered.encode(draw(8, 3, 12, seed=4))).is_exact


def test_the_clock_chooses_the_registers_of_products_of_blocks(mixed):
    """A higher clock_mhz takes as many registers as in fixed point, and cycles of latency."""
    slow, usual, fast = (
        lower(mixed, Parallelism(2, clock_mhz=mhz)).design for mhz in (50, 100, 150)
    )
    for name, registers in (("fc1", (1, 1, 2)), ("matmul", (1, 2, 2))):
        parts = [design.stage(name).component for design in (slow, usual, fast)]
        assert {part.kind for part in parts} <= {"mxint_linear", "mxint_matmul"}
        told = [part.parameters().get("OPERAND_REGISTERS", 1) for part in parts]
        assert told == list(registers)
        assert [part.latency - parts[0].latency for part in parts] == [k - 1 for k in registers]
    first = [min(simulate_control(d, 2).outputs["data_out_1"]) for d in (slow, usual, fast)]
    assert first[0] < first[1] < first[2]


def test_wide_products_of_blocks_have_fewer_tree_registers_at_a_slow_clock():
    layers = [case for kind in (BlockLinear, BlockMatmul) for case in kind.cases()]
    wide = [case for case in layers if case.inputs[0].lanes > 8]
    assert {type(case) for case in wide} == {BlockLinear, BlockMatmul}
    for case in wide:
        slow, fast = case.for_clock(50), case.for_clock(150)
        assert slow.parameters()["TREE_STEP"] == 2 and "TREE_STEP" not in fast.parameters()
        assert fast.latency - slow.latency == 2  # an operand register, and one of the tree


def test_float_results_are_the_models_own_where_float32_holds_the_sums(mixed):
    lowered = lower(mixed, Parallelism(4))
    x = draw(16, 3, 12, seed=3)
    codes = lowered.encode(x)
    held = torch.from_numpy(lowered.design.inputs["data_in_0"].format.decode(codes["data_in_0"]))
    with torch.no_grad():
        results = mixed.model.double()(held.reshape(x.shape))
    for found, wanted in zip(lowered.decode(lowered.design.golden(codes)), results, strict=True):
        assert torch.equal(found, wanted)


def test_readers_share_a_cast_and_a_result_in_blocks_is_handed_on():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.c(self.a(x)), self.b(x)

    own = mxint(8, 4, data_out=True)
    graph = graph_of(Shared(), draw(2, 8), {"a": own, "b": mxint(), "c": own})
    lowered = lower(graph, Parallelism(4))
    assert verify(graph, lowered).values
    names = [
        stage.name for stage in lowered.design.stages if stage.component.kind == "fixed_to_mxint"
    ]
    assert names == ["a_mxint_0", "a_mxint", "c_mxint"]


@pytest.mark.parametrize("seed", range(4))
def test_any_block_width_exponent_and_folding_is_the_model(seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    sizes = [int(n) for n in rng.integers(1, 13, 3)]
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    configs = {}
    for k in range(2):
        config = {"name": "mxint"}
        for role in ("data_in", "weight", "bias", *(["data_out"] if rng.integers(2) or k else [])):
            number = random_format(rng)
            settings = {"exponent_width": min(number.exponent_width, 4), "width": number.width}
            settings |= {"block_size": number.block_size, "rounding": number.rounding}
            config |= {f"{role}_{key}": value for key, value in settings.items()}
        configs[str(k)] = config
    model = nn.Sequential(*layers)
    graph = graph_of(model, draw(2, sizes[0]), configs, precision=(10, 5))
    lowered = lower(graph, Parallelism(int(rng.integers(1, 5))))
    assert verify(graph, lowered, draw(8, sizes[0])).values
    assert interval(lowered.design) == lowered.design.cycles()


def test_lanes_are_searched_among_those_of_a_block():
    torch.manual_seed(0)
    graph = graph_of(
        nn.Sequential(nn.Linear(12, 8)), draw(2, 12), {"0": mxint(8, 6, data_out=True)}
    )
    found = for_target(graph, 8)
    assert found.lanes["_0"][0] in (1, 2, 3, 6) and found.cycles <= 8


def wrong(configs, **by_hand):
    torch.manual_seed(0)
    graph = graph_of(Mixed(), draw(2, 3, 12), MIXED | configs)
    return lower(graph, Parallelism(2, by_hand or None))


def test_what_is_not_there_is_refused_with_what_is():
    across = r"'fc1' .*data_in_0 has blocks of 4 along axis 1. Allowed .* summed over, axis = -1"
    with pytest.raises(HardwareError, match=across):
        wrong({"fc1": mxint() | {"data_in_axis": 1}})
    with pytest.raises(HardwareError, match=r"'fc1': weight_axis = 0. Allowed in hardware: -1"):
        wrong({"fc1": mxint() | {"weight_axis": 0}})
    with pytest.raises(HardwareError, match=r"'matmul' .*data_in_1 has blocks of 4 along axis -1"):
        wrong({"matmul": mxint()})
    with pytest.raises(HardwareError, match=r"data_in_0 is not in MXINT.*'mxint' for all"):
        wrong({"fc1": mxint() | {"data_in_name": "NA"}})
    with pytest.raises(HardwareError, match=r"mantissas of 30 bits. Allowed in hardware: 24"):
        wrong({"fc1": mxint() | {"data_in_width": 30}})
    with pytest.raises(HardwareError, match=r"rounding = 'stochastic'. Allowed: nearest_even"):
        wrong({"fc1": mxint() | {"data_in_rounding": "stochastic"}})
    with pytest.raises(
        HardwareError, match=r"'fc1' .*must divide the 4 elements of a block, got 3"
    ):
        wrong({}, fc1=(3, 2))
    with pytest.raises(
        HardwareError, match=r"in the format 'nvfp4'. Allowed in hardware: 'integer'"
    ):
        wrong({"fc3": {"name": "nvfp4"}})
    with pytest.raises(
        HardwareError, match=r"in the format 'mxfp'. Allowed in hardware: 'integer'"
    ):
        wrong({"fc3": {"name": "mxfp"}})


def test_ways_of_fixed_point_alone_are_refused_for_blocks(mixed, caplog):
    with pytest.raises(HardwareError, match=r"'fc1' .*weights = 'external' of a layer in MXINT"):
        lower(mixed, Parallelism(2), weights={"fc1": "external"})
    with pytest.raises(HardwareError, match=r"'fc1' .*multiplier 'shift_add' of a layer in MXINT"):
        lower(mixed, Parallelism(2, multiplier={"fc1": "shift_add"}))
    assert "stay in memories" not in caplog.text
    lowered = lower(mixed, Parallelism(2), weights="external")  # of the layers that can
    assert "layers in MXINT take none from outside; those of 'fc1', 'fc2' stay" in caplog.text
    assert verify(mixed, lowered).values and "fc3_weight" in lowered.design.inputs


def test_products_refuse_blocks_that_do_not_fit():
    wire = on_wire(MXInt(8, block_size=4), Fixed(16, 8), 8)
    with pytest.raises(ConfigError, match="mxint_linear: parallelism must divide the 4 elements"):
        BlockLinear(Stream((8,), 8, wire), sample_blocks(2, 8, MXInt(8, block_size=8)), FIXED_OUT)
    with pytest.raises(ConfigError, match="mxint_linear: weights take 4 inputs, the stream has"):
        BlockLinear(Stream((8,), 4, wire), sample_blocks(2, 4, MXInt(8)), FIXED_OUT)
    left, right = Stream((2, 8), 4, wire), Stream((4, 8), 4, wire)
    with pytest.raises(ConfigError, match=r"fixed_matmul: data_in_1 in MXINT must be transposed"):
        Matmul(Stream((2, 4), 4, Fixed(8)), right, FIXED_OUT, lanes=4)
    with pytest.raises(ConfigError, match="mxint_matmul: inner sizes must be equal, got 8 and 4"):
        BlockMatmul(left, Stream((8, 4), 4, wire), FIXED_OUT)
    with pytest.raises(ConfigError, match="mxint_matmul: data_in_1 must have the lanes of what"):
        BlockMatmul(left, Stream((4, 8), 2, wire), FIXED_OUT)


@pytest.mark.sim
def test_one_operand_may_be_in_blocks_and_the_other_in_fixed_point(tmp_path):
    """The component takes each operand as its format says: exponents of one alone are shifted."""
    wire = on_wire(MXInt(8, block_size=4), Fixed(16, 8), 8)
    weights = sample_blocks(4, 8, MXInt(6, block_size=4))
    layers = [
        Linear(Stream((2, 8), 2, wire), sample_weights(4, 8), FIXED_OUT, 2),
        Linear(Stream((2, 8), 4, FIXED_OUT), weights, FIXED_OUT),
        Matmul(Stream((2, 8), 2, wire), Stream((8, 4), 2, FIXED_OUT), FIXED_OUT, lanes=2),
    ]
    assert all(layer.has_shifter for layer in layers)
    for verdict in check_components(layers, tmp_path):
        assert verdict.is_exact


def test_an_input_that_only_blocks_are_made_of_needs_a_format():
    graph = graph_of(nn.Sequential(nn.Linear(4, 4)), draw(2, 4), {"0": mxint()})
    for node in graph.fx_graph.find_nodes(op="placeholder"):
        node.meta["mase"]["common"]["results"]["data_out_0"]["type"] = "float"
        node.meta["mase"]["common"]["results"]["data_out_0"]["precision"] = [32]
    with pytest.raises(
        HardwareError, match=r"set type 'fixed' and precision \[width, frac_width\]"
    ):
        lower(graph, Parallelism(2))


def test_an_input_in_blocks_and_blocks_of_a_function_are_refused():
    layers = nn.Sequential(nn.Hardswish())
    config = {"name": "mxint", "data_in_width": 8, "data_out_width": 8}
    graph = graph_of(layers, draw(2, 4), {"0": config})
    with pytest.raises(HardwareError, match=r"'_0' .* of which MXINT could be made. Allowed: its"):
        lower(graph, Parallelism(2))
    for node in graph.fx_graph.find_nodes(op="placeholder"):
        value = node.meta["mase"].common.results["data_out_0"]
        value.set_format(MXInt(8), is_applied=True)
    with pytest.raises(HardwareError, match=r"an input in MXINT. Allowed: 'fixed'"):
        lower(graph, Parallelism(2))


def test_ports_of_blocks_are_read_from_the_files_of_a_design(tmp_path):
    design = bench_design(BlockLinear.cases()[2:4])
    told = read_interface(emit(design, tmp_path)).inputs
    assert {n: s.beat_width for n, s in told.items()} == {
        name: stream.beat_width for name, stream in design.inputs.items()
    }
    assert all(told[name].format.holds(s.format) for name, s in design.inputs.items())


def test_elementwise_layers_take_numbers_that_were_brought_to_blocks():
    """An op without a component for blocks computes in fixed point, with MXINT's numbers."""

    class Sums(nn.Module):
        def forward(self, x, y):
            return torch.relu(x) + y

    config = {f"{k}_{n}": v for k in ("data_in", "data_out")
              for n, v in (("width", 4), ("block_size", 3))}  # fmt: skip
    graph = graph_of(Sums(), (draw(2, 8), draw(2, 8)), {"add": {"name": "mxint", **config}})
    lowered = lower(graph, Parallelism(4))
    assert verify(graph, lowered).values
    names = [stage.name for stage in lowered.design.stages if "mxint" in stage.component.kind]
    assert len(names) == 2 * 2 + 2


def test_weights_lie_in_memory_with_their_exponents(mixed):
    layer = lower(mixed, Parallelism(4)).design.stage("fc1").component
    weight, bias = layer.memories()
    assert (len(weight.words), len(bias.words)) == (3 * 2, 2)
    assert weight.width == 4 * (4 * 8 + layer.weights.wire.shared_width)
    assert isinstance(layer.weights.wire, Mxint) and BlockMatmul.module == "fixed_matmul"


# -- any sizes in RTL ------------------------------------------------------------------------------


def divisor(rng, number):
    return int(rng.choice([d for d in range(1, number + 1) if number % d == 0]))


def random_component(rng, kind):
    """A cast or a product of random sizes, lanes, formats, blocks and exponents."""
    number, other, source = random_format(rng), random_format(rng), random_source(rng)
    row, outputs, rows = (int(n) for n in rng.integers(1, 11, 3))
    how = str(rng.choice(ROUNDINGS))
    out = Fixed(int(rng.integers(1, 20)), int(rng.integers(-4, 12)), rounding=how)
    wires = [on_wire(each, source, row) for each in (number, other)]
    lanes = divisor(rng, math.gcd(row, *(wire.block for wire in wires)))
    left = Stream((rows, row), lanes, wires[0])
    if kind == "to":
        own = divisor(rng, math.gcd(row, wires[0].block))
        return ToMxint(Stream((rows, row), own, source), number)
    if kind == "from":
        return FromMxint(left, out)
    if kind == "matmul":
        right = Stream((outputs, row), lanes, wires[1])
        return BlockMatmul(left, right, out, divisor(rng, outputs))
    bias = Fixed(int(rng.integers(1, 10)), int(rng.integers(-4, 20))) if rng.integers(2) else None
    weights = sample_blocks(outputs, row, other, bias)
    lanes = divisor(rng, math.gcd(row, wires[0].block, weights.wire.block))
    return BlockLinear(Stream((rows, row), lanes, wires[0]), weights, out, divisor(rng, outputs))


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("kind", ["to", "from", "linear", "matmul"])
def test_any_sizes_are_exact_in_rtl(kind, tmp_path):
    rng = np.random.default_rng(1)
    for verdict in check_components([random_component(rng, kind) for _ in range(24)], tmp_path):
        assert verdict.is_exact
