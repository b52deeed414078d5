"""Each transform does what it says, keeps the output where it says so, and keeps metadata true."""

import operator

import pytest
import torch
import torch.nn.functional as F
from passes.graphs import BERT, CNN, annotate, annotated, graph_of, names, node_of
from torch import nn
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError


def same_output(graph, name):
    """Sound metadata, and the original's output at the traced and at another shape."""
    given = case(name)
    passes.verify(graph, given.model, given.inputs)
    return passes.verify(graph, given.model, given.other_inputs)["max_abs_difference"]


class TestRemoveDropout:
    @pytest.mark.parametrize("name", [BERT, "BERT classification, sdpa", "functional dropout"])
    def test_output_is_the_same_and_no_dropout_is_left(self, name):
        graph = annotated(name)
        _, info = passes.remove_dropout_transform_pass(graph)
        assert info["removed"]
        assert same_output(graph, name) == 0.0
        assert not [m for m in graph.model.modules() if isinstance(m, nn.Dropout)]

    @pytest.mark.parametrize("name", [BERT, "BERT classification, sdpa"])
    def test_training_has_nothing_random_left(self, name):
        graph, inputs = annotated(name), case(name).inputs
        passes.remove_dropout_transform_pass(graph)
        evaluated = graph.model.eval()(**inputs).logits
        assert torch.equal(graph.model.train()(**inputs).logits, evaluated)

    def test_the_users_model_keeps_its_dropout(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        passes.remove_dropout_transform_pass(MaseGraph(model))
        assert isinstance(model[1], nn.Dropout)

    def test_a_graph_without_metadata_works_too(self):
        graph = MaseGraph(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)))
        _, info = passes.remove_dropout_transform_pass(graph)
        assert info["removed"] == ["_0"]
        assert "mase" not in node_of(graph, "_1").meta

    def test_nothing_is_done_where_there_is_none(self):
        _, info = passes.remove_dropout_transform_pass(annotated(CNN))
        assert info == {"removed": [], "silenced": []}

    def test_number_formats_set_on_other_nodes_stay(self):
        graph = graph_of(
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)),
            {"input": torch.randn(2, 4)},
        )
        operand = node_of(graph, "_2").meta["mase"]["common"]["args"]["data_in_0"]
        operand["type"], operand["precision"] = "fixed", [8, 3]
        passes.remove_dropout_transform_pass(graph)
        operand = node_of(graph, "_2").meta["mase"]["common"]["args"]["data_in_0"]
        assert (operand["type"], operand["precision"]) == ("fixed", [8, 3])
        assert operand["from"] is node_of(graph, "_0")


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.used(x)
        return self.unused(x).relu() + self.norm(x) + y


@pytest.fixture
def dead():
    """A graph that gives `used` and does other things besides, none of them used."""
    graph = MaseGraph(Parts(), dummy_in=torch.randn(2, 4))
    y, output = node_of(graph, "used"), node_of(graph, "output")
    with graph.fx_graph.inserting_before(output):
        call = graph.fx_graph.call_function
        call(torch.rand, (3,))
        call(operator.setitem, (y, 0, 0.0))
        graph.fx_graph.call_method("add_", (y, 1))
        call(F.relu, (y, True))
        call(torch.add, (y, 1), {"out": call(torch.empty, (2, 4))})
        call(operator.iadd, (y, 2))
    output.args = (y,)
    graph.recompile()
    return annotate(graph)


class TestDeadCode:
    def test_unused_nodes_and_their_modules_go(self, dead):
        passes.eliminate_dead_code_transform_pass(dead)
        assert "unused" not in names(dead)
        assert "unused" not in dead.modules
        assert not [n for n in dead.nodes if n.target is torch.rand]
        passes.verify(dead)

    def test_mutations_stay(self, dead):
        passes.eliminate_dead_code_transform_pass(dead)
        targets = [node.target for node in dead.nodes]
        for kept in (operator.setitem, "add_", F.relu, torch.add, operator.iadd):
            assert kept in targets

    def test_a_norm_that_updates_its_statistics_stays_in_training_and_goes_in_evaluation(
        self, dead
    ):
        passes.eliminate_dead_code_transform_pass(dead)
        assert "norm" in names(dead)
        dead.model.eval()
        passes.eliminate_dead_code_transform_pass(dead)
        assert "norm" not in names(dead)

    def test_output_is_the_same(self, dead):
        x = torch.randn(2, 4)
        with torch.no_grad():  # out= has no gradient
            before = dead.model.eval()(x)
            passes.eliminate_dead_code_transform_pass(dead)
            assert torch.equal(dead.model(x), before)

    @pytest.mark.parametrize("name", [CNN, BERT])
    def test_models_without_dead_code_are_left_alone(self, name):
        _, info = passes.eliminate_dead_code_transform_pass(annotated(name))
        assert info == {"removed": []}

    def test_inputs_stay_though_unused(self):
        class First(nn.Module):
            def forward(self, x, y):
                return x + 1

        graph = MaseGraph(First())
        passes.eliminate_dead_code_transform_pass(graph)
        assert names(graph)[:2] == ["x", "y"]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        a, b = self.fc(x), self.fc(x)
        kept = self.dropout(x) * self.dropout(x)
        return a.relu() - b.relu() + kept + x * 1 + x * 1.0 + x * True


class Written(nn.Module):
    def forward(self, x):
        y = x + 1
        before = y * 2
        y.add_(1)
        after = y * 2
        a, b = torch.zeros(3), torch.zeros(3)
        a[0] = 1.0
        return before + after, a, b


class TestCommonSubexpressions:
    def test_equal_calls_become_one_and_chains_follow(self):
        graph = graph_of(Twice(), torch.randn(4, 4))
        _, info = passes.eliminate_common_subexpressions_transform_pass(graph)
        assert info["merged"] == {"fc_1": "fc", "relu_1": "relu"}
        passes.verify(graph)

    def test_dropout_is_never_merged(self):
        graph = graph_of(Twice(), torch.randn(4, 4))
        passes.eliminate_common_subexpressions_transform_pass(graph)
        assert len([n for n in graph.nodes if n.target == "dropout"]) == 2

    def test_one_in_three_types_is_three_arguments(self):
        graph = graph_of(Twice(), torch.randn(4, 4))
        passes.eliminate_common_subexpressions_transform_pass(graph)
        factors = [n.args[1] for n in graph.nodes if str(n.args[:1]) == "(x,)" and len(n.args) == 2]
        assert [repr(factor) for factor in factors] == ["1", "1.0", "True"]

    def test_nothing_is_merged_across_a_write_or_into_what_is_written(self):
        model, x = Written(), torch.randn(2, 3)
        graph = annotate(MaseGraph(model), x)
        expected = model(x.clone())
        passes.eliminate_common_subexpressions_transform_pass(graph)
        for found, wanted in zip(graph.model(x.clone()), expected, strict=True):
            assert torch.equal(found, wanted)

    @pytest.mark.parametrize("name", [CNN, BERT, "in-place"])
    def test_output_is_the_same(self, name):
        graph = annotated(name)
        passes.eliminate_common_subexpressions_transform_pass(graph)
        assert same_output(graph, name) == 0.0

    def test_bert_has_something_to_merge(self):
        _, info = passes.eliminate_common_subexpressions_transform_pass(annotated(BERT))
        assert info["merged"]


class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(8.0))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        low = torch.finfo(torch.float32).min / 2
        shifted = self.table.view(2, 4).sum(0) * 2
        trained = self.scale * 3
        noise = torch.rand(4) * 0
        written = torch.zeros(4)
        written[0] = x.sum()
        return self.fc(x) + shifted * trained + noise + written + x.clamp(min=low)


class TestFoldConstants:
    def test_what_depends_on_no_input_becomes_a_buffer(self):
        model, x = Constants().eval(), torch.randn(3, 4)
        graph = graph_of(model, x)
        _, info = passes.fold_constants_transform_pass(graph)
        assert len(info["folded"]) == 1
        folded = next(n for n in graph.nodes if str(n.target).startswith("folded_"))
        assert torch.equal(getattr(graph.model, folded.target), model.table.view(2, 4).sum(0) * 2)
        torch.testing.assert_close(graph.model(x), model(x), rtol=0, atol=0)
        passes.verify(graph)

    def test_parameters_random_draws_and_written_tensors_are_left(self):
        graph = graph_of(Constants(), torch.randn(3, 4))
        passes.fold_constants_transform_pass(graph)
        targets = [node.target for node in graph.nodes]
        assert torch.rand in targets
        assert torch.zeros in targets
        assert "scale" in targets

    def test_gradients_still_reach_the_parameter(self):
        graph = graph_of(Constants(), torch.randn(3, 4))
        passes.fold_constants_transform_pass(graph)
        graph.model(torch.randn(3, 4)).sum().backward()
        assert graph.model.scale.grad is not None

    def test_two_runs_of_a_folded_graph_agree(self):
        graph, x = graph_of(Constants(), torch.randn(3, 4)), torch.randn(3, 4)
        passes.fold_constants_transform_pass(graph)
        assert torch.equal(graph.model(x), graph.model(x))

    def test_large_tensors_are_left_when_asked(self):
        graph = graph_of(Constants(), torch.randn(3, 4))
        _, info = passes.fold_constants_transform_pass(graph, {"max_elements": 3})
        assert info["folded"] == []

    def test_plain_numbers_are_written_in_place(self):
        class Sized(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.zeros(3, 5))

            def forward(self, x):
                return x * self.table.size(1)

        graph = annotate(MaseGraph(Sized()), torch.ones(2))
        passes.fold_constants_transform_pass(graph)
        assert names(graph) == ["x", "mul", "output"]
        assert node_of(graph, "mul").args[1] == 5
        passes.verify(graph)

    @pytest.mark.parametrize(
        "name", [CNN, BERT, pytest.param("DeBERTa-v2", marks=pytest.mark.slow)]
    )
    def test_output_is_the_same(self, name):
        graph = annotated(name)
        passes.fold_constants_transform_pass(graph)
        assert same_output(graph, name) == 0.0


class TestFuseConvBn:
    def test_output_is_the_same_and_the_norms_are_gone(self):
        graph = annotated(CNN)
        for module in graph.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        x = case(CNN).inputs["x"]
        before = graph.model(x)
        _, info = passes.fuse_conv_bn_transform_pass(graph)
        assert info == {"fused": {"conv1": "bn1", "conv2": "bn2"}, "skipped": {}}
        assert not [m for m in graph.model.modules() if isinstance(m, nn.BatchNorm2d)]
        # the same sums in another order
        torch.testing.assert_close(graph.model(x), before, rtol=1e-5, atol=1e-5)
        passes.verify(graph)

    @pytest.mark.parametrize(
        "layers",
        [
            (nn.Conv1d(3, 4, 2, bias=False), nn.BatchNorm1d(4)),
            (nn.ConvTranspose1d(3, 4, 2), nn.BatchNorm1d(4)),
            (nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4, affine=False)),
        ],
    )
    def test_variants_are_fused_exactly_enough(self, layers):
        model = nn.Sequential(*layers).eval()
        model[1].running_mean.normal_()
        x = torch.randn(2, 3, 6)
        graph = graph_of(model, x)
        _, info = passes.fuse_conv_bn_transform_pass(graph)
        assert info["fused"]
        torch.testing.assert_close(graph.model(x), model(x), rtol=1e-5, atol=1e-5)

    def test_the_users_convolution_is_not_touched(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
        model[1].running_mean.fill_(3)
        weight, bias = model[0].weight.clone(), model[0].bias.clone()
        passes.fuse_conv_bn_transform_pass(MaseGraph(model))
        assert torch.equal(model[0].weight, weight)
        assert torch.equal(model[0].bias, bias)

    def test_training_mode_is_left_with_a_warning(self, said):
        graph = annotated(CNN)
        graph.model.train()
        _, info = passes.fuse_conv_bn_transform_pass(graph)
        assert info["skipped"] == {"bn1": "in training mode", "bn2": "in training mode"}
        assert "batch norms in training mode stay. Call mg.model.eval()" in said[0]

    def test_a_convolution_with_other_users_is_left(self):
        class Branch(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

            def forward(self, x):
                y = self.conv(x)
                return self.norm(y) + y

        _, info = passes.fuse_conv_bn_transform_pass(MaseGraph(Branch().eval()))
        assert info["skipped"] == {"norm": "the convolution has other users"}

    def test_a_shared_convolution_is_left(self):
        class Shared(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

            def forward(self, x):
                return self.norm(self.conv(self.conv(x)))

        _, info = passes.fuse_conv_bn_transform_pass(MaseGraph(Shared().eval()))
        assert info["skipped"] == {"norm": "a module is called elsewhere"}

    def test_a_norm_without_statistics_is_left(self):
        norm = nn.BatchNorm1d(2, track_running_stats=False)
        graph = MaseGraph(nn.Sequential(nn.Conv1d(2, 2, 1), norm).eval())
        _, info = passes.fuse_conv_bn_transform_pass(graph)
        assert info["skipped"] == {"_1": "no running statistics"}


class TestExtractSubgraph:
    def test_the_part_computes_what_the_whole_computes_there(self):
        given = case("MLP")
        graph = annotated("MLP")
        hidden = given.model.fc1(given.inputs["x"].flatten(1))
        arguments = {"inputs": ["fc1"], "outputs": ["fc2"]}
        _, info = passes.extract_subgraph_transform_pass(graph, arguments)
        assert info == {"inputs": ["fc1"]}
        assert list(dict(graph.model.named_children())) == ["fc2"]
        assert torch.equal(graph.model(fc1=hidden), given.model(**given.inputs))
        passes.verify(graph)

    def test_several_outputs_are_a_tuple_and_the_models_own_class_is_gone(self):
        graph = annotated(BERT)
        arguments = {"outputs": ["bert_pooler_activation", "classifier"]}
        passes.extract_subgraph_transform_pass(graph, arguments)
        pooled, logits = graph.model(**case(BERT).inputs)
        assert torch.equal(logits, case(BERT).model(**case(BERT).inputs).logits)
        assert pooled.shape == (2, 32)
        passes.verify(graph)

    def test_several_inputs_keep_their_order(self):
        graph = annotated("tuple output")
        factors = [str(each) for each in node_of(graph, "mul").args]
        arguments = {"inputs": factors, "outputs": ["mul"]}
        _, info = passes.extract_subgraph_transform_pass(graph, arguments)
        assert info["inputs"] == arguments["inputs"]
        assert torch.equal(
            graph.model(torch.tensor([2.0]), torch.tensor([3.0])), torch.tensor([6.0])
        )

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"outputs": ["fc3"]}, PassError, "extract_subgraph.outputs: no node 'fc3'. Did you"),
            ({"outputs": ["fc2"], "inputs": ["q"]}, PassError, "inputs: no node 'q'"),
            ({"outputs": []}, ConfigError, "outputs is empty; name at least one node"),
            ({}, ConfigError, "key 'outputs' is missing"),
        ],
    )
    def test_wrong_arguments_are_named(self, arguments, error, message):
        with pytest.raises(error, match=message):
            passes.extract_subgraph_transform_pass(annotated("MLP"), arguments)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def doubled(module):
    new = Doubled(module.in_features, module.out_features)
    new.load_state_dict(module.state_dict())
    return new


class TestReplaceModule:
    @pytest.mark.parametrize(
        ("by", "target", "replaced"),
        [
            ("name", "fc2", ["fc2"]),
            ("type", nn.Linear, ["fc1", "fc2"]),
            ("type", "linear", ["fc1", "fc2"]),
            ("type", "Linear", ["fc1", "fc2"]),
            ("pattern", r"fc[13]", ["fc1"]),
        ],
    )
    def test_the_chosen_modules_are_replaced(self, by, target, replaced):
        graph = annotated("MLP")
        arguments = {"by": by, "target": target, "factory": doubled}
        _, info = passes.replace_module_transform_pass(graph, arguments)
        assert info == {"replaced": replaced}
        found = [name for name, m in graph.modules.items() if isinstance(m, Doubled)]
        assert found == replaced
        passes.verify(graph)

    def test_the_new_module_computes(self):
        given, graph = case("MLP"), annotated("MLP")
        passes.replace_module_transform_pass(graph, {"target": "fc2", "factory": doubled})
        assert torch.equal(graph.model(**given.inputs), 2 * given.model(**given.inputs))

    def test_metadata_follows_a_change_of_shape(self):
        graph = annotated("MLP")
        arguments = {"target": "fc2", "factory": lambda m: nn.Linear(m.in_features, 3)}
        passes.replace_module_transform_pass(graph, arguments)
        args = node_of(graph, "output").meta["mase"].common.args
        assert args["data_in_0"].shape == [2, 3]

    def test_a_shared_module_is_replaced_by_one(self):
        graph = annotated("shared modules")
        made = []
        arguments = {"target": "fc", "factory": lambda m: made.append(m) or doubled(m)}
        passes.replace_module_transform_pass(graph, arguments)
        assert len(made) == 1

    def test_the_users_model_is_not_touched(self):
        model = nn.Sequential(nn.Linear(2, 2))
        graph = MaseGraph(model)
        passes.replace_module_transform_pass(graph, {"target": "0", "factory": doubled})
        assert type(model[0]) is nn.Linear

    def test_bert_keeps_its_output_under_an_equal_replacement(self):
        def twin(module):
            new = nn.Linear(module.in_features, module.out_features)
            new.load_state_dict(module.state_dict())
            return new

        graph = annotated(BERT)
        arguments = {"by": "pattern", "target": r".*\.query", "factory": twin}
        _, info = passes.replace_module_transform_pass(graph, arguments)
        assert len(info["replaced"]) == 2
        assert same_output(graph, BERT) == 0.0

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"target": "fc9", "factory": doubled}, PassError, "no module matches name 'fc9'"),
            ({"target": "fc2", "factory": 3}, ConfigError, "factory must be a function.* got int"),
            ({"target": "fc2", "factory": str}, PassError, "factory gave str for 'fc2'"),
        ],
    )
    def test_wrong_arguments_are_named(self, arguments, error, message):
        with pytest.raises(error, match=message):
            passes.replace_module_transform_pass(annotated("MLP"), arguments)
