"""The cases of transformers' own generation tests, on captured graphs of five families.

Each case runs `generate` of the eager model and of its graph, and compares tokens and scores.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from covering import slow_unless
from generating_models import PAIRS, graph, model, prompts, tokens
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import StoppingCriteria

CHOSEN = ("Llama", "GPT-2", "Qwen3", "Gemma 3", "T5")


class Until(StoppingCriteria):
    """Stop a row after a token that is 3 modulo 4."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return (input_ids[:, -1] % 4) == 3


def lowered(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Lower the score of the last token, as a processor of the user's own."""
    return scores.scatter_add(1, input_ids[:, -1:], torch.full_like(scores[:, :1], -9.0))


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "sampling, nucleus": {"do_sample": True, "top_p": 0.7, "temperature": 0.8},
    "sampling, several": {"do_sample": True, "num_return_sequences": 2, "top_k": 5},
    "sampling, min_p": {"do_sample": True, "min_p": 0.05},
    "sampling, typical": {"do_sample": True, "typical_p": 0.6},
    "sampling, epsilon and eta": {
        "do_sample": True,
        "epsilon_cutoff": 0.01,
        "eta_cutoff": 0.01,
    },
    "beams": {"num_beams": 3},
    "beams, several": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.4},
    "beams, early": {"num_beams": 3, "early_stopping": True},
    "beams, sampled": {"num_beams": 3, "do_sample": True},
    "repetition penalty": {"repetition_penalty": 1.7},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5], [7, 9]]},
    "suppressed": {"suppress_tokens": [3, 4, 6], "begin_suppress_tokens": [8]},
    "forced end": {"forced_eos_token_id": 95},
    "least new tokens": {"min_new_tokens": 8},
    "bias": {"sequence_bias": [[[11], -8.0], [[12], 4.0]]},
    "guidance": {"guidance_scale": 1.5},
    "length": {"max_new_tokens": None, "max_length": 17},
    "several ends": {"eos_token_id": [95, 20, 21, 22, 23, 24, 25, 26, 27]},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "static cache, sampled": {"cache_implementation": "static", "do_sample": True},
    "no cache": {"use_cache": False},
}
"""Options of `generate`, by name."""
ONE_ROW = ("prompt lookup",)
"""Cases that transformers defines for one row alone."""
NOT_FOR_PAIRS = ("guidance",)
"""Cases whose second run needs a decoder alone."""
TURNS = {case: CHOSEN[number % len(CHOSEN)] for number, case in enumerate(CASES)}
"""The family of each case in `make test`; `make slow` runs all pairs."""


def given(name: str, case: str) -> dict[str, torch.Tensor]:
    """Return padded prompts, or the first of them."""
    rows = prompts(name, side="right" if name in PAIRS else "left")
    return {key: value[:1] for key, value in rows.items()} if case in ONE_ROW else rows


def pairs() -> list[tuple[str, str]]:
    """Return all cases that are defined for a family."""
    both = itertools.product(CHOSEN, CASES)
    return [(n, case) for n, case in both if not (n in PAIRS and case in NOT_FOR_PAIRS)]


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "case"), slow_unless(pairs(), lambda pair: TURNS[pair[1]] == pair[0])
)
def test_a_case_gives_the_tokens_and_scores_of_the_model(name: str, case: str) -> None:
    rows = given(name, case)
    options = {**CASES[case], "return_dict_in_generate": True, "output_scores": True}
    expected, own = (
        tokens(each.generate, rows, **options)
        for each in (model(name), graph(name))  # type: ignore[attr-defined]
    )
    assert torch.equal(own.sequences, expected.sequences)
    assert len(own.scores) == len(expected.scores)
    for own_scores, scores in zip(own.scores, expected.scores, strict=True):
        torch.testing.assert_close(own_scores, scores, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CHOSEN)
def test_criteria_and_processors_of_the_user_are_obeyed(name: str) -> None:
    rows = given(name, "greedy")
    options = {
        "stopping_criteria": StoppingCriteriaList([Until()]),
        "logits_processor": LogitsProcessorList([lowered]),
    }
    expected = tokens(model(name).generate, rows, **options)
    assert torch.equal(tokens(graph(name).generate, rows, **options), expected)
    assert not torch.equal(expected, tokens(model(name).generate, rows))


@pytest.mark.parametrize("name", [n for n in CHOSEN if n not in PAIRS])
def test_padding_on_the_left_changes_no_token(name: str) -> None:
    rows = given(name, "greedy")
    whole = tokens(graph(name).generate, rows)
    for row, mask in enumerate(rows["attention_mask"].bool()):
        alone = {"input_ids": rows["input_ids"][row, mask][None]}
        own = tokens(graph(name).generate, alone)[0, int(mask.sum()) :]
        assert torch.equal(whole[row, len(mask) :][: len(own)], own)


@pytest.mark.parametrize("name", [n for n in CHOSEN if n not in PAIRS])
def test_an_assistant_gives_the_tokens_of_the_model(name: str) -> None:
    rows = given(name, "prompt lookup")
    options = {"assistant_model": model(name)}
    expected = tokens(model(name).generate, rows, **options)
    assert torch.equal(tokens(graph(name).generate, rows, **options), expected)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_seed_decides_what_is_sampled(name: str) -> None:
    rows = given(name, "sampling")
    first, again = (tokens(graph(name).generate, rows, do_sample=True) for _ in range(2))
    assert torch.equal(first, again)
    torch.manual_seed(6)
    other = graph(name).generate(**rows, do_sample=True, max_new_tokens=12)
    assert not torch.equal(first[:, :16], other[:, :16])
