"""Speculative decoding gives the tokens of plain greedy decoding, whatever the drafts are."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from generating_models import FAMILIES, PAIRS, graph, made
from kernels.test_native_step import packed

from chop import MaseGraph
from chop.errors import ConfigError
from chop.serve.draft_gates import FIRST_PAUSE, RECENT, PauseGate, TrialGate
from chop.serve.speculation import MOST_DRAFTED, DraftModel, PromptLookup, speculate

WINDOWED = ("Mistral", "Gemma 2", "Gemma 3")
FULL = [name for name in FAMILIES if name not in (*PAIRS, *WINDOWED)]
QUICK = ("Llama", "GPT-2")
NEW = 40


class Open:
    """Gate that admits every draft."""

    def is_waiting(self, tokens):
        return False

    def admits(self, tokens, draft):
        return True

    def learn(self, draft, accepted):
        pass


class Guesses:
    """Drafts that are right, wrong or both, by chance; a right one is read from `answer`."""

    def __init__(self, answer, seed):
        self.answer, self.draw = answer, random.Random(seed)

    def gate(self):
        return self.draw.choice([TrialGate, PauseGate, Open])()

    def propose(self, tokens, most):
        right = self.answer[len(tokens) : len(tokens) + self.draw.randrange(most + 1)]
        wrong = [self.draw.randrange(3, 90) for _ in range(self.draw.randrange(most + 1))]
        return (right + wrong)[:most]


def prompt_of(seed):
    draw = random.Random(seed)
    return [draw.randrange(3, 90) for _ in range(draw.randrange(1, 20))]


def plain(of, prompt, new=NEW):
    ids = torch.tensor([prompt])
    return of.generate(ids, max_new_tokens=new, do_sample=False)[0].tolist()


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FULL]
)
@pytest.mark.parametrize("seed", range(3))
def test_tokens_equal_plain_decoding_whatever_the_drafts_are(name, seed):
    of, prompt = graph(name), prompt_of(seed)
    expected = plain(of, prompt)
    for drafter in (Guesses(expected, seed), PromptLookup(), DraftModel(graph(name))):
        run = speculate(of, prompt, drafter, max_new_tokens=NEW, draft_tokens=seed * 7 + 1)
        assert run.tokens[0].tolist() == expected, drafter
        assert run.new_tokens == len(expected) - len(prompt)
        assert run.accepted <= run.drafted <= run.steps * (seed * 7 + 1)


@pytest.mark.parametrize("seed", range(4))
def test_tokens_of_a_packed_model_equal_plain_decoding(seed):
    of, prompt = packed("Llama", "int4"), prompt_of(seed + 10)
    expected = plain(of, prompt)
    for drafter in (Guesses(expected, seed), PromptLookup(), DraftModel(graph("Llama"))):
        run = speculate(of, prompt, drafter, max_new_tokens=NEW)
        assert run.tokens[0].tolist() == expected


def with_settings(**settings):
    """Return a Llama with other settings of generation, which other tests do not see."""
    of = MaseGraph(made("Llama"), cache=True)
    of.model.generation_config = copy.deepcopy(of.model.generation_config)
    for name, value in settings.items():
        setattr(of.model.generation_config, name, value)
    return of


def test_drafts_of_the_model_itself_are_all_accepted():
    of, prompt = with_settings(eos_token_id=None), prompt_of(0)
    run = speculate(of, prompt, DraftModel(graph("Llama")), max_new_tokens=33, draft_tokens=7)
    assert run.drafted == run.accepted == 28 and run.steps == 4  # 1 + 4 * (7 + 1) tokens
    assert "28 of 28 drafted tokens accepted (100%), 8.25 tokens per step" in run.summary()


def test_an_end_token_within_a_draft_ends_the_answer():
    prompt = prompt_of(1)
    answer = plain(with_settings(eos_token_id=None), prompt)
    of = with_settings(eos_token_id=[answer[len(prompt) + 4]])
    expected = plain(of, prompt)
    run = speculate(of, prompt, DraftModel(graph("Llama")), max_new_tokens=NEW)
    assert run.tokens[0].tolist() == expected and len(expected) < len(answer)


def test_the_penalty_of_the_generation_config_counts():
    of, prompt = with_settings(repetition_penalty=1.7), prompt_of(2)
    expected = plain(of, prompt)
    assert expected != plain(graph("Llama"), prompt)
    for drafter in (PromptLookup(), DraftModel(graph("Llama"))):
        run = speculate(of, prompt, drafter, max_new_tokens=NEW)
        assert run.tokens[0].tolist() == expected


@pytest.mark.parametrize("new", [1, 2, 3])
def test_short_answers_have_their_length(new):
    run = speculate(graph("Llama"), [5, 6], PromptLookup(), max_new_tokens=new)
    assert run.tokens[0].tolist() == plain(graph("Llama"), [5, 6], new)


LOOKUPS = [
    ([1, 2, 3], []),
    ([7], []),
    ([1, 2, 1], []),  # one token is no match
    ([1, 2, 3, 9, 2, 3], [9, 2, 3]),
    ([0, 1, 2, 5, 1, 2, 6, 0, 1, 2], [5, 1, 2]),  # the longest match, not the latest
    ([4, 6, 8, 4, 6, 9, 4, 6], [9, 4, 6]),  # the latest of equal matches
]


@pytest.mark.parametrize(("tokens", "draft"), LOOKUPS)
def test_a_lookup_repeats_what_followed_the_longest_match(tokens, draft):
    assert PromptLookup().propose(tokens, 3) == draft


def test_what_cannot_be_speculated_is_refused():
    for count in (0, MOST_DRAFTED + 1):
        with pytest.raises(ConfigError, match=f"draft_tokens: {count}. Allowed: 1 to 15"):
            speculate(graph("Llama"), [5], PromptLookup(), max_new_tokens=2, draft_tokens=count)
    with pytest.raises(ConfigError, match="MistralForCausalLM has layers with a sliding window"):
        speculate(graph("Mistral"), [5], PromptLookup(), max_new_tokens=2)
    with pytest.raises(ConfigError, match="T5ForConditionalGeneration is an encoder-decoder"):
        DraftModel(graph("T5"))


class Wrong:
    """Drafts that are never right."""

    def __init__(self, answer, gate):
        self.answer, self.gate = answer, gate

    def propose(self, tokens, most):
        return [(self.answer[len(tokens)] + 1) % 90] * most


def test_wrong_lookups_are_never_used():
    of, prompt = with_settings(eos_token_id=None), prompt_of(3)
    expected = plain(of, prompt)
    run = speculate(of, prompt, Wrong(expected, TrialGate), max_new_tokens=NEW)
    assert run.tokens[0].tolist() == expected and run.drafted == 0


def test_a_model_with_wrong_drafts_pauses_for_longer_and_longer():
    of, prompt, new = with_settings(eos_token_id=None), prompt_of(3), 100
    expected = plain(of, prompt, new)
    run = speculate(of, prompt, Wrong(expected, PauseGate), max_new_tokens=new, draft_tokens=3)
    assert run.tokens[0].tolist() == expected
    tries = 3  # before and after the pauses of 16 and 32 tokens
    assert run.drafted == 3 * RECENT * tries and FIRST_PAUSE * 3 + RECENT * tries < new


def test_lookups_are_used_in_a_text_that_repeats_itself():
    gate, tokens = TrialGate(), [5, 6, 7, 8, 9, 5, 6]
    assert not gate.admits(tokens, [7, 8, 9])
    assert not gate.admits([*tokens, 7], [8, 9, 5])
    assert gate.admits([*tokens, 7, 8], [9, 5, 6])
    gate.learn([9, 5, 6], 3)
    assert gate.admits([*tokens, 7, 8, 9, 5, 6, 7], [8, 9, 5])
    gate.learn([8, 9, 5], 1)
    assert not gate.admits([*tokens, 7, 8, 9, 5, 6, 7, 8, 1], [])


def test_a_trial_that_fails_is_followed_by_another():
    gate = TrialGate()
    assert not gate.admits([1, 2], [3, 4])
    assert not gate.admits([1, 2, 9], [5, 6])  # 3 was wrong: now 5, 6 is on trial
    assert not gate.admits([1, 2, 9, 5], [])
    assert gate.admits([1, 2, 9, 5, 6], [7])
