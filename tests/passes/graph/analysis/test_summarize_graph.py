import pytest
import torch
from passes.graphs import BERT, CNN, annotated, graph_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from zoo import case

import chop.passes as passes


def summary(model, dummy_in):
    _, info = passes.summarize_graph_analysis_pass(graph_of(model, dummy_in))
    return {row["node"]: row for row in info["table"]}, info["total"]


def test_a_linear_layer_by_hand():
    rows, total = summary(nn.Sequential(nn.Linear(4, 8)), torch.randn(3, 4))
    row = rows["_0"]
    assert row["parameters"] == 4 * 8 + 8
    assert row["macs"] == 3 * 4 * 8
    assert row["flops"] == 2 * 3 * 4 * 8
    assert row["bytes_moved"] == 4 * (3 * 4 + 4 * 8 + 8 + 3 * 8)
    assert total["activation_peak"] == 4 * (3 * 4 + 3 * 8)


def test_a_grouped_convolution_by_hand():
    rows, _ = summary(nn.Sequential(nn.Conv2d(4, 8, 3, groups=2)), torch.randn(2, 4, 6, 6))
    outputs = 2 * 8 * 4 * 4
    assert rows["_0"]["macs"] == outputs * (4 // 2) * 3 * 3
    assert rows["_0"]["parameters"] == 8 * 2 * 3 * 3 + 8


class Attention(nn.Module):
    def forward(self, q, k):
        return torch.matmul(q, k.transpose(-1, -2)).softmax(-1)


def test_an_attention_product_by_hand():
    shapes = {"q": torch.randn(2, 4, 5, 8), "k": torch.randn(2, 4, 7, 8)}
    rows, total = summary(Attention(), shapes)
    assert rows["matmul"]["macs"] == 2 * 4 * 5 * 7 * 8
    assert rows["transpose"]["bytes_moved"] == 0
    assert rows["softmax"]["flops"] == 5 * (2 * 4 * 5 * 7)
    assert total["macs"] == rows["matmul"]["macs"]


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_by_hand(batch_first):
    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    class Self(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            return self.attention(x, x, x)[0]

    batch, length = 3, 5
    x = torch.randn((batch, length, 8) if batch_first else (length, batch, 8))
    _, total = summary(Self(), x)
    projections, products = 4 * batch * length * 8 * 8, 2 * batch * length * length * 8
    assert total["macs"] == projections + products


@pytest.mark.parametrize("name", [CNN, BERT, "residual net"])
def test_macs_are_half_the_flops_that_torch_counts(name):
    given = case(name)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        given.model(**given.inputs)
    _, info = passes.summarize_graph_analysis_pass(annotated(name))
    assert 2 * info["total"]["macs"] == counter.get_total_flops()


class Diamond(nn.Module):
    """Peak while `c` runs: x has gone, a and b are needed, c is being made."""

    def forward(self, x):
        a = x + 1
        b = a.view(-1) * 2
        c = b + a.view(-1)
        return c.sum()


def test_the_activation_peak_follows_lifetimes_and_views():
    rows, total = summary(Diamond(), torch.randn(10, 10))
    live = {name: row["live_bytes"] for name, row in rows.items()}
    assert live["x"] == 400
    assert live["add"] == 800
    assert live["view"] == 400
    assert live["mul"] == 800
    assert live["add_1"] == 1200
    assert total["activation_peak"] == 1200


def test_a_copy_by_reshape_of_a_transpose_takes_memory():
    class Copy(nn.Module):
        def forward(self, x):
            return x.transpose(0, 1).reshape(-1)

    rows, total = summary(Copy(), torch.randn(4, 5))
    assert rows["transpose"]["live_bytes"] == 80
    assert rows["reshape"]["bytes_moved"] == 160
    assert total["activation_peak"] == 160


def test_an_embedding_reads_the_rows_it_gives():
    rows, _ = summary(nn.Sequential(nn.Embedding(1000, 8)), torch.randint(0, 9, (2, 3)))
    assert rows["_0"]["bytes_moved"] == 8 * 6 + 2 * (4 * 6 * 8)


def test_shared_parameters_count_once_in_the_total():
    model = case("shared modules").model
    _, info = passes.summarize_graph_analysis_pass(annotated("shared modules"))
    assert info["total"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert sum(row["parameters"] for row in info["table"]) > info["total"]["parameters"]


def test_the_table_is_shown_written_and_kept_on_the_nodes(tmp_path, capsys):
    graph = annotated("MLP")
    file = tmp_path / "cost.txt"
    _, info = passes.summarize_graph_analysis_pass(graph, {"file_name": file})
    assert file.read_text() == capsys.readouterr().out
    costs = [node.meta["mase"].software.cost["macs"] for node in graph.nodes]
    assert sum(costs) == info["total"]["macs"]


def test_einsum_counts_every_combination_of_its_letters():
    class Einsum(nn.Module):
        def forward(self, x, y):
            return torch.einsum("bij,bjk->bik", x, y)

    inputs = {"x": torch.randn(2, 3, 4), "y": torch.randn(2, 4, 5)}
    assert summary(Einsum(), inputs)[1]["macs"] == 2 * 3 * 4 * 5
