"""Byte-level BPE tokenizer as the metadata of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chop.errors import ExportError
from chop.files import read_json

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens in the specification of GGUF."""
SPLITS = {r"\p{N}{1,3}": "llama-bpe", r"|\p{N}|": "qwen2"}
"""Part of a splitting expression that identifies it -> its name in llama.cpp."""


def tokenizer_metadata(tokenizer: Any, vocab_size: int) -> dict[str, Any]:
    """Return tokens, merges and special tokens; without a tokenizer, the model "none"."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "none"}
    content = _content(tokenizer)
    model = content.get("model") or {}
    step = content.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    if model.get("type") != "BPE" or all(step.get("type") != "ByteLevel" for step in steps):
        raise ExportError(
            f"to_gguf: tokenizer: a {model.get('type')} tokenizer. Allowed: byte-level BPE "
            "(GPT-2, Llama 3, Qwen), or tokenizer=None."
        )
    added = content.get("added_tokens", ())
    tokens, kinds = _tokens(model["vocab"], added, vocab_size)
    vocab = model["vocab"] | {each["content"]: each["id"] for each in added}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _split(steps),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
        **_special(tokenizer, vocab),
    }


def _content(tokenizer: Any) -> dict[str, Any]:
    """Return the content of `tokenizer.json`, of a folder or of a tokenizer in memory."""
    if isinstance(tokenizer, str | Path):
        content: dict[str, Any] = read_json(Path(tokenizer) / "tokenizer.json", ExportError)
        return content
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise ExportError(
            f"to_gguf: tokenizer: {type(tokenizer).__name__} has no tokenizer.json. "
            "Allowed: a folder with one, a fast tokenizer of transformers, None."
        )
    return json.loads(inner.to_str())  # type: ignore[no-any-return]


def _split(steps: list[dict[str, Any]]) -> str:
    for step in steps:
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
    ids = range(size)
    return [by_id.get(i, f"[PAD{i}]") for i in ids], [kinds.get(i, UNUSED) for i in ids]


def _special(tokenizer: Any, vocab: dict[str, int]) -> dict[str, int]:
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    if isinstance(tokenizer, str | Path):
        file = Path(tokenizer) / "tokenizer_config.json"
        settings = read_json(file, ExportError) if file.is_file() else {}
    else:
        settings = {key: getattr(tokenizer, key, None) for key in names}
    texts = {key: v["content"] if isinstance(v, dict) else v for key, v in settings.items()}
    return {
        f"tokenizer.ggml.{name}_token_id": vocab[texts[key]]
        for key, name in names.items()
        if texts.get(key) in vocab
    }
