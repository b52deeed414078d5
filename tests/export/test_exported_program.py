"""Programs of torch.export: read as graphs with layers, equal to the model they were made from."""

import pytest
import torch
from covering import first_and_slow
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from chop import MaseGraph
from chop.errors import ExportError
from chop.export import from_exported_program, to_exported_program
from chop.passes import quantize_transform_pass

pytest.importorskip("onnxscript", reason="needs masegraph[export]")


class Recurrent(nn.Module):
    """A table, a recurrent layer and a buffer with the name of the input."""

    def __init__(self):
        super().__init__()
        self.table, self.lstm = nn.Embedding(16, 8), nn.LSTM(8, 8, batch_first=True)
        self.register_buffer("ids", torch.randn(8))

    def forward(self, ids):
        return self.lstm(self.table(ids))[0] + self.ids


class Several(nn.Module):
    """A convolution with a batch norm, two inputs and two outputs."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, groups=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, image, scale):
        rows = torch.relu(self.norm(self.conv(image))).mean((2, 3)) * scale
        return {"scores": self.head(rows), "rows": rows}


def bert():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=32, intermediate_size=16, **sizes))


def inputs_of(name, rows):
    draw = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, 16, (rows, 6), generator=draw)
    return {
        "mlp": {"input": torch.randn(rows, 8, generator=draw)},
        "recurrent": {"ids": ids},
        "several": {
            "image": torch.randn(rows, 3, 6, 6, generator=draw),
            "scale": torch.randn(rows, 4, generator=draw),
        },
        "bert": {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
    }[name]


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)),
    "recurrent": Recurrent,
    "several": Several,
    "bert": bert,
}
LAYERS = {
    "mlp": {nn.Linear, nn.LayerNorm},
    "recurrent": {nn.Embedding, nn.LSTM},
    "several": {nn.Conv2d, nn.BatchNorm2d, nn.Linear},
    "bert": {nn.Embedding, nn.Linear, nn.LayerNorm},
}


def program_of(name):
    torch.manual_seed(0)
    model, example = MODELS[name]().eval(), inputs_of(name, 2)
    batch = torch.export.Dim("batch")
    sizes = {key: {0: batch} for key in example}
    return model, torch.export.export(model, (), example, dynamic_shapes=sizes, strict=False)


def tensors(result):
    values = result.values() if isinstance(result, dict) else [result]
    return [value for value in values if isinstance(value, torch.Tensor)]


@pytest.mark.slow
@pytest.mark.parametrize("name", first_and_slow(MODELS))
def test_a_program_computes_as_its_model_does_at_other_sizes(name):
    model, program = program_of(name)
    graph = from_exported_program(program)
    for rows in (2, 5):
        example = inputs_of(name, rows)
        with torch.no_grad():
            pairs = zip(tensors(graph.model(**example)), tensors(model(**example)), strict=True)
            for own, expected in pairs:
                torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
    kinds = {type(graph.modules[n.target]) for n in graph.nodes if n.op == "call_module"}
    assert kinds >= LAYERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", first_and_slow(MODELS))
def test_the_layers_of_a_program_are_quantised(name):
    graph = from_exported_program(program_of(name)[1])
    config = {"name": "mxint", "weight_width": 8, "data_in_width": "NA", "bias_width": "NA"}
    op = "lstm" if name == "recurrent" else "linear"
    _, info = quantize_transform_pass(graph, {op: {"config": config}})
    assert info["quantized"]


def test_a_quantised_graph_comes_back_from_its_own_program():
    graph = MaseGraph(MODELS["mlp"](), dummy_in=inputs_of("mlp", 2))
    fixed = {"width": 8, "frac_width": 4}
    config = {f"{role}_{k}": v for role in ("data_in", "weight", "bias") for k, v in fixed.items()}
    quantize_transform_pass(graph, {"linear": {"config": {"name": "integer", **config}}})
    back = from_exported_program(to_exported_program(graph))
    x = inputs_of("mlp", 5)["input"]
    torch.testing.assert_close(back.model(x), graph.model(x), rtol=1e-4, atol=1e-5)


def test_what_is_no_program_is_refused(tmp_path):
    (tmp_path / "text.pt2").write_text("words")
    with pytest.raises(ExportError, match=r"text\.pt2: torch\.export\.load of torch .* cannot"):
        from_exported_program(tmp_path / "text.pt2")
    for wrong in (tmp_path / "absent.pt2", 3):
        with pytest.raises(ExportError, match=r"expected a program of torch\.export or its file"):
            from_exported_program(wrong)
