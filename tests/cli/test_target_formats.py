"""Formats of targets: groups fit the shape of a weight, and the size of a file is as stated."""

import pytest
import torch

import mase
from chop.actions.targets import TARGETS
from chop.nn.quantizers import parse_format

KERNEL = torch.randn(8, 16, 5, 1)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("width", [4, 8])
def test_the_scales_of_a_kernel_are_fewer_than_its_numbers(name, width):
    """A group along the last dimension of a 5x1 kernel would have one number, and no loss."""
    form = parse_format(TARGETS[name].format_of(KERNEL, width))
    if form.name != "scale_integer":
        return
    loss = float((form(KERNEL) - KERNEL).norm() / KERNEL.norm())
    assert 0.2 * 2.0**-width < loss < 2 * 2.0**-width


@pytest.mark.parametrize("name", TARGETS)
def test_every_format_of_a_target_has_a_config(name):
    target = TARGETS[name]
    configs = target.weight_configs() | target.kernel_configs()
    for weight in (KERNEL, torch.randn(8, 64)):
        assert {target.format_of(weight, width) for width in (4, 8)} <= configs.keys()


class Network(torch.nn.Module):
    """A convolution with a tall kernel, and a matrix."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 8, (5, 1))
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.convolution(x).mean((-1, -2)))


ARGUMENTS = {"input_shape": [2, 1, 8, 8], "for_": "onnx", "out": "out/few"}


def test_four_bits_for_onnx_are_per_channel_in_a_convolution(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = mase.quantize(Network(), **ARGUMENTS, bits=4)
    forms = {"convolution": "int4/channel", "head": "int4/32"}
    assert result["allocation"]["assignment"] == forms


class Twice(Network):
    """The same matrix, called twice."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8))

    def forward(self, x):
        rows = self.convolution(x).mean((-1, -2))
        return self.head(self.inner(self.inner(rows)))


def test_a_layer_that_is_called_twice_has_one_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = mase.quantize(Twice(), **ARGUMENTS, bits=4)
    assert result["allocation"]["assignment"]["inner_0"] == "int4/32"


def test_an_average_for_onnx_chooses_formats_that_fit_a_convolution(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = {"dataset": "digits", "train_rows": 32, "test_rows": 8, "calibration_rows": 16}
    result = mase.quantize(Network(), **ARGUMENTS, **rows, bits=6)
    forms = {*result["allocation"]["assignment"].values()}
    assert forms <= {"int4/channel", "int8/channel"}
