"""Rows are drawn by a seed with every class in its share, and held out the same each time."""

import datasets
import numpy as np
import pytest
import torch

from chop.dataset import ArrayDataset, TokenArrays
from chop.dataset.row_selection import draw_indices, draw_rows, hold_out, labels_of

SORTED = [0] * 60 + [1] * 30 + [2] * 10
"""Labels as in a file that is sorted by them."""


def splits():
    """The same rows as each kind of split."""
    ids, offsets = np.arange(100), np.arange(101)
    return {
        "arrays": ArrayDataset({"x": torch.arange(100), "labels": torch.tensor(SORTED)}),
        "tokens": TokenArrays(ids, offsets, np.array(SORTED)),
        "text": datasets.Dataset.from_dict({"x": list(range(100)), "label": SORTED}),
    }


@pytest.mark.parametrize("kind", ["arrays", "tokens", "text"])
def test_every_class_has_its_share_of_the_rows_drawn(kind):
    drawn = draw_rows(splits()[kind], 20, seed=3)
    assert np.bincount(np.asarray(labels_of(drawn))).tolist() == [12, 6, 2]


def test_a_seed_gives_the_same_rows_and_another_others():
    first, again, other = (draw_indices(SORTED, 100, 20, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 20


def test_shares_that_are_no_whole_numbers_add_up():
    for count in range(1, 100):
        assert len(set(draw_indices(SORTED, 100, count, seed=0))) == count


def test_more_rows_than_there_are_gives_all_of_them():
    assert sorted(draw_indices(SORTED, 100, 1000, seed=0)) == list(range(100))


@pytest.mark.parametrize("labels", [None, np.linspace(0, 1, 100), [[0, 1]] * 100])
def test_rows_without_classes_are_drawn_all_the_same(labels):
    assert len(set(draw_indices(labels, 100, 7, seed=0))) == 7


def test_rows_held_out_are_not_trained_on():
    kept, held = hold_out(splits()["arrays"], 0.1)
    rows = [*kept.columns["x"].tolist(), *held.columns["x"].tolist()]
    assert sorted(rows) == list(range(100)) and len(held) == 10
    assert held.columns["labels"].tolist() == [0] * 6 + [1] * 3 + [2]
