import copy
import gc
import pickle
import weakref

import helper_for_sizes
import pytest
import torch
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import CheckpointError, GraphError, SizeError, TraceError
from chop.ir.guards import Guards, guards_of, text


def conditions(graph):
    """The guards as text, without those on the number of dimensions."""
    return [
        text(g.condition) for g in guards_of(graph.model).guards if "dim()" not in text(g.condition)
    ]


class Sizes(nn.Module):
    """Calls `body(x)` on what a linear layer gives, so that sizes are those of a result."""

    def __init__(self, body):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.body = body

    def forward(self, x):
        return self.body(self.fc(x))


def branch(x):
    return x * 2 if x.shape[1] > 6 else x


def truth(x):
    return x + 1 if x.shape[1] - 8 else x


def loop(x):
    for t in range(x.shape[1]):
        x = x + x[:, t : t + 1]
    return x


def loop_in_steps(x):
    parts = [x[:, i : i + 4].sum(1) for i in range(0, x.size(1), 4)]
    return torch.stack(parts, 1)


def loop_elsewhere(x):
    return helper_for_sizes.running_sum(x)


def rows(x):
    return sum(row.relu() for row in x.transpose(0, 1))


def parts(x):
    return sum(part.sum(1) for part in x.split(3, dim=1))


def chunks(x):
    return sum(part.sum(1) for part in torch.chunk(x, 4, dim=1))


def repeated(x):
    return x * len([0] * x.shape[1])


def keyed(x):
    return x * {8: 2, 9: 3, 12: 5}.get(x.shape[1], 7)


def named(x):
    return x * len(f"{x.shape[1] * 10}")


def converted(x):
    return x * helper_for_sizes.as_plain_float(x.shape[1])


def bits(x):
    return x * (x.shape[1] & 3)


def chosen(x):
    return x[:, : sorted([x.shape[1], 5])[0]]


def flag(x):
    return torch.cumsum(x, 1, dtype=torch.float64 if x.size(1) >= 8 else None)


def padded(x):
    x = torch.nn.functional.pad(x, (0, 0, 1, 2))
    return x * 2 if x.shape[1] > 9 else x


def folded(x):
    x = torch.nn.functional.unfold(x[:, None], (3, 1), stride=2)
    return x * 2 if x.shape[-1] > 9 else x


DECIDING = (
    *(padded, folded),
    *(branch, truth, loop, loop_in_steps, loop_elsewhere, rows, parts, chunks),
    *(repeated, keyed, named, converted, bits, chosen, flag),
)


@pytest.mark.parametrize("body", DECIDING, ids=lambda body: body.__name__)
def test_at_another_size_the_graph_is_the_model_or_refuses(body):
    model = Sizes(body)
    graph = MaseGraph(model, dummy_in=torch.randn(2, 8, 4))
    refused = 0
    for length in (3, 4, 5, 6, 7, 8, 9, 12, 13):
        x = torch.randn(2, length, 4)
        try:
            assert torch.equal(graph.model(x), model(x))
        except SizeError:
            refused += 1
            assert length != 8
    assert refused > 0


def test_the_error_says_where_what_was_given_and_what_is_allowed():
    graph = MaseGraph(Sizes(branch), dummy_in=torch.randn(2, 8, 4))
    with pytest.raises(SizeError) as caught:
        graph.model(torch.randn(2, 5, 4))
    message = str(caught.value)
    assert isinstance(caught.value, GraphError)
    for part in (
        "Sizes was captured with x.size(1) = 8 and is given x.size(1) = 5",
        "test_guards.py:",
        "return x * 2 if x.shape[1] > 6 else x",
        "Allowed: x.size(1) >= 7",
        "recapture=True",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (branch, ["x.size(1) >= 7"]),
        (loop, ["x.size(1) == 8"]),
        (loop_in_steps, ["x.size(1) <= 8", "x.size(1) >= 5"]),
        (rows, ["x.size(1) == 8"]),
        (parts, ["x.size(1) <= 9", "x.size(1) >= 7"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_guard_is_the_condition_itself(body, expected):
    assert conditions(MaseGraph(Sizes(body), dummy_in=torch.randn(2, 8, 4))) == expected


def no_decision(x):
    if x.shape[0] == x.shape[0] and x.shape[2] == 4 and x.size(1) >= 0:
        x = x.view(x.shape[0] * x.shape[1], -1).view(x.shape)
    a, b = x.chunk(2, dim=-1)
    return a * b


def test_what_always_holds_needs_no_guard():
    graph = MaseGraph(Sizes(no_decision), dummy_in=torch.randn(2, 8, 4))
    assert conditions(graph) == []
    assert graph.open_sizes() == {"x": ["free", "free", "free"]}


def several(x):
    if x.shape[1] > 3 and x.shape[1] > 6 and 2 * x.shape[1] > 8 and x.shape[1] != 0:
        x = x + 1
    return x[:, :1] if x.shape[0] > 64 else x


def test_guards_that_others_imply_are_left_out():
    graph = MaseGraph(Sizes(several), dummy_in=torch.randn(2, 8, 4))
    assert conditions(graph) == ["x.size(1) >= 7", "x.size(0) <= 64"]
    assert graph.open_sizes() == {"x": ["x.size(0) <= 64", "x.size(1) >= 7", "free"]}


def test_pinned_sizes_are_said_to_be():
    graph = MaseGraph(Sizes(loop), dummy_in=torch.randn(2, 8, 4))
    assert graph.open_sizes() == {"x": ["free", "pinned", "free"]}


class TwoInputs(nn.Module):
    def forward(self, x, pair):
        longer = torch.cat([x, pair[1]["y"]], dim=1)
        return longer * 2 if longer.shape[1] > 9 else longer


def test_sizes_are_followed_through_nested_inputs():
    inputs = {"x": torch.randn(2, 8), "pair": (torch.ones(1), {"y": torch.randn(2, 5)})}
    graph = MaseGraph(TwoInputs(), dummy_in=inputs)
    assert conditions(graph) == ["(pair[1]['y'].size(1) + x.size(1)) > 9"]
    with pytest.raises(SizeError, match=r"pair\[1\]\['y'\].size\(1\) = 1"):
        graph.model(x=inputs["x"], pair=(torch.ones(1), {"y": torch.randn(2, 1)}))


class AsksRank(nn.Module):
    def forward(self, x):
        return x.sum(1) if x.ndim == 3 else x


def test_a_decision_on_the_number_of_dimensions_is_guarded():
    graph = MaseGraph(AsksRank(), dummy_in=torch.randn(2, 3, 4))
    assert graph.model(torch.randn(5, 6, 7)).shape == (5, 7)
    with pytest.raises(SizeError, match=r"x.dim\(\) = 3 and is given x.dim\(\) = 2"):
        graph.model(torch.randn(2, 3))


class DecidesInTraining(nn.Module):
    def forward(self, x):
        if self.training and x.shape[1] > 6:
            x = nn.functional.dropout(x, 0.5)
        return x * 2


def test_decisions_of_either_mode_are_guarded():
    graph = MaseGraph(DecidesInTraining(), dummy_in=torch.randn(2, 8))
    assert conditions(graph) == ["x.size(1) >= 7"]


class DecidesByData(nn.Module):
    def forward(self, x):
        count = int(x.sum().item())
        return [x for _ in range(count)]


def test_a_loop_over_a_number_read_from_a_tensor_is_an_error():
    with pytest.raises(TraceError, match=r"value-dependent control flow"):
        MaseGraph(DecidesByData(), dummy_in=torch.ones(3))


# -- guards live as long as the graph ----------------------------------------------------------


def guarded():
    return MaseGraph(Sizes(branch), dummy_in=torch.randn(2, 8, 4))


def reloaded(graph, tmp_path):
    graph.export(tmp_path / "graph")
    return MaseGraph.from_checkpoint(tmp_path / "graph")


def annotated(graph, tmp_path):
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph)
    return graph


def quantized(graph, tmp_path):
    config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4}
    config |= {"data_in_width": 8, "data_in_frac_width": 4}
    config |= {"bias_width": 8, "bias_frac_width": 4}
    graph = annotated(graph, tmp_path)
    args = {"by": "type", "default": {"config": {"name": None}}, "linear": {"config": config}}
    return passes.quantize_transform_pass(graph, args)[0]


def pickled(graph, tmp_path):
    return MaseGraph(pickle.loads(pickle.dumps(graph.model)))


LIVES = {
    "as it is": lambda graph, tmp_path: graph,
    "copied": lambda graph, tmp_path: copy.deepcopy(graph),
    "reloaded": reloaded,
    "annotated": annotated,
    "quantised": quantized,
    "pickled": pickled,
    "copied and reloaded": lambda graph, tmp_path: reloaded(copy.deepcopy(graph), tmp_path),
}


@pytest.mark.parametrize("life", LIVES)
def test_guards_live_as_long_as_the_graph(life, tmp_path):
    graph = guarded() if life != "pickled" else MaseGraph(PickledSizes(), dummy_in=torch.ones(2, 8))
    shape = (4,) if life != "pickled" else ()
    graph = LIVES[life](graph, tmp_path)
    graph.model(torch.randn(3, 7, *shape))
    with pytest.raises(SizeError, match=r"x.size\(1\) >= 7"):
        graph.model(torch.randn(3, 5, *shape))


class PickledSizes(nn.Module):
    def forward(self, x):
        return x.relu() if x.shape[1] > 6 else x


def test_guards_on_disk_are_plain_data_of_known_operations():
    guards = guards_of(guarded().model)
    assert Guards.from_data(guards.to_data()) == guards
    for bad in (["os.system", 1, 2], [">", ["exec", 1], 2], [">", "x", 2]):
        with pytest.raises(CheckpointError, match=r"guard: "):
            Guards.from_data({"guards": [[bad, "here"]], "captured": []})


def test_a_part_of_a_graph_keeps_what_its_sizes_decide():
    graph, _ = passes.extract_subgraph_transform_pass(
        guarded(), {"inputs": ["fc"], "outputs": ["mul"]}
    )
    graph.model(torch.randn(2, 8, 4))
    with pytest.raises(SizeError, match=r"fc.size\(1\) == 8"):
        graph.model(torch.randn(2, 5, 4))


def test_sizes_are_checked_once(monkeypatch):
    graph = guarded()
    graph.model(torch.randn(2, 8, 4))
    monkeypatch.setattr(Guards, "_first_broken", None)
    graph.model(torch.randn(2, 8, 4))


@pytest.mark.slow
def test_guards_hold_in_a_compiled_and_in_an_exported_model():
    graph, x = guarded(), torch.randn(2, 8, 4)
    compiled = torch.compile(graph.model, backend="eager", dynamic=True)
    assert torch.equal(compiled(x), graph.model(x))
    assert torch.equal(compiled(x[:, :7]), graph.model(x[:, :7]))
    with pytest.raises(SizeError):
        compiled(x[:, :5])
    length = torch.export.Dim("length", min=7, max=64)
    exported = torch.export.export(graph.model, (x,), dynamic_shapes=({1: length},))
    assert torch.equal(exported.module()(x[:, :7]), graph.model(x[:, :7]))


# -- capturing again ---------------------------------------------------------------------------


def test_a_graph_is_captured_again_where_that_is_asked_for():
    model = Sizes(loop)
    graph = MaseGraph(model, dummy_in=torch.randn(2, 8, 4), recapture=True)
    counts = []
    for length in (8, 5, 9, 8, 5):
        x = torch.randn(2, length, 4)
        assert torch.equal(graph.model(x), model(x))
        counts.append(len(graph.nodes))
    assert counts[0] == counts[3] != counts[1] == counts[4]
    assert len(graph.model.recapture.graphs) == 3


@pytest.mark.parametrize("life", ["annotated", "quantised", "copied", "reloaded"])
def test_a_graph_that_is_more_than_the_model_is_not_captured_again(life, tmp_path):
    graph = MaseGraph(Sizes(branch), dummy_in=torch.randn(2, 8, 4), recapture=True)
    graph = LIVES[life](graph, tmp_path)
    with pytest.raises(SizeError):
        graph.model(torch.randn(2, 5, 4))


def test_capturing_again_follows_the_mode():
    model = DecidesInTraining()
    graph = MaseGraph(model, dummy_in=torch.ones(2, 8), recapture=True)
    graph.model.train()
    model.train()
    for length in (8, 5, 9):
        x = torch.ones(2, length)
        torch.manual_seed(0)
        expected = model(x)
        torch.manual_seed(0)
        assert torch.equal(graph.model(x), expected)


# -- the original ------------------------------------------------------------------------------


def test_the_graph_keeps_the_model_until_its_parameters_are_replaced():
    graph = guarded()
    kept = weakref.ref(graph.original)
    graph.recompile()
    gc.collect()
    assert graph.original is kept() is not None
    graph.model.fc = nn.Linear(4, 4)
    graph.recompile()
    gc.collect()
    assert graph.original is kept() is None


def test_a_graph_whose_parameters_were_replaced_is_pickled_without_the_model():
    graph = MaseGraph(nn.Sequential(nn.Linear(4, 4)), dummy_in=torch.randn(2, 4))
    setattr(graph.model, "0", nn.Linear(4, 4))
    graph.recompile()
    assert pickle.loads(pickle.dumps(graph)).original is None


def test_a_model_that_somebody_else_keeps_stays_the_original():
    model = Sizes(branch)
    graph = MaseGraph(model, dummy_in=torch.randn(2, 8, 4))
    graph.model.fc = nn.Linear(4, 4)
    graph.recompile()
    assert graph.original is model
