"""Checks of untrusted Hugging Face configs, before transformers reads them.

A `config.json` must select no code: neither its own Python (`auto_map`) nor a kernel of the hub
(`attn_implementation`). Its numbers must not make transformers build long lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from chop.errors import ChopError
from chop.files import shown

LARGEST_SIZE = 1 << 24
"""Largest size: the longest context of a published model has 10 million tokens."""
MOST_LABELS = 1 << 20
"""Largest `num_labels`: transformers builds a dictionary with a name for each."""
NO_SIZES = re.compile(
    r".*(theta|base|token_id|token_index|seed|_ids?|version|parameters)", re.ASCII
)
"""Keys of integers that are not sizes of lists."""
IMPLEMENTATION = re.compile(r"_?\w*_implementation\w*", re.ASCII)
PLAIN_IMPLEMENTATION = re.compile(r"(paged\|)?\w+", re.ASCII)
DTYPES = ("dtype", "torch_dtype")
REMOTE_CODE = "auto_map"


def check_config(config: Mapping[str, Any], where: str, error: type[ChopError]) -> None:
    """Raise `error` if a config selects a kernel, has an unknown dtype or too large numbers."""
    for place, key, value in _entries(config, where):
        if IMPLEMENTATION.fullmatch(key):
            _check_implementation(value, place, error)
        elif key in DTYPES:
            _check_dtype(value, place, error)
        elif type(value) is int and not NO_SIZES.fullmatch(key):
            most = MOST_LABELS if key == "num_labels" else LARGEST_SIZE
            if value > most:
                raise error(f"{place}: {shown(value)}. Allowed: at most {most}.")


def _entries(value: Any, where: str) -> Iterator[tuple[str, str, Any]]:
    """Yield place, key and value of every entry of nested mappings; items of lists have a key."""
    for key, item in value.items():
        yield f"{where}.{key:.80}", key, item
        yield from _inside(item, f"{where}.{key:.80}", key)


def _inside(item: Any, where: str, key: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(item, Mapping):
        yield from _entries({str(k): v for k, v in item.items()}, where)
    elif isinstance(item, list | tuple):
        for part in item:
            yield where, key, part
            yield from _inside(part, where, key)


def _check_implementation(value: Any, where: str, error: type[ChopError]) -> None:
    parts = value.values() if isinstance(value, Mapping) else [value]
    for part in parts:
        is_plain = isinstance(part, str) and PLAIN_IMPLEMENTATION.fullmatch(part)
        if part is not None and not is_plain:
            raise error(
                f"{where}: {shown(part)} is a kernel of the hub, which is a program. A config may "
                "name only what transformers has, such as 'sdpa' or 'eager'. Remove the key."
            )


def _check_dtype(value: Any, where: str, error: type[ChopError]) -> None:
    names = value.values() if isinstance(value, Mapping) else [value]
    for name in names:
        plain = name.removeprefix("torch.") if isinstance(name, str) else name
        is_dtype = isinstance(plain, str) and isinstance(getattr(torch, plain, None), torch.dtype)
        if plain not in (None, "auto") and not is_dtype and not isinstance(plain, torch.dtype):
            raise error(f"{where}: {shown(name)} is not a dtype of torch, such as 'float32'.")


def remote_code(config: Mapping[str, Any]) -> list[str]:
    """Return the references to Python files that a config asks to import."""
    references = config.get(REMOTE_CODE)
    values = references.values() if isinstance(references, Mapping) else [references]
    return [str(v) for each in values for v in (each if isinstance(each, list) else [each]) if v]


def refuse_remote_code(
    config: Mapping[str, Any], where: str, error: type[ChopError], *, trust_remote_code: bool
) -> None:
    """Raise `error` if a config imports its own Python, unless it is trusted."""
    references = remote_code(config)
    if references and not trust_remote_code:
        raise error(
            f"{where}.{REMOTE_CODE}: it asks to run its own Python ({shown(references[0])}), which "
            "is not run. If you trust its author: --trust-remote-code, or trust_remote_code=True."
        )
