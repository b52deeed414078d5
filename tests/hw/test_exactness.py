"""What the design computes is what the quantised PyTorch model computes, whatever its formats."""

import copy
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hardware_models import fixed_graph
from torch import nn

from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.lower import Parallelism, lower
from chop.ir.graph import MaseGraph
from chop.nn.quantizers import Integer
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

LAYER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 6,
         "weight_frac_width": 4, "bias_width": 6, "bias_frac_width": 3}  # fmt: skip
DATA = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
COARSE = {"name": "integer", "data_in_width": 4, "data_in_frac_width": 1}
RESULT = {"data_out_width": 8, "data_out_frac_width": 4}


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *x):
        return self.function(self, *x)


def normal(*shape, seed=0):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(model, inputs, **rules):
    """The graph of `model`, with a config by type of op or name of a node."""
    graph = MaseGraph(model.eval(), dummy_in=inputs if len(inputs) > 1 else inputs[0])
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    chosen = {name: {"config": config} for name, config in rules.items()}
    none = {"default": {"config": {"name": None}}}
    quantize_transform_pass(graph, {"by": ["name", "type"], **chosen, **none})
    return graph


def outputs_of(graph, *inputs):
    """What the design gives, and what the model does in double precision."""
    lowered = lower(graph, Parallelism(2))
    found = lowered.decode(lowered.design.golden(lowered.encode(*inputs)))
    with torch.no_grad():
        wanted = copy.deepcopy(graph).model.double()(*(x.double() for x in inputs))
    return found, list(wanted) if isinstance(wanted, tuple) else [wanted]


def require_equal(graph, *inputs):
    for found, wanted in zip(*outputs_of(graph, *inputs), strict=True):
        assert torch.equal(found, wanted)


KINDS = {
    "unsigned data": {"data_in_is_signed": False},
    "unsigned weights": {"weight_is_signed": False},
    "floor": {"data_in_rounding": "floor", "weight_rounding": "floor"},
    "away": {"data_in_rounding": "nearest_away", "bias_rounding": "nearest_away"},
    "toward zero": {"data_in_rounding": "toward_zero", "weight_rounding": "toward_zero"},
    "narrow": {"data_in_narrow": True, "weight_narrow": True},
    "wrap": {"data_in_overflow": "wrap", "data_in_width": 5},
    "unsigned floor result": {**RESULT, "data_out_is_signed": False, "data_out_rounding": "floor"},
    "wrapped result": {**RESULT, "data_out_width": 4, "data_out_overflow": "wrap"},
    "one bit of weight": {"weight_width": 1, "weight_frac_width": 0},
    "one bit of anything": {"data_in_width": 1, "weight_width": 1, "bias_width": 1},
    "coarse": {"data_in_width": 3, "data_in_frac_width": -2},
    "dropped": {**RESULT, "data_out_width": 3, "data_out_frac_width": -9},
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", KINDS)
def test_every_setting_of_a_format_reaches_the_hardware(name):
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))
    x = 3 * normal(64, 6)
    config = LAYER | KINDS[name]
    require_equal(quantized(model, [x], linear=config), x)
    relu = {k: v for k, v in config.items() if k.startswith(("name", "data"))}
    require_equal(quantized(model, [x], linear=config, relu=relu), x)


def test_an_average_is_taken_before_its_reader_saturates():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)
    )
    graph = quantized(model, [normal(1, 1, 3, 3)], conv2d=LAYER, linear=LAYER | COARSE)
    require_equal(graph, 4 * normal(32, 1, 3, 3))


@pytest.mark.parametrize("op", ["avg_pool2d", "adaptive_avg_pool2d"])
def test_an_average_has_formats_of_its_own(op):
    pool = nn.AvgPool2d(3, 1) if op == "avg_pool2d" else nn.AdaptiveAvgPool2d(1)
    floor = {"data_out_rounding": "floor"}
    graph = quantized(nn.Sequential(pool), [normal(1, 2, 4, 3)], **{op: DATA | RESULT | floor})
    require_equal(graph, 4 * normal(32, 2, 4, 3))


def test_two_readers_bring_one_value_to_unlike_formats():
    model = Calls(
        lambda m, x: (m.first(m.stem(x)), m.second(m.stem(x)), torch.relu(m.stem(x))),
        stem=nn.Linear(5, 4), first=nn.Linear(4, 3), second=nn.Linear(4, 3),
    )  # fmt: skip
    graph = quantized(
        model, [normal(1, 5)], stem=LAYER, first=LAYER, second=LAYER | COARSE, relu=COARSE
    )
    require_equal(graph, normal(64, 5))


def test_operands_of_a_residual_sum_are_exact():
    model = Calls(
        lambda m, x: m.head(m.body(m.stem(x)) + m.stem(x)),
        stem=nn.Linear(5, 4), body=nn.Linear(4, 4), head=nn.Linear(4, 3),
    )  # fmt: skip
    graph = quantized(model, [normal(1, 5)], stem=LAYER, body=LAYER, head=LAYER | COARSE)
    require_equal(graph, 3 * normal(64, 5))
    graph = quantized(model, [normal(1, 5)], linear=LAYER, add=DATA | {"data_in_1_width": 4})
    require_equal(graph, 3 * normal(64, 5))


def statistics(norm):
    with torch.no_grad():
        norm.running_mean.copy_(normal(norm.num_features))
        norm.running_var.copy_(normal(norm.num_features, seed=1).abs() + 0.1)
        if norm.affine:
            norm.weight.copy_(normal(norm.num_features, seed=2))
            norm.bias.copy_(normal(norm.num_features, seed=3))
    return norm


NORMS = {
    "alone": (nn.Sequential(statistics(nn.BatchNorm1d(5))), (5,)),
    "of rows": (nn.Sequential(statistics(nn.BatchNorm1d(3))), (3, 4)),
    "without affine": (nn.Sequential(statistics(nn.BatchNorm1d(5, affine=False))), (5,)),
    "after a convolution": (
        nn.Sequential(nn.Conv2d(2, 3, 2), statistics(nn.BatchNorm2d(3)), nn.ReLU()),
        (2, 3, 3),
    ),
    "after a flattened convolution": (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), statistics(nn.BatchNorm1d(12))),
        (2, 3, 3),
    ),
}


@pytest.mark.parametrize("rounding", ["nearest_even", "floor"])
@pytest.mark.parametrize("name", NORMS)
def test_batch_normalisation_gives_the_results_of_the_model(name, rounding):
    model, shape = NORMS[name]
    norm = LAYER | RESULT | {"data_out_rounding": rounding}
    rules = {"conv2d": LAYER} if "convolution" in name else {}
    kind = "batch_norm2d" if name == "after a convolution" else "batch_norm1d"
    graph = quantized(model, [normal(1, *shape)], **rules, **{kind: norm})
    require_equal(graph, 3 * normal(64, *shape))


def test_batch_normalisation_left_in_float_is_brought_to_the_format_of_its_reader():
    model = nn.Sequential(nn.Linear(5, 4), statistics(nn.BatchNorm1d(4)), nn.Linear(4, 3))
    require_equal(quantized(model, [normal(1, 5)], linear=LAYER), 3 * normal(64, 5))


@pytest.mark.parametrize("slope", [0.01, 0.2, 0.0, 1.0, 1.7, 1 / 3])
@pytest.mark.parametrize("out", [Integer(8, 4), Integer(6, 5, rounding="floor")])
def test_the_slope_of_a_leaky_rectifier_is_the_models(slope, out):
    result = {"data_out_width": out.width, "data_out_frac_width": out.frac_width}
    config = DATA | result | {"data_out_rounding": out.rounding}
    x = torch.arange(-128, 128).reshape(-1, 4) / 16
    graph = quantized(nn.Sequential(nn.LeakyReLU(slope)), [x], leaky_relu=config)
    lowered = lower(graph, Parallelism(2))
    codes = lowered.design.golden(lowered.encode(x))["data_out_0"].reshape(-1)
    for code, given in zip(codes, x.reshape(-1).tolist(), strict=True):
        exact = Fraction(given) * (Fraction(slope) if given < 0 else 1)
        steps = exact * 2**out.frac_width
        whole = round(steps) if out.rounding == "nearest_even" else steps.__floor__()
        assert code == min(max(whole, -(2 ** (out.width - 1))), 2 ** (out.width - 1) - 1)


BINARIES = {
    "alpha of add": lambda m, x, y: torch.add(x, y, alpha=3),
    "alpha of a method": lambda m, x, y: x.add(y, alpha=0.5),
    "alpha of sub": lambda m, x, y: torch.sub(x, y, alpha=-2.25),
    "operands by name": lambda m, x, y: torch.sub(other=y, input=x),
    "product": lambda m, x, y: x * y,
}


@pytest.mark.parametrize("name", BINARIES)
@pytest.mark.parametrize("reader", [{}, {"linear": LAYER}], ids=["exact", "cast"])
def test_operands_of_a_sum_are_taken_as_torch_takes_them(name, reader):
    head = nn.Linear(4, 3) if reader else nn.Identity()
    model = Calls(lambda m, x, y: m.head(BINARIES[name](m, x, y)), head=head)
    x, y = normal(64, 4), normal(64, 4, seed=5)
    second = {"data_in_1_width": 6, "data_in_1_frac_width": 2}
    op = "mul" if name == "product" else "sub" if "sub" in name or "name" in name else "add"
    graph = quantized(model, [x, y], **{op: DATA | second}, **reader)
    require_equal(graph, x, y)


def test_a_divisor_of_its_own_is_divided_by():
    model = Calls(lambda m, x: F.avg_pool2d(x, 2, divisor_override=3))
    graph = quantized(model, [normal(1, 2, 4, 4)], avg_pool2d=DATA | RESULT)
    require_equal(graph, normal(16, 2, 4, 4))


def test_functions_left_in_float_between_layers_are_rounded_once():
    layers = {"first": nn.Linear(5, 4), "last": nn.Linear(4, 3)}
    model = Calls(lambda m, x: m.last(F.hardswish(m.first(x))), **layers)
    require_equal(quantized(model, [normal(1, 5)], linear=LAYER), 2 * normal(64, 5))


def test_an_output_that_is_not_quantised_leaves_exactly():
    graph = quantized(nn.Sequential(nn.Linear(6, 3)), [normal(1, 6)], linear=LAYER)
    require_equal(graph, normal(32, 6))
    (stream,) = lower(graph, Parallelism(1)).design.output_streams().values()
    assert stream.format.frac_width == 8


def test_an_input_that_nothing_reads_has_no_port():
    model = Calls(lambda m, x, y, z: m.fc(x) + m.fc(z), fc=nn.Linear(4, 3))
    x = [normal(2, 4), normal(2, 5), normal(2, 4, seed=3)]
    lowered = lower(quantized(model, x, linear=LAYER, add=DATA), Parallelism(2))
    assert list(lowered.inputs) == ["data_in_0", "data_in_2"]
    with pytest.raises(HardwareError, match=r"inputs: got 3 tensors. The design has 2 inputs"):
        lowered.encode(*x)


def test_a_model_that_passes_its_input_through_is_a_wire():
    x = torch.arange(-4, 4).reshape(2, 4) / 16
    lowered = lower(fixed_graph(Calls(lambda m, x: (x, torch.relu(x))), x), Parallelism(2))
    assert torch.equal(lowered.decode(lowered.design.golden(lowered.encode(x)))[0], x.double())
    lowered = lower(fixed_graph(nn.Sequential(nn.Identity()), x), Parallelism(2))
    assert (lowered.design.cycles(), len(lowered.design.stages)) == (2, 0)


def test_what_the_outputs_do_not_need_is_left_out():
    def forward(m, x):
        torch.tanh(m.fc(x))
        return m.fc(x).view(x.size(0), -1)

    graph = quantized(Calls(forward, fc=nn.Linear(4, 3)), [normal(2, 4)], linear=LAYER)
    assert [s.name for s in lower(graph, Parallelism(2)).design.stages] == ["fc_1"]


def test_integers_of_32_bits_do_not_wrap():
    wide = {f"{of}_{what}": bits for of in ("data_in", "weight", "bias")
            for what, bits in (("width", 32), ("frac_width", 4))}  # fmt: skip
    config = {"name": "integer", **wide, "data_out_width": 32, "data_out_frac_width": -22}
    graph = quantized(nn.Sequential(nn.Linear(4, 2)), [normal(1, 4)], linear=config)
    lowered = lower(graph, Parallelism(2))
    weights = lowered.components[next(iter(lowered.components))].weights
    weights.weight[:] = Fixed(32, 4).high
    codes = np.full((1, 4), Fixed(32, 4).low)
    found = lowered.design.golden({"data_in_0": codes})["data_out_0"]
    for bias, got in zip(weights.bias, found[0], strict=True):
        exact = Fraction(4 * Fixed(32, 4).high * Fixed(32, 4).low, 2**8) + Fraction(int(bias), 16)
        assert got == max(round(exact / 2**22), Fixed(32).low)


def filled(model, value):
    """The model with every weight equal: the width of its exact results hangs on no draw."""
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


REFUSED = {
    "statistics": (
        nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)),
        {"batch_norm1d": LAYER | RESULT},
        r"\(batch_norm1d\): it takes the statistics of the batch. Allowed: track_running_stats",
    ),
    "no format": (
        nn.Sequential(nn.Linear(4, 3), nn.Hardswish()),
        {"linear": LAYER},
        r"\(hardswish\): a sixth is no binary fraction, .* Quantise it \(data_out_width",
    ),
    "input without a format": (
        Calls(lambda m, x: x + x),
        {},
        r"node '\w+': nothing that reads this input brings it to a number format",
    ),
    "wide table": (
        filled(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), 1.0),
        {"linear": LAYER | {"data_in_width": 12, "weight_width": 8}},
        r"\(tanh\): an operand of \d+ bits. Allowed: up to 16, for a table. Quantise it",
    ),
    "stochastic": (
        nn.Sequential(nn.Linear(4, 3)),
        {"linear": LAYER | {"data_in_rounding": "stochastic"}},
        r"args.data_in_0 has rounding = 'stochastic'. Allowed in hardware: nearest_even, floor",
    ),
    "logarithms": (
        nn.Sequential(nn.Linear(4, 3)),
        {"linear": {"name": "log", "data_in_width": 8, "weight_width": 8}},
        r"is in the format 'log'. Allowed in hardware: 'integer'",
    ),
    "rsub": (
        Calls(lambda m, x: torch.rsub(x, torch.relu(x))),
        {"relu": DATA},
        r"\(sub\): operands in the order of rsub. Allowed: sub",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_equal_is_refused_by_node_and_setting(name):
    model, rules, told = REFUSED[name]
    with pytest.raises(HardwareError, match=told):
        lower(quantized(model, [normal(2, 4)], **rules), Parallelism(2))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (2, 2), ((3, 2), 1)])
def test_windows_that_count_less_at_the_edge_are_divided_by_what_is_inside(kernel, stride):
    model = nn.Sequential(nn.AvgPool2d(kernel, stride, padding=1, count_include_pad=False))
    graph = quantized(model, [normal(1, 2, 4, 5)], avg_pool2d=DATA | RESULT)
    require_equal(graph, normal(16, 2, 4, 5))


def test_means_over_powers_of_two_at_the_edge_need_no_format():
    model = nn.Sequential(nn.AvgPool2d(2, padding=1, count_include_pad=False))
    graph = quantized(model, [normal(1, 1, 4, 4)], avg_pool2d=DATA)
    require_equal(graph, normal(16, 1, 4, 4))


def test_a_value_that_is_written_in_place_is_read_as_torch_reads_it():
    def forward(m, x):
        y = m.fc(x)
        return y.relu_() + y

    graph = quantized(Calls(forward, fc=nn.Linear(4, 4)), [normal(2, 4)], linear=LAYER)
    require_equal(graph, normal(32, 4))


def test_exact_results_that_no_wire_holds_are_refused_with_their_width():
    def forward(m, x):
        y = m.fc(x)
        return torch.relu((y * y) * (y * y) * (y * y))

    graph = quantized(Calls(forward, fc=nn.Linear(4, 4)), [normal(2, 4)], linear=LAYER)
    with pytest.raises(HardwareError, match=r"\(mul\): an exact result of \d+ bits. Allowed: 62"):
        lower(graph, Parallelism(2))
