"""Files that travel with a model: tokenizer, chat template, preprocessor, generation settings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from chop.dataset.tokenized import load_tokenizer
from chop.errors import ChopError
from chop.hub import locate

FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
)
"""Files that are copied as they are; a tokenizer is loaded and saved."""


def save_companions(place: str | None, folder: Path, config: Any = None) -> list[str]:
    """Save what travels with the model at `place` into `folder`; return the names of new files.

    `config`: the model's config, with its labels, if the target does not store it.
    """
    before = set(folder.iterdir()) if folder.is_dir() else set()
    if place is not None:
        _save(place, folder)
    if config is not None and hasattr(config, "save_pretrained") and folder.is_dir():
        config.save_pretrained(str(folder))
    after = set(folder.iterdir()) if folder.is_dir() else set()
    return sorted(path.name for path in after - before)


def _save(place: str, folder: Path) -> None:
    try:
        load_tokenizer(place).save_pretrained(str(folder))
    except ChopError:  # the model reads no text, or its folder holds only weights
        if not Path(place).is_dir():
            return
    where = locate(place, "model")
    for name in FILES:
        file = Path(where.name, name) if where.is_folder else _cached(where.name, name)
        if file is not None and file.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / name)


def _cached(name: str, file: str) -> Path | None:
    path = try_to_load_from_cache(name, file)
    return Path(path) if isinstance(path, str) else None
