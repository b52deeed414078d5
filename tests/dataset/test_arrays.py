import pytest
import torch

from chop.dataset import DATASETS, ArrayDataset, get_dataset
from chop.dataset.sequences import FIRST, SECOND
from chop.errors import DataError, RegistryError


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(
        DataError, match=r"columns must have one length, got \{'x': 2, 'labels': 3\}"
    ):
        ArrayDataset({"x": torch.zeros(2), "labels": torch.zeros(3)})


def test_select_gives_rows_in_the_order_asked_for():
    rows = ArrayDataset({"x": torch.arange(5), "labels": torch.arange(5) * 10}).select([3, 1])
    assert [rows[i]["labels"].item() for i in range(len(rows))] == [30, 10]


@pytest.mark.parametrize("name", DATASETS)
def test_a_built_in_dataset_is_the_same_every_time_and_has_both_splits(name):
    first, again = get_dataset(name), get_dataset(name)
    assert set(first) == {"train", "test"}
    for split, data in first.items():
        assert "labels" in data.column_names
        assert all(torch.equal(data.columns[c], again[split].columns[c]) for c in data.columns)


def test_digits_have_every_class_in_both_splits_and_no_row_twice():
    found = get_dataset("digits")
    assert len(found["train"]) + len(found["test"]) == 1797
    for split in found.values():
        assert split.columns["labels"].unique().tolist() == list(range(10))
        pixels = split.columns["pixel_values"]
        assert pixels.shape[1:] == (1, 8, 8)
        assert 0.0 <= pixels.min() < pixels.max() <= 1.0


def test_the_label_of_a_sequence_is_the_order_of_its_marks():
    for row in get_dataset("sequences", train_size=50, test_size=1)["train"]:
        kept = row["input_ids"][row["attention_mask"].bool()].tolist()
        assert (kept.count(FIRST), kept.count(SECOND)) == (1, 1)
        assert row["labels"].item() == int(kept.index(FIRST) < kept.index(SECOND))


def test_an_unknown_dataset_names_the_nearest():
    with pytest.raises(RegistryError, match=r"Unknown dataset 'digit'. Did you mean 'digits'"):
        get_dataset("digit")
