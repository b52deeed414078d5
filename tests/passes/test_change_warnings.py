"""A request that changes little of a model is told so, with counts."""

import logging

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.passes import (
    insert_lora_adapter_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.passes.module import quantize_module_transform_pass

BITS = {"width": 8, "frac_width": 4}
WIDTHS = {f"{o}_{k}": v for o in ("data_in", "weight", "bias") for k, v in BITS.items()}
INTEGER = {"config": {"name": "integer", **WIDTHS}}
SMALL, LARGE = "1", "0"
"""Names of layers of 101 and of 2,100 parameters."""


def model():
    return nn.Sequential(nn.Linear(20, 20 * 5), nn.Linear(100, 1), nn.ReLU())


def graph():
    return MaseGraph(model(), dummy_in=torch.ones(1, 20))


REQUESTS = {
    "quantize": lambda name: quantize_transform_pass(graph(), {"by": "name", name: INTEGER}),
    "quantize_module": lambda name: quantize_module_transform_pass(
        model(), {"by": "name", name: INTEGER}
    ),
    "prune": lambda name: prune_transform_pass(
        graph(), {"weight": {"sparsity": 0.5, "target_modules": (name,)}}
    ),
    "insert_lora_adapter": lambda name: insert_lora_adapter_transform_pass(
        graph(), {"rank": 1, "target_modules": (name,)}
    ),
}


@pytest.fixture
def heard(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("chop"), "propagate", True)
    return caplog


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_layer_with_few_parameters_is_little(request_name, heard):
    REQUESTS[request_name](SMALL)
    (told,) = heard.messages
    where = request_name.removesuffix("_module")
    assert told.startswith(f"{where}: 1 layer was ")
    assert told.endswith("with 101 of 2,201 parameters (4.6 %); the rest is as it was.")


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_layer_with_most_parameters_is_not(request_name, heard):
    REQUESTS[request_name](LARGE)
    assert not heard.messages


def test_layers_without_parameters_are_not_about_weights(heard):
    config = {"config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}}
    quantize_transform_pass(graph(), {"by": "type", "relu": config})
    assert not heard.messages
