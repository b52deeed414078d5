"""From text in a folder to a trained model, as a user's program does it."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chop import MaseGraph
from chop.models import get_model
from chop.tools import get_tokenized_dataset, get_trainer

pytest.importorskip("datasets", reason="needs the extra 'train': pip install 'masegraph[train]'")
pytest.importorskip("accelerate", reason="needs the extra 'train': pip install 'masegraph[train]'")
WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "a", "very"]
TEXTS = {"a good film": 1, "bad film": 0, "very very good": 1, "a very very bad bad film": 0}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A tokenizer and a dataset where the environment variables point."""
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
    tokenizer.save_pretrained(tmp_path / "models" / "words")
    (tmp_path / "data" / "reviews").mkdir(parents=True)
    for split, copies in (("train", 16), ("test", 4)):
        rows = [{"text": text, "label": label} for text, label in TEXTS.items()] * copies
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "data" / "reviews" / f"{split}.jsonl").write_text(lines)
    monkeypatch.setenv("MASE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("MASE_MODELS", str(tmp_path / "models"))
    return tmp_path


def test_a_model_learns_reviews_named_as_on_the_hub(shelf):
    dataset, tokenizer = get_tokenized_dataset(
        dataset="someone/reviews", checkpoint="words", return_tokenizer=True, cache_dir=shelf
    )
    torch.manual_seed(0)
    graph = MaseGraph(
        get_model("tiny_bert"), hf_input_names=["input_ids", "attention_mask", "labels"]
    )
    trainer = get_trainer(
        model=graph.model,
        tokenized_dataset=dataset,
        tokenizer=tokenizer,
        evaluate_metric="accuracy",
        num_train_epochs=4,
        learning_rate=3e-3,
        disable_tqdm=True,
    )
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] == 1.0
