"""Language models by the command line on a real model and real text, where they are at hand."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"


def kept(variable, folder, name):
    """The folder of a thing too large for the project."""
    found = Path(os.environ.get(variable, SHARED / folder)) / name
    if not found.is_dir():
        pytest.skip(f"set {variable} to a folder that holds '{name}'")
    return found


@pytest.fixture
def model():
    return kept("MASE_MODELS", "models", "llama-imdb")


@pytest.mark.slow
def test_a_llama_is_known_measured_and_quantised_as_it_is(mase, model, tmp_path):
    tokens = kept("MASE_DATA", "data", "imdb") / "lm"
    ran = mase(f"eval {model} --dataset {tokens} --test-rows 8 --json")
    assert ran.code == 0, ran.err
    assert 30 < ran.document["eval"]["perplexity"] < 70
    line = f"quantize {model} --dataset {tokens} --test-rows 8 --evaluate --out q --json"
    stages = mase(line).document["stages"]
    before, after = stages["before"], stages["after"]
    assert before["perplexity"] == pytest.approx(ran.document["eval"]["perplexity"])
    assert after["perplexity"] == pytest.approx(before["perplexity"], rel=0.02)
    assert after["weight_bits"] < 8.6
    assert (tmp_path / "q" / "tokenizer" / "tokenizer.json").is_file()


@pytest.mark.slow
def test_reviews_in_parquet_are_text_for_a_language_model(mase, model, tmp_path, monkeypatch):
    import datasets

    reviews = kept("MASE_DATA", "data", "imdb") / "plain_text"
    whole = datasets.load_dataset(
        "parquet",
        data_files=str(reviews / "test-*.parquet"),
        split="train[:200]",
        cache_dir=str(tmp_path / "cache"),
    )
    whole.to_parquet(str(tmp_path / "few.parquet"))
    ran = mase(f"eval {model} --dataset few.parquet --test-rows 8 --json")
    assert ran.code == 0, ran.err
    assert 20 < ran.document["eval"]["perplexity"] < 70, "most of it was seen in training"
