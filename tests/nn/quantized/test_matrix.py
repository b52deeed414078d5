"""Every quantised layer and function in every format keeps the same laws."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from covering import first_and_slow, rotated, slow_unless
from quantized_cases import FUNCTION_CASES, LAYER_CASES, SETTINGS, config_of, random
from torch import Tensor, fx, nn

from chop.ir.ops import OPS
from chop.nn.quantized import from_float, quantized_func_map, quantized_module_map
from chop.nn.quantized.functional import quantized_functions
from chop.nn.quantized.layer import quantized_layers
from chop.nn.quantizers import FORMATS, make_quantizer

pytestmark = pytest.mark.share(2)

every_layer = pytest.mark.parametrize("op", LAYER_CASES)
every_function = pytest.mark.parametrize("op", FUNCTION_CASES)
in_every_format = pytest.mark.parametrize("form", FORMATS)


@pytest.fixture(params=first_and_slow(["a third of the formats", "every format"]))
def forms(request) -> list[str]:
    """Return the formats of a test of one op; `make slow` takes all of them.

    The thirds of the ops take turns, so that `make test` meets every op and every format.
    """
    if request.param == "every format":
        return list(FORMATS)
    cases = [*LAYER_CASES, *FUNCTION_CASES]
    return rotated(list(FORMATS), cases.index(request.node.callspec.params["op"]))


def float_layer(op: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYER_CASES[op].layer()


def quantized_layer(op: str, form: str) -> nn.Module:
    return from_float(float_layer(op), config_of(form))


def first(result) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def run(layer: nn.Module, inputs) -> Tensor:
    return first(layer(*(x.clone() if isinstance(x, Tensor) else x for x in inputs)))


def quantize(form: str, value):
    """`value` in the format, as a new leaf."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return make_quantizer(form, SETTINGS[form], "test").quantize(value.detach())


def test_the_cases_cover_every_format_and_every_quantisable_op():
    assert set(SETTINGS) == set(FORMATS)
    assert set(LAYER_CASES) == set(quantized_layers())
    assert set(FUNCTION_CASES) == set(quantized_functions())
    assert set(LAYER_CASES) | set(FUNCTION_CASES) == {
        op.name for op in OPS.values() if op.compute is not None
    }


def test_the_maps_hold_the_whole_matrix():
    assert set(quantized_module_map) == {f"{op}_{form}" for op in LAYER_CASES for form in FORMATS}
    assert set(quantized_func_map) == {f"{op}_{form}" for op in FUNCTION_CASES for form in FORMATS}


def same(result: Tensor, expected: Tensor) -> bool:
    """Equal to the last bit or two: torch's vector and scalar loops differ there."""
    return torch.allclose(result, expected, rtol=1e-6, atol=1e-7)


RECURRENT = ("lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell")
"""Layers that round their state at every step: test_recurrent.py has their reference."""


@pytest.mark.parametrize("op", [op for op in LAYER_CASES if op not in RECURRENT])
def test_a_layer_is_the_float_layer_on_quantised_operands(op, forms):
    for form in forms:
        reference, inputs = float_layer(op), LAYER_CASES[op].inputs()
        for parameter in reference.parameters():
            parameter.data = quantize(form, parameter)
        expected = run(reference, [quantize(form, x) for x in inputs])
        assert same(run(quantized_layer(op, form), inputs), expected), form


@every_layer
def test_gradients_reach_inputs_and_parameters(op, forms):
    for form in forms:
        layer, inputs = quantized_layer(op, form), LAYER_CASES[op].inputs()
        run(layer, inputs).square().sum().backward()
        leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        for leaf in (*leaves, *layer.parameters()):
            assert leaf.grad is not None and leaf.grad.isfinite().all(), form


@every_layer
def test_copies_and_pickles_of_a_layer_compute_the_same(op, forms):
    for form in forms:
        layer, inputs = quantized_layer(op, form), LAYER_CASES[op].inputs()
        copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
        expected = run(layer, inputs)
        for each in copies:
            assert type(each) is type(layer) and each.config == layer.config, form
            assert torch.equal(run(each, inputs), expected), form


@every_layer
def test_state_dicts_of_float_and_quantised_layers_fit_each_other(op, forms):
    for form in forms:
        layer, other = quantized_layer(op, form), LAYER_CASES[op].layer()
        assert list(layer.state_dict()) == list(other.state_dict()), form
        twin, inputs = from_float(other, config_of(form)), LAYER_CASES[op].inputs()
        twin.load_state_dict(layer.state_dict())
        other.load_state_dict(layer.state_dict())
        assert torch.equal(run(twin, inputs), run(layer, inputs)), form


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_a_bypassed_layer_is_bit_identical_to_the_float_layer(op, training, forms):
    for form in forms:
        reference = float_layer(op).train(training)
        layer = from_float(copy.deepcopy(reference), {"name": form, "bypass": True})
        inputs = LAYER_CASES[op].inputs()
        with torch.set_grad_enabled(training):  # without gradients attention takes a fused path
            assert torch.equal(run(layer, inputs), run(reference, inputs)), form
        for mine, theirs in zip(layer.buffers(), reference.buffers(), strict=True):
            assert torch.equal(mine, theirs), form


@every_function
def test_a_function_is_torchs_on_quantised_operands(op, forms):
    case = FUNCTION_CASES[op]
    for form in forms:
        args = case.args()
        operands = [quantize(form, a) if i in case.operands else a for i, a in enumerate(args)]
        result = quantized_func_map[f"{op}_{form}"](*args, config=config_of(form))
        assert same(result, case.function(*operands)), form


@every_function
def test_gradients_reach_the_operands_of_a_function(op, forms):
    for form in forms:
        args = FUNCTION_CASES[op].args()
        quantized_func_map[f"{op}_{form}"](*args, config=config_of(form)).square().sum().backward()
        for i in FUNCTION_CASES[op].operands:
            assert args[i].grad is not None and args[i].grad.isfinite().all(), form


@every_function
def test_a_bypassed_function_is_bit_identical_to_torchs(op, forms):
    for form in forms:
        args = FUNCTION_CASES[op].args()
        result = quantized_func_map[f"{op}_{form}"](*args, config={"name": form, "bypass": True})
        assert torch.equal(result, FUNCTION_CASES[op].function(*args)), form


@every_function
def test_a_function_is_found_again_by_its_name(op, forms):
    for form in forms:
        function = quantized_func_map[f"{op}_{form}"]
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function


@every_function
def test_a_traced_function_is_one_node_and_survives_pickling(op):
    function, args = quantized_func_map[f"{op}_integer"], FUNCTION_CASES[op].args()
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") if isinstance(a, Tensor) else a for i, a in enumerate(args)]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    given = [fx.Proxy(n, tracer) if isinstance(n, fx.Node) else n for n in nodes]
    graph.output(function(*given, config=config_of("integer")).node)
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [function]
    again = pickle.loads(pickle.dumps(fx.GraphModule(nn.Module(), graph)))
    tensors = [a for a in args if isinstance(a, Tensor)]
    assert torch.equal(again(*tensors), function(*args, config=config_of("integer")))


def computed(value):
    """A tensor as a layer gets it from another one, which it may overwrite, unlike a leaf."""
    return value * 1 if isinstance(value, Tensor) and value.requires_grad else value


def compiles(call, inputs, backend) -> bool:
    torch.compiler.reset()
    inputs = [computed(value) for value in inputs]
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(allow_rnn=True):  # torch refuses recurrent layers by default
        result = first(compiled(*inputs))
    result.square().sum().backward()
    return torch.allclose(result, first(call(*inputs)), rtol=1e-5, atol=1e-6)  # fused reductions


WITH_KERNEL = [*(op for op in LAYER_CASES if OPS[op].compute.kernel), "relu"]
TWINS = ("lstm", "gru", "rnn", "conv1d", "batch_norm2d", "rms_norm")
"""Layers whose code is that of another one here: their cells, conv2d, batch_norm1d, layer_norm."""


OTHERS = [op for op in WITH_KERNEL if op not in TWINS]


@pytest.mark.share(2)
@pytest.mark.parametrize("op", slow_unless(WITH_KERNEL, lambda op: op in OTHERS[::2]))
def test_a_layer_is_captured_as_one_graph(op):
    layer = quantized_layer(op, "integer").eval()
    assert compiles(layer, LAYER_CASES[op].inputs(), "eager")


@pytest.mark.parametrize("op", ["add", "matmul", "softmax"])
def test_a_function_is_captured_as_one_graph(op):
    function, config = quantized_func_map[f"{op}_integer"], config_of("integer")
    inputs = FUNCTION_CASES[op].args()
    assert compiles(lambda *args: function(*args, config=config), inputs, "eager")


@pytest.mark.parametrize("form", ["integer", "mxint", "fp8"])
def test_a_layer_that_works_in_place_leaves_its_input_alone_once_quantised(form):
    layer, x = quantized_layer("relu", form), random(3, 5, trains=False)
    before = x.clone()
    assert not torch.equal(layer(x), x)
    assert torch.equal(x, before)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    trained = random(3, 5)
    assert torch.equal(compiled(trained * 1), layer(trained))


@pytest.mark.slow
@every_layer
@in_every_format
def test_every_layer_compiles_in_every_format(op, form):
    assert compiles(quantized_layer(op, form).eval(), LAYER_CASES[op].inputs(), "aot_eager")


@pytest.mark.slow
@every_function
@in_every_format
def test_every_function_compiles_in_every_format(op, form):
    function, config = quantized_func_map[f"{op}_{form}"], config_of(form)
    inputs = FUNCTION_CASES[op].args()
    assert compiles(lambda *args: function(*args, config=config), inputs, "aot_eager")
