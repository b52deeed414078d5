"""One resolver finds every kind of model, or says what it tried."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.cli.failures import SourceError
from chop.cli.shared_options import ModelOptions
from chop.cli.source import FOLDER, FORMS, FUNCTION, example_of, find_source, load_graph
from chop.models import MODELS, tiny_bert

BUILDER = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(8, width)
    def forward(self, x):
        return self.fc(x).relu()

def alone(width=4):
    return Net(width)

def pair():
    return Net(), {"x": torch.zeros(3, 8)}

def number():
    return 3

constant = 3
"""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "own_model.py").write_text(BUILDER)


def graph_of(model, **options):
    chosen = ModelOptions(model=str(model), **options)
    source = find_source(chosen)
    return source, load_graph(chosen, source)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MODELS)
def test_every_reference_model_becomes_a_graph_by_name(name):
    source, graph = graph_of(name)
    assert source.kind == FORMS[0]
    graph.model(**graph.dummy_in)


def test_a_checkpoint_is_found_by_folder_path_or_file(tmp_path):
    graph = MaseGraph(nn.Linear(4, 4), dummy_in=torch.zeros(1, 4))
    graph.export(tmp_path / "run" / "graph")
    for name in ("run", "run/graph", "run/graph.json", "run/graph.safetensors"):
        source, found = graph_of(name)
        assert source.kind == FORMS[1]
        assert torch.equal(found.model.weight, graph.model.weight)


def test_a_folder_of_several_checkpoints_asks_for_one(tmp_path):
    graph = MaseGraph(nn.Linear(4, 4), dummy_in=torch.zeros(1, 4))
    for name in ("one", "two"):
        graph.export(tmp_path / "run" / name)
    with pytest.raises(SourceError, match=r"run: several checkpoints \(one, two\). Name one"):
        graph_of("run")


@pytest.mark.parametrize("owner", ["own_model", "own_model.py"])
def test_a_function_builds_the_model_and_its_inputs(owner):
    source, graph = graph_of(f"{owner}:pair")
    assert source.kind == FUNCTION
    assert graph.dummy_in["x"].shape == (3, 8)


def test_a_function_takes_options_and_a_shape():
    options = {"model_options": {"width": 5}, "input_shape": (2, 8)}
    _, graph = graph_of("own_model.py:alone", **options)
    assert graph.model(torch.zeros(2, 8)).shape == (2, 5)


def test_a_hugging_face_folder_is_found(tmp_path):
    tiny_bert().save_pretrained(tmp_path / "bert")
    source, graph = graph_of("bert", inputs=("input_ids", "attention_mask"))
    assert source.kind == FOLDER
    assert [n.name for n in graph.nodes if n.op == "placeholder"] == ["input_ids", "attention_mask"]


def test_the_same_seed_builds_the_same_model():
    one, two, other = (graph_of("mlp", seed=seed)[1] for seed in (1, 1, 2))
    name = "layers.1.weight"
    weights = [dict(graph.model.named_parameters())[name] for graph in (one, two, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_model_that_is_nowhere_lists_what_was_tried():
    with pytest.raises(SourceError) as caught:
        graph_of("nowhere")
    told = str(caught.value)
    assert "no model 'nowhere'. Tried:" in told
    assert all(form in told for form in FORMS)
    assert "MASE_MODELS" in told


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("own_model.py:missing", "own_model.py:missing: 'own_model.py' has no 'missing'."),
        ("no_such_module:build", "cannot import 'no_such_module'"),
        ("nofile.py:build", r"cannot import 'nofile.py' \(no such file\)"),
        ("own_model.py:number", "gave int; expected a torch.nn.Module, or a pair"),
        ("own_model.py:constant", "expected a function that builds a model"),
        ("own_model.py:alone", "what are its inputs. Give --input-shape"),
    ],
)
def test_a_wrong_builder_is_explained(model, message):
    with pytest.raises(SourceError, match=message):
        graph_of(model)


def test_a_folder_without_a_model_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"empty has no config\.json"):
        graph_of("empty")


def test_example_inputs_take_any_number_of_rows():
    _, graph = graph_of("own_model.py:pair")
    assert [len(example_of(graph, rows)["x"]) for rows in (None, 1, 7)] == [3, 1, 7]


def test_a_checkpoint_without_inputs_asks_for_data():
    _, graph = graph_of("own_model.py:pair")
    graph.dummy_in = None
    with pytest.raises(SourceError, match="no example inputs; give --dataset"):
        example_of(graph)
