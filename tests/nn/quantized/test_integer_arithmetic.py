"""`arithmetic = "integer"` in a config: values of the hardware, gradients of the float op."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.errors import ConfigError
from chop.nn.quantized.convert import from_float, to_format
from chop.nn.quantized.functional import gelu_integer, layer_norm_integer, softmax_integer
from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic import integer_softmax, norm
from chop.nn.quantizers.operands import operand_quantizers

FORMATS = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 8,
    "weight_frac_width": 6,
    "data_out_width": 8,
    "data_out_frac_width": 5,
}
CONFIG = FORMATS | {"arithmetic": "integer"}
IN, OUT, WEIGHT = Integer(8, 4), Integer(8, 5), Integer(8, 6)
ROLES = {"data_in": IN, "weight": WEIGHT, "bias": WEIGHT, "data_out": OUT}


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 2


def test_a_layer_gives_the_integers():
    x, layer = random(40, 12), nn.LayerNorm(12)
    layer.weight.data, layer.bias.data = random(12), random(12)
    wanted = norm.layer_norm(x, [12], layer.weight, layer.bias, layer.eps, ROLES)
    exact = from_float(nn.LayerNorm(12), CONFIG)
    exact.load_state_dict(layer.state_dict())
    assert torch.equal(exact(x), wanted)
    assert torch.equal(exact.double()(x.double()), wanted.double())


def test_functions_give_the_integers():
    x = random(5, 7)
    assert torch.equal(
        softmax_integer(x, dim=0, config=CONFIG), integer_softmax.softmax(x, 0, IN, OUT)
    )
    wanted = norm.layer_norm(x, [7], None, None, 0.1, ROLES)
    assert torch.equal(layer_norm_integer(x, [7], None, None, 0.1, config=CONFIG), wanted)
    assert torch.equal(layer_norm_integer(x, [7], eps=0.1, config=CONFIG), wanted)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_table_has_the_settings_of_its_function(approximate):
    config = CONFIG | {"data_in_width": 14, "data_in_frac_width": 9, "data_out_width": 13}
    x = random(200)
    y = gelu_integer(x, approximate=approximate, config=config)
    away = (y - F.gelu(Integer(14, 9).quantize(x), approximate=approximate)).abs()
    assert float(away.max()) * 2**5 <= 0.75
    layer = from_float(nn.GELU(approximate), config)
    assert torch.equal(layer(x), y)


def test_the_gradient_is_that_of_the_float_op_between_the_formats():
    gradients = []
    for config in (FORMATS, CONFIG):
        x = random(6, 9).requires_grad_()
        layer = from_float(nn.LayerNorm(9), config)
        (layer(x) * random(6, 9)).sum().backward()
        gradients.append((x.grad, layer.weight.grad, layer.bias.grad))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert float(gradients[0][0].abs().max()) > 0


def test_training_goes_through_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3), nn.Softmax(-1))
    model[1] = from_float(model[1], CONFIG)
    model[3] = from_float(
        model[3], CONFIG | {"data_out_frac_width": 7, "data_out_is_signed": False}
    )
    x = random(64, 8)
    wanted = x[:, :3].argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(25):
        optimizer.zero_grad()
        loss = F.nll_loss((model(x) + 1e-3).log(), wanted)
        loss.backward()
        optimizer.step()
    assert float((model(x).argmax(1) == wanted).float().mean()) > 0.9


def test_ops_that_are_exact_either_way_are_the_same():
    torch.manual_seed(0)
    layer, x = nn.Linear(7, 3), random(4, 7)
    given = from_float(layer, FORMATS)(x)
    assert torch.equal(from_float(layer, CONFIG)(x), given)


def test_a_layer_changes_its_arithmetic():
    layer = from_float(nn.LayerNorm(4), FORMATS)
    assert to_format(layer, FORMATS, where="here") is layer
    assert to_format(layer, CONFIG, where="here").config["arithmetic"] == "integer"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arithmetic": "fixed"}, r"here.arithmetic: 'fixed' is not allowed. Allowed: 'float', 'i"),
        ({"data_out_width": "NA"}, r"here: arithmetic = 'integer' needs a format of data_out. Set"),
        ({"data_in_width": 17}, r"here.data_in_width: at most 16 .* got 17"),
        ({"data_in_rounding": "stochastic"}, r"here.data_in_rounding: 'stochastic' has no integer"),
    ],
)
def test_what_integers_cannot_be_computed_in_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        from_float(nn.LayerNorm(4), CONFIG | change, where="here")


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.MultiheadAttention(4, 2)], ids=str)
def test_ops_without_integer_arithmetic_are_refused(layer):
    with pytest.raises(ConfigError, match=r"here.arithmetic: this op has no integer arithmetic"):
        from_float(layer, CONFIG, where="here")


def test_other_formats_have_no_integer_arithmetic():
    config = {"name": "mxint", "data_in_width": 8, "arithmetic": "integer"}
    with pytest.raises(
        ConfigError, match=r"layer.arithmetic: 'integer' needs the format 'integer'"
    ):
        operand_quantizers(config, ("data_in",), "layer")


def test_a_softmax_without_its_dimension_is_refused():
    with pytest.raises(ConfigError, match="softmax: dim must be given"):
        softmax_integer(random(2, 3), config=CONFIG)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_computed_in_float32_and_rounded_to_their_type(dtype):
    x = random(20, 8).to(dtype)
    wanted = integer_softmax.softmax(x.float(), -1, Integer(12, 8), Integer(12, 11))
    assert torch.equal(
        integer_softmax.softmax(x, -1, Integer(12, 8), Integer(12, 11)), wanted.to(dtype)
    )


@pytest.mark.slow
def test_a_layer_compiles_and_copies():
    layer = from_float(nn.LayerNorm(12), CONFIG).eval()
    compiled = torch.compile(copy.deepcopy(layer), backend="eager")
    x = random(3, 12)
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))
