"""A graph that is another model than the one it was captured from is told."""

import random

import pytest
import torch
from torch import nn

from chop import MaseGraph


class AsksWhetherItIsTraced(nn.Module):
    def forward(self, x):
        return x + 1 if type(x) is torch.Tensor else x - 1


class Random(nn.Module):
    def forward(self, x):
        return x + random.random()


class FailsOnValues(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)


class Fails(nn.Module):
    def forward(self, x):
        return x.view(torch.empty(0).numel() + x.numel())


class TakesAnyNumber(nn.Module):
    def forward(self, *inputs):
        return 2 * inputs[0] + inputs[1]


def test_inputs_of_any_number_go_by_position(notices):
    MaseGraph(TakesAnyNumber(), dummy_in=(torch.ones(2), torch.ones(2)))
    assert not notices


def test_another_branch_under_tracing_is_told(notices):
    MaseGraph(AsksWhetherItIsTraced(), dummy_in=torch.ones(2))
    assert any("gives other values than the model" in text for text in notices)


class RoundsOtherwiseWhileTraced(nn.Module):
    def forward(self, x):
        return x * (1 if type(x) is torch.Tensor else 1.03)


@pytest.mark.parametrize(
    ("dtype", "is_told"), [(torch.bfloat16, False), (torch.float16, True), (torch.float32, True)]
)
def test_the_allowed_difference_follows_the_precision(notices, dtype, is_told):
    MaseGraph(RoundsOtherwiseWhileTraced(), dummy_in=torch.ones(2, dtype=dtype))
    assert any("gives other values" in text for text in notices) == is_told


def test_rounding_chance_and_plain_models_are_not(notices):
    dropout = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4)).train()
    before = dropout[2].running_mean.clone()
    graph = MaseGraph(dropout, dummy_in=torch.randn(3, 4))
    MaseGraph(Random(), dummy_in=torch.randn(3))
    MaseGraph(Fails(), dummy_in=torch.randn(3))
    MaseGraph(nn.Linear(3, 2, device="meta"), dummy_in=torch.randn(2, 3, device="meta"))
    assert not any("gives other values" in text for text in notices)
    assert not any("does not run" in text for text in notices)
    assert (
        torch.equal(dropout[2].running_mean, before) and dropout.training and graph.model.training
    )


def test_a_model_that_does_not_run_on_its_inputs_is_told(notices):
    MaseGraph(FailsOnValues(), dummy_in=torch.zeros(2, 2))
    assert any("FailsOnValues itself does not run" in text for text in notices)
