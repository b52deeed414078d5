"""The best design for a part, against all designs there are."""

from dataclasses import replace

import pytest
import torch
from covering import first_and_slow
from hardware_models import fixed_graph
from torch import nn

from chop.errors import ConfigError, HardwareError
from chop.hw.flow.explore import Wish, best, best_of
from chop.hw.flow.explore.best import Search, all_states, rank
from chop.hw.flow.predict import predict
from chop.hw.flow.route.parts import get_part
from chop.hw.lower import lower
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.analysis.add_hardware_metadata import (
    AddHardwareMetadataArgs,
    fitted_args,
)

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


@pytest.mark.parametrize("wish", first_and_slow(WISHES[1::-1]), ids=lambda w: w.goal)
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
        (
            {"multipliers": ("arry",)},
            r"multipliers must be some of array, shift_add",
        ),
        ({"room": 0.0}, r"room must lie above 0"),
        ({"least_fps": -3.0}, r"least_fps must be a number from 0 upwards, got -3"),
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


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"fit": "ecp5-58k"}, r"fit: unknown part 'ecp5-58k'. Did you mean 'ecp5-85k'"),
        ({"fit": "ice40-hx8k"}, r"fit: nothing is predicted of 'ice40-hx8k'.* Allowed: ecp5-12k, "),
        (
            {"goal": "lut"},
            r"goal 'lut' and least_fps 0 are for a part. Give it: fit is one of ecp5",
        ),
        ({"least_fps": 9.0}, r"goal 'fps' and least_fps 9 are for a part"),
    ],
)
def test_a_goal_needs_a_part_that_something_is_predicted_of(settings, told):
    with pytest.raises(ConfigError, match=told):
        AddHardwareMetadataArgs(**settings)


def test_what_was_chosen_for_a_part_can_be_said_by_hand():
    graph = fixed_graph(two_layers(), torch.randn(1, 4))
    args = AddHardwareMetadataArgs(fit="ecp5-25k", goal="lut", least_fps=1e6)
    heard = []
    by_hand = fitted_args(graph, args, "ecp5-25k", lambda *told: heard.append(told))
    _, chosen = add_hardware_metadata_analysis_pass(graph, args)
    _, again = add_hardware_metadata_analysis_pass(graph, by_hand)
    assert {k: chosen[k] for k in again} == again
    assert [tried for tried, _, _ in heard] == sorted(tried for tried, _, _ in heard)
    assert all(tried <= most for tried, most, _ in heard) and "LUT" in heard[-1][2]


def test_of_a_large_graph_layers_change_one_after_the_other_within_the_tries():
    graph = fixed_graph(two_layers(), torch.randn(1, 4))
    search = Search(graph, get_part("ecp5-25k"), Wish("fps"), share_layers=False)
    search.most = 20
    start = (("array", 1, 1),) * 2
    found, slowest = search.choice(search._climb(start)), search.choice(start)
    assert found.cycles < slowest.cycles and found.fps > slowest.fps
    assert len(search.tried) <= 20


def test_layers_without_multipliers_are_mixed_in_until_the_part_has_enough():
    graph = fixed_graph(three_layers(), torch.randn(1, 4))
    part = replace(get_part("ecp5-25k"), dsp=8)
    search = Search(graph, part, Wish(), share_layers=False)
    array, other = ([search._cheapest(n, 2, p) for n in search.layers] for p in ("array", "other"))
    mixed = search._mixed(array, other)
    lanes = sum(i * o for how, i, o in mixed if how == "array")
    assert 0 < lanes <= 8 < sum(i * o for _, i, o in array)
