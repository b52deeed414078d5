"""Running text for language models: files of text or tables of documents as rows of tokens.

Documents follow each other, each begun by the token that begins a text; the stream is cut into rows
of equal length. Without a tokenizer the tokens are the bytes of the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chop.dataset.named import OF_LANGUAGE
from chop.dataset.token_streams import is_token_stream
from chop.dataset.tokenized import (
    READERS,
    SPLITS,
    datasets_package,
    load_text,
    recipe_of,
    split_files,
    text_columns_of,
)
from chop.errors import DataError
from chop.hub import local_folder

PLAIN = (".txt", ".md")
"""Suffixes of files that are text and nothing else."""
CHUNK = 1 << 16
"""Characters of a file that are read at a time; a chunk ends where a line does."""
DOCUMENTS = 1000
"""Documents that are cut together; what is left of them behind the last whole row is dropped."""
TEST_SHARE = 0.1
"""Of the rows, the last, where the data has one split alone."""
TEXT, IDS = "text", "input_ids"


def is_language_data(dataset: str | Path) -> bool:
    """Whether a dataset is running text, which has no labels but the text itself."""
    if dataset in OF_LANGUAGE or is_token_stream(dataset):
        return True
    return bool(_plain_files(_local(dataset)))


def _local(dataset: str | Path) -> Path:
    """Where a dataset lies on this machine, if it does."""
    return local_folder(dataset, "dataset") or Path(dataset)


def load_running_text(
    dataset: str | Path, tokenizer: Any, length: int, *, cache_dir: str | Path | None = None
) -> dict[str, Any]:
    """The splits of `dataset` as rows of `length` tokens; labels are the tokens themselves.

    `dataset`: a file of text, parquet, JSON or CSV, a folder of them, or a hub name. Files named
    after splits are those splits; where there is one split alone, the last tenth of its rows is for
    the test. The rows are cached as `datasets` does.
    """
    place = _local(dataset)
    plain = _plain_files(place)
    documents = _read(plain, cache_dir) if plain else _documents(place, str(dataset), cache_dir)
    # a piece of a file begins no text
    start = None if plain or tokenizer is None else _first_token(tokenizer)
    found = {
        split: _rows(texts, tokenizer, start, length, f"{dataset} ({split})")
        for split, texts in documents.items()
        if split in SPLITS[:3]
    }
    if not found:
        raise DataError(f"dataset '{dataset}': no split to use. Allowed: {', '.join(SPLITS[:3])}.")
    if len(found) > 1:
        return found
    (rows,) = found.values()
    first = len(rows) - max(1, round(TEST_SHARE * len(rows)))
    if not first:
        raise DataError(
            f"dataset '{dataset}': one row of {length} tokens is too little to train and to test "
            "on. Give more text, or fewer tokens in a row (max_token_len)."
        )
    return {"train": rows.select(range(first)), "test": rows.select(range(first, len(rows)))}


def _plain_files(place: Path) -> dict[str, list[Path]]:
    """Split -> its files of plain text; empty where `place` is something else."""
    if place.is_file() and place.suffix in PLAIN:
        return {"train": [place]}
    if not place.is_dir() or any(
        split_files(place, split, suffix)
        for split in SPLITS
        for suffix in READERS
        if suffix not in PLAIN
    ):
        return {}
    named = {s: [f for suffix in PLAIN for f in split_files(place, s, suffix)] for s in SPLITS}
    found = {split: [Path(f) for f in files] for split, files in named.items() if files}
    if found or (place / "config.json").is_file():  # a model's folder has a README.md
        return found
    rest = sorted(file for suffix in PLAIN[:1] for file in place.glob(f"*{suffix}"))
    return {"train": rest} if rest else {}


def _read(plain: dict[str, list[Path]], cache_dir: str | Path | None) -> dict[str, Any]:
    """Files of plain text, piece by piece."""
    package = datasets_package()
    options = {} if cache_dir is None else {"cache_dir": str(cache_dir)}
    return {
        split: package.Dataset.from_generator(
            read_chunks,
            gen_kwargs={"files": [str(f) for f in files], "stamp": _stamp(files)},
            features=package.Features({TEXT: package.Value("string")}),
            **options,
        )
        for split, files in plain.items()
    }


def _documents(place: Path, name: str, cache_dir: str | Path | None) -> dict[str, Any]:
    """Tables of documents."""
    if not place.is_file():
        return dict(load_text(name, cache_dir))
    if place.suffix not in READERS:
        allowed = ", ".join(dict.fromkeys([*PLAIN, *READERS]))
        raise DataError(f"dataset '{name}': a file of '{place.suffix}'. Allowed: {allowed}.")
    cache = None if cache_dir is None else str(cache_dir)
    files = {"train": [str(place)]}
    package = datasets_package()
    return dict(package.load_dataset(READERS[place.suffix], data_files=files, cache_dir=cache))


def _stamp(files: Sequence[Path]) -> str:
    """What tells that files have changed since they were read."""
    return " ".join(f"{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files)


def read_chunks(files: Sequence[str], stamp: str) -> Iterator[dict[str, str]]:
    """The text of files in pieces that end with a line."""
    for file in files:
        try:
            with open(file, encoding="utf-8") as opened:
                while chunk := opened.read(CHUNK):
                    yield {TEXT: chunk + opened.readline()}
        except UnicodeDecodeError as error:
            raise DataError(f"dataset '{file}': not text in UTF-8 ({error}).") from error


def _rows(documents: Any, tokenizer: Any, start: int | None, length: int, where: str) -> Any:
    column = text_columns_of({"train": documents}, None, where)[0]

    def cut(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        tokens: list[int] = []
        for ids in _encode(tokenizer, batch[column]):
            tokens += ids if start is None else [start, *ids]
        rows = [tokens[at : at + length] for at in range(0, len(tokens) - length + 1, length)]
        return {IDS: rows, "attention_mask": [[1] * length] * len(rows), "labels": rows}

    recipe = "bytes" if tokenizer is None else recipe_of(tokenizer, [column], length)
    made = documents.map(
        cut,
        batched=True,
        batch_size=DOCUMENTS,
        remove_columns=documents.column_names,
        new_fingerprint=_digest(documents._fingerprint, recipe, f"rows of {length} from {start}"),
        desc="cut text into rows",
    )
    if not len(made):
        raise DataError(
            f"dataset {where}: less text than a row of {length} tokens (max_token_len)."
        )
    return made


def _first_token(tokenizer: Any) -> int | None:
    """The token that begins a text; where there is none, the one that ends it."""
    found = tokenizer.bos_token_id
    token: int | None = tokenizer.eos_token_id if found is None else found
    return token


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    if tokenizer is None:
        return [list(text.encode()) for text in texts]
    found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)[IDS]
    return found


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
