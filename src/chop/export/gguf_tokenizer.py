"""A byte-level BPE tokenizer as the metadata of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chop.errors import ExportError
from chop.files import read_json

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
SPLITS = {
    r"\p{N}{1,3}": "llama-bpe",
    r"|\p{N}|": "qwen2",
}
"""What tells the splitting expressions of families apart, and llama.cpp's name for each."""


def tokenizer_metadata(tokenizer: Any, vocab_size: int) -> dict[str, Any]:
    """Tokens, merges and special tokens; without a tokenizer, that there is none."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "none"}
    told = _described(tokenizer)
    model = told.get("model") or {}
    if model.get("type") != "BPE" or not _byte_level(told):
        kind = model.get("type")
        raise ExportError(
            f"to_gguf: tokenizer: a {kind} tokenizer. Allowed: byte-level BPE "
            "(GPT-2, Llama 3, Qwen), or tokenizer=None."
        )
    tokens, kinds = _tokens(model["vocab"], told.get("added_tokens", ()), vocab_size)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _split(told),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
        **_special(tokenizer, _with_added(model["vocab"], told)),
    }


def _described(tokenizer: Any) -> dict[str, Any]:
    """What `tokenizer.json` says, of a folder or of a tokenizer in memory."""
    if isinstance(tokenizer, str | Path):
        found: dict[str, Any] = read_json(Path(tokenizer) / "tokenizer.json", ExportError)
        return found
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise ExportError(
            f"to_gguf: tokenizer: {type(tokenizer).__name__} has no tokenizer.json. "
            "Allowed: a folder with one, a fast tokenizer of transformers, None."
        )
    made: dict[str, Any] = json.loads(inner.to_str())
    return made


def _steps(told: dict[str, Any]) -> list[dict[str, Any]]:
    step = told.get("pre_tokenizer") or {}
    return step.get("pretokenizers", [step])


def _byte_level(told: dict[str, Any]) -> bool:
    return any(step.get("type") == "ByteLevel" for step in _steps(told))


def _split(told: dict[str, Any]) -> str:
    for step in _steps(told):
        pattern = (step.get("pattern") or {}).get("Regex", "")
        for part, name in SPLITS.items():
            if part in pattern:
                return name
        if pattern:
            raise ExportError(f"to_gguf: tokenizer: llama.cpp has no name for {pattern!r:.120}.")
    return "gpt-2"


def _tokens(vocab: dict[str, int], added: Any, size: int) -> tuple[list[str], list[int]]:
    by_id = {index: text for text, index in vocab.items()}
    kinds = dict.fromkeys(by_id, NORMAL)
    for each in added:
        by_id[each["id"]] = each["content"]
        kinds[each["id"]] = CONTROL if each.get("special") else USER_DEFINED
    if by_id and max(by_id) >= size:
        raise ExportError(
            f"to_gguf: tokenizer: has token {max(by_id)}, and the model {size} embeddings."
        )
    listed = range(size)
    return [by_id.get(i, f"[PAD{i}]") for i in listed], [kinds.get(i, UNUSED) for i in listed]


def _with_added(vocab: dict[str, int], told: dict[str, Any]) -> dict[str, int]:
    return vocab | {each["content"]: each["id"] for each in told.get("added_tokens", ())}


def _special(tokenizer: Any, vocab: dict[str, int]) -> dict[str, int]:
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    if isinstance(tokenizer, str | Path):
        file = Path(tokenizer) / "tokenizer_config.json"
        told = read_json(file, ExportError) if file.is_file() else {}
    else:
        told = {key: getattr(tokenizer, key, None) for key in names}
    texts = {key: v["content"] if isinstance(v, dict) else v for key, v in told.items()}
    known = {key: vocab[texts[key]] for key in names if texts.get(key) in vocab}
    return {f"tokenizer.ggml.{names[key]}_token_id": index for key, index in known.items()}
