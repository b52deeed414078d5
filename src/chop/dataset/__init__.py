"""Data: tokenised text from the hub or a folder, and small tasks that need no network."""

from chop.dataset.arrays import ArrayDataset
from chop.dataset.digits import digits
from chop.dataset.named import DATASETS, get_dataset
from chop.dataset.sequences import sequences
from chop.dataset.token_arrays import TokenArrays, load_token_arrays
from chop.dataset.tokenized import get_tokenized_dataset
from chop.old_names import lazy_names

__all__ = [
    "DATASETS",
    "ArrayDataset",
    "TokenArrays",
    "digits",
    "get_dataset",
    "get_tokenized_dataset",
    "load_token_arrays",
    "sequences",
]

__getattr__ = lazy_names(__name__)
