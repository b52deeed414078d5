"""Byte-level BPE tokenizer as the metadata of a GGUF file, written and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from transformers import PreTrainedTokenizerFast

from chop.errors import ExportError
from chop.export.gguf_file import GGUFFile
from chop.files import read_json, shown

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens in the specification of GGUF."""
SPLITS = {r"\p{N}{1,3}": "llama-bpe", r"|\p{N}|": "qwen2"}
"""Part of a splitting expression that identifies it -> its name in llama.cpp."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS = {"type": "Digits", "individual_digits": True}


def _by_expression(digits: str) -> dict[str, Any]:
    pattern = {"Regex": _WORDS % digits}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS: dict[str, tuple[dict[str, Any], ...]] = {
    "gpt-2": (),
    "smollm": (_DIGITS,),
    "llama-bpe": (_by_expression(r"\p{N}{1,3}"),),
    "qwen2": (_by_expression(r"\p{N}"),),
}
"""Name in llama.cpp -> steps before the bytes. A name without an expression splits as GPT-2 does.

To read another tokenizer, add a row.
"""
SPECIAL = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
"""Special token in GGUF -> its name in transformers."""
TEMPLATE = "tokenizer.chat_template"


def tokenizer_from_gguf(path: str | Path) -> Any:
    """Return the tokenizer of a GGUF file, with its chat template, as one of transformers.

    Raise ExportError if the file has none, or one of a kind that is not read.
    """
    return tokenizer_of_file(GGUFFile(path))


def tokenizer_of_file(file: GGUFFile) -> Any:
    """Return the tokenizer of an open GGUF file."""
    metadata = file.metadata
    kind, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    pre = "gpt-2" if pre is None else pre
    if kind != "gpt2" or not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise ExportError(
            f"{file.path}: a tokenizer of model {shown(kind)} and pre {shown(pre)}. Allowed: model "
            f"'gpt2' with {', '.join(PRE_TOKENIZERS)}. Give another tokenizer."
        )
    tokens, merges = (_texts(file, f"tokenizer.ggml.{key}") for key in ("tokens", "merges"))
    content = _rules(pre, tokens, merges, _kinds(file, len(tokens)))
    template = metadata.get(TEMPLATE)
    settings = {"chat_template": template} if isinstance(template, str) else {}
    for name, own in SPECIAL.items():
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(index) is int and 0 <= index < len(tokens):
            settings[own] = tokens[index]
    try:
        rules = tokenizers.Tokenizer.from_str(json.dumps(content))
        fast: Any = PreTrainedTokenizerFast
        return fast(tokenizer_object=rules, **settings)
    except Exception as error:  # tokenizers raises Exception itself
        raise ExportError(f"{file.path}: makes no tokenizer ({error!s:.200}).") from error


def _texts(file: GGUFFile, key: str) -> list[str]:
    texts = file.metadata.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ExportError(f"{file.path}: {key} is {shown(texts)}. Allowed: a list of texts.")
    return texts


def _kinds(file: GGUFFile, count: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    kinds = file.metadata.get(key)
    if kinds is None:
        return [NORMAL] * count
    if not isinstance(kinds, np.ndarray) or kinds.shape != (count,):
        raise ExportError(f"{file.path}: {key} does not have one number for each token.")
    return [int(kind) for kind in kinds]


def _rules(pre: str, tokens: list[str], merges: list[str], kinds: list[int]) -> dict[str, Any]:
    """Return the content of `tokenizer.json`."""
    steps = PRE_TOKENIZERS[pre]
    own_expression = any(step["type"] == "Split" for step in steps)
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {
            "id": index,
            "content": text,
            "special": kinds[index] == CONTROL,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for index, text in enumerate(tokens)
        if kinds[index] in (CONTROL, USER_DEFINED)
    ]
    used = {text: index for index, text in enumerate(tokens) if kinds[index] != UNUSED}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, {**as_bytes, "use_regex": not own_expression}],
        },
        "decoder": {**as_bytes, "use_regex": True},
        "model": {"type": "BPE", "vocab": used, "merges": merges, "byte_fallback": False},
    }


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
        **_template(tokenizer),
    }


def _template(tokenizer: Any) -> dict[str, str]:
    """Return the chat template of a tokenizer, in memory or in a folder."""
    if not isinstance(tokenizer, str | Path):
        text = getattr(tokenizer, "chat_template", None)
        return {TEMPLATE: text} if isinstance(text, str) else {}
    file = Path(tokenizer) / "chat_template.jinja"
    if file.is_file():
        return {TEMPLATE: file.read_text(encoding="utf-8")}
    settings = _settings(tokenizer)
    text = settings.get("chat_template")
    return {TEMPLATE: text} if isinstance(text, str) else {}


def _settings(folder: str | Path) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, empty if there is none."""
    file = Path(folder) / "tokenizer_config.json"
    content = read_json(file, ExportError) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ExportError(f"{file}: expected a mapping, got {shown(content)}.")
    return content


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
    has_digits = any(step.get("type") == "Digits" for step in steps)
    return "smollm" if has_digits else "gpt-2"


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
    names = {own: name for name, own in SPECIAL.items()}
    if isinstance(tokenizer, str | Path):
        settings = _settings(tokenizer)
    else:
        settings = {key: getattr(tokenizer, key, None) for key in names}
    texts = {key: v["content"] if isinstance(v, dict) else v for key, v in settings.items()}
    return {
        f"tokenizer.ggml.{name}_token_id": vocab[texts[key]]
        for key, name in names.items()
        if texts.get(key) in vocab
    }
