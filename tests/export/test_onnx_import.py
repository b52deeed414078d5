"""ONNX and QONNX files as graphs: the outputs of the file, in formats of ours."""

import copy

import pytest
import torch
from torch import nn
from traced_zoo import tensors

pytest.importorskip("onnxscript", reason="needs masegraph[export]")

from test_onnx import (
    CASES,
    CHANNEL,
    EIGHT,
    INPUTS,
    OPS,
    OTHERS,
    SIX_AND_THREE,
    net,
    of,
)

import chop.passes as passes
from chop import MaseGraph
from chop.export import from_onnx, from_qonnx, to_onnx, to_qonnx
from chop.nn.quantizers import Bypass


def outputs(mg, inputs):
    with torch.no_grad():
        return tensors(mg.model(**inputs))


def assert_equal(a, b, *many):
    for inputs in many:
        for one, other in zip(outputs(a, inputs), outputs(b, inputs), strict=True):
            assert torch.equal(one, other)


QUICK = ("8 bits throughout",)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_a_file_written_here_comes_back_with_its_outputs_and_formats(name, tmp_path):
    mg = net(CASES[name][0])
    to_onnx(mg, tmp_path / "m.onnx")
    back = from_onnx(tmp_path / "m.onnx")
    assert_equal(back, mg, INPUTS, OTHERS)
    for path, layer in mg.model.named_modules():
        formats = getattr(layer, "quantizers", None)
        if formats and "weight" in formats:
            read = back.model.get_submodule(path).quantizers
            for role in ("weight", "data_in"):
                was_plain = isinstance(formats[role], Bypass)
                assert isinstance(read[role], Bypass) == was_plain
                if role == "data_in" and not was_plain:
                    assert read[role] == formats[role]
    kinds = [str(n.target.__name__) for n in back.nodes if n.op == "call_function"]
    if name == "8 bits throughout":
        assert {"relu_integer", "add_integer"} <= set(kinds)


WEIGHTS = {
    "int4 in blocks": "ScaleInteger",
    "8 bits throughout": "Integer",
    "int8 by channel": "ScaleInteger",
    "mxint4": "MXInt",
    "mxfp4": "MXFP",
    "float8": "FP8",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_read_in_the_format_that_they_were_written_in(name, tmp_path):
    to_onnx(net(CASES[name][0]), tmp_path / "m.onnx")
    back = from_onnx(tmp_path / "m.onnx")
    assert type(back.model.fc1.quantizers["weight"]).__name__ == WEIGHTS[name]


@pytest.mark.parametrize("config", [SIX_AND_THREE, pytest.param(CHANNEL, marks=pytest.mark.slow)])
def test_qonnx_comes_back_with_its_outputs_and_widths(config, tmp_path):
    mg = net(of(config))
    to_qonnx(mg, tmp_path / "m.onnx")
    back = from_qonnx(tmp_path / "m.onnx")
    assert_equal(back, mg, INPUTS)
    ours, read = (g.model.fc1.quantizers for g in (mg, back))
    assert read["weight"].bits == ours["weight"].bits
    assert read["data_in"] == ours["data_in"]


@pytest.mark.slow
def test_what_was_read_is_saved_quantised_again_and_written_again(tmp_path):
    mg = net(of(EIGHT, (*OPS, "relu", "add")))
    to_onnx(mg, tmp_path / "m.onnx")
    back = from_onnx(tmp_path / "m.onnx")
    for kind in ("graph", "packed"):
        back.export(tmp_path / kind, save_format=kind)
        assert_equal(MaseGraph.from_checkpoint(tmp_path / kind), back, INPUTS, OTHERS)
    report = to_onnx(back, tmp_path / "again.onnx")
    assert {r.written for r in report.records if r.name == "fc1.weight"} == {"INT8 by tensor"}
    assert_equal(from_onnx(tmp_path / "again.onnx"), mg, INPUTS, OTHERS)
    four, _ = passes.quantize_transform_pass(copy.deepcopy(back), of({**EIGHT, "weight_width": 4}))
    assert four.model.fc1.quantizers["weight"].bits == 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32)

    def forward(self, ids):
        x = self.norm(self.table(ids)).cumsum(1)
        x = (x @ x.mT).tril().softmax(-1) @ x
        x = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        return self.head(x).log_softmax(-1)


@pytest.mark.slow
def test_a_file_of_torch_itself_is_read(tmp_path):
    torch.manual_seed(0)
    model, ids = Block().eval(), torch.randint(0, 32, (2, 7))
    sizes = {"ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}}
    torch.onnx.export(model, (ids,), tmp_path / "m.onnx", dynamo=True, dynamic_shapes=sizes)
    back = from_onnx(tmp_path / "m.onnx")
    for each in (ids, torch.randint(0, 32, (5, 11))):
        with torch.no_grad():
            assert torch.allclose(back.model(each), model(each), atol=1e-5)
    names = {type(m).__name__ for m in back.model.modules()}
    assert {"Embedding", "LayerNorm", "Linear"} <= names
    linear = {"config": EIGHT}
    quantised, _ = passes.quantize_transform_pass(back, {"linear": linear})
    assert "LinearInteger" in {type(m).__name__ for m in quantised.model.modules()}


@pytest.mark.slow
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_what_onnxruntime_quantised_is_read_to_the_bit(kind, by_channel, tmp_path, caplog):
    onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
    runtime = pytest.importorskip("onnxruntime", reason="needs masegraph[export]")
    tool = pytest.importorskip("onnxruntime.quantization", reason="needs masegraph[export]")
    from onnx_files import float_model

    class Samples(tool.CalibrationDataReader):
        def __init__(self):
            draw = torch.Generator().manual_seed(0)
            shapes = [(3, 2, 4, 4)] * 4
            self.left = iter([{"x": torch.randn(s, generator=draw).numpy()} for s in shapes])

        def get_next(self):
            return next(self.left, None)

    onnx.save(float_model(), tmp_path / "float.onnx")
    settings = {"activation_type": getattr(tool.QuantType, kind), "per_channel": by_channel}
    files = tmp_path / "float.onnx", tmp_path / "m.onnx"
    tool.quantize_static(*files, Samples(), weight_type=tool.QuantType.QInt8, **settings)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    (expected,) = runtime.InferenceSession(str(files[1]), options).run(None, {"x": x.numpy()})
    back = from_onnx(files[1])
    with torch.no_grad():
        assert torch.equal(back.model(x), torch.from_numpy(expected))
    formats = back.model.kernel.quantizers
    assert [type(formats[r]).__name__ for r in ("data_in", "weight", "data_out")] == [
        "ScaleInteger"
    ] * 3
    assert "its users have no format that rounds so; it is rounded by arithmetic" in caplog.text
