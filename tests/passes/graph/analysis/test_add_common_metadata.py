import copy

import pytest
import torch
import torch.nn.functional as F
from passes.graphs import BERT, annotate, annotated, graph_of, node_of
from torch import nn
from transformers import BatchEncoding
from zoo import ZOO, case

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError

FACTS = ("shape", "torch_dtype", "type", "precision")


def results(graph):
    return {
        node.name: [
            tuple(getattr(value, fact) for fact in FACTS)
            for value in node.meta["mase"].common.results.values()
        ]
        for node in graph.nodes
    }


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.scale = nn.Parameter(torch.ones(2, 6))

    def forward(self, x):
        y = self.fc(x).view(x.size(0), -1)
        y = torch.cat([y, y.transpose(0, 1).mT], dim=1)
        values, indices = y.max(1, keepdim=True)
        z = F.linear(y[:, :6], self.scale)
        return z.permute(1, 0), torch.einsum("ij,kj->ik", y, y) + values, indices.long()


@pytest.fixture
def calls():
    return graph_of(Calls(), torch.randn(3, 4))


def test_operands_then_configuration_then_parameters(calls):
    assert list(node_of(calls, "fc").meta["mase"]["common"]["args"]) == [
        "data_in_0",
        "weight",
        "bias",
    ]
    expected = {
        "view": ["data_in_0", "size"],
        "cat": ["data_in_0", "data_in_1", "dim"],
        "transpose": ["data_in_0", "dim0", "dim1"],
        "max": ["data_in_0", "dim", "keepdim"],
        "linear": ["data_in_0", "weight"],
        "permute": ["data_in_0", "dims"],
        "einsum": ["data_in_0", "data_in_1", "equation"],
    }
    by_op = {node.meta["mase"].common.mase_op: node for node in calls.nodes if node.op != "output"}
    by_op["linear"] = next(n for n in calls.nodes if n.target is F.linear)
    assert {op: list(by_op[op].meta["mase"].common.args) for op in expected} == expected


def test_each_operand_has_the_documented_keys(calls):
    operand = node_of(calls, "fc").meta["mase"]["common"]["args"]["data_in_0"]
    assert operand["shape"] == [3, 4]
    assert operand["torch_dtype"] == torch.float32
    assert (operand["type"], operand["precision"]) == ("float", [32])
    assert operand["value"] is None
    assert operand["from"] is node_of(calls, "x")


def test_a_tuple_result_is_numbered(calls):
    top = next(n for n in calls.nodes if n.meta["mase"].common.mase_op == "max")
    found = top.meta["mase"]["common"]["results"]
    assert list(found) == ["data_out_0", "data_out_1"]
    assert found["data_out_1"]["torch_dtype"] == torch.int64
    assert (found["data_out_1"]["type"], found["data_out_1"]["precision"]) == ("integer", [64])


def test_configuration_keeps_its_value(calls):
    view = next(n for n in calls.nodes if n.meta["mase"].common.mase_op == "view")
    assert view.meta["mase"].common.args["size"].value == (3, -1)


@pytest.mark.parametrize(
    "name", ["CNN with batch norm", "BERT classification, sdpa", "LSTM", "dict output", "in-place"]
)
def test_shapes_without_values_are_those_of_a_real_run(name):
    graph = annotated(name)
    cheap = results(graph)
    annotate(graph, add_value=True)
    assert results(graph) == cheap


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ZOO))
def test_shapes_of_the_whole_zoo_are_those_of_a_real_run(name):
    graph = annotated(name)
    cheap = results(graph)
    annotate(graph, add_value=True)
    assert results(graph) == cheap


def test_values_are_kept_when_asked_for():
    given = case("MLP")
    graph = annotate(annotated("MLP"), given.inputs, add_value=True)
    output = node_of(graph, "output").meta["mase"].common.args["data_in_0"].value
    assert torch.equal(output, given.model(**given.inputs))


def test_kept_values_are_those_of_their_time_though_written_later():
    graph = annotate(annotated("in-place"), add_value=True)
    clone = next(n for n in graph.nodes if n.target == "clone")
    fc = node_of(graph, "fc").meta["mase"].common.results["data_out_0"].value
    assert torch.equal(clone.meta["mase"].common.results["data_out_0"].value, fc)


@pytest.mark.parametrize("add_value", [False, True])
def test_the_model_the_inputs_and_the_random_state_are_left_alone(add_value):
    given = case("CNN with batch norm")
    graph = annotated("CNN with batch norm")
    graph.model.train()
    state = {k: v.clone() for k, v in graph.model.state_dict().items()}
    inputs = {k: v.clone() for k, v in given.inputs.items()}
    rng = torch.get_rng_state()
    annotate(graph, given.inputs, add_value=add_value)
    assert all(torch.equal(v, state[k]) for k, v in graph.model.state_dict().items())
    assert all(module.training for module in graph.model.modules())
    assert all(p.requires_grad and not p.is_meta for p in graph.model.parameters())
    assert torch.equal(given.inputs["x"], inputs["x"])
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.is_grad_enabled()


class Caching(nn.Module):
    mase_leaf = True

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones(x.shape[-1])
        return x * self.mask


def test_what_a_module_caches_in_the_run_is_forgotten():
    model = nn.Sequential(Caching(), nn.Linear(4, 2))
    graph = MaseGraph(model)
    annotate(graph, torch.randn(2, 4))
    assert model[0].mask is None


def test_a_batch_encoding_with_more_keys_than_the_graph_takes_is_fine():
    ids = torch.randint(5, 99, (2, 7))
    mask = torch.ones_like(ids)
    encoding = BatchEncoding({"input_ids": ids, "attention_mask": mask, "token_type_ids": ids})
    graph = annotate(annotated(BERT), encoding)
    found = node_of(graph, "input_ids").meta["mase"].common.results["data_out_0"]
    assert found.shape == [2, 7]


@pytest.mark.parametrize("give", [lambda x: x, lambda x: (x,), lambda x: [x], lambda x: {"x": x}])
def test_dummy_in_may_be_a_tensor_a_tuple_or_a_mapping(give):
    graph = annotate(annotated("MLP"), give(torch.randn(7, 4, 4)))
    assert node_of(graph, "x").meta["mase"].common.results["data_out_0"].shape == [7, 4, 4]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": 1}, r"dummy_in has no 'x'. The graph takes: x; given: y."),
        ((1, 2), r"dummy_in has 2 values; the graph takes 1: x."),
        (3, r"dummy_in must be a mapping, a tensor or a tuple, got int."),
        (None, r"dummy_in is missing. Give a value for each input: x."),
    ],
)
def test_wrong_inputs_are_named(given, message):
    graph = annotated("MLP")
    graph.dummy_in = None
    with pytest.raises(PassError, match=message):
        passes.add_common_metadata_analysis_pass(graph, {"dummy_in": given})


def test_inputs_that_do_not_fit_name_the_node():
    with pytest.raises(PassError, match=r"node 'fc1' \(call_module fc1\): cannot run on dummy_in"):
        annotate(annotated("MLP"), torch.randn(2, 5))


def test_values_cannot_be_kept_without_real_tensors():
    arguments = {"add_value": True, "force_device_meta": True}
    with pytest.raises(ConfigError, match="set one of them"):
        passes.add_common_metadata_analysis_pass(annotated("MLP"), arguments)


class Counting(nn.Module):
    mase_leaf = True

    def forward(self, x):
        return x[: int((x > 0).sum().item()) + 1]


def test_a_layer_that_reads_values_is_run_for_real():
    graph = MaseGraph(nn.Sequential(Counting()), custom_ops={"modules": {Counting: {}}})
    annotate(graph, torch.tensor([1.0, 1.0, -1.0, -1.0]))
    assert node_of(graph, "output").meta["mase"].common.args["data_in_0"].shape == [3]


def test_force_device_meta_never_runs_for_real():
    graph = MaseGraph(nn.Sequential(Counting()), custom_ops={"modules": {Counting: {}}})
    passes.init_metadata_analysis_pass(graph)
    arguments = {"dummy_in": torch.ones(4), "force_device_meta": True}
    with pytest.raises(PassError, match="cannot run on dummy_in"):
        passes.add_common_metadata_analysis_pass(graph, arguments)


class Tallying(nn.Module):
    mase_leaf = True

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return x + torch.ones(1, device="cpu")  # which the meta world cannot run


def test_a_tally_kept_in_a_buffer_is_put_back():
    model = nn.Sequential(Tallying())
    annotate(MaseGraph(model, custom_ops={"modules": {Tallying: {}}}), torch.ones(2))
    assert model[0].calls == 0


class TwoLosses(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.mean = nn.MSELoss(reduction="none"), nn.MSELoss()

    def forward(self, x, y):
        return self.each(x, y), self.mean(x, y)


def test_modules_alike_in_all_but_a_setting_are_told_apart():
    graph = graph_of(TwoLosses(), {"x": torch.ones(3), "y": torch.ones(3)})
    shapes = [
        node_of(graph, name).meta["mase"].common.results["data_out_0"].shape
        for name in ("each", "mean")
    ]
    assert shapes == [[3], []]


def test_the_device_recorded_is_the_models():
    graph = annotated("MLP")
    found = node_of(graph, "fc1").meta["mase"].common
    assert {v.device.type for v in (*found.args.values(), *found.results.values())} == {"cpu"}


class Own(nn.Module):
    mase_leaf = True

    def forward(self, x):
        return x + 1


def test_an_unknown_op_is_implicit_with_a_warning_that_names_node_and_remedy(said):
    graph = annotate(MaseGraph(nn.Sequential(Own(), Own())), torch.ones(2))
    common = node_of(graph, "_0").meta["mase"].common
    assert (common.mase_type, common.mase_op) == ("implicit_func", "Own")
    assert "node '_0' and 1 more (call_module): no op is listed for 'Own'" in said[0]
    assert "Pass custom_ops to MaseGraph" in said[0]


def test_custom_ops_describe_an_op_of_the_users_own(said):
    row = {"mase_op": "own", "mase_type": "module"}
    graph = MaseGraph(nn.Sequential(Own()), custom_ops={"modules": {Own: row}})
    common = node_of(annotate(graph, torch.ones(2)), "_0").meta["mase"].common
    assert (common.mase_type, common.mase_op) == ("module", "own")
    assert said == []


@pytest.mark.parametrize("name", ["BERT classification", "CNN with batch norm", "LSTM"])
def test_nothing_is_said_of_a_model_of_known_ops(name, said, capfd):
    annotate(annotated(name))
    annotate(annotated(name), add_value=True)
    assert said == []
    assert capfd.readouterr() == ("", "")


def test_metadata_of_a_copy_is_its_own():
    graph = annotated("MLP")
    twin = copy.deepcopy(graph)
    node_of(twin, "fc1").meta["mase"]["common"]["args"]["weight"]["type"] = "fixed"
    assert node_of(graph, "fc1").meta["mase"]["common"]["args"]["weight"]["type"] == "float"
    assert node_of(twin, "fc1").meta["mase"].common.args["data_in_0"].source.graph is twin.fx_graph
