"""Sums over layers' inputs: shared by calls that read one value, and by no others."""

import functools
import operator

import pytest
import torch
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import PassError
from chop.passes.prune.calibrated import InputProducts
from chop.passes.ptq.observe.input_sums import InputStatistics
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun, PairedRun
from chop.passes.ptq.observe.row_sums import sums_of

INT4 = {"name": "scale_integer", "weight_width": 4, "data_in_width": "NA", "bias_width": "NA"}
PRUNE = {"weight": {"sparsity": 0.5, "method": "sparsegpt"}}


class Chain(nn.Module):
    """Three layers of one shape; the last two read one value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        hidden = torch.relu(self.a(x))
        return self.b(hidden) + self.c(hidden)


def batches():
    draw = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(20, 6, generator=draw)} for _ in range(3)]


def quantized():
    graph = MaseGraph(Chain(), dummy_in=batches()[0])
    return passes.quantize_transform_pass(graph, {"linear": {"config": INT4}})[0]


def calls(graph):
    modules = dict(graph.model.named_modules())
    nodes = (n for n in graph.fx_graph.nodes if n.op == "call_module")
    return [(n, modules[n.target]) for n in nodes if isinstance(modules[n.target], nn.Linear)]


def test_sums_are_those_of_each_layers_own_input():
    graph = quantized()
    with PairedRun(graph, batches(), "here") as run:
        statistics = InputStatistics(run, before=True)
        a, b, c = (statistics.of(node, layer) for node, layer in calls(graph))
    with LayerwiseRun(graph, batches(), "here") as run:
        products = InputProducts(run, products=True)
        expected = [products.of(node, layer)[0] for node, layer in calls(graph)]
    x = torch.cat([batch["x"] for batch in batches()])
    tolerance = {"rtol": 1e-5, "atol": 1e-4}  # products are in single precision
    torch.testing.assert_close(a.hessian, (x.T @ x).double(), **tolerance)
    for sums, hessian in zip((a, b, c), expected, strict=True):
        torch.testing.assert_close(sums.hessian, hessian, **tolerance)
    assert b is c and b is not a


def test_squares_are_the_diagonal_of_the_products():
    graph = quantized()
    found = []
    for products in (True, False):
        with LayerwiseRun(graph, batches(), "here") as run:
            sums = InputProducts(run, products=products)
            found.append([sums.of(node, layer) for node, layer in calls(graph)])
    for matrix, squares in zip(*found, strict=True):
        torch.testing.assert_close(matrix.diagonal(dim1=1, dim2=2), squares, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("run", "args"), [(passes.gptq_transform_pass, {}), (passes.prune_transform_pass, PRUNE)]
)
def test_data_of_another_width_is_refused(run, args):
    narrow = [{"x": torch.randn(4, 5)}]
    key = "batches" if args else "data"
    with pytest.raises(PassError, match=r"'a' takes 6 values a row, the data brings it 5\. Give"):
        run(quantized(), {**args, key: narrow, **({} if args else {"rows": "equal"})})


class Shared(nn.Module):
    """One layer that is called on five rows and on one, with another layer between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.between, self.head = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        first = torch.relu(self.shared(x))
        second = self.shared(self.between(first[:, :1]))
        return self.head(first).sum(1) + second[:, 0]


def shared_batches():
    draw = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(4, 5, 6, generator=draw)} for _ in range(2)]


def shared_graph():
    graph = MaseGraph(Shared(), dummy_in=shared_batches()[0])
    return passes.quantize_transform_pass(graph, {"linear": {"config": INT4}})[0]


def test_sums_cover_all_calls_of_a_layer_with_their_own_row_counts():
    graph, model = shared_graph(), Shared()
    node, layer = calls(graph)[0]
    with PairedRun(graph, shared_batches(), "here") as run:
        sums = InputStatistics(run, before=True).of(node, layer)
    x = torch.cat([batch["x"] for batch in shared_batches()])
    first = model.between(torch.relu(model.shared(x))[:, 0])
    rows = torch.cat([x.flatten(0, 1), first]).detach()
    assert sums.rows == len(rows) == 48
    torch.testing.assert_close(sums.total_before, rows.sum(0).double(), rtol=1e-4, atol=1e-4)
    with LayerwiseRun(graph, shared_batches(), "here") as run:
        products = InputProducts(run, products=True).of(node, layer)
    torch.testing.assert_close(sums.hessian, products[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", ["by_loss", "equal"])
@pytest.mark.parametrize("target", ["float", "rounded"])
def test_gptq_rounds_a_layer_that_is_called_on_several_row_counts(rows, target):
    graph = shared_graph()
    args = {"data": shared_batches(), "rows": rows, "target": target}
    _, info = passes.gptq_transform_pass(graph, args)
    assert [row["module"] for row in info["layers"]] == ["shared", "between", "head"]


def test_sums_that_reuse_their_matrices_are_the_same():
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(20, 6, generator=generator) for _ in range(6)]

    def parts():
        return [sums_of(a, b) for a, b in zip(rows[:3], rows[3:], strict=True)]

    plain = functools.reduce(operator.add, parts())
    reused = functools.reduce(operator.iadd, parts())
    for name in ("hessian", "drift", "total", "total_before", "rows"):
        for a, b in ((plain, reused), *zip(plain.halves, reused.halves, strict=True)):
            assert torch.equal(torch.as_tensor(getattr(a, name)), torch.as_tensor(getattr(b, name)))
    assert torch.equal(plain.held_back.hessian, reused.held_back.hessian)
