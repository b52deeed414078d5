import copy

import numpy as np
import pytest
import torch
from hardware_models import DigitsCnn, DigitsMlp, SmallMlp, fixed_graph, run_reference
from torch import nn

from chop.errors import HardwareError
from chop.hw.lower import LOWERINGS, Parallelism, lower, supported_ops
from chop.hw.lower.verify import verify
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *x):
        return self.function(self, *x)


def functional(function, **modules):
    return Calls(function, **modules)


def batch_norm(kind, channels):
    module = kind(channels)
    generator = torch.Generator().manual_seed(0)
    module.running_mean.copy_(torch.randn(channels, generator=generator))
    module.running_var.copy_(torch.rand(channels, generator=generator) + 0.5)
    return module


VECTOR, ROWS, IMAGE = (6,), (3, 4), (2, 6, 6)
# op of the table: a model that uses it, the shape of its input without the batch
CASES = {
    "linear": (nn.Linear(6, 4), VECTOR),
    "linear as function": (nn.Linear(6, 4), VECTOR),
    "conv2d as function": (nn.Conv2d(2, 4, 3, padding=1), IMAGE),
    "linear over rows": (nn.Linear(4, 5), ROWS),
    "linear without bias": (nn.Linear(6, 4, bias=False), VECTOR),
    "conv1d": (nn.Conv1d(3, 4, 3, padding=1, stride=2), (3, 8)),
    "conv2d": (nn.Conv2d(2, 4, 3, padding=1), IMAGE),
    "conv2d with stride": (nn.Conv2d(2, 3, (2, 3), stride=(2, 1), bias=False), IMAGE),
    "batch_norm1d": (batch_norm(nn.BatchNorm1d, 6), VECTOR),
    "batch_norm2d": (batch_norm(nn.BatchNorm2d, 2), IMAGE),
    "max_pool2d": (nn.MaxPool2d(3, stride=2, padding=1), IMAGE),
    "max_pool2d as function": (functional(lambda m, x: nn.functional.max_pool2d(x, 2)), IMAGE),
    "avg_pool2d": (nn.AvgPool2d(3), IMAGE),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d(1), IMAGE),
    "relu": (nn.ReLU(), VECTOR),
    "leaky_relu": (nn.LeakyReLU(0.125), VECTOR),
    "leaky_relu as function": (functional(lambda m, x: nn.functional.leaky_relu(x, 0.75)), VECTOR),
    "prelu": (nn.PReLU(2), IMAGE),
    "prelu of a vector": (nn.PReLU(6, 0.3), VECTOR),
    "prelu with one slope": (nn.PReLU(1, -0.5), IMAGE),
    "pad": (nn.Sequential(nn.ZeroPad2d((2, 2, 0, 0)), nn.Conv2d(2, 3, 3, padding=(1, 0))), IMAGE),
    "pad unlike": (
        nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(2, 3, 3, 2, padding=(0, 1))),
        IMAGE,
    ),
    "pad of unlike rows": (nn.Sequential(nn.ZeroPad1d((2, 0)), nn.Conv1d(3, 2, 3)), ROWS),
    "pad of rows as function": (
        functional(lambda m, x: m.conv(nn.functional.pad(x, (1, 1))), conv=nn.Conv1d(3, 2, 3)),
        ROWS,
    ),
    "hardsigmoid": (nn.Hardsigmoid(), VECTOR),
    "hardswish": (nn.Hardswish(), VECTOR),
    "sigmoid": (nn.Sigmoid(), VECTOR),
    "tanh": (functional(lambda m, x: torch.tanh(x)), VECTOR),
    "gelu": (nn.GELU(), VECTOR),
    "silu": (nn.SiLU(), VECTOR),
    "elu": (nn.ELU(), VECTOR),
    "mish": (nn.Mish(), VECTOR),
    "softplus": (nn.Softplus(), VECTOR),
    "softsign": (nn.Softsign(), VECTOR),
    "add": (functional(lambda m, x: x + torch.relu(x)), VECTOR),
    "add of a long number": (functional(lambda m, x: 0.1 - x), VECTOR),
    "add of itself": (functional(lambda m, x: x + x), VECTOR),
    "sub": (functional(lambda m, x: torch.relu(x) - x), IMAGE),
    "mul": (functional(lambda m, x: x * m.gate(x), gate=nn.Linear(6, 6)), VECTOR),
    "identity": (functional(lambda m, x: torch.relu(m.same(x)), same=nn.Identity()), VECTOR),
    "dropout": (functional(lambda m, x: torch.relu(m.drop(x)), drop=nn.Dropout()), VECTOR),
    "flatten": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3)), IMAGE),
    "view": (functional(lambda m, x: m.fc(x.view(x.size(0), -1)), fc=nn.Linear(12, 3)), ROWS),
    "reshape": (functional(lambda m, x: m.fc(x.reshape(-1, 4, 3)), fc=nn.Linear(3, 2)), ROWS),
    "permute": (functional(lambda m, x: m.fc(x.permute(0, 2, 1)), fc=nn.Linear(3, 2)), ROWS),
    "transpose": (functional(lambda m, x: torch.relu(x.transpose(1, 2))), ROWS),
    "abs": (functional(lambda m, x: torch.abs(x)), VECTOR),
    "exp": (functional(lambda m, x: torch.exp(x)), VECTOR),
    "reciprocal": (functional(lambda m, x: torch.reciprocal(x)), VECTOR),
    "sin": (functional(lambda m, x: torch.sin(x)), VECTOR),
    "cos": (functional(lambda m, x: torch.cos(x)), VECTOR),
    "erf": (functional(lambda m, x: torch.erf(x)), VECTOR),
    "sign": (functional(lambda m, x: torch.sign(x)), VECTOR),
    "round": (functional(lambda m, x: torch.floor(x)), VECTOR),
    "neg": (functional(lambda m, x: -x), VECTOR),
    "pow": (functional(lambda m, x: x**2), VECTOR),
    "pow as a method": (functional(lambda m, x: x.square()), VECTOR),
    "pow of 3": (functional(lambda m, x: torch.pow(x, 3)), VECTOR),
    "clamp": (functional(lambda m, x: torch.clamp(x, -0.3, 1.7)), VECTOR),
    "clamp of one side": (functional(lambda m, x: x.clamp(max=0.3)), VECTOR),
    "clamp between crossed bounds": (functional(lambda m, x: x.clamp(2.0, -1.0)), VECTOR),
    "clamp_min": (functional(lambda m, x: x.clamp_min(0.6)), VECTOR),
    "clamp_max": (functional(lambda m, x: torch.clamp_max(x, 0.6)), VECTOR),
    "maximum": (
        functional(lambda m, x: torch.maximum(x, m.end), end=nn.Parameter(torch.tensor([-0.4]))),
        VECTOR,
    ),
    "minimum": (
        functional(lambda m, x: torch.minimum(m.end, x), end=nn.Parameter(torch.tensor([0.4]))),
        VECTOR,
    ),
    "relu6": (nn.ReLU6(), VECTOR),
    "hardtanh": (nn.Hardtanh(-0.5, 2.0), VECTOR),
    "hardtanh as function": (functional(lambda m, x: nn.functional.hardtanh(x)), VECTOR),
    "pixel_shuffle": (
        nn.Sequential(nn.Conv2d(2, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 3, 3)), IMAGE
    ),
    "pixel_unshuffle": (nn.Sequential(nn.PixelUnshuffle(3), nn.Conv2d(18, 3, 1)), IMAGE),
    "channel_shuffle": (nn.Sequential(nn.ChannelShuffle(2), nn.Conv2d(4, 3, 1)), (4, 3, 3)),
    "flip": (functional(lambda m, x: m.fc(x.flip(2)), fc=nn.Linear(4, 2)), ROWS),
    "roll": (functional(lambda m, x: m.fc(torch.roll(x, 1, 1)), fc=nn.Linear(4, 2)), ROWS),
    "argmax": (functional(lambda m, x: m.fc(x).argmax(-1), fc=nn.Linear(6, 5)), VECTOR),
    "conv2d with groups": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5, 5)),
    "conv1d of single channels": (nn.Conv1d(3, 3, 3, groups=3), (3, 8)),
    "conv2d with dilation": (nn.Conv2d(2, 3, 3, padding=2, dilation=(2, 1)), IMAGE),
    "pad reflected as function": (
        functional(
            lambda m, x: m.conv(nn.functional.pad(x, (2, 1), mode="reflect")),
            conv=nn.Conv1d(3, 2, 3),
        ),
        ROWS,
    ),
    "channels met again": (
        functional(lambda m, x: m.conv(m.fc(x)), conv=nn.Conv2d(2, 3, 3), fc=nn.Linear(6, 6)),
        IMAGE,
    ),
}  # fmt: skip
COVERED_ELSEWHERE = {
    "contiguous", "dropout1d", "dropout2d", "squeeze", "unsqueeze", "unflatten", "size", "getitem",
    "layer_norm", "rms_norm", "softmax", "masked_fill", "compare", "logical",  # test_row_layers.py
    "where",  # test_transformers.py
    "thermometer", "lookup_tables", "class_sum",  # test_lookup_tables_rtl.py
    "sqrt", "rsqrt", "log",  # of numbers without a sign, below
}  # fmt: skip


TRANSFORMERS = {
    "matmul", "bmm", "getattr", "size_arithmetic", "cat", "div", "expand", "chunk", "split",
    "unbind", "narrow", "mean", "embedding",
}  # fmt: skip
"""In test_transformer_ops.py."""


def test_every_op_with_a_realisation_has_a_case():
    named = {name.split(" ")[0] for name in CASES} | TRANSFORMERS
    assert named | COVERED_ELSEWHERE >= set(supported_ops())


def test_every_realisation_in_the_op_table_has_a_lowering():
    ours = {n for n, each in LOWERINGS.items() if each.lower.__module__.startswith("chop.")}
    of_ops = {n.replace("mxint_", "fixed_") for n in ours}  # an op's other way, for blocks
    assert {op.rtl for op in OPS.values() if op.rtl} == of_ops


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("most", [1, 4])
def test_golden_integers_equal_the_quantised_model(name, most):
    model, shape = CASES[name]
    if not name.endswith("as function"):
        model = nn.Sequential(model)
    x = 3 * torch.randn(5, *shape)
    graph = fixed_graph(model, x, precision=(8, 4), weight=(8, 6), bias=(9, 7))
    lowered = lower(graph, Parallelism(most))
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    assert torch.equal(found, run_reference(graph, x))


def test_operand_and_result_formats_of_their_own_are_kept():
    x = torch.randn(4, 4)
    graph = fixed_graph(SmallMlp(), x, precision=(8, 4), data_out_0=(10, 6), data_in_0=(6, 3))
    lowered = lower(graph, Parallelism(4))
    assert str(lowered.design.output_streams()["data_out_0"].format) == "Q10.6"
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    assert torch.equal(found, run_reference(graph, x))


def test_a_float_result_takes_the_format_of_its_user():
    x = torch.randn(4, 4)
    graph = fixed_graph(SmallMlp(), x, precision=(8, 4))
    fc1 = next(n for n in graph.fx_graph.nodes if n.name == "fc1")
    fc1.meta["mase"]["common"]["results"]["data_out_0"]["type"] = "float"
    assert str(lower(graph, Parallelism(4)).components["fc1"].output.format) == "Q8.4"


def test_encode_and_decode_keep_the_order_of_torch():
    x = torch.arange(2 * 72, dtype=torch.float64).reshape(2, 2, 6, 6) / 16
    graph = fixed_graph(nn.MaxPool2d(1), x.float(), precision=(16, 4))
    lowered = lower(graph, Parallelism(2))
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    assert torch.equal(found, x)


REFUSED = {
    "softmax": (nn.Softmax(-1), VECTOR, r"node '\w+' \(softmax\): it is computed in floating"),
    "log_softmax": (nn.LogSoftmax(-1), VECTOR, r"\(log_softmax\): no hardware .* Nearest"),
    "bounds of several numbers": (
        functional(lambda m, x: torch.maximum(x, m.low), low=nn.Parameter(torch.arange(6.0))),
        VECTOR,
        "both computed, or a constant of several numbers. Allowed: a tensor and one",
    ),
    "bounds that are computed": (
        functional(lambda m, x: torch.minimum(x, torch.relu(x))), VECTOR, "Allowed: a tensor and"
    ),
    "a bound that is a tensor": (
        functional(lambda m, x: torch.clamp(x, m.low), low=nn.Parameter(torch.zeros(6))),
        VECTOR,
        "a bound that is a tensor. Allowed: plain numbers",
    ),
    "no bound": (functional(lambda m, x: x.clamp(max=torch.inf)), VECTOR, "no bound. Allowed: a"),
    "a root of less than 0": (
        functional(lambda m, x: torch.sqrt(x)), VECTOR, r"no value at -0.0625.* without a sign"
    ),
    "a computed exponent": (
        functional(lambda m, x: x ** torch.relu(x)), VECTOR, "an exponent that is computed. Allow"
    ),
    "argmin": (functional(lambda m, x: x.argmin(-1)), VECTOR, "argmin with dim = -1. Allowed: a"),
    "argmax of rows": (functional(lambda m, x: x.argmax(1)), ROWS, "argmax with dim = 1. Allowed"),
    "padding": (nn.Conv2d(2, 2, 3, padding="same"), IMAGE, "padding = 'same'. Allowed: a number"),
    "ceil_mode": (nn.MaxPool2d(4, ceil_mode=True), IMAGE, "ceil_mode = True. Allowed"),
    "adaptive": (nn.AdaptiveAvgPool2d(2), IMAGE, "output_size = 2. Allowed: output_size = 1"),
    "quotient": (functional(lambda m, x: x / 3), VECTOR, "a quotient over 3.0. Allowed: over"),
    "indexing": (functional(lambda m, x: x[0]), ROWS, "a part of the batch. Allowed: some"),
    "pad that crops": (
        nn.Sequential(nn.ZeroPad2d((0, -1, 0, 1)), nn.Conv2d(2, 3, 3)),
        IMAGE,
        r"pad = \(0, -1, 0, 1\). Allowed: 0 or more zeros before and behind",
    ),
    "pad of ones": (
        nn.Sequential(nn.ConstantPad2d(1, 1.0), nn.Conv2d(2, 3, 3)),
        IMAGE,
        "constants of 1.0. Allowed: zeros",
    ),
    "pad reflected": (
        nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(2, 3, 3)),
        IMAGE,
        "ReflectionPad2d. Allowed: layers of zeros, and F.pad in every mode",
    ),
    "pad read by others": (
        nn.Sequential(nn.ZeroPad2d(1), nn.ReLU()),
        IMAGE,
        "reads it. Allowed: conv1d, conv2d",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_is_refused_by_node_and_remedy(name):
    model, shape, told = REFUSED[name]
    graph = fixed_graph(model, torch.randn(2, *shape))
    with pytest.raises(HardwareError, match=told):
        lower(graph, Parallelism(2))


def test_a_refusal_names_all_ops_that_are_missing():
    model = functional(lambda m, x: torch.cumsum(torch.sort(torch.cumsum(x, 1)).values, 1))
    told = r"\(cumsum\): no hardware .* Missing too: topk \(1, first 'sort'\)"
    with pytest.raises(HardwareError, match=told):
        lower(fixed_graph(model, torch.randn(2, 6)), Parallelism(2))


@pytest.mark.parametrize("function", [torch.sqrt, torch.rsqrt, torch.log, torch.log2])
def test_a_table_of_numbers_without_a_sign_has_the_ends_of_infinite_values(function):
    model = functional(lambda m, x: m.fc(function(torch.relu(x))), fc=nn.Linear(6, 4))
    x = torch.cat([torch.zeros(1, 6), 3 * torch.randn(4, 6)])
    graph = MaseGraph(model, dummy_in=x)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    relu = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4,
            "data_out_width": 7, "data_out_frac_width": 4, "data_out_is_signed": False}  # fmt: skip
    linear = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 6,
              "weight_frac_width": 4, "bias_width": 9, "bias_frac_width": 7}  # fmt: skip
    rules = {"relu": {"config": relu}, "linear": {"config": linear}}
    quantize_transform_pass(graph, {"by": "type", "default": {"config": {"name": None}}, **rules})
    lowered = lower(graph, Parallelism(2))
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    assert verify(graph, lowered, x).values > 0
    with torch.no_grad():
        assert torch.equal(found, copy.deepcopy(graph).model.double()(x.double()))


def test_a_float_graph_is_refused_with_the_remedy():
    graph = fixed_graph(SmallMlp(), torch.randn(2, 4))
    fc1 = next(n for n in graph.fx_graph.nodes if n.name == "fc1")
    fc1.meta["mase"]["common"]["args"]["weight"]["type"] = "float"
    with pytest.raises(
        HardwareError, match=r"node 'fc1': args.weight is float .* needs type 'fixed'"
    ):
        lower(graph, Parallelism(2))


def test_a_residual_network_gets_a_fork_and_a_fifo():
    graph = fixed_graph(DigitsCnn(2), torch.randn(1, 1, 8, 8))
    names = [stage.component.module for stage in lower(graph, Parallelism(2)).design.stages]
    assert "stream_fork" in names
    assert "fifo" in names


def test_inputs_are_quantised_by_the_rule_of_the_reference():
    x = torch.tensor([[0.03125, -0.03125, 100.0, -100.0]])  # ties at 8.4, and both ends
    lowered = lower(fixed_graph(SmallMlp(), x), Parallelism(4))
    assert np.array_equal(lowered.encode(x)["data_in_0"], [[0, 0, 127, -128]])


@pytest.mark.parametrize("frac_width", [4, 5, 6])
@pytest.mark.parametrize("make", [DigitsMlp, lambda: DigitsCnn(2)], ids=["mlp", "residual-cnn"])
def test_golden_integers_equal_the_model_that_the_quantize_pass_gives(make, frac_width):
    x = torch.randn(4, 1, 8, 8)
    graph = MaseGraph(make().eval(), dummy_in=x)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    layer = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5, "weight_width": 6,
             "weight_frac_width": 4, "bias_width": 9, "bias_frac_width": 7}  # fmt: skip
    other = {"name": "integer", "data_in_width": 8, "data_in_frac_width": frac_width}
    rules = {"linear": layer, "conv2d": layer, "relu": other, "add": other}
    present = {node.meta["mase"].common.mase_op for node in graph.fx_graph.nodes}
    chosen = {op: {"config": config} for op, config in rules.items() if op in present}
    quantize_transform_pass(graph, {"by": "type", "default": {"config": {"name": None}}, **chosen})
    lowered = lower(graph, Parallelism(2))
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    with torch.no_grad():
        wanted = copy.deepcopy(graph).model.double()(x.double())
    assert torch.equal(found, wanted)
    assert torch.equal(found, run_reference(graph, x))


@pytest.mark.parametrize("frac_width", [3, 5, 7])
def test_an_op_left_in_float_between_layers_of_unlike_formats_rounds_as_the_model_does(frac_width):
    x = torch.randn(16, 8)
    graph = MaseGraph(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), dummy_in=x)
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    first = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5, "weight_width": 8,
             "weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6}  # fmt: skip
    second = {**first, "data_in_frac_width": frac_width}
    ops = {n: n.meta["mase"].common.mase_op for n in graph.fx_graph.nodes}
    layers = [n.target for n, op in ops.items() if op == "linear"]
    rules = dict(zip(layers, ({"config": first}, {"config": second}), strict=True))
    quantize_transform_pass(graph, {"by": "name", **rules})
    lowered = lower(graph, Parallelism(2))
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(x)))
    with torch.no_grad():
        wanted = copy.deepcopy(graph).model.double()(x.double())
    assert torch.equal(found, wanted)
    assert torch.equal(found, run_reference(graph, x))
