"""Running text for language models: files of text or tables of documents as rows of tokens.

Documents are joined, each after a start token, and cut into rows of equal length. Without a
tokenizer the tokens are the bytes of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chop.dataset.built_in import OF_LANGUAGE
from chop.dataset.token_streams import is_token_stream
from chop.dataset.tokenized import (
    READERS,
    SPLITS,
    datasets_package,
    digest,
    load_text,
    reading,
    recipe_of,
    split_files,
    text_columns_of,
)
from chop.errors import DataError
from chop.hub import local_folder

PLAIN = (".txt", ".md")
"""Suffixes of plain text files."""
CHUNK = 1 << 16
"""Characters per read of a file; a chunk ends with a line."""
DOCUMENTS = 1000
"""Documents that are cut together; an incomplete last row is dropped."""
TEST_SHARE = 0.1
"""Share of the last rows for the test, if the data has one split."""
TEXT, IDS = "text", "input_ids"


def is_language_data(dataset: str | Path) -> bool:
    """Return True if a dataset is running text, whose labels are the text itself."""
    if dataset in OF_LANGUAGE or is_token_stream(dataset):
        return True
    return bool(_plain_files(local_folder(dataset, "dataset") or Path(dataset)))


def load_running_text(
    dataset: str | Path, tokenizer: Any, length: int, *, cache_dir: str | Path | None = None
) -> dict[str, Any]:
    """Return the splits of `dataset` as rows of `length` tokens; labels are the tokens.

    `dataset` is a file of text, parquet, JSON or CSV, a folder of them, or a hub name. Files are
    named after splits; if there is one split, its last tenth is the test. `datasets` caches rows.
    """
    place = local_folder(dataset, "dataset") or Path(dataset)
    plain = _plain_files(place)
    with reading(dataset):
        documents = _read(plain, cache_dir) if plain else _documents(place, str(dataset), cache_dir)
    start = None  # a chunk of a file starts no document
    if not plain and tokenizer is not None:
        bos = tokenizer.bos_token_id
        start = tokenizer.eos_token_id if bos is None else bos
    rows_by_split = {
        split: _rows(texts, tokenizer, start, length, f"{dataset} ({split})")
        for split, texts in documents.items()
        if split in SPLITS[:3]
    }
    if not rows_by_split:
        raise DataError(f"dataset '{dataset}': no split to use. Allowed: {', '.join(SPLITS[:3])}.")
    if len(rows_by_split) > 1:
        return rows_by_split
    (rows,) = rows_by_split.values()
    first = len(rows) - max(1, round(TEST_SHARE * len(rows)))
    if not first:
        raise DataError(
            f"dataset '{dataset}': one row of {length} tokens is too little to train and to test "
            "on. Give more text, or fewer tokens in a row (max_token_len)."
        )
    return {"train": rows.select(range(first)), "test": rows.select(range(first, len(rows)))}


def _plain_files(place: Path) -> dict[str, list[Path]]:
    """Return the plain text files of each split, empty if `place` has none."""
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
    by_split = {split: [Path(f) for f in files] for split, files in named.items() if files}
    if by_split or (place / "config.json").is_file():  # a model's folder has a README.md
        return by_split
    rest = sorted(file for suffix in PLAIN[:1] for file in place.glob(f"*{suffix}"))
    return {"train": rest} if rest else {}


def _read(plain: dict[str, list[Path]], cache_dir: str | Path | None) -> dict[str, Any]:
    """Return plain text files as datasets of chunks."""
    package = datasets_package()
    options = {} if cache_dir is None else {"cache_dir": str(cache_dir)}
    return {
        split: package.Dataset.from_generator(
            read_chunks,
            gen_kwargs={
                "files": [str(f) for f in files],
                "stamp": " ".join(f"{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files),
            },
            features=package.Features({TEXT: package.Value("string")}),
            **options,
        )
        for split, files in plain.items()
    }


def _documents(place: Path, name: str, cache_dir: str | Path | None) -> dict[str, Any]:
    """Return tables of documents."""
    if not place.is_file():
        return dict(load_text(name, cache_dir))
    if place.suffix not in READERS:
        allowed = ", ".join(dict.fromkeys([*PLAIN, *READERS]))
        raise DataError(f"dataset '{name}': a file of '{place.suffix}'. Allowed: {allowed}.")
    cache = None if cache_dir is None else str(cache_dir)
    files = {"train": [str(place)]}
    package = datasets_package()
    return dict(package.load_dataset(READERS[place.suffix], data_files=files, cache_dir=cache))


def read_chunks(files: Sequence[str], stamp: str) -> Iterator[dict[str, str]]:
    """Yield the text of files in chunks of whole lines; `stamp` changes with the files."""
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
        if tokenizer is None:
            encoded = [list(text.encode()) for text in batch[column]]
        else:
            encoded = tokenizer(list(batch[column]), add_special_tokens=False)[IDS]
        for ids in encoded:
            tokens += ids if start is None else [start, *ids]
        rows = [tokens[at : at + length] for at in range(0, len(tokens) - length + 1, length)]
        return {IDS: rows, "attention_mask": [[1] * length] * len(rows), "labels": rows}

    recipe = "bytes" if tokenizer is None else recipe_of(tokenizer, [column], length)
    table = documents.map(
        cut,
        batched=True,
        batch_size=DOCUMENTS,
        remove_columns=documents.column_names,
        new_fingerprint=digest(documents._fingerprint, recipe, f"rows of {length} from {start}"),
        desc="cut text into rows",
    )
    if not len(table):
        raise DataError(
            f"dataset {where}: less text than a row of {length} tokens (max_token_len)."
        )
    return table
