"""Layers that 8 bits cannot hold get 16: found by their error at the output."""

import copy

import pytest
import torch
from torch import nn

import mase
from chop import MaseGraph
from chop.actions.post_training import quantize_with_data
from chop.actions.targets import TARGETS, layer_config
from chop.actions.wider_layers import WIDER, WiderFormat, wider_text
from chop.cli.main import main
from chop.dataset import DATASETS, ArrayDataset
from chop.errors import DataError

EIGHT, WIDE = layer_config("int8/channel"), layer_config("int16/channel")
PLACES = torch.arange(128.0)
TONES = 2 * torch.pi * torch.arange(1, 33) / 128
"""Frequencies of the filters: whole periods in a row, so that other tones give nothing."""


class Bands(nn.Module):
    """Filters whose powers enter a logarithm, and layers that 8 bits are enough for."""

    def __init__(self, is_linear=False):
        super().__init__()
        torch.manual_seed(0)
        self.is_linear = is_linear
        self.real, self.imaginary = (nn.Linear(128, 32, bias=False) for _ in range(2))
        self.first, self.second, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        with torch.no_grad():
            self.real.weight.copy_(torch.cos(TONES[:, None] * PLACES))
            self.imaginary.weight.copy_(torch.sin(TONES[:, None] * PLACES))

    def forward(self, x):
        power = self.real(x).square() + self.imaginary(x).square()
        bands = power if self.is_linear else (power + 1e-5).log()
        return self.last(self.second(self.first(bands).relu()).relu())


def tones(rows):
    draw = torch.Generator().manual_seed(1)
    chosen = TONES[torch.randint(len(TONES), (rows, 1), generator=draw)]
    return torch.sin(chosen * PLACES + 6.28 * torch.rand(rows, 1, generator=draw))


def tones_of_bands():
    rows = {"x": tones(32), "labels": torch.arange(32) % 5}
    return {"train": ArrayDataset(rows), "test": ArrayDataset(rows)}


@pytest.fixture
def dataset():
    with DATASETS.restored():
        DATASETS.register("tones-of-bands", tones_of_bands)
        yield "tones-of-bands"


def layers(graph):
    """Return the width of the weights of each layer."""
    modules = dict(graph.model.named_modules())
    return {n: m.quantizers["weight"].width for n, m in modules.items() if hasattr(m, "quantizers")}


def quantized(model, method="nearest", **settings):
    graph = MaseGraph(model, dummy_in=tones(4))
    paths = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    rules = {"by": "name", **{path: {"config": EIGHT} for path in paths}}
    wide = {"name": "int16/channel", "config": WIDE, **settings}
    wider = WiderFormat(paths, [{"x": tones(8)}], **wide)
    info = quantize_with_data(graph, rules, [{"x": tones(32)}], method, wider=wider)
    return graph, info[WIDER]


def error_db(graph, model):
    with torch.no_grad():
        right = model(tones(16))
        noise = graph.model(tones(16)) - right
    return float(10 * (right.square().sum() / noise.square().sum()).log10())


@pytest.mark.parametrize("method", ["nearest", "gptq"])
def test_filters_before_a_logarithm_get_sixteen_bits(method):
    model = Bands().eval()
    graph, record = quantized(copy.deepcopy(model), method)
    filters = {"real", "imaginary"}
    assert {row["layer"] for row in record["layers"]} == filters
    assert layers(graph) == {n: 16 if n in filters else 8 for n in layers(graph)}
    assert record["before_db"] < 15 and record["after_db"] > 30 and record["share"] > 0.9
    assert error_db(graph, model) > 30
    assert "imaginary, real: now in int16/channel" in wider_text(record)


def test_a_model_that_eight_bits_hold_is_run_twice_and_stays():
    graph, record = quantized(Bands(is_linear=True).eval())
    assert record["layers"] == [] and record["before_db"] > 30
    assert set(layers(graph).values()) == {8} and wider_text(record) == ""


def test_without_a_wider_format_the_layers_are_named_and_stay():
    graph, record = quantized(Bands().eval(), name="", config={})
    assert {row["layer"] for row in record["layers"]} == {"real", "imaginary"}
    assert set(layers(graph).values()) == {8}
    text = "the target has no wider format for them. Without --for they have 16 bits"
    assert text in wider_text(record)


class Alike(nn.Module):
    """Layers that all lose the same: a phase that wraps around."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(128, 16) for _ in range(6))

    def forward(self, x):
        return sum(torch.sin(400 * layer(x)) for layer in self.layers)


def test_layers_that_are_all_alike_stay():
    graph, record = quantized(Alike().eval())
    assert record["before_db"] < 30 and record["layers"] == []
    assert set(layers(graph).values()) == {8}
    assert "no layer stands out. `mase explain` measures them." in wider_text(record)


class Tied(Bands):
    """Each filter also reads the other half of the rows, with the same weight."""

    def __init__(self):
        super().__init__()
        self.again = nn.Linear(128, 32, bias=False)
        self.again.weight = self.real.weight

    def forward(self, x):
        return super().forward(x) + 0.01 * self.last(self.again(x).square())


def test_layers_that_share_a_weight_become_wider_together():
    graph, record = quantized(Tied().eval(), "gptq")
    assert {row["layer"] for row in record["layers"]} == {"real", "imaginary", "again"}
    assert graph.model.real.weight is graph.model.again.weight
    assert "imaginary, real (2 layers with its weight): now in" in wider_text(record)


def test_without_a_batch_the_search_is_refused():
    with pytest.raises(DataError, match=r"quantize.wider: expected at least one batch, got none"):
        graph = MaseGraph(Bands().eval(), dummy_in=tones(4))
        quantize_with_data(graph, {"linear": {"config": EIGHT}}, [], wider=WiderFormat([], []))


ARGUMENTS = {
    "bits": 8,
    "calibration_rows": 16,
    "out": "few",
    "input_shape": [2, 128],
}


@pytest.mark.parametrize("target", [None, "onnx", "gguf"])
def test_bits_8_finds_the_filters_where_the_target_runs_16(
    target, dataset, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    result = mase.quantize(Bands().eval(), **ARGUMENTS, dataset=dataset, for_=target)
    is_wide = target is None or bool(TARGETS[target].wide)
    wide = {n for n, form in result["allocation"]["assignment"].items() if form == "int16/channel"}
    assert wide == ({"real", "imaginary"} if is_wide else set())
    assert {row["layer"] for row in result["wider"]["layers"]} == {"real", "imaginary"}
    main(["explain", "few", "--dataset", dataset, "--against", "few", "--rows", "8"])
    printed = " ".join(capsys.readouterr().out.split())
    place = "now in int16/channel" if is_wide else "the target has no wider format for them"
    assert "when it was quantised: 8 bits rounded to nearest: the outputs have" in printed
    assert place in printed


def test_without_data_nothing_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = mase.quantize(Bands().eval(), bits=8, input_shape=[2, 128], out="few")
    assert "wider" not in result
