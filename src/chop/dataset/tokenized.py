"""Tokenised text from the hub or a local folder: memory-mapped and cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from chop.errors import ChopError, DataError, MissingDependencyError
from chop.files import read_json, shown
from chop.hub import locate
from chop.hub_config import check_config, refuse_remote_code
from chop.patterns import check_patterns

TEXT_COLUMNS = ("text", "sentence", "review", "content")
"""Names of a column of text, for datasets with several columns of strings."""
SPLITS = ("train", "test", "validation", "unsupervised")
SETTINGS, RULES, MODEL_CONFIG = "tokenizer_config.json", "tokenizer.json", "config.json"
READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv", ".txt": "text"}
"""Reader by file suffix."""


def get_tokenized_dataset(
    dataset: str | Path,
    checkpoint: str | Path,
    return_tokenizer: bool = False,
    max_token_len: int = 512,
    *,
    text_columns: Sequence[str] | None = None,
    cache_dir: str | Path | None = None,
    choose: Callable[[Any], Any] | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Return the splits of `dataset`, tokenised by the tokenizer of `checkpoint`.

    Both are a hub name or a local folder; $MASE_DATA and $MASE_MODELS are searched before the hub.
    `text_columns` is the column of text, or two for pairs of sentences; by default it is inferred.
    Other columns stay. `return_tokenizer` adds the tokenizer to the result. `choose` selects the
    splits and rows to tokenise. The result is cached in `cache_dir` (default: that of `datasets`)
    until the text, the tokenizer or `max_token_len` changes.
    """
    tokenizer = load_tokenizer(checkpoint, trust_remote_code=trust_remote_code)
    raw = load_text(dataset, cache_dir)
    raw = raw if choose is None else type(raw)(choose(raw))
    columns = text_columns_of(raw, text_columns, str(dataset))
    tokens = _tokenize(raw, tokenizer, columns, max_token_len)
    return (tokens, tokenizer) if return_tokenizer else tokens


UNUSUAL = "a \u2603"
"""Text with a character that few vocabularies have."""


def load_tokenizer(checkpoint: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a model, by hub name or folder.

    With `trust_remote_code` Python files of the folder or the hub are imported.
    """
    place = locate(checkpoint, "model")
    where = f"tokenizer '{checkpoint}'"
    settings = _check_files(Path(place.name), where) if place.is_folder else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            place.name, local_files_only=place.is_local, trust_remote_code=trust_remote_code
        )
        tokenizer(UNUSUAL)  # fails if the token for unknown words is not in the vocabulary
        return tokenizer
    except Exception as error:  # of any kind: every tokenizer checks its files in its own way
        file = f"{where}: {SETTINGS}"
        refuse_remote_code(settings, file, DataError, trust_remote_code=trust_remote_code)
        line = (str(error).strip().splitlines() or [""])[0]
        raise DataError(f"{where}: none could be loaded ({line}).") from error


def _check_files(folder: Path, where: str) -> dict[str, Any]:
    """Raise DataError if a file of a tokenizer is no JSON; return its settings."""
    settings: dict[str, Any] = {}
    for name in (SETTINGS, RULES, MODEL_CONFIG):
        content = read_json(folder / name, DataError) if (folder / name).is_file() else {}
        if not isinstance(content, dict):
            raise DataError(f"{where}: {name}: expected a mapping, got {shown(content)}.")
        if name == RULES:
            check_patterns(content, f"{where}: {name}", DataError)
        if name == MODEL_CONFIG:
            check_config(content, f"{where}: {name}", DataError)
        settings = content if name == SETTINGS else settings
    return settings


def load_text(dataset: str | Path, cache_dir: str | Path | None = None) -> Any:
    """Return the raw splits of a dataset, memory-mapped."""
    package = datasets_package()
    place = locate(dataset, "dataset")
    cache = None if cache_dir is None else str(cache_dir)
    if place.is_folder:
        with reading(dataset):
            return _load_folder(package, Path(place.name), cache)
    offline = package.DownloadConfig(local_files_only=True)
    options = {"download_config": offline} if place.is_local else {}
    return package.load_dataset(place.name, cache_dir=cache, **options)


@contextlib.contextmanager
def reading(dataset: str | Path) -> Iterator[None]:
    """Convert errors of `datasets` while it reads files to DataErrors."""
    package = datasets_package()
    try:
        yield
    except (package.exceptions.DatasetsError, ValueError, UnicodeDecodeError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, ChopError):
            raise cause from error
        line = str(cause).strip().split("\n")[0]
        raise DataError(f"dataset '{dataset}': its files cannot be read ({line}).") from error


def datasets_package() -> Any:
    """Return Hugging Face's `datasets`, or raise with how to install it."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "get_tokenized_dataset: the package 'datasets' is not installed. Install it: "
            "pip install 'masegraph[train]'. (chop.dataset.load_token_arrays needs NumPy alone.)"
        ) from error
    return datasets


def _load_folder(package: Any, folder: Path, cache: str | None) -> Any:
    if (folder / "dataset_dict.json").is_file():
        return package.load_from_disk(str(folder))
    for suffix, reader in READERS.items():
        files = {split: split_files(folder, split, suffix) for split in SPLITS}
        files = {split: paths for split, paths in files.items() if paths}
        if files:
            return package.load_dataset(reader, data_files=files, cache_dir=cache)
    raise DataError(
        f"dataset '{folder}': no file named after a split ({', '.join(SPLITS)}) with a suffix of "
        f"{', '.join(READERS)}."
    )


def split_files(folder: Path, split: str, suffix: str) -> list[str]:
    """Return `train.parquet`, `train-00000-of-00001.parquet` in the folder or below it."""
    files = [*folder.rglob(f"{split}{suffix}"), *folder.rglob(f"{split}-*{suffix}")]
    return sorted(map(str, files))


def text_columns_of(raw: Any, names: Sequence[str] | None, where: str) -> list[str]:
    """Return the columns of text in splits: `names`, or the likeliest one."""
    features = next(iter(raw.values())).features
    strings = [name for name, kind in features.items() if "string" in getattr(kind, "dtype", "")]
    likely = [name for name in TEXT_COLUMNS if name in strings][:1]
    likely = likely or (strings if len(strings) == 1 else [])
    columns = [names] if isinstance(names, str) else list(names or likely)
    if len(columns) not in (1, 2) or not set(columns) <= set(strings):
        raise DataError(
            f"dataset '{where}': cannot tell the column of text; columns of strings are "
            f"{strings}, asked for was {names}. Name one, or two for pairs, in text_columns."
        )
    return columns


def _tokenize(raw: Any, tokenizer: Any, columns: list[str], max_token_len: int) -> Any:
    recipe = recipe_of(tokenizer, columns, max_token_len)
    longest = min(max_token_len, tokenizer.model_max_length)

    def encode(rows: dict[str, list[str]]) -> Any:
        texts = [rows[name] for name in columns]
        return tokenizer(*texts, truncation=True, max_length=longest)

    return type(raw)(
        {
            name: split.map(
                encode,
                batched=True,
                # by default `datasets` hashes the tokenizer object, which changes with use
                new_fingerprint=digest(split._fingerprint, recipe),
                desc=f"tokenise {name}",
            )
            for name, split in raw.items()
        }
    )


def recipe_of(tokenizer: Any, columns: list[str], max_token_len: int) -> str:
    """Return everything that determines the tokens of a text, as one string."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = (
        json.loads(backend.to_str()) if backend is not None else {"vocab": tokenizer.get_vocab()}
    )
    for state in ("truncation", "padding"):
        rules.pop(state, None)  # left behind by the last call
    kind = type(tokenizer).__name__
    return json.dumps([kind, rules, columns, max_token_len], sort_keys=True)


def digest(*parts: str) -> str:
    """Return a fingerprint for the cache of `datasets`."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
