"""Number of classes of a dataset, read before a model is built for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from chop.dataset.built_in import DATASETS, get_dataset
from chop.dataset.row_selection import LABEL_NAMES, MOST_CLASSES, labels_of
from chop.dataset.running_text import is_language_data
from chop.dataset.tokenized import load_text
from chop.errors import ChopError


def count_classes(dataset: str) -> int | None:
    """Return the number of classes in the training rows of `dataset`, else None.

    None also stands for a dataset that cannot be read: loading it reports the fault.
    """
    if dataset in DATASETS:
        return _count(labels_of(get_dataset(dataset)["train"]))
    if is_language_data(dataset):
        return None
    try:
        splits = load_text(dataset)
    except (ChopError, OSError, ValueError):
        return None
    split = splits.get("train", next(iter(splits.values())))
    name = next((n for n in LABEL_NAMES if n in split.column_names), None)
    if name is None:
        return None
    stated = getattr(split.features[name], "num_classes", None)
    return int(stated) if stated is not None else _count(split[name])


def _count(labels: Any) -> int | None:
    """Return the largest label plus one, because classes are numbered from 0."""
    values = np.asarray([] if labels is None else labels)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        return None
    count = int(values.max()) + 1
    return count if 0 < count <= MOST_CLASSES and values.min() >= 0 else None
