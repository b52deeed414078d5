"""Annotated graphs of the zoo's models, traced once and copied for each test."""

from __future__ import annotations

import copy
import functools

from torch import nn
from zoo import case

import chop.passes as passes
from chop import MaseGraph

CNN, MLP, BERT = "CNN with batch norm", "MLP", "BERT classification"


@functools.cache
def _traced(name: str) -> MaseGraph:
    given = case(name)
    graph = MaseGraph(given.model, given.hf_input_names, given.inputs, **given.options)
    annotate(graph)
    return graph


def annotated(name: str) -> MaseGraph:
    """A graph of the zoo's model `name` of its own, with common and software metadata."""
    return copy.deepcopy(_traced(name))


def annotate(graph: MaseGraph, dummy_in: object = None, *, add_value: bool = False) -> MaseGraph:
    """`graph` with common and software metadata."""
    passes.init_metadata_analysis_pass(graph)
    arguments = {"dummy_in": dummy_in, "add_value": add_value}
    passes.add_common_metadata_analysis_pass(graph, arguments)
    passes.add_software_metadata_analysis_pass(graph)
    return graph


def graph_of(model: nn.Module, dummy_in: object) -> MaseGraph:
    """An annotated graph of `model`, in evaluation mode."""
    return annotate(MaseGraph(model.eval(), dummy_in=dummy_in))


def names(graph: MaseGraph) -> list[str]:
    """The names of a graph's nodes."""
    return [node.name for node in graph.fx_graph.nodes]


def node_of(graph: MaseGraph, name: str):
    """The node called `name`."""
    return next(node for node in graph.fx_graph.nodes if node.name == name)
