import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chop.dataset import get_tokenized_dataset, load_token_arrays
from chop.dataset.tokenized import load_tokenizer
from chop.errors import DataError, HubError

pytest.importorskip("datasets", reason="needs the extra 'train': pip install 'masegraph[train]'")
WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "a"]


@pytest.fixture
def checkpoint(tmp_path):
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "checkpoint"
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    return folder


def write(folder, rows, name="{}-00000-of-00001.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name.format(split)).write_text(text)
    return folder


REVIEWS = [{"text": "a good film", "label": 1}, {"text": "bad bad bad film", "label": 0}]


def test_a_local_folder_becomes_tokens(tmp_path, checkpoint):
    found = get_tokenized_dataset(
        write(tmp_path / "reviews", REVIEWS), checkpoint, cache_dir=tmp_path / "cache"
    )
    assert set(found) == {"train", "test"}
    assert found["train"]["input_ids"][0] == [5, 2, 4]
    assert found["train"]["label"][:] == [1, 0]


def test_positional_arguments_and_the_tokenizer(tmp_path, checkpoint):
    folder = write(tmp_path / "reviews", REVIEWS)
    found, tokenizer = get_tokenized_dataset(folder, checkpoint, True, cache_dir=tmp_path / "cache")
    assert tokenizer("good")["input_ids"] == [2]
    assert len(found["test"]) == 2


def test_long_text_is_cut_to_the_length_asked_for(tmp_path, checkpoint):
    found = get_tokenized_dataset(
        write(tmp_path / "reviews", REVIEWS),
        checkpoint,
        max_token_len=2,
        cache_dir=tmp_path / "cache",
    )
    assert [len(ids) for ids in found["train"]["input_ids"]] == [2, 2]


def test_text_is_tokenised_once_memory_mapped_and_cached(tmp_path, checkpoint):
    folder, cache = write(tmp_path / "reviews", REVIEWS), tmp_path / "cache"
    first = get_tokenized_dataset(folder, checkpoint, cache_dir=cache)["train"]
    files = {file: file.stat().st_mtime_ns for file in cache.rglob("*.arrow")}
    again = get_tokenized_dataset(folder, checkpoint, cache_dir=cache)["train"]
    assert again.cache_files == first.cache_files
    assert str(cache) in again.cache_files[0]["filename"]
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*.arrow")} == files
    other = get_tokenized_dataset(folder, checkpoint, max_token_len=2, cache_dir=cache)["train"]
    assert other.cache_files != first.cache_files


def test_pairs_of_sentences_are_tokenised_together(tmp_path, checkpoint):
    rows = [{"premise": "a film", "claim": "good", "label": 0}]
    found = get_tokenized_dataset(
        write(tmp_path / "pairs", rows),
        checkpoint,
        text_columns=("premise", "claim"),
        cache_dir=tmp_path / "cache",
    )
    assert found["train"]["input_ids"][0] == [5, 4, 2]


@pytest.mark.parametrize("asked", [None, ["title"], ["premise", "claim", "label"]])
def test_a_column_of_text_that_cannot_be_told_is_an_error(tmp_path, checkpoint, asked):
    rows = [{"premise": "a film", "claim": "good", "label": 0}]
    folder = write(tmp_path / "pairs", rows)
    message = r"cannot tell the column of text; columns of strings are \['premise', 'claim'\]"
    with pytest.raises(DataError, match=message):
        get_tokenized_dataset(folder, checkpoint, text_columns=asked, cache_dir=tmp_path / "cache")


def test_a_folder_without_splits_is_an_error(tmp_path, checkpoint):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file named after a split"):
        get_tokenized_dataset(tmp_path / "empty", checkpoint)


def test_a_checkpoint_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(HubError, match=r"model '.*nothing': no such folder"):
        load_tokenizer(tmp_path / "nothing")


@pytest.mark.slow
def test_real_reviews_become_the_tokens_that_are_kept_beside_them(tmp_path):
    root = Path(__file__).parents[2]
    data = Path(os.environ.get("MASE_DATA", root.parent / "shared" / "data")) / "imdb"
    model = Path(os.environ.get("MASE_MODELS", root.parent / "shared" / "models")) / "bert-tiny"
    if not data.is_dir() or not model.is_dir():
        pytest.skip("set MASE_DATA and MASE_MODELS to folders that hold 'imdb' and 'bert-tiny'")
    found = get_tokenized_dataset(data, model, cache_dir=tmp_path)["test"]
    kept = load_token_arrays(data / "tokens")["test"]
    assert len(found) == len(kept) == 25_000
    for index in range(0, 25_000, 100):
        row = found[index]
        assert row["input_ids"] == kept[index]["input_ids"]
        assert row["label"] == kept[index]["labels"]
