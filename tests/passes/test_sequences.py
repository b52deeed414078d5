"""Passes one after another, in a sample of all orders; bench/right_passes.py tries every one."""

from __future__ import annotations

import itertools
import logging
import random

import pass_sequences
import pytest
import torch
from covering import first_and_slow
from pass_sequences import COMMUTES, STEPS, State, Step, Verdict, swapped, take, try_one
from sequence_models import MODELS, graph_and_inputs

PER_MODEL = 3
TRIPLES = list(itertools.product(STEPS, repeat=3))
CHOSEN = random.Random(15)
SAMPLE = [
    row
    for name in MODELS
    for row in first_and_slow((name, CHOSEN.choice(TRIPLES)) for _ in range(PER_MODEL))
]
"""One sequence of each model in `make test`, and all of them in `make slow`."""
TIED = "tied language model"
ONCE_WRONG = [
    (TIED, ("prune", "quantise", "pack")),
    (TIED, ("prune", "pack")),
    (TIED, ("LoRA", "fuse LoRA")),
    (TIED, ("pack", "LoRA", "fuse LoRA")),
    ("GPT-2", ("prune", "quantise", "LoRA")),
]


@pytest.fixture(autouse=True)
def quiet():
    """Some requests change nothing, and are told so; here that would only fill the log."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def label(value) -> str:
    return value if isinstance(value, str) else " > ".join(value)


@pytest.mark.share(4)
@pytest.mark.parametrize(("model", "sequence"), [*ONCE_WRONG, *SAMPLE], ids=label)
def test_each_step_does_what_it_says_whatever_was_before(model, sequence):
    verdict = try_one(State(*graph_and_inputs(model)), sequence)
    assert verdict.kind in ("right", "refused"), verdict.reason
    assert verdict.kind == "right" or len(verdict.reason) > 20


@pytest.mark.share(2)
@pytest.mark.parametrize("pair", sorted(map(sorted, COMMUTES)), ids=label)
def test_steps_that_commute_give_the_same_in_either_order(pair):
    outputs = {}
    for order in (tuple(pair), tuple(reversed(pair))):
        state = State(*graph_and_inputs(TIED))
        for length in (1, 2):
            _, after = take(state, order[:length])
            if after is None:
                return  # refused in this order, with a reason
            state = after
        outputs[order] = state.outputs
    assert list(swapped(outputs)) == []


def _shift(graph):
    """A pass that is wrong: it moves a weight."""
    with torch.no_grad():
        graph.model.fc1.weight.add_(0.1)
    return graph, {}


def _crash(graph):
    raise KeyError("fc3")


@pytest.mark.parametrize(
    ("apply", "reason"),
    [(_shift, "weight of 'fc1' is not the one expected"), (_crash, "KeyError: 'fc3'")],
)
def test_a_step_that_is_wrong_is_found(monkeypatch, apply, reason):
    monkeypatch.setitem(STEPS, "deepcopy", Step(apply, pass_sequences.unchanged))
    verdict, _ = take(State(*graph_and_inputs("MLP")), ("deepcopy",))
    assert verdict.kind == "wrong" and reason in verdict.reason


def test_orders_that_should_agree_and_do_not_are_found():
    outputs = {("prune", "quantise"): [torch.ones(2)], ("quantise", "prune"): [torch.zeros(2)]}
    reason = "'prune' and 'quantise' do not commute"
    assert list(swapped(outputs)) == [Verdict(("prune", "quantise"), "wrong", reason)]
