"""Data: tokenised text from the hub or a folder, and small tasks that need no network."""

from chop.compat.old_names import lazy_names
from chop.dataset.arrays import ArrayDataset
from chop.dataset.built_in import DATASETS, get_dataset
from chop.dataset.digits import digits
from chop.dataset.markov import markov
from chop.dataset.running_text import is_language_data, load_running_text
from chop.dataset.sequences import sequences
from chop.dataset.token_arrays import TokenArrays, load_token_arrays
from chop.dataset.tokenized import get_tokenized_dataset

__all__ = [
    "DATASETS",
    "ArrayDataset",
    "TokenArrays",
    "digits",
    "get_dataset",
    "get_tokenized_dataset",
    "is_language_data",
    "load_running_text",
    "load_token_arrays",
    "markov",
    "sequences",
]

__getattr__ = lazy_names(__name__)
