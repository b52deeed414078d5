import pytest
import torch

from chop import MaseGraph
from chop.actions.fixed_point import (
    OPERANDS,
    fitted_fixed_point,
    fraction_bits,
    observe_ranges,
    uniform_fixed_point,
)
from chop.errors import ConfigError
from chop.models import MLP
from chop.nn.quantizers import FORMATS
from chop.passes import quantize_transform_pass


def graph():
    torch.manual_seed(0)
    return MaseGraph(MLP(8, (16,), 4), dummy_in={"x": torch.zeros(2, 8)})


def test_ranges_are_the_largest_magnitudes_of_operands():
    mg = graph()
    batches = [{"x": torch.full((2, 8), value)} for value in (0.5, -3.0, 1.0)]
    ranges = observe_ranges(mg, batches)
    first = mg.model.layers.get_submodule("1")
    seen = ranges["layers_1"]
    assert seen["data_in"] == 3.0
    assert seen["weight"] == first.weight.abs().max().item()
    assert seen["bias"] == pytest.approx(first.bias.abs().max().item())
    assert set(ranges) == {"layers_1", "layers_3"}


@pytest.mark.parametrize("largest", [0.013, 0.25, 0.9, 1.0, 3.7, 200.0])
def test_fraction_bits_reach_the_largest_value_and_no_further_bit_would(largest):
    width = 8
    bits = fraction_bits(width, largest)
    form = FORMATS["integer"]
    near = form(width, bits)(torch.tensor(largest)).item()
    assert abs(near - largest) <= 2.0**-bits
    assert form(width, bits + 1)(torch.tensor(largest)).item() < largest * (1 - 2.0**-width)


def test_nothing_but_zeros_gets_every_bit_behind_the_point():
    assert fraction_bits(8, 0.0) == 7


def test_a_fitted_graph_is_nearer_to_the_float_one_than_an_even_split():
    inputs = {"x": torch.randn(32, 8, generator=torch.Generator().manual_seed(0))}
    expected = graph().model.eval()(**inputs)
    errors = []
    for fit in (True, False):
        mg = graph()
        ranges = observe_ranges(mg, [inputs])
        args = fitted_fixed_point(ranges, 8) if fit else uniform_fixed_point(8, 4)
        quantize_transform_pass(mg, args)
        errors.append((mg.model.eval()(**inputs) - expected).abs().mean())
    assert errors[0] < errors[1] / 2


def test_every_operand_has_the_same_split_when_uniform():
    config = uniform_fixed_point(10, 3)["linear"]["config"]
    assert {config[f"{o}_width"] for o in OPERANDS} == {10}
    assert {config[f"{o}_frac_width"] for o in OPERANDS} == {3}


class Convolutions(torch.nn.Module):
    """A convolution of each kind, a depthwise one and a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.depthwise = torch.nn.Conv2d(2, 2, 3, groups=2)
        self.line = torch.nn.Conv1d(2, 3, 3)
        self.head = torch.nn.Linear(3, 2)

    def forward(self, x):
        rows = self.depthwise(x).mean(-1)
        return self.head(self.line(rows).mean(-1))


def test_convolutions_are_fitted_as_linear_layers_are():
    inputs = {"x": 2 * torch.randn(4, 2, 8, 8)}
    mg = MaseGraph(Convolutions(), dummy_in=inputs)
    ranges = observe_ranges(mg, [inputs])
    assert set(ranges) == {"depthwise", "line", "head"}
    assert ranges["depthwise"]["data_in"] == inputs["x"].abs().max().item()
    quantize_transform_pass(mg, fitted_fixed_point(ranges, 12))
    expected = Convolutions()(**inputs)
    torch.testing.assert_close(mg.model(**inputs), expected, atol=0.02, rtol=0)


def test_a_model_without_a_layer_to_fit_is_refused():
    mg = MaseGraph(torch.nn.Sequential(torch.nn.ReLU()), dummy_in=torch.randn(2, 3))
    with pytest.raises(ConfigError, match=r"quantize.fit: fits linear, conv1d, conv2d, and"):
        observe_ranges(mg, [torch.randn(2, 3)])
