import copy
import subprocess
import sys

import helper_for_sizes
import pytest
import torch
import torch.nn.functional as F
import zoo
from torch import nn
from traced_zoo import equal_at, traced, traced_with_changes, trains_alike

from chop import MaseGraph
from chop.errors import CheckpointError, SizeError, TraceError
from chop.ir.modes import ModeConstant
from chop.ir.ops import find_op

every_model = pytest.mark.parametrize("name", zoo.one_of_each_kind(), scope="module")
"""The scope keeps the tests of one model together: one process captures it for all of them."""


@pytest.mark.share(2)
@every_model
def test_the_graph_computes_what_the_model_computes(name):
    assert equal_at(name, zoo.case(name).inputs)


@every_model
def test_the_graph_holds_at_another_batch_size_and_length(name):
    assert equal_at(name, zoo.case(name).other_inputs)


@every_model
def test_gradients_reach_the_original_parameters_and_training_is_the_models(name):
    outputs, gradients = trains_alike(name)
    assert outputs
    assert gradients


@every_model
def test_every_linear_is_a_call_module(name):
    graph = traced(name)
    inside_leaves = {
        m
        for part in zoo.case(name).model.modules()
        if isinstance(part, nn.MultiheadAttention)
        for m in part.modules()
    }
    linears = {m for m in zoo.case(name).model.modules() if isinstance(m, nn.Linear)}
    called = {graph.modules[n.target] for n in graph.nodes if n.op == "call_module"}
    assert linears - inside_leaves <= called


@every_model
def test_every_node_is_in_the_table(name):
    assert {str(node.target) for node in traced(name).nodes if find_op(node) is None} == set()


@every_model
def test_tracing_leaves_the_model_as_it_was(name):
    assert traced_with_changes(name)[1] == []


def bert(names):
    config = zoo.transformers.BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    model = zoo.transformers.BertForSequenceClassification(config)
    return MaseGraph(model, hf_input_names=names)


def placeholders(graph):
    return [n.target for n in graph.nodes if n.op == "placeholder"]


def tail(graph):
    """The last node and, of its inputs, the modules they call."""
    output = list(graph.nodes)[-1]
    return [n.target for n in output.all_input_nodes]


def test_with_labels_the_tail_is_classifier_then_loss_then_output():
    graph = bert(["input_ids", "attention_mask", "labels"])
    assert placeholders(graph) == ["input_ids", "attention_mask", "labels"]
    assert tail(graph) == ["crossentropyloss_0", "classifier"]


def test_without_labels_the_tail_is_classifier_then_output():
    graph = bert(["input_ids", "attention_mask"])
    assert tail(graph) == ["classifier"]
    assert not any("loss" in n.name for n in graph.nodes)


@pytest.mark.parametrize("names", [["input_ids", "labels"], ["input_ids"]])
def test_without_attention_mask_its_placeholder_is_gone(names):
    assert placeholders(bert(names)) == names


def test_a_hugging_face_model_without_names_takes_its_main_input():
    assert placeholders(bert(None)) == ["input_ids"]


def test_an_input_the_model_does_not_have_is_an_error_that_lists_those_it_has():
    with pytest.raises(
        TraceError, match=r"no input 'attention_msk'. Did you mean 'attention_mask'"
    ):
        bert(["input_ids", "attention_msk"])
    with pytest.raises(TraceError, match=r"MLP.forward has no input 'y'. Known: x"):
        MaseGraph(zoo.MLP(), dummy_in={"y": torch.zeros(2, 16)})


def test_a_tensor_or_a_tuple_will_do_as_inputs():
    x = torch.randn(2, 4, 4)
    for given in (x, (x,), [x], {"x": x}):
        assert placeholders(MaseGraph(zoo.MLP(), dummy_in=given)) == ["x"]
    with pytest.raises(TraceError, match=r"MLP.forward takes 1 inputs, got 2"):
        MaseGraph(zoo.MLP(), dummy_in=(x, x))


def test_an_input_that_cannot_be_made_is_named():
    model = zoo.case("T5").model
    message = (
        r"input 'encoder_outputs' of T5For.* cannot be made from its config. Give it: dummy_in"
    )
    with pytest.raises(TraceError, match=message):
        MaseGraph(model, hf_input_names=["input_ids", "encoder_outputs"])


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_model_that_keeps_past_keys_is_traced_without_them(name):
    case = zoo.ZOO[name]()
    case.model.config.use_cache = True
    graph = MaseGraph(case.model, case.hf_input_names, case.inputs)
    assert case.model.config.use_cache
    with torch.no_grad():
        ours, theirs = graph.model(**case.inputs), case.model(**case.inputs)
    assert torch.equal(ours.logits, theirs.logits)
    assert "past_key_values" in theirs
    assert "past_key_values" not in ours


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_graph_traced_without_gradients_still_has_them(mode):
    model = zoo.MLP()
    with mode():
        graph = MaseGraph(model, dummy_in=torch.randn(2, 16))
    graph.model(torch.randn(2, 16)).sum().backward()
    assert model.fc1.weight.grad is not None


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.fc(x)
        return x


class ReadsNumber(Branches):
    def forward(self, x):
        total = x.sum().item()
        return self.fc(x) if total > 0 else x


@pytest.mark.parametrize(
    ("cls", "line"), [(Branches, "if x.sum() > 0:"), (ReadsNumber, "if total > 0")]
)
def test_value_dependent_control_flow_names_file_line_and_remedy(cls, line):
    with pytest.raises(TraceError) as caught:
        MaseGraph(cls(), dummy_in=torch.ones(2, 4))
    message = str(caught.value)
    assert "test_tracer.py:" in message
    assert line in message
    assert "value-dependent control flow" in message
    assert "specialize=True" in message


@pytest.mark.parametrize("cls", [Branches, ReadsNumber])
def test_specialize_keeps_the_branch_taken(cls):
    graph = MaseGraph(cls(), dummy_in=torch.ones(2, 4), specialize=True)
    assert "fc" in [n.target for n in graph.nodes]


class ScalesByNumber(nn.Module):
    def forward(self, x):
        return x * x.max().item()


def test_a_number_read_from_a_tensor_stays_live_in_the_graph():
    graph = MaseGraph(ScalesByNumber(), dummy_in=torch.ones(2, 4))
    x = torch.full((3, 4), 5.0)
    assert torch.equal(graph.model(x), x * 5)


def test_without_inputs_a_plain_module_is_traced_symbolically():
    graph = MaseGraph(zoo.MLP())
    targets = [getattr(n.target, "__name__", n.target) for n in graph.nodes]
    assert targets == ["x", "flatten", "fc1", "relu", "fc2", "output"]
    with pytest.raises(TraceError, match=r"Branches cannot be traced without inputs .*dummy_in"):
        MaseGraph(Branches())


@pytest.mark.parametrize("dummy_in", [None, torch.randn(2, 16)])
def test_functional_dropout_becomes_a_module_that_follows_the_mode(dummy_in):
    graph = MaseGraph(zoo.FunctionalDropout(), dummy_in=dummy_in)
    rates = [m.p for m in graph.modules.values() if isinstance(m, nn.Dropout)]
    assert rates == [0.3, 0.2]


class AlwaysDrops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


def test_dropout_that_is_always_on_stays_on():
    graph = MaseGraph(AlwaysDrops(), dummy_in=torch.ones(4, 64))
    graph.model.eval()
    assert (graph.model(torch.ones(4, 64)) == 0).any()


def test_a_rate_that_depends_on_the_mode_becomes_a_mode_constant():
    graph = traced("BERT classification, sdpa")
    constants = [m for m in graph.modules.values() if isinstance(m, ModeConstant)]
    assert [(m.train_value, m.eval_value) for m in constants] == [(0.1, 0.0)] * 2


class Operators(nn.Module):
    def forward(self, x):
        y = (x**2) + (2**x) + (1 - x) + (3 / x) + (x // 2) + (x % 3) + abs(x) - (-x) + (7 % x)
        return torch.where((x > 1) & ~(x < 0), y, x @ x.T)


def test_operators_on_either_side_are_recorded():
    x = torch.rand(3, 3) + 1
    graph = MaseGraph(Operators(), dummy_in=x)
    assert torch.equal(graph.model(x + 1), Operators()(x + 1))


class SizeArithmetic(nn.Module):
    def forward(self, x):
        half = int(x.shape[1] / 2)
        return (
            x[:, : max(half, 1)].sum() * min(len(x), x.size(1))
            + -(-x.shape[1] // 4)
            + round(half / 3)
        )


def test_python_arithmetic_on_sizes_stays_open():
    graph = MaseGraph(SizeArithmetic(), dummy_in=torch.ones(2, 6))
    for shape in ((2, 6), (9, 3), (1, 1), (4, 16)):
        assert torch.equal(graph.model(torch.ones(shape)), SizeArithmetic()(torch.ones(shape)))


def test_pythons_int_is_a_dtype():
    model = helper_for_sizes.PythonTypeAsDtype()
    graph, x = MaseGraph(model, dummy_in=torch.ones(2, 6)), torch.ones(3, 6)
    assert torch.equal(graph.model(x), model(x))
    with pytest.raises(SizeError, match=r"x.size\(1\) == 6"):
        graph.model(torch.ones(3, 5))


class SplitsWithoutGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        with torch.no_grad():
            best, _ = y.max(dim=-1, keepdim=True)
        return y * best


def test_no_grad_of_an_operation_with_two_results_is_kept():
    model = SplitsWithoutGradient()
    graph = MaseGraph(model, dummy_in=torch.randn(2, 4))
    x = torch.randn(3, 4)
    ours, theirs = (
        torch.autograd.grad(m(x).sum(), model.fc.weight)[0] for m in (graph.model, model)
    )
    assert torch.equal(ours, theirs)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class UsesAutogradFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return Doubling.apply(self.fc(x))


def test_a_custom_autograd_function_is_one_node_with_its_gradient():
    model = UsesAutogradFunction()
    graph = MaseGraph(model, dummy_in=torch.randn(2, 4))
    assert len(graph.nodes) == 4
    graph.model(torch.ones(1, 4)).sum().backward()
    assert torch.equal(model.fc.bias.grad, torch.full((4,), 3.0))


def test_a_custom_autograd_function_is_itself_in_the_graph(tmp_path):
    model = UsesAutogradFunction()
    graph = MaseGraph(model, dummy_in=torch.randn(2, 4))
    target = next(n.target for n in graph.nodes if n.op == "call_function")
    assert target.cls is Doubling
    twin, x = copy.deepcopy(graph), torch.randn(3, 4)
    graph.export(tmp_path / "graph")
    with pytest.raises(CheckpointError, match=r"Doubling.apply' is not an operation"):
        MaseGraph.from_checkpoint(tmp_path / "graph")
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph", classes=[Doubling])
    for each in (graph, twin, loaded):
        assert torch.equal(each.model(x), model(x))
        each.model(x).sum().backward()
        assert torch.equal(each.model.fc.bias.grad, torch.full((4,), 9.0))
        each.model.fc.bias.grad = None
    assert len(graph.nodes) == len(twin.nodes) == len(loaded.nodes) == 4


def test_an_autograd_function_that_cannot_be_found_again_is_not_saved(tmp_path):
    class Tripling(Doubling):
        pass

    class Local(nn.Module):
        def forward(self, x):
            return Tripling.apply(x)

    graph = MaseGraph(Local(), dummy_in=torch.randn(2, 4))
    with pytest.raises(CheckpointError, match=r"Tripling' of .* defined inside a function"):
        graph.export(tmp_path / "graph")


class StopsGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            scale = self.a.weight.abs().mean()
        return self.b(x) * scale


def test_no_grad_inside_forward_is_kept():
    model = StopsGradient()
    MaseGraph(model, dummy_in=torch.randn(2, 4)).model(torch.ones(1, 4)).sum().backward()
    assert model.a.weight.grad is None
    assert model.b.weight.grad is not None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).relu()


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x):
        return self.two(self.one(x))


@pytest.mark.parametrize(
    ("options", "leaves"),
    [
        ({}, ["one.fc", "two.fc"]),
        ({"leaf_modules": ["one"]}, ["one", "two.fc"]),
        ({"leaf_modules": [Block]}, ["one", "two"]),
        ({"custom_ops": {"modules": {Block: {"mase_op": "block"}}}}, ["one", "two"]),
    ],
)
def test_the_user_says_what_is_a_leaf(options, leaves):
    graph = MaseGraph(Blocks(), dummy_in=torch.randn(2, 4), **options)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == leaves


def test_mase_leaf_on_a_class_makes_it_a_leaf(monkeypatch):
    monkeypatch.setattr(Block, "mase_leaf", True, raising=False)
    graph = MaseGraph(Blocks(), dummy_in=torch.randn(2, 4))
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["one", "two"]


class NestedInput(nn.Module):
    def forward(self, pair, options):
        return pair[0] + pair[1]["x"] * options["scale"]


def test_nested_inputs_are_taken_apart():
    inputs = {
        "pair": (torch.ones(2), {"x": torch.ones(2)}),
        "options": {"scale": torch.tensor(3.0)},
    }
    graph = MaseGraph(NestedInput(), dummy_in=inputs)
    assert torch.equal(graph.model(**inputs), torch.full((2,), 4.0))


@pytest.mark.slow
def test_tracing_and_annotating_bert_prints_nothing():
    program = (
        "import transformers, chop.passes as passes; from chop import MaseGraph\n"
        "transformers.logging.set_verbosity_error()\n"
        "sizes = {'hidden_size': 32, 'intermediate_size': 64, 'vocab_size': 99}\n"
        "config = transformers.BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes)\n"
        "graph = MaseGraph(transformers.BertForSequenceClassification(config))\n"
        "graph, _ = passes.init_metadata_analysis_pass(graph)\n"
        "graph, _ = passes.add_common_metadata_analysis_pass(graph)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


class DoublesInTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        return y * 2 + x.sum() if self.training else y


def test_a_branch_on_training_that_the_graph_cannot_hold_is_told(caplog):
    graph = MaseGraph(DoublesInTraining(), dummy_in=torch.ones(2, 4))
    assert "DoublesInTraining: its code goes another way in training" in caplog.text
    model = graph.original
    assert torch.equal(graph.model.eval()(torch.ones(1, 4)), model.eval()(torch.ones(1, 4)))


@pytest.mark.slow
def test_loops_are_compiled_after_a_capture():
    """In a process of its own: torch's compiler is first imported within a capture."""
    program = """
import torch
from chop import MaseGraph

MaseGraph(torch.nn.Linear(2, 2), dummy_in={"input": torch.ones(1, 2)})

@torch.compile(backend="eager", fullgraph=True)
def count(x):
    for i in range(3):
        x = x + i
    return x

assert count(torch.zeros(1)).item() == 3
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
