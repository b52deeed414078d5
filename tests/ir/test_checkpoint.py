import json
import pickle

import pytest
import torch
import zoo
from safetensors.torch import load_file
from torch import nn
from traced_zoo import same, traced

from chop import MaseGraph
from chop.errors import CheckpointError


@pytest.mark.parametrize("name", zoo.ZOO)
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
    with pytest.raises(CheckpointError, match=r"unknown save_format 'onnx'. Allowed: graph, state"):
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
        ('{"format": "mase-graph", "version": 99}', "version 99; this release reads 1"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d["nodes"][1].update(op="call_function", target="os.system"),
            "'os.system' is not",
        ),
        (
            lambda d: d["nodes"][1].update(op="call_function", target="torch.load"),
            "'torch.load' is not",
        ),
        (
            lambda d: d["nodes"][1].update(op="call_function", target="builtins.eval"),
            "eval' is not an",
        ),
        (lambda d: d["nodes"][1].update(op="call_method", target="__reduce_ex__"), "not a method"),
        (lambda d: d["modules"]["fc"].update({"class": "subprocess.Popen"}), "is not one of torch"),
        (lambda d: d["modules"]["fc"].update({"class": "torch.nn.Parameter"}), "is not a Module"),
        (lambda d: d["nodes"][1].pop("args"), "damaged checkpoint"),
        (lambda d: d["nodes"][1].update(args=[{"$node": "nowhere"}]), "used before it is made"),
        (lambda d: d["aliases"].update({"fc.weight": "absent"}), "tensor 'absent' is missing"),
    ],
)
def test_a_checkpoint_never_reaches_beyond_tensors(tmp_path, change, message):
    _, path = small(tmp_path)
    edit(path, change)
    with pytest.raises(CheckpointError, match=message):
        MaseGraph.from_checkpoint(path)


@pytest.mark.parametrize(
    "function",
    [
        "torch.nn.functional.torch.os.system",  # modules hold others
        "torch.nn.functional.importlib.import_module",
        "torch.nn.functional.handle_torch_function",
        "torch.functional.torch.load",
        "torch.from_file",  # may write to it
        "operator.__call__",
        "operator.methodcaller",
        "math.__loader__.load_module",
        "chop.native.load",
        "chop.nn.quantizers.kernels.ctypes.CDLL",
        "chop.nn.quantizers.kernels.library",
        "transformers.utils.logging.os.system",
    ],
)
def test_no_function_is_reached_through_another_module(tmp_path, function):
    _, path = small(tmp_path)
    edit(path, lambda d: d["nodes"][1].update(op="call_function", target=function))
    with pytest.raises(CheckpointError, match="is not an operation a graph may call"):
        MaseGraph.from_checkpoint(path)


def test_no_module_is_imported_for_a_function_that_is_refused(tmp_path, monkeypatch):
    (tmp_path / "imported_by_name.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    _, path = small(tmp_path)
    edit(path, lambda d: d["nodes"][1].update(op="call_function", target="imported_by_name.f"))
    with pytest.raises(CheckpointError, match="is not an operation a graph may call"):
        MaseGraph.from_checkpoint(path)


def test_no_class_is_reached_through_another_module(tmp_path):
    _, path = small(tmp_path)
    edit(
        path,
        lambda d: d["modules"]["fc"].update(
            {"class": "torch.nn.modules.linear.torch.jit.ScriptModule"}
        ),
    )
    with pytest.raises(CheckpointError, match=r"is one of torch\.jit.*, not of its name"):
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
    with pytest.raises(CheckpointError, match=r"class '.*Mine' is not one of torch or MASE"):
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
