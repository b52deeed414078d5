"""Compiling a graph's model, what is said of it, and taking it back."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from passes.graphs import annotated, graph_of
from torch import nn
from zoo import case

import chop.passes as passes
from chop.errors import PassError
from chop.passes.graph.transforms.compile import CACHE_VARIABLE, uncompile


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, os.environ.get(CACHE_VARIABLE, ""))
    torch._dynamo.reset()


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.nonzero(self.fc(x)).float()


def test_a_graph_break_is_told_by_node_and_reason():
    graph = graph_of(Breaks(), {"x": torch.randn(2, 4)})
    _, info = passes.compile_transform_pass(graph, {"backend": "eager"})
    (found,) = info["breaks"]
    assert found["node"] == "nonzero" and "Dynamic shape" in found["reason"]


@pytest.mark.slow
def test_the_first_call_is_timed_and_the_output_stays():
    graph, given = annotated("BERT classification"), case("BERT classification")
    _, info = passes.compile_transform_pass(graph, {"backend": "eager", "warm_up": True})
    assert info["breaks"] == [] and info["first_call"] > 0
    expected = given.model(**given.inputs).logits
    assert torch.allclose(graph.model(**given.inputs).logits, expected, atol=1e-6)


def test_compiling_is_taken_back_and_is_not_copied():
    graph = annotated("MLP")
    passes.compile_transform_pass(graph, {"backend": "eager", "report_breaks": False})
    assert graph.model._compiled_call_impl is not None
    assert copy.deepcopy(graph).model._compiled_call_impl is None
    uncompile(graph)
    assert graph.model._compiled_call_impl is None


def test_compiled_code_is_kept_where_the_user_says(tmp_path):
    arguments = {"backend": "eager", "report_breaks": False, "cache": str(tmp_path)}
    passes.compile_transform_pass(annotated("MLP"), arguments)
    assert os.environ[CACHE_VARIABLE] == str(tmp_path)


def test_a_first_call_needs_inputs():
    graph = annotated("MLP")
    graph.dummy_in = None
    with pytest.raises(PassError, match="warm_up needs dummy_in"):
        passes.compile_transform_pass(graph, {"backend": "eager", "warm_up": True})


@pytest.mark.slow
def test_a_packed_and_fused_model_compiles_without_breaks():
    graph, given = annotated("BERT classification"), case("BERT classification").inputs
    passes.pack_weights_transform_pass(graph)
    passes.fuse_patterns_transform_pass(graph)
    with torch.no_grad():
        expected = graph.model(**given).logits
        _, info = passes.compile_transform_pass(graph, {"dynamic": True})
        assert info["breaks"] == []
        assert torch.allclose(graph.model(**given).logits, expected, atol=1e-5)
