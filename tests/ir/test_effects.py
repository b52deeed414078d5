import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir.ops import find_op
from chop.ir.trace.effects import is_deterministic, is_in_place, is_mutating, written_nodes


def node_for(kind, target, *args, **kwargs):
    graph = fx.Graph()
    x = graph.placeholder("x")
    return graph.create_node(kind, target, (x, *args), kwargs)


@pytest.mark.parametrize(
    ("kind", "target", "args", "kwargs"),
    [
        ("call_method", "add_", (1,), {}),
        ("call_method", "__iadd__", (1,), {}),
        ("call_method", "__setitem__", (0, 1), {}),
        ("call_function", operator.setitem, (0, 1), {}),
        ("call_function", operator.iadd, (1,), {}),
        ("call_function", operator.delitem, (1,), {}),
        ("call_function", setattr, ("a", 1), {}),
        ("call_function", torch.relu_, (), {}),
        ("call_function", F.relu, (), {"inplace": True}),
        ("call_function", F.relu, (True,), {}),
        ("call_function", F.dropout, (0.5, False, True), {}),
    ],
)
def test_writing_is_seen(kind, target, args, kwargs):
    assert is_in_place(node_for(kind, target, *args, **kwargs))


@pytest.mark.parametrize(
    ("kind", "target", "args"),
    [
        ("call_method", "add", (1,)),
        ("call_method", "__and__", (1,)),
        ("call_function", operator.and_, (1,)),
        ("call_function", operator.or_, (1,)),
        ("call_function", operator.getitem, (1,)),
        ("call_function", F.relu, ()),
    ],
)
def test_reading_is_not_writing(kind, target, args):
    assert not is_in_place(node_for(kind, target, *args))


def test_out_is_a_write():
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert is_in_place(graph.call_function(torch.add, (x, x), {"out": x}))


def module_node(module):
    graph = fx.symbolic_trace(nn.Sequential(module)).graph
    return next(n for n in graph.nodes if n.op == "call_module")


def test_an_in_place_module_writes():
    assert is_in_place(module_node(nn.ReLU(inplace=True)))
    assert not is_in_place(module_node(nn.ReLU()))


def test_batch_norm_writes_its_statistics_in_training_alone():
    norm = nn.BatchNorm1d(2)
    node = module_node(norm)
    assert is_mutating(node, find_op(node))
    norm.eval()
    assert not is_mutating(node, find_op(node))


def test_an_unknown_op_may_do_anything():
    node = node_for("call_function", sorted)
    assert find_op(node) is None
    assert is_mutating(node, None)
    assert not is_deterministic(node, None)


@pytest.mark.parametrize("target", [torch.rand_like, F.dropout, F.rrelu, torch.bernoulli])
def test_random_functions_are_not_deterministic(target):
    node = node_for("call_function", target)
    assert not is_deterministic(node, find_op(node))


def test_writes_reach_through_views_both_ways():
    graph = fx.Graph()
    x = graph.placeholder("x")
    base = graph.call_function(torch.add, (x, 1))
    view = graph.call_method("view", (base, -1))
    sibling = graph.call_method("transpose", (base, 0, 1))
    copied = graph.call_function(torch.add, (base, 1))
    write = graph.call_method("mul_", (view, 2))
    written = written_nodes(graph)
    assert {base, view, sibling, write} <= written
    assert copied not in written
    assert x not in written
