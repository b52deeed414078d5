"""Recurrent layers and cells in number formats: every operand of a product is rounded."""

import itertools

import pytest
import torch
from quantized_cases import config_of
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import chop.passes as passes
from chop import MaseGraph
from chop.actions.weighted_layers import weighted_ops
from chop.errors import ConfigError
from chop.nn.quantized.layer import layer_class
from chop.nn.quantizers import FORMATS
from chop.nn.quantizers.formats import find_format

pytestmark = pytest.mark.share(2)

FINE = {
    f"{role}_{key}": value
    for role in ("data_in", "weight", "bias")
    for key, value in (("width", 32), ("frac_width", 26))
}
"""Fixed point of 32 bits: so fine that results are those of the float layer."""
SHAPES = [
    {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias}
    for layers, both, first, bias in itertools.product((1, 2), *[(False, True)] * 3)
]
LAYERS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
CELLS = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN": nn.RNNCell}


def pair(base, config, *sizes, **settings):
    """Return a float layer, and the same in a format."""
    torch.manual_seed(0)
    plain = base(*sizes, **settings).eval()
    form = find_format(config["name"], "test")
    quantised = layer_class(base, form)(*sizes, **settings, config=config).eval()
    quantised.load_state_dict(plain.state_dict())
    return plain, quantised


def flat(result):
    """Return the tensors of a result in order."""
    return [result] if isinstance(result, torch.Tensor) else [t for r in result for t in flat(r)]


def close(one, other, atol=1e-5):
    return all(torch.allclose(a, b, atol=atol) for a, b in zip(flat(one), flat(other), strict=True))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_fine_format_computes_what_torch_computes(name, is_fused):
    config = {"name": "integer", **FINE} | ({"data_in_name": "NA"} if is_fused else {})
    for settings in SHAPES:
        plain, quantised = pair(LAYERS[name], config, 5, 4, **settings)
        x = torch.randn(3, 2, 5)
        assert close(quantised(x), plain(x)), settings
        _, states = plain(x)
        assert close(quantised(x, states), plain(x, states)), settings
        assert close(quantised(x[0]), plain(x[0])), settings


@pytest.mark.parametrize("is_fused", [False, True])
def test_projections_and_other_nonlinearities(is_fused):
    config = {"name": "integer", **FINE} | ({"data_in_name": "NA"} if is_fused else {})
    x = torch.randn(3, 2, 5)
    for base, settings in ((nn.LSTM, {"proj_size": 3}), (nn.RNN, {"nonlinearity": "relu"})):
        plain, quantised = pair(base, config, 5, 4, 2, bidirectional=True, **settings)
        assert close(quantised(x), plain(x))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("form", FORMATS)
def test_the_hidden_state_is_rounded_before_every_step(name, form):
    config = config_of(form)
    plain, quantised = pair(LAYERS[name], config, 8, 8)
    cell = CELLS[name](8, 8)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            rounded = quantised.quantizers[kind.partition("_")[0]]
            getattr(cell, kind).copy_(rounded(getattr(plain, f"{kind}_l0")))
        x = torch.randn(4, 2, 8)
        rounded = quantised.quantizers["data_in"]
        hidden = torch.zeros(2, 8)
        inner = torch.zeros(2, 8)
        found = []
        for row in rounded(x):
            state = rounded(hidden)
            hidden, inner = (
                cell(row, (state, inner)) if name == "LSTM" else (cell(row, state), None)
            )
            found.append(hidden)
            if name == "GRU":  # the old state that is kept is not an operand of a product
                gate = torch.sigmoid(
                    (row @ cell.weight_ih.T + cell.bias_ih).chunk(3, -1)[1]
                    + (state @ cell.weight_hh.T + cell.bias_hh).chunk(3, -1)[1]
                )
                before = found[-2] if len(found) > 1 else torch.zeros(2, 8)
                hidden = hidden + gate * (before - state)
                found[-1] = hidden
        output, _ = quantised(x)
    assert torch.allclose(output, torch.stack(found), atol=1e-5)


class Net(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.core = base(40, 64, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.core(x)[0][:, -1])


WEIGHTS = {"name": "mxint", "weight_width": 4, "data_in_name": "NA"}


@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_packed_and_come_back(name, tmp_path):
    x = torch.randn(2, 5, 40)
    mg = MaseGraph(Net(LAYERS[name]).eval(), dummy_in={"x": x})
    rules = {"by": "type", name.lower(): {"config": WEIGHTS}, "linear": {"config": WEIGHTS}}
    passes.quantize_transform_pass(mg, rules)
    mg.export(tmp_path / "m", save_format="packed")
    back = MaseGraph.from_checkpoint(tmp_path / "m")
    assert torch.equal(back.model(x), mg.model(x))
    stored = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    assert stored < 0.35 * sum(4 * p.numel() for p in mg.model.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_a_quantised_layer_trains(name):
    x = torch.randn(2, 5, 40)
    mg = MaseGraph(Net(LAYERS[name]), dummy_in={"x": x})
    config = {"name": "mxint", "data_in_width": 8, "weight_width": 4}
    passes.quantize_transform_pass(mg, {"by": "type", name.lower(): {"config": config}})
    optimiser = torch.optim.Adam(mg.model.parameters(), 1e-2)
    target = torch.randn(2, 10)
    mg.model.train()
    losses = []
    for _ in range(8):
        loss = (mg.model(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_are_among_the_layers_with_weights(name):
    mg = MaseGraph(Net(LAYERS[name]).eval(), dummy_in={"x": torch.randn(2, 5, 40)})
    assert weighted_ops(mg) == (name.lower(), "linear")


def test_inputs_are_calibrated_and_weights_are_measured():
    x = torch.randn(4, 5, 40)
    mg = MaseGraph(Net(nn.LSTM).eval(), dummy_in={"x": x})
    rules = {"data": [{"x": x}], "lstm": {"config": {"name": "scale_integer"}}}
    mg, found = passes.calibrate_analysis_pass(mg, rules)
    float_output = mg.model(x)
    passes.quantize_transform_pass(mg, found["config"])
    assert isinstance(mg.model.core.quantizers["data_in"].scale, float)
    assert torch.allclose(mg.model(x), float_output, atol=0.1)


def test_a_packed_sequence_is_refused():
    _, quantised = pair(nn.GRU, {"name": "integer", **FINE}, 5, 4)
    with pytest.raises(ConfigError, match=r"GRUInteger: a packed sequence\. Allowed: tensors"):
        quantised(pack_sequence([torch.randn(3, 5), torch.randn(2, 5)]))


@pytest.mark.slow
def test_weights_of_an_onnx_lstm_are_integers(tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="needs masegraph[export]")
    onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
    pytest.importorskip("onnxscript", reason="needs masegraph[export]")
    from chop.export import from_onnx, to_onnx

    x = torch.randn(2, 5, 40)
    mg = MaseGraph(Net(nn.LSTM).eval(), dummy_in={"x": x})
    config = {**WEIGHTS, "name": "scale_integer"}
    passes.quantize_transform_pass(mg, {"by": "type", "lstm": {"config": config}})
    report = to_onnx(mg, tmp_path / "m.onnx")
    assert {r.written for r in report.records if "core.weight" in r.name} == {"INT4 by tensor"}
    assert "LSTM" in {n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node}
    (found,) = runtime.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), mg.model(x), atol=1e-5)
    back = from_onnx(tmp_path / "m.onnx")
    assert torch.allclose(back.model(x), mg.model(x), atol=1e-5)
