"""Formats of targets: groups fit the shape of a weight, and the size of a file is as stated."""

import pytest
import torch
from covering import slow_unless

import mase
from chop.actions.targets import TARGETS
from chop.nn.quantizers import parse_format

LAYER = torch.nn.Conv2d(16, 8, (5, 1))
KERNEL = LAYER.weight.detach()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("width", [4, 8])
def test_the_scales_of_a_kernel_are_fewer_than_its_numbers(name, width):
    """A group along the last dimension of a 5x1 kernel would have one number, and no loss."""
    form = parse_format(TARGETS[name].format_of(LAYER, width))
    if form.name != "scale_integer":
        return
    loss = float((form(KERNEL) - KERNEL).norm() / KERNEL.norm())
    assert 0.2 * 2.0**-width < loss < 2 * 2.0**-width


@pytest.mark.parametrize("name", TARGETS)
def test_every_format_of_a_target_has_a_config(name):
    target = TARGETS[name]
    configs = target.all_configs()
    tiny = torch.nn.Linear(64, 8)
    torch.nn.init.constant_(tiny.weight, 1e-9)
    uneven = torch.nn.Linear(48, 8)
    for layer in (LAYER, torch.nn.Linear(64, 8), tiny, uneven):
        if target.refusal(layer):
            continue
        assert {target.format_of(layer, width) for width in (4, 8)} <= configs.keys()


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


class EveryLayer(torch.nn.Module):
    """One layer of each kind with weights, a grouped and a depthwise convolution among them."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 8)
        self.depthwise = torch.nn.Conv1d(8, 8, 3, padding=1, groups=8)
        self.grouped = torch.nn.Conv2d(2, 4, 3, padding=1, groups=2)
        self.wider = torch.nn.ConvTranspose2d(4, 2, 2)
        self.lstm = torch.nn.LSTM(9, 32, batch_first=True, bidirectional=True)
        self.gru = torch.nn.GRU(64, 32, batch_first=True)
        self.attention = torch.nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x):
        rows = self.depthwise(self.table(x).mT)
        maps = self.wider(self.grouped(torch.stack([rows, rows.mT], 1)))
        steps, _ = self.gru(self.lstm(maps[:, 0])[0])
        return self.head(self.attention(steps, steps, steps)[0].mean(1))


def every_layer():
    """Return the model and its inputs."""
    torch.manual_seed(0)
    return EveryLayer(), {"x": torch.arange(16).reshape(2, 8)}


TABLE = {"table": "takes no quantised tables"}
UNEVEN = dict.fromkeys(("table", "lstm"), "takes rows of a multiple of 32")
LEFT = {"cpu": {}, "gpu": {}, "gguf": UNEVEN, "vllm": TABLE, "onnx": TABLE, "rtl": TABLE}
"""Layers that each target leaves as floats, with the reasons."""
SOURCE = f"{__name__}:every_layer"


BITS = [(name, width) for name in TARGETS for width in (4, 8)]


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "width"), slow_unless(BITS, lambda row: row in BITS[::3]))
def test_bits_reach_every_layer_with_weights(name, width, tmp_path, monkeypatch):
    """A layer that has no format is named with the reason, and no other is left."""
    monkeypatch.chdir(tmp_path)
    result = mase.quantize(SOURCE, bits=width, for_=name)
    layers = {n for n, _ in EveryLayer().named_children()}
    left = LEFT[name]
    assert {*result["allocation"]["assignment"]} == layers - {*left}
    reasons = {row["op"]: row["reason"] for row in result["left_in_float"]}
    ops = {"table": "embedding", "lstm": "lstm"}
    assert reasons == {ops[layer]: f"target {name} {reason}" for layer, reason in left.items()}


@pytest.mark.slow
def test_layers_of_every_kind_for_onnx_are_exported_exactly(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript", reason="needs masegraph[export]")
    monkeypatch.chdir(tmp_path)
    for width in (4, 8):
        mase.quantize(SOURCE, bits=width, for_="onnx", out="q")
        assert mase.export("q", to="onnx", out="e")["rounded"] == []


def test_an_average_above_eight_bits_chooses_from_8_and_16_for_onnx():
    above = TARGETS["onnx"].configs_for_average(12, has_kernels=True)
    assert list(above) == ["int8/channel", "int16/channel"]
    assert list(TARGETS["onnx"].configs_for_average(6, has_kernels=True)) == [
        "int4/channel",
        "int8/channel",
    ]
    assert list(TARGETS["gguf"].configs_for_average(12, has_kernels=False)) == [
        "mxint4/32",
        "mxint8/32",
    ]
