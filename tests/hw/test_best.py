"""The best design for a part, against all designs there are."""

import pytest
import torch
from hardware_models import fixed_graph
from torch import nn

from chop.errors import ConfigError, HardwareError
from chop.hw.explore import Wish, best, best_of
from chop.hw.explore.best import Search, all_states, rank
from chop.hw.lower import lower
from chop.hw.predict import predict
from chop.hw.route.parts import get_part
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass

WISHES = (
    Wish("fps"),
    Wish("lut", least_fps=12e6),
    Wish("energy", least_fps=1e6),
    Wish("fps", multipliers=("array",)),
)


def two_layers():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def three_layers():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def found_by_trying_all(graph, part, wish):
    search = Search(graph, get_part(part), wish, share_layers=False)
    made = [search.choice(state) for state in all_states(search.options)]
    return min((c for c in made if c), key=lambda c: rank(c, get_part(part), wish))


@pytest.mark.parametrize("wish", WISHES[:2], ids=lambda w: w.goal)
def test_it_is_the_best_of_all_with_two_layers(wish):
    graph = fixed_graph(two_layers(), torch.randn(1, 4))
    choice = best(graph, "ecp5-25k", wish)
    every = found_by_trying_all(graph, "ecp5-25k", wish)
    part = get_part("ecp5-25k")
    assert rank(choice, part, wish) == rank(every, part, wish)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["ecp5-25k", "ecp5-12k"])
@pytest.mark.parametrize("wish", WISHES, ids=lambda w: f"{w.goal}-{len(w.multipliers)}")
def test_it_is_the_best_of_all_with_three_layers(wish, part):
    graph = fixed_graph(three_layers(), torch.randn(1, 4))
    choice = best(graph, part, wish)
    every = found_by_trying_all(graph, part, wish)
    assert rank(choice, get_part(part), wish) == rank(every, get_part(part), wish)


def test_what_is_chosen_can_be_lowered_and_is_as_predicted():
    graph = fixed_graph(two_layers(), torch.randn(1, 4))
    choice = best(graph, "ecp5-25k", Wish("lut", least_fps=1e6))
    lowered = lower(graph, choice.parallelism, depths={})
    assert lowered.design.cycles() == choice.cycles
    assert predict(lowered.design, "ecp5-25k") == choice.predicted
    assert choice.fps >= 1e6
    assert "predicted" in str(choice)


def test_what_no_part_gives_is_refused():
    graph = fixed_graph(two_layers(), torch.randn(1, 4))
    with pytest.raises(HardwareError, match=r"ecp5-25k: the fastest design found is predicted"):
        best(graph, "ecp5-25k", Wish("lut", least_fps=1e9))


def test_word_lengths_that_are_not_accurate_enough_are_left_out():
    graphs = {
        str(width): fixed_graph(two_layers(), torch.randn(1, 4), precision=(width, width // 2))
        for width in (4, 8)
    }
    accuracies = {id(graphs["4"]): 0.6, id(graphs["8"]): 0.9}
    wish = Wish("lut", multipliers=("array",), least_fps=1e6)
    narrow = best_of(graphs, "ecp5-25k", wish)
    wide = best_of(
        graphs, "ecp5-25k", wish, accuracy=lambda g: accuracies[id(g)], least_accuracy=0.8
    )
    assert (narrow.label, wide.label) == ("4", "8")
    with pytest.raises(HardwareError, match=r"no graph of 2 reaches 0\.95"):
        best_of(graphs, "ecp5-25k", wish, accuracy=lambda g: 0.9, least_accuracy=0.95)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"goal": "fp"}, r"unknown goal 'fp'. Did you mean 'fps'"),
        ({"multipliers": ("arry",)}, r"multipliers must be some of array, packed, shift_add"),
        ({"room": 0.0}, r"room must lie above 0"),
    ],
)
def test_wishes_that_nobody_knows_are_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        Wish(**settings)


def test_the_pass_takes_a_part():
    graph = fixed_graph(two_layers(), torch.randn(1, 4))
    wish = Wish("lut", least_fps=1e6)
    settings = {"fit": "ecp5-25k", "goal": "lut", "least_fps": 1e6}
    _, info = add_hardware_metadata_analysis_pass(graph, settings)
    choice = best(graph, "ecp5-25k", wish)
    assert info["cycles"] == choice.cycles
    assert info["predicted"].startswith("predicted: ")
    with pytest.raises(ConfigError, match="exclude each other; set one"):
        add_hardware_metadata_analysis_pass(graph, {**settings, "target_interval": 4})
