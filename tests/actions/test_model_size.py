"""Sizes of models: packed weights count, with all their bytes."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions.model_size import model_size
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    pack_weights_transform_pass,
)


def described(graph: MaseGraph) -> MaseGraph:
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    return graph


@pytest.mark.parametrize("form", ["mxint4", "mxfp4", "mxint8", "int4", "int8"])
def test_a_packed_model_has_its_parameters_and_all_its_bytes(form):
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
    graph = described(MaseGraph(model, dummy_in=torch.randn(2, 64)))
    before = model_size(graph)
    _, info = pack_weights_transform_pass(graph, {"format": form})
    after = model_size(described(graph))
    assert after["parameters"] == before["parameters"]
    assert after["bytes"] == info["after"] < before["bytes"]
    weights = before["parameters"] - 96 - 32
    assert after["weight_bits"] == pytest.approx(8 * (info["after"] - 4 * 128) / weights)


def test_a_weight_that_two_layers_share_counts_once():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[1].weight = model[0].weight
    graph = MaseGraph(model, dummy_in=torch.randn(2, 64))
    _, info = pack_weights_transform_pass(graph, {"format": "mxint4"})
    assert model_size(described(graph))["bytes"] == info["after"]
