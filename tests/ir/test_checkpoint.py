import json
import pickle
from pathlib import Path

import pytest
import torch
import zoo
from safetensors.torch import load_file
from torch import nn
from traced_zoo import same, traced
from transformers import BertConfig

import chop.passes as passes
from chop import MaseGraph
from chop.errors import CheckpointError
from chop.ir.store.checkpoint import digest, load_graph

LONG = ("BART", "DeBERTa-v2", "Mixtral", "RoBERTa", "Swin")
"""Large graphs whose kinds of nodes others have too: `make slow` stores these."""


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in zoo.one_of_each_kind()],
)
def test_a_graph_comes_back_from_disk(name, tmp_path):
    graph, inputs = traced(name), zoo.case(name).inputs
    graph.export(tmp_path / "run.1" / "best.model")
    loaded = MaseGraph.from_checkpoint(tmp_path / "run.1" / "best.model")
    with torch.no_grad():
        ours, theirs = loaded.model(**inputs), graph.model(**inputs)
    assert same(ours, theirs)
    assert type(ours) is type(theirs)
    assert list(loaded.model.state_dict()) == list(graph.model.state_dict())
    assert {n.name for n in loaded.nodes} == {n.name for n in graph.nodes}


def small(tmp_path):
    graph = MaseGraph(zoo.CNN().eval(), dummy_in=torch.randn(2, 3, 8, 8))
    graph.export(tmp_path / "cnn")
    return graph, tmp_path / "cnn"


def edit(path, change):
    file = path.with_name(path.name + ".json")
    description = json.loads(file.read_text())
    change(description)
    description["sha256"] = digest(description)
    file.write_text(json.dumps(description))


def test_shared_parameters_are_shared_again(tmp_path):
    traced("shared modules").export(tmp_path / "x")
    model = MaseGraph.from_checkpoint(tmp_path / "x").model
    assert model.fc.weight is model.out.weight


def test_frozen_parameters_modes_and_inputs_are_kept(tmp_path):
    graph = MaseGraph(zoo.MLP().train(), dummy_in=torch.randn(2, 4, 4))
    graph.model.fc1.weight.requires_grad_(False)
    graph.model.fc2.eval()
    graph.export(tmp_path / "x")
    loaded = MaseGraph.from_checkpoint(tmp_path / "x")
    assert not loaded.model.fc1.weight.requires_grad
    assert (loaded.model.training, loaded.model.fc2.training) == (True, False)
    assert torch.equal(loaded.dummy_in["x"], graph.dummy_in["x"])


def test_a_module_whose_node_a_pass_erased_does_not_come_back(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)).eval()
    graph = MaseGraph(model, dummy_in=torch.randn(2, 4))
    node = next(n for n in graph.fx_graph.nodes if n.target == "1")
    node.replace_all_uses_with(node.args[0])
    graph.fx_graph.erase_node(node)
    graph.recompile()
    graph.export(tmp_path / "x")
    loaded = MaseGraph.from_checkpoint(tmp_path / "x")
    assert "1" not in dict(loaded.model.named_modules())
    x = torch.randn(3, 4)
    assert torch.equal(loaded.model(x), model(x))


def test_a_state_dict_alone_can_be_written(tmp_path):
    graph = traced("MLP")
    graph.export(tmp_path / "weights", save_format="state_dict")
    state = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(state[k], v) for k, v in graph.model.state_dict().items())
    with pytest.raises(
        CheckpointError, match=r"unknown save_format 'onnx'. Allowed: graph, packed"
    ):
        graph.export(tmp_path / "weights", save_format="onnx")


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"absent.json: no such checkpoint"):
        MaseGraph.from_checkpoint(tmp_path / "absent")
    _, path = small(tmp_path)
    (tmp_path / "cnn.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"cnn.safetensors: no such file"):
        MaseGraph.from_checkpoint(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a readable JSON file"),
        ("[1, 2]", "not a MaseGraph checkpoint"),
        ('{"format": "other"}', "not a MaseGraph checkpoint"),
        ('{"format": "mase-graph", "version": 99}', "version 99; this release reads 1, 2 and 3"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path, text, message):
    _, path = small(tmp_path)
    (tmp_path / "cnn.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        MaseGraph.from_checkpoint(path)


def test_a_truncated_tensor_file_is_refused(tmp_path):
    _, path = small(tmp_path)
    file = tmp_path / "cnn.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged safetensors file"):
        MaseGraph.from_checkpoint(path)


def test_files_of_two_checkpoints_do_not_mix(tmp_path):
    graph, path = small(tmp_path)
    first = (tmp_path / "cnn.json").read_text()
    graph.export(path)
    (tmp_path / "cnn.json").write_text(first)
    with pytest.raises(CheckpointError, match="belongs to another checkpoint"):
        MaseGraph.from_checkpoint(path)


def test_no_module_is_imported_for_a_function_that_is_refused(tmp_path, monkeypatch):
    (tmp_path / "imported_by_name.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    _, path = small(tmp_path)
    edit(path, lambda d: d["nodes"][1].update(op="call_function", target="imported_by_name.f"))
    with pytest.raises(CheckpointError, match="is not an operation a graph may call"):
        MaseGraph.from_checkpoint(path)


class Mine(nn.Module):
    mase_leaf = True

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * self.scale


class UsesMine(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.mine = Mine(scale)

    def forward(self, x):
        return self.mine(x)


def test_a_class_of_the_users_is_handed_in(tmp_path):
    graph = MaseGraph(UsesMine(), dummy_in=torch.randn(2, 4))
    graph.export(tmp_path / "x")
    with pytest.raises(CheckpointError, match=r"class '.*Mine' is not one of torch or"):
        MaseGraph.from_checkpoint(tmp_path / "x")
    loaded = MaseGraph.from_checkpoint(tmp_path / "x", classes=[Mine])
    x = torch.randn(3, 4)
    assert torch.equal(loaded.model(x), graph.model(x))


def test_what_cannot_be_saved_is_said_before_anything_is_written(tmp_path):
    graph = MaseGraph(UsesMine(scale=object()), dummy_in=None)
    with pytest.raises(CheckpointError, match="attribute 'scale': a value of type 'object'"):
        graph.export(tmp_path / "x")
    graph = MaseGraph(zoo.MLP())
    graph.model.fc1.register_forward_hook(lambda *_: None)
    with pytest.raises(CheckpointError, match="module 'fc1': forward hooks cannot be saved"):
        graph.export(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["BERT classification, labels", "CNN with batch norm", "LSTM"])
def test_a_graph_can_be_pickled(name):
    graph, inputs = traced(name), zoo.case(name).inputs
    loaded = pickle.loads(pickle.dumps(graph))
    with torch.no_grad():
        assert same(loaded.model(**inputs), graph.model(**inputs))


HERE = Path(__file__).parent / "data"


def test_a_checkpoint_of_version_1_loads_with_a_word_on_checksums(caplog):
    graph = MaseGraph.from_checkpoint(HERE / "version1")
    assert "written without checksums" in caplog.text
    found, wanted = (
        graph.model(graph.dummy_in["x"]),
        load_file(HERE / "version1_outputs.safetensors"),
    )
    for name, value in wanted.items():  # written on another machine, whose sums round otherwise
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


class Transposed(nn.Module):
    """Weights in other orders of memory, and two that share theirs."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.mix = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 4)
        self.down.weight = nn.Parameter(self.up.weight.detach().t())
        self.mix.weight = nn.Parameter(torch.randn(4, 4).t())
        self.part = nn.Parameter(self.up.bias.detach()[1:5])
        self.register_buffer("last", torch.randn(3, 4).t())

    def forward(self, x):
        return (self.mix(self.down(self.up(x))) + self.part) @ self.last


def test_transposed_weights_and_shared_memory_come_back(tmp_path):
    model = Transposed()
    MaseGraph(model, dummy_in=torch.randn(2, 4)).export(tmp_path / "x")
    loaded = MaseGraph.from_checkpoint(tmp_path / "x").model
    x = torch.randn(7, 4)
    assert torch.equal(loaded(x), model(x))
    for name, tensor in model.state_dict().items():
        found = loaded.state_dict()[name]
        assert torch.equal(found, tensor)
        assert found.stride() == tensor.stride(), name
    with torch.no_grad():
        loaded.up.weight.zero_()
        loaded.up.bias.zero_()
    assert not loaded.down.weight.any()
    assert not loaded.part.any()


def test_memory_that_no_tensor_has_whole_comes_back_as_values(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    both = torch.randn(8, 6)
    model[0].weight, model[1].weight = nn.Parameter(both[:4, :4]), nn.Parameter(both[2:6, 2:])
    MaseGraph(model, dummy_in=torch.randn(2, 4)).export(tmp_path / "x")
    loaded = MaseGraph.from_checkpoint(tmp_path / "x").model
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in loaded.state_dict().items())


def test_a_node_erased_after_annotation_leaves_a_checkpoint_that_loads(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)).eval()
    graph = MaseGraph(model, dummy_in=torch.randn(2, 4))
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": graph.dummy_in})
    node = next(n for n in graph.fx_graph.nodes if n.target == "1")
    node.replace_all_uses_with(node.args[0])
    graph.fx_graph.erase_node(node)
    graph.recompile()
    graph.export(tmp_path / "x")
    loaded = MaseGraph.from_checkpoint(tmp_path / "x")
    x = torch.randn(3, 4)
    assert torch.equal(loaded.model(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(graph)).model(x), model(x))


@pytest.mark.parametrize(
    ("guards", "words"),
    [
        ([["gt", ["size", "x", 1], 6]], "key 'guards' is missing or not what it should be"),
        ({"guards": [], "captured": [[["x"], [2.5]]]}, "guards: expected conditions and shapes"),
        ({"guards": [[[">", 1, 2], ["x"]]], "captured": []}, "a line of code is text, not list"),
        ({"guards": [[["gt", 1, 2], "x.py"]], "captured": []}, "unknown relation 'gt'"),
        ({"guards": [[[">", ["eval", 1], 2], "x.py"]], "captured": []}, "unknown operation 'eval'"),
        ({"guards": [[[">", ["**", 9, 10**9], 2], "x"]], "captured": []}, "a whole power up to"),
    ],
)
def test_guards_are_read_as_plain_data(tmp_path, guards, words):
    _, path = small(tmp_path)
    edit(path, lambda d: d.update(guards=guards))
    with pytest.raises(CheckpointError, match=words):
        load_graph(path)


def test_example_inputs_that_are_views_are_saved(tmp_path):
    whole = torch.randn(4, 16, 2)
    graph = MaseGraph(zoo.MLP(), dummy_in={"x": whole[1:3, :, 0]})
    graph.export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(loaded.dummy_in["x"], whole[1:3, :, 0])


def test_a_config_with_an_infinite_number_comes_back(tmp_path):
    case = zoo.ZOO["Llama"]()
    case.model.config.time_step_limit = [0.0, float("inf")]
    MaseGraph(case.model, case.hf_input_names, case.inputs).export(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert loaded.model.config.time_step_limit == [0.0, float("inf")]


def test_a_tensor_of_a_called_module_that_nodes_read_too_comes_back_as_one(tmp_path):
    class TiedHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, 4)

        def forward(self, ids):
            return nn.functional.linear(self.embed(ids), self.embed.weight)

    ids = torch.tensor([[1, 2, 3]])
    graph = MaseGraph(TiedHead(), dummy_in={"ids": ids})
    graph.export(tmp_path / "tied")
    loaded = MaseGraph.from_checkpoint(tmp_path / "tied")
    assert torch.equal(loaded.model(ids), graph.model(ids))
    with torch.no_grad():
        loaded.modules["embed"].weight.mul_(2)
    assert torch.equal(loaded.model(ids), 4 * graph.model(ids))


class ScaledByConfig(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = BertConfig(hidden_size=8, num_attention_heads=2)

    def forward(self, x):
        return x * self.config.hidden_size


def test_a_layer_with_a_config_of_transformers_comes_back_where_it_is_trusted(tmp_path):
    graph = MaseGraph(nn.Sequential(ScaledByConfig()), dummy_in=torch.ones(2), leaf_modules=["0"])
    graph.export(tmp_path / "g")
    loaded = MaseGraph.from_checkpoint(tmp_path / "g", classes=[ScaledByConfig])
    assert torch.equal(loaded.model(torch.ones(2)), torch.full((2,), 8.0))
    kept = loaded.modules["0"].config
    assert kept.to_dict() == graph.modules["0"].config.to_dict()
    with pytest.raises(CheckpointError, match=r"If you trust it, hand it in"):
        MaseGraph.from_checkpoint(tmp_path / "g")


def test_nodes_keep_the_module_they_were_called_in(tmp_path):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    graph = MaseGraph(nn.Sequential(layer), dummy_in=torch.zeros(2, 3, 8))
    graph.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    owners = [[n.meta.get("owner", "") for n in g.fx_graph.nodes] for g in (graph, again)]
    assert owners[0] == owners[1]
    assert any(owner.startswith("0") for owner in owners[0])


@pytest.mark.parametrize("owner", [7, ["a"], "a\nb", None])
def test_an_owner_that_is_no_path_is_refused(tmp_path, owner):
    _, path = small(tmp_path)
    edit(path, lambda d: d["nodes"][1].update(owner=owner))
    with pytest.raises(CheckpointError, match=r"nodes\[1\].*owner"):
        load_graph(path)
