"""Perplexity and agreement, against transformers' own loss and a count by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from generating_models import graph, made, model

from chop.actions.generation import cache_bytes, generate
from chop.actions.language import batches_of, measure_language
from chop.actions.metrics import METRICS, direction_of
from chop.errors import ConfigError, DataError
from chop.models import get_model

ROWS = [
    {"input_ids": torch.randint(3, 90, (n,), generator=torch.Generator().manual_seed(n))}
    for n in (9, 5, 7)
]


def test_perplexity_is_e_to_the_mean_surprise_of_tokens_not_of_rows() -> None:
    found = measure_language(graph("Llama").model, ROWS, batch_size=2)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in ROWS:
            ids = row["input_ids"][None]
            total += float(model("Llama")(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            count += ids.shape[1] - 1
    assert found["loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(total / count), rel=1e-4)


def test_agreement_counts_equal_choices() -> None:
    other = made("Llama")
    with torch.no_grad():
        other.lm_head.weight[7] *= 4  # chooses 7 more often
    found = measure_language(
        other, ROWS, batch_size=1, reference=model("Llama"), metric="token_agreement"
    )
    same = count = 0
    with torch.no_grad():
        for row in ROWS:
            ids = row["input_ids"][None]
            ours, theirs = (
                m(input_ids=ids).logits[0, :-1].argmax(-1) for m in (other, model("Llama"))
            )
            same, count = same + int((ours == theirs).sum()), count + len(ours)
    assert 0 < same < count
    assert found["token_agreement"] == same / count


def test_the_metrics_of_arrays_are_the_same_measures() -> None:
    batch = next(batches_of(ROWS[:1], 1))
    with torch.no_grad():
        scores = model("Llama")(input_ids=batch["input_ids"]).logits.numpy()
    labels = batch["labels"].numpy()
    expected = measure_language(model("Llama"), ROWS[:1])["perplexity"]
    assert METRICS["perplexity"](scores, labels) == pytest.approx(expected, rel=1e-4)
    chosen = np.concatenate([labels[:, :1], scores[:, :-1].argmax(-1)], 1)
    assert METRICS["token_agreement"](scores, chosen) == 1.0
    assert (direction_of("perplexity"), direction_of("token_agreement")) == ("minimize", "maximize")
    with pytest.raises(ConfigError, match=r"a score for each token of the vocabulary.*\[2, 3\]"):
        METRICS["perplexity"](np.zeros((2, 3)), np.zeros(2, int))


def test_what_is_no_language_model_or_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scores of shape .* Give a causal language model"):
        measure_language(get_model("tiny_bert"), [{"input_ids": torch.tensor([3, 4, 5])}])
    with pytest.raises(DataError, match=r"no tokens \(input_ids\): image"):
        measure_language(model("Llama"), [{"image": 1}])
    with pytest.raises(ConfigError, match="compares with another model"):
        measure_language(model("Llama"), ROWS, metric="token_agreement")
    with pytest.raises(DataError, match="rows need two tokens"):
        measure_language(model("Llama"), [{"input_ids": torch.tensor([4])}])


def test_a_run_is_timed_and_its_cache_weighed() -> None:
    given = {"input_ids": ROWS[0]["input_ids"][None]}
    found = generate(graph("Llama"), given, max_new_tokens=5, do_sample=False)
    assert torch.equal(
        found.tokens, model("Llama").generate(**given, max_new_tokens=5, do_sample=False)
    )
    assert found.cache_bytes == (9 + 4) * 2 * 2 * 2 * 8 * 4  # tokens, K and V, layers, heads …
    packed = generate(graph("Llama"), given, cache="int8", max_new_tokens=5, do_sample=False)
    assert packed.cache_bytes == (9 + 4) * 2 * 2 * 2 * (8 + 2) + 2 * 2 * 2 * 8 * 2  # and means
    assert packed.capacity == pytest.approx(13 * 16 / (13 * 10 + 16))
    assert cache_bytes(None) == 0
