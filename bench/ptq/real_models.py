"""Real models of the table of formats: SmolLM2-135M-Instruct and all-MiniLM-L6-v2.

Their tokens come from files that `prepare` writes, so that a machine that measures needs neither
the text nor a tokenizer. As in subjects.py, only numpy, torch and transformers are needed.

WikiText-2's training text is not used: calibration data is drawn from the validation text. Windows
of tokens are cut from the whole text, the stride is the window. The words `<unk>` are removed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from subjects import Batch, Subject
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

WINDOWS = {"calibration": 512, "test": 1024}
"""Tokens of a window of text."""
SENTENCE = 64
"""Tokens of a sentence at most; shorter ones are padded."""
FEWEST_WORDS = 6
"""Words of a sentence at least."""
SENTENCES = 4096
"""Sentences to measure on, spread over the whole text."""
TEXTS = {"calibration": "valid.txt", "test": "test.txt"}
AT_ONCE = {"smollm2": (4, 1), "minilm": (64, 256)}
"""Windows or sentences of a batch, to calibrate and to measure."""


@dataclass(frozen=True)
class RealModel(Subject):
    """A model of the table; `data` is the file of its tokens, `rows` calibrate it."""

    rows: int = 128

    def calibration(self, seed: int, rows: int | None = None) -> list[Batch]:
        """Return batches of the validation text, drawn by `seed`."""
        stored = self._stored("calibration")
        count = len(next(iter(stored.values())))
        drawn = np.random.default_rng(seed).permutation(count)[: rows or self.rows]
        chosen = {key: values[np.sort(drawn)] for key, values in stored.items()}
        return self._batches(chosen, AT_ONCE[self.name][0])

    def evaluation(self) -> Iterator[Batch]:
        """Return batches of the test text; `held` rows, 0 for all."""
        stored = {key: values[: self.held or None] for key, values in self._stored("test").items()}
        yield from self._batches(stored, AT_ONCE[self.name][1])

    def _stored(self, part: str) -> dict[str, np.ndarray[Any, Any]]:
        with np.load(self.data) as file:
            own = [key for key in file.files if key.startswith(f"{part}_")]
            return {key.removeprefix(f"{part}_"): file[key] for key in own}


@dataclass(frozen=True)
class SentenceModel(RealModel):
    """A model of sentence embeddings: the mean of the last states, over the tokens of a sentence.

    The embeddings are compared with those of the float model.
    """

    def load(self) -> nn.Module:
        """Return the float32 model, ready to evaluate."""
        model: Any = AutoModel.from_pretrained(
            self.folder, dtype=torch.float32, add_pooling_layer=False
        )
        return model.to(self.device).eval()  # type: ignore[no-any-return]

    @torch.no_grad()
    def embeddings(self, model: Callable[..., Any]) -> Tensor:
        """Return the embeddings of all test sentences, in double precision."""
        found = []
        for batch in self.evaluation():
            states = model(**batch)["last_hidden_state"].double()
            mask = batch["attention_mask"][..., None].double()
            found.append((states * mask).sum(1) / mask.sum(1))
        return torch.cat(found)

    def reference(self, model: nn.Module) -> list[Tensor]:
        """Return the float model's embeddings."""
        return [self.embeddings(model)]

    def measured(self, model: Callable[..., Any], reference: list[Tensor]) -> dict[str, float]:
        """Return how far the embeddings are from `reference`."""
        own, right = self.embeddings(model), reference[0]
        signal, noise = right.square().sum(1), (own - right).square().sum(1)
        found = {
            "relative_error": float((noise / signal).mean()),
            "cosine": float(nn.functional.cosine_similarity(own, right).mean()),
            "neighbours": float((nearest_rows(own) == nearest_rows(right)).double().mean()),
        }
        if noise.any():
            found["sqnr"] = 10 * math.log10(float(signal.sum() / noise.sum()))
        return found


def nearest_rows(x: Tensor) -> Tensor:
    """Return the number of the row with the largest cosine to each row, other than itself."""
    unit = nn.functional.normalize(x)
    return (unit @ unit.T).fill_diagonal_(-2.0).argmax(1)


KINDS: dict[str, type[RealModel]] = {"smollm2": RealModel, "minilm": SentenceModel}
CALIBRATED = {"smollm2": 128, "minilm": 512}
"""Windows or sentences to calibrate on."""


# -- preparation -----------------------------------------------------------------------------------


def prepare(name: str, model: Path, text: Path, file: Path) -> None:
    """Write the tokens of both texts; `model` has a tokenizer, `text` is a folder of texts."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    cut = _windows if name == "smollm2" else _sentences
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for part, source in TEXTS.items():
        words = (text / source).read_text(encoding="utf-8").replace(" <unk> ", " ")
        for key, values in cut(part, words, tokenizer).items():
            assert values.max() < 2**16, f"{name}: tokens of more than 16 bits"
            arrays[f"{part}_{key}"] = values.astype(np.uint16)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    print(f"{file}: " + ", ".join(f"{k} {list(v.shape)}" for k, v in arrays.items()))


def _windows(part: str, text: str, tokenizer: Any) -> dict[str, np.ndarray[Any, Any]]:
    size = WINDOWS[part]
    ids = np.array(tokenizer(text)["input_ids"])
    return {"input_ids": ids[: len(ids) // size * size].reshape(-1, size)}


def _sentences(part: str, text: str, tokenizer: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return sentences to measure on; to calibrate, beginnings of paragraphs without padding.

    The tools treat padding differently when they calibrate.
    """
    lines = [line.strip() for line in text.splitlines() if not line.strip().startswith("=")]
    is_test = part == "test"
    if is_test:
        lines = [s for line in lines for s in re.split(r"(?<= [.?!]) ", line)]
    whole = [s for s in lines if len(s.split()) >= FEWEST_WORDS]
    size = {"padding": "max_length", "truncation": True, "max_length": SENTENCE}
    tokens = tokenizer(whole, **size)
    ids, mask = np.array(tokens["input_ids"]), np.array(tokens["attention_mask"])
    places = np.unique(np.linspace(0, len(ids) - 1, SENTENCES).astype(int))
    chosen = places if is_test else np.flatnonzero(mask.all(axis=1))
    return {"input_ids": ids[chosen], "attention_mask": mask[chosen]}


def unpacked(gguf: Path, folder: Path) -> None:
    """Write the values of a GGUF file as a folder of transformers, with its tokenizer.

    transformers needs the package `gguf` for it.
    """
    from transformers import AutoModelForCausalLM

    source: Any = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    settings = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    plain = type(model)(type(model.config).from_dict(settings))  # a GGUF model is not stored
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    print(folder)
