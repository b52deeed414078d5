"""ONNX files: what onnxruntime computes from them."""

import numpy as np
import pytest
import torch
import zoo
from covering import first_and_slow
from export_models import GROUPS, INTEGER8, MXFP4, MXINT4, MXINT8
from torch import nn
from traced_zoo import tensors

import chop.passes as passes
from chop import MaseGraph
from chop.actions.targets import layer_config
from chop.errors import ExportError, SizeError
from chop.export import from_onnx, to_exported_program, to_onnx, to_qonnx
from chop.nn.quantized.layer import QuantizedModule

NEEDS = "needs masegraph[export]"
CHANNEL = {**MXINT8, "name": "scale_integer", "weight_granularity": "channel"}
FP8 = {"name": "fp8", "weight_element": "e4m3", "data_in_element": "NA", "bias_element": "NA"}
EIGHT = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 8,
    "weight_frac_width": 7,
    "bias_width": 16,
    "bias_frac_width": 10,
}
SIX_AND_THREE = {**EIGHT, "data_in_width": 6, "data_in_frac_width": 3, "weight_width": 3}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc1, self.fc2 = nn.Linear(64, 96), nn.Linear(96, 10)

    def forward(self, image, x):
        x = torch.relu(self.fc1(x))
        return {"scores": self.fc2(x + 0.5), "map": self.conv(image)}


INPUTS = {"image": torch.randn(2, 3, 9, 9), "x": torch.randn(2, 64)}
OTHERS = {"image": torch.randn(5, 3, 12, 7), "x": torch.randn(5, 64)}
OPS = ("linear", "conv2d")


def net(rules):
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():  # blocks that differ: else one scale serves for the whole weight
        for layer in (model.fc1, model.fc2):
            factors = torch.rand_like(layer.weight[:, ::32]) + 0.1
            layer.weight.mul_(factors.repeat_interleave(32, 1))
    mg = MaseGraph(model, dummy_in=INPUTS)
    return passes.quantize_transform_pass(mg, rules)[0] if rules else mg


def of(config, ops=OPS):
    return {op: {"config": config} for op in ops}


def session(path):
    onnxruntime = pytest.importorskip("onnxruntime", reason=NEEDS)
    options = onnxruntime.SessionOptions()
    # else it rounds inputs of layers with 8-bit weights to 8 bits
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(str(path), options)


def compare(mg, path, inputs):
    made = session(path)
    found = made.run(None, {i.name: inputs[i.name].numpy() for i in made.get_inputs()})
    with torch.no_grad():
        ours = [t for t in tensors(mg.model(**inputs)) if t.is_floating_point()]
    theirs = [torch.from_numpy(f) for f in found if f.dtype.kind == "f"]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= 2e-5 * max(float(a.abs().max()), 1e-9)
    return [o.name for o in made.get_outputs()]


@pytest.mark.slow
def test_the_last_block_of_a_weight_may_be_short(tmp_path):
    """A row of 40 numbers in blocks of 32 has a block of 8."""
    pytest.importorskip("onnxscript", reason=NEEDS)
    inputs = {"input": torch.randn(3, 40)}
    mg = MaseGraph(nn.Sequential(nn.Linear(40, 6)).eval(), dummy_in=inputs)
    mg, _ = passes.quantize_transform_pass(mg, {"linear": {"config": layer_config("int4/32")}})
    (written,) = [r for r in to_onnx(mg, tmp_path / "m.onnx").records if r.name == "0.weight"]
    assert written.written == "INT4 by blocks"
    compare(mg, tmp_path / "m.onnx", inputs)


CASES = {
    "int4 in blocks": (of(GROUPS, ("linear",)), {"INT4 by blocks"}),
    "8 bits throughout": (of(EIGHT, (*OPS, "relu", "add")), {"INT8 by tensor"}),
    "int8 by channel": (of(CHANNEL), {"INT8 by channels"}),
    "int16 by channel": (of({**CHANNEL, "weight_width": 16}), {"INT16 by channels"}),
    "mxint4": (of(MXINT4, ("linear",)), {"INT4 by blocks"}),
    "mxfp4": (of(MXFP4, ("linear",)), {"INT8 by blocks"}),
    "float8": (of(FP8), {"FLOAT8E4M3FN by tensor"}),
    "6 and 3 bits": (of(SIX_AND_THREE), {"INT4 by tensor"}),
    "integers without inputs": (of(INTEGER8), {"INT8 by tensor"}),
    "float": ({}, set()),
}
QUICK = ("8 bits throughout",)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_onnxruntime_computes_the_same_at_every_size(name, tmp_path):
    pytest.importorskip("onnxscript", reason=NEEDS)
    rules, kinds = CASES[name]
    mg = net(rules)
    report = to_onnx(mg, tmp_path / "m.onnx")
    written = {r.written for r in report.records if r.format != "float" and "weight" in r.name}
    assert written == kinds
    assert compare(mg, tmp_path / "m.onnx", INPUTS) == ["scores", "map"]
    compare(mg, tmp_path / "m.onnx", OTHERS)


def test_torch_export_of_a_quantised_model_computes_the_same_at_every_size():
    mg = net(of(EIGHT, (*OPS, "relu", "add")))
    program = to_exported_program(mg).module()
    for inputs in (INPUTS, OTHERS):
        with torch.no_grad():
            ours, theirs = mg.model(**inputs), program(**inputs)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_weight_that_is_computed_is_rounded_in_what_is_exported():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))
    mg = MaseGraph(nn.Sequential(layer).eval(), dummy_in=torch.randn(2, 16))
    mg, _ = passes.quantize_transform_pass(mg, of(SIX_AND_THREE, ("linear",)))
    x = torch.randn(5, 16)
    name = mg.model.input_names[0]
    with torch.no_grad():
        assert torch.equal(to_exported_program(mg).module()(**{name: x}), mg.model(x))


def test_formats_that_the_target_lacks_are_refused_with_the_nearest(tmp_path):
    pytest.importorskip("onnxscript", reason=NEEDS)
    inputs = net(of({**MXINT8, "data_in_width": 8}, ("linear",)))
    words = r"module 'fc1', data_in: mxint8 has no operator there. Nearest: integer"
    with pytest.raises(ExportError, match=words):
        to_onnx(inputs, tmp_path / "m.onnx")
    with pytest.raises(ExportError, match=r"fallback is 'x'. Allowed: None, 'float'"):
        to_onnx(inputs, tmp_path / "m.onnx", fallback="x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_fallback_writes_values_and_the_report_lists_them(tmp_path):
    pytest.importorskip("onnxscript", reason=NEEDS)
    config = {"name": "log", "weight_width": 6, "data_in_width": 8, "bias_width": 8}
    mg = net(of(config, ("linear",)))
    with pytest.raises(ExportError, match=r"to_onnx: module 'fc1', data_in: log8"):
        to_onnx(mg, tmp_path / "m.onnx")
    report = to_onnx(mg, tmp_path / "m.onnx", fallback="float")
    assert report.dropped and {r.note for r in report.records if r.format != "float"} == {
        "dequantised"
    }


@pytest.mark.slow
@pytest.mark.parametrize("config", [EIGHT, SIX_AND_THREE, CHANNEL])
def test_qonnx_executes_the_same(config, tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx", reason=NEEDS)
    pytest.importorskip("qonnx", reason="needs the package qonnx")
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    mg = net(of(config))
    to_qonnx(mg, tmp_path / "m.onnx")
    monkeypatch.setattr(onnx, "IR_VERSION", 10)  # onnxruntime reads no newer one
    made = ModelWrapper(str(tmp_path / "m.onnx")).transform(InferShapes())
    found = execute_onnx(made, {k: v.numpy() for k, v in INPUTS.items()})
    with torch.no_grad():
        ours = mg.model(**INPUTS)
    for key in ours:
        assert np.allclose(found[key], ours[key].numpy(), atol=1e-5)


MODELS = ("BERT classification", "GPT-2", "Llama, sdpa", "T5", "ViT, sdpa", "ConvNeXt", "ResNet")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)  # bench/export.py runs all of the zoo
def test_models_of_the_zoo_compute_the_same(name, tmp_path):
    pytest.importorskip("onnxscript", reason=NEEDS)
    case = zoo.case(name)
    mg = MaseGraph(case.model.eval(), case.hf_input_names, case.inputs, **case.options)
    rules = {op: {"config": {**CHANNEL, "weight_axis": 0}} for op in ("linear", "conv1d", "conv2d")}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    to_onnx(mg, tmp_path / "m.onnx")
    back = from_onnx(tmp_path / "m.onnx", inputs=case.inputs)
    layers = [m for m in back.model.modules() if isinstance(m, QuantizedModule)]
    assert layers and all(m.quantizers["weight"].bits == 8 for m in layers)
    for inputs in (case.inputs, case.other_inputs):
        try:
            ours = tensors(mg.model(**inputs))
        except SizeError:
            continue  # the model's code goes another way there
        compare(mg, tmp_path / "m.onnx", inputs)
        given = {name: inputs[name] for name in back.model.input_names}
        for one, other in zip(ours, tensors(back.model(**given)), strict=True):
            assert torch.allclose(one, other, atol=2e-5)


@pytest.mark.slow
def test_an_output_that_is_no_tensor_is_left_out_and_told(tmp_path):
    pytest.importorskip("onnxscript", reason=NEEDS)

    class Counted(nn.Module):
        def forward(self, x):
            return {"twice": x * 2, "count": x.shape[0], "none": None}

    mg = MaseGraph(Counted(), dummy_in={"x": torch.randn(2, 3)})
    report = to_qonnx(mg, tmp_path / "m.onnx")
    assert report.dropped == [
        "not written: output 'count', which is no tensor",
        "not written: output 'none', which is no tensor",
    ]
    x = torch.randn(2, 3)
    assert torch.equal(from_onnx(tmp_path / "m.onnx").model(x), x * 2)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x, y):
        return self.fc(x) + self.fc(y)


_BASE = torch.randn(8, 16)
VIEWS = {
    "parts of one tensor": {"x": _BASE[:4, :8], "y": _BASE[4:, 8:]},
    "every second column": {"x": _BASE[:4, ::2], "y": _BASE[4:, 1::2]},
    "transposed": {"x": torch.randn(8, 4).t(), "y": torch.randn(8, 4).t()},
    "expanded": {"x": torch.randn(1, 8).expand(4, 8), "y": torch.randn(4, 8)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_and_slow(VIEWS))
def test_example_inputs_may_be_views(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="needs masegraph[export]")
    mg = MaseGraph(Sum(), dummy_in=VIEWS[name])
    to_onnx(mg, tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    for rows in (4, 7):
        inputs = {"x": torch.randn(rows, 8), "y": torch.randn(rows, 8)}
        (found,) = session.run(None, {k: v.numpy() for k, v in inputs.items()})
        assert np.allclose(found, mg.model(**inputs).detach(), atol=1e-5)


class Rooted(nn.Module):
    """A buffer and a parameter at the root, with names of your choice."""

    def __init__(self, name):
        super().__init__()
        self.name, self.fc = name, nn.Linear(4, 4)
        self.register_buffer(name, torch.randn(3, 4))
        self.factor = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return self.fc(x) * self.factor + getattr(self, self.name).sum(0)


NAMES = ["x", "val_0", "linear", "sum_1", "add", "output", "table"]


@pytest.mark.parametrize("name", first_and_slow(NAMES))
def test_a_buffer_may_have_the_name_of_any_other_value(name, tmp_path):
    mg = MaseGraph(Rooted(name), dummy_in={"x": torch.randn(2, 4)})
    to_onnx(mg, tmp_path / "m.onnx")
    compare(mg, tmp_path / "m.onnx", {"x": torch.randn(5, 4)})
    again = from_onnx(tmp_path / "m.onnx")
    x = torch.randn(3, 4)
    torch.testing.assert_close(again.model(x), mg.model(x))
    names = {name for name, _ in (*again.model.named_buffers(), *again.model.named_parameters())}
    assert "factor" in names
    to_onnx(again, tmp_path / "again.onnx")
    compare(again, tmp_path / "again.onnx", {"x": x})
