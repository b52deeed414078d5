import copy
import xml.etree.ElementTree as ElementTree

import pytest
import torch
import zoo
from torch import nn
from traced_zoo import same, traced

from chop import MaseGraph
from chop.errors import GraphError
from chop.ir.meta import MaseMetadata, ValueMeta


def annotated(name):
    graph = copy.deepcopy(traced(name))
    for node in graph.nodes:
        meta = node.meta["mase"] = MaseMetadata()
        meta.common.args = {
            f"data_in_{i}": ValueMeta(source=n) for i, n in enumerate(node.all_input_nodes)
        }
        meta.common.results = {"data_out_0": ValueMeta(shape=[1, 2], type="float")}
    return graph


@pytest.mark.parametrize("name", ["BERT classification, labels", "CNN with batch norm", "T5"])
def test_a_copy_is_independent(name):
    graph, inputs = traced(name), zoo.case(name).inputs
    twin = copy.deepcopy(graph)
    with torch.no_grad():
        assert same(twin.model(**inputs), graph.model(**inputs))
        for parameter in twin.model.parameters():
            parameter.zero_()
        assert not same(twin.model(**inputs), graph.model(**inputs))
    assert type(twin.model(**inputs)) is type(graph.model(**inputs))


def test_links_in_a_copys_metadata_point_at_its_own_nodes():
    graph = annotated("MLP")
    twin = copy.deepcopy(graph)
    own = set(twin.nodes)
    for before, after in zip(graph.nodes, twin.nodes, strict=True):
        assert after.meta["mase"] is not before.meta["mase"]
        assert all(v.source in own for v in after.meta["mase"].common.args.values())
    first = next(iter(twin.nodes))
    first.meta["mase"].common.results["data_out_0"].shape = [9]
    assert next(iter(graph.nodes)).meta["mase"].common.results["data_out_0"].shape == [1, 2]


def test_a_copy_keeps_modes_config_and_transient_buffers():
    graph = traced("Llama")
    twin = copy.deepcopy(graph.model)
    assert not twin.training
    assert twin.config.hidden_size == 32
    assert list(twin.state_dict()) == list(graph.model.state_dict())
    assert set(graph.model.state_dict()) <= set(zoo.case("Llama").model.state_dict())


def test_submodule_paths_and_modules_are_the_models_own():
    case, graph = zoo.case("BERT classification"), traced("BERT classification")
    ours = graph.model.bert.embeddings.word_embeddings
    assert ours is case.model.bert.embeddings.word_embeddings
    assert graph.modules["bert.embeddings.word_embeddings"] is ours
    graph_names = {n for n, _ in graph.model.named_parameters()}
    assert graph_names <= {n for n, _ in case.model.named_parameters()}


def test_replacing_a_module_shows_in_modules_and_leaves_the_model_alone():
    model = zoo.MLP()
    graph = MaseGraph(model)
    graph.model.fc1 = nn.Identity()
    assert isinstance(graph.modules["fc1"], nn.Identity)
    assert isinstance(model.fc1, nn.Linear)


def test_erasing_a_node_that_has_users_is_torch_fxs_own_error():
    graph = MaseGraph(zoo.MLP())
    node = next(n for n in graph.nodes if n.target == "fc1")
    with pytest.raises(RuntimeError, match="Tried to erase Node fc1 but it still had 1 users"):
        graph.fx_graph.erase_node(node)


@pytest.mark.parametrize("name", ["MLP", "BERT classification, labels"])
def test_a_drawing_has_a_box_for_every_node(name, tmp_path):
    graph = annotated(name)
    file = graph.draw(tmp_path / "picture.svg")
    root = ElementTree.parse(file).getroot()
    text = " ".join(e.text or "" for e in root.iter() if e.tag.endswith("text"))
    text += " ".join(e.text or "" for e in root.iter() if e.tag.endswith("tspan"))
    assert all(node.name in text for node in graph.nodes)
    assert "1 × 2 float" in text


def test_dot_and_a_name_without_suffix(tmp_path):
    graph = MaseGraph(zoo.MLP())
    assert "digraph" in graph.draw(tmp_path / "x.dot").read_text()
    assert graph.draw(tmp_path / "plain").name == "plain.svg"
    with pytest.raises(GraphError, match=r"'.png' is not a known format. Allowed: .svg, .dot, .gv"):
        graph.draw(tmp_path / "x.png")


def test_repr_says_model_and_size():
    assert repr(MaseGraph(zoo.MLP())) == "MaseGraph(MLP, 6 nodes)"


def test_a_copy_keeps_the_name_of_the_models_class():
    graph = traced("MLP")
    assert type(copy.deepcopy(graph).model).__name__ == type(graph.model).__name__ == "MLP"
