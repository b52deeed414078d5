"""Datasets in batches: `MaseDataModule`, and the properties of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from chop.dataset.arrays import ArrayDataset
from chop.dataset.built_in import DATASETS
from chop.dataset.npz import array_names, check_tokens, read_arrays
from chop.dataset.token_arrays import KEYS, load_token_arrays
from chop.dataset.tokenized import get_tokenized_dataset
from chop.errors import DataError
from chop.files import shown
from chop.hub import locate

LABELS = "labels"
LABEL_COLUMNS = (LABELS, "label")
TOKENS = "input_ids"
TOYS = ("toy", "toy_tiny")


@dataclass(frozen=True)
class DatasetInfo:
    """Properties of a dataset; `sample_shape` is the shape of one row of its input."""

    name: str
    num_classes: int
    available_splits: tuple[str, ...]
    input_names: tuple[str, ...]
    sample_shape: tuple[int, ...]

    @property
    def num_features(self) -> int:
        """Values in one row of the input."""
        return int(np.prod(self.sample_shape))

    @property
    def image_size(self) -> tuple[int, ...] | None:
        """Channels, height and width; None if the input is no image."""
        return self.sample_shape if len(self.sample_shape) == 3 else None


class MaseDataModule:
    """Splits of a dataset as batches: call `setup()`, then `train_dataloader()` and so on.

    `name` is a built-in dataset, a folder of arrays (`train.npz`, `test.npz` with one array per
    column), or text for `tokenizer`. Batches of one input and a label are pairs, others mappings.
    The seed alone determines the order of rows.
    """

    def __init__(
        self,
        name: str,
        batch_size: int = 32,
        num_workers: int = 0,
        max_token_len: int | None = None,
        tokenizer: Any = None,
        model_name: str | None = None,
        *,
        seed: int = 0,
        **unused: Any,
    ) -> None:
        self.name, self.batch_size, self.num_workers = name, batch_size, num_workers
        self.max_token_len, self.tokenizer = max_token_len or 512, tokenizer
        self.model_name, self.seed = model_name, seed
        self.splits: dict[str, Any] = {}

    def prepare_data(self) -> None:
        """Do nothing; `setup` reads the data."""

    def setup(self, stage: str | None = None) -> None:
        """Read the data."""
        self.splits = load_splits(self.name, self.tokenizer, self.max_token_len)

    @property
    def dataset_info(self) -> DatasetInfo:
        """Properties of this dataset."""
        return _info_of(self.name, self._read())

    @property
    def train_dataset(self) -> Any:
        """Training rows."""
        return self._split("train")

    @property
    def val_dataset(self) -> Any:
        """Validation rows, else test rows."""
        return self._split("validation", "test")

    @property
    def test_dataset(self) -> Any:
        """Test rows, else validation rows."""
        return self._split("test", "validation")

    def train_dataloader(self) -> DataLoader[Any]:
        """Return training batches, in an order determined by the seed."""
        return self._loader(self.train_dataset, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return validation batches."""
        return self._loader(self.val_dataset, shuffle=False)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return test batches."""
        return self._loader(self.test_dataset, shuffle=False)

    def _read(self) -> dict[str, Any]:
        if not self.splits:
            self.setup()
        return self.splits

    def _split(self, *names: str) -> Any:
        splits = self._read()
        for name in names:
            if name in splits:
                return splits[name]
        raise DataError(
            f"dataset '{self.name}' has no split {' or '.join(names)}; it has: {', '.join(splits)}."
        )

    def _loader(self, split: Any, *, shuffle: bool) -> DataLoader[Any]:
        return DataLoader(
            split,
            self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            collate_fn=self._collate,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def _collate(self, rows: list[dict[str, Any]]) -> Any:
        if self.tokenizer is not None and "input_ids" in rows[0]:
            tokens = [
                {k: v for k, v in r.items() if k not in LABEL_COLUMNS and not isinstance(v, str)}
                for r in rows
            ]
            labels = [row[name] for row in rows for name in LABEL_COLUMNS if name in row]
            padded = self.tokenizer.pad(tokens, return_tensors="pt")
            return {**padded, LABELS: torch.as_tensor(labels)}
        batch = default_collate(rows)
        if len(batch) == 2 and LABELS in batch:
            return next(v for k, v in batch.items() if k != LABELS), batch[LABELS]
        return batch


def toy(
    train_size: int = 256, test_size: int = 64, num_features: int = 4, seed: int = 0
) -> dict[str, ArrayDataset]:
    """Return points `x` of `num_features` values; label 1 if the signs of the first two differ."""
    generator = torch.Generator().manual_seed(seed)
    splits = {}
    for name, size in (("train", train_size), ("validation", test_size), ("test", test_size)):
        x = torch.randn(size, num_features, generator=generator)
        splits[name] = ArrayDataset({"x": x, "labels": (x[:, 0] * x[:, 1] < 0).long()})
    return splits


def get_dataset_info(name: str, tokenizer: Any = None) -> DatasetInfo:
    """Read the dataset `name` and return its properties."""
    return _info_of(name, load_splits(name, tokenizer))


def load_splits(name: str, tokenizer: Any = None, max_token_len: int = 512) -> dict[str, Any]:
    """Return the splits of a built-in dataset, a folder of arrays, or text for `tokenizer`."""
    if name in DATASETS:
        return dict(DATASETS[name]())
    if name.replace("-", "_") in TOYS:
        return dict(toy())
    if tokenizer is not None:
        return dict(
            get_tokenized_dataset(name, tokenizer.name_or_path, max_token_len=max_token_len)
        )
    place = locate(name, "dataset")
    files = sorted(Path(place.name).glob("*.npz")) if place.is_folder else []
    if not files:
        raise DataError(
            f"dataset '{name}': no .npz file in '{place.name}', and no tokenizer for text was "
            f"given. Built in: {', '.join(DATASETS)}."
        )
    if set(KEYS) <= set(array_names(files[0])):
        return dict(load_token_arrays(place.name, max_token_len))
    return {file.stem: _read_arrays(file) for file in files}


def _read_arrays(file: Path) -> ArrayDataset:
    arrays = read_arrays(file)
    if LABELS not in arrays:
        raise DataError(f"{file}: no array '{LABELS}'. Has: {shown(list(arrays))}.")
    if not np.isfinite(arrays[LABELS]).all():
        raise DataError(f"{file}: '{LABELS}' has values that are NaN or infinite.")
    if TOKENS in arrays:
        check_tokens(arrays[TOKENS], f"{file}: {TOKENS}")
    scalars = [name for name, array in arrays.items() if not array.size or not array.ndim]
    if scalars:
        raise DataError(f"{file}: array {shown(scalars[0])} is empty or one number.")
    return ArrayDataset({name: torch.from_numpy(array) for name, array in arrays.items()})


def _info_of(name: str, splits: dict[str, Any]) -> DatasetInfo:
    split = splits.get("train", next(iter(splits.values())))
    row = split[0]
    inputs = [key for key in row if key not in LABEL_COLUMNS and not isinstance(row[key], str)]
    labels = getattr(split, "columns", {}).get(LABELS, getattr(split, LABELS, None))
    if labels is None:
        labels = split["labels" if "labels" in row else "label"]
    shape = tuple(np.shape(row[inputs[0]]))
    return DatasetInfo(name, int(max(labels)) + 1, tuple(splits), tuple(inputs), shape)
