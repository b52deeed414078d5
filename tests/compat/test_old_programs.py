"""Programs written for DeepWok/mase run as they are: its tutorials and labs, call for call.

The programs in `old_programs` are ours, with the imports, names and keywords of the originals; the
hub's names are folders with tiny models and a few rows of text.
"""

import json
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, ResNetConfig, ResNetForImageClassification

from chop.log import get_logger
from chop.models import tiny_bert

PROGRAMS = Path(__file__).parent / "old_programs"
WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "a"]
NEEDS = {"tutorial_4_pruning": "tutorial_3_qat", "tutorial_6_mixed_precision": "tutorial_5_nas"}
"""A program that reads what another wrote: they run in one test."""


def save_text_model(folder):
    tiny_bert(vocab_size=len(WORDS), hidden_dropout_prob=0.1).save_pretrained(folder)
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)


def save_text(folder):
    folder.mkdir()
    rows = [{"text": "a good film", "label": 1}, {"text": "bad bad film", "label": 0}] * 4
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def save_jets(folder):
    folder.mkdir()
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        x = random.standard_normal((40, 16), dtype=np.float32)
        np.savez(folder / f"{split}.npz", x=x, labels=np.arange(40) % 5)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, where everything that the programs name is found."""
    for name in ("prajjwal1/bert-tiny", "DeepWokLab/bert-tiny", "bert-base-uncased"):
        save_text_model(tmp_path / name)
    save_text(tmp_path / "imdb")
    save_jets(tmp_path / "jsc")
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "num_labels": 1000}
    resnet = ResNetForImageClassification(ResNetConfig(**sizes))
    resnet.save_pretrained(tmp_path / "microsoft" / "resnet-18")
    monkeypatch.chdir(tmp_path)
    caches = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))  # what is compiled stays compiled
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    level = get_logger().level
    yield tmp_path
    get_logger().setLevel(level)


MARKS = {
    "lab_4_hardware": pytest.mark.sim,
    "tutorial_4_pruning": pytest.mark.slow,
    "tutorial_6_mixed_precision": pytest.mark.slow,
}


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(file.stem, marks=MARKS.get(file.stem, ()))
        for file in sorted(PROGRAMS.glob("*.py"))
        if file.stem not in NEEDS.values()
    ],
)
def test_a_program_for_the_old_system_runs_as_it_is(name, place):
    for each in (NEEDS.get(name), name):
        if each is not None:
            runpy.run_path(str(PROGRAMS / f"{each}.py"), run_name="__main__")
