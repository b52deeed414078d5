import pytest
import torch
from hardware_models import DigitsCnn, DigitsMlp, fixed_graph

from chop.errors import HardwareError
from chop.hw.flow.explore import for_budget, for_target
from chop.hw.lower import Parallelism, lower


@pytest.fixture(scope="module")
def mlp():
    return fixed_graph(DigitsMlp(), torch.randn(1, 1, 8, 8))


@pytest.fixture(scope="module")
def cnn():
    return fixed_graph(DigitsCnn(4), torch.randn(1, 1, 8, 8))


@pytest.mark.parametrize("target", [16, 100, 128, pytest.param(2048, marks=pytest.mark.slow)])
def test_a_target_is_met(mlp, target):
    choice = for_target(mlp, target)
    assert choice.cycles <= target
    assert lower(mlp, Parallelism(1, choice.lanes)).design.cycles() == choice.cycles


def test_a_target_is_met_by_pooling_too(cnn):
    choice = for_target(cnn, 600)
    assert lower(cnn, Parallelism(1, choice.lanes), depths={}).design.cycles() <= 600


def test_a_slower_target_never_costs_more(mlp):
    prices = [for_target(mlp, t).multipliers for t in (32, 64, 128, 512, 2048)]
    assert prices == sorted(prices, reverse=True)


@pytest.mark.parametrize("budget", [2, 10, 24, 100])
def test_a_budget_is_kept_and_used(mlp, budget):
    choice = for_budget(mlp, budget)
    assert choice.multipliers <= budget
    assert for_target(mlp, choice.cycles - 1).multipliers > budget


def test_a_target_nothing_reaches_is_refused(mlp):
    with pytest.raises(HardwareError, match=r"fully parallel it takes 1|cannot enter in 0 cycles"):
        for_target(mlp, 0)


def test_a_budget_below_one_lane_each_is_refused(mlp):
    with pytest.raises(HardwareError, match=r"1 multipliers are not enough; .* needs 2"):
        for_budget(mlp, 1)
