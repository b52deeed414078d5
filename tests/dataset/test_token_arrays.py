import numpy as np
import pytest

from chop.dataset import TokenArrays, load_token_arrays
from chop.errors import DataError


def arrays(max_token_len=512):
    ids = np.array([1, 5, 2, 1, 6, 7, 8, 2], dtype=np.uint16)
    return TokenArrays(ids, np.array([0, 3, 8]), np.array([0, 1], dtype=np.uint8), max_token_len)


def test_a_row_has_tokens_mask_and_label():
    assert arrays()[1] == {
        "input_ids": [1, 6, 7, 8, 2],
        "attention_mask": [1] * 5,
        "labels": 1,
    }


def test_a_long_row_is_cut_and_keeps_its_last_token():
    short = arrays(max_token_len=3)
    assert short[1]["input_ids"] == [1, 6, 2]
    assert short.lengths.tolist() == [3, 3]


def test_select_keeps_rows_whole():
    chosen = arrays().select([1, 0, 1])
    assert [row["input_ids"] for row in chosen] == [[1, 6, 7, 8, 2], [1, 5, 2], [1, 6, 7, 8, 2]]


def test_files_of_splits_are_read(tmp_path):
    given = arrays()
    for split in ("train", "test"):
        np.savez(
            tmp_path / f"{split}.npz", ids=given.ids, offsets=given.offsets, labels=given.labels
        )
    found = load_token_arrays(tmp_path)
    assert set(found) == {"train", "test"}
    assert found["test"][0] == given[0]


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"no .npz file in"):
        load_token_arrays(tmp_path)


def test_a_file_without_the_arrays_is_an_error(tmp_path):
    np.savez(tmp_path / "train.npz", tokens=np.zeros(3))
    with pytest.raises(
        DataError, match=r"train.npz: expected a .npz file with ids, offsets, labels"
    ):
        load_token_arrays(tmp_path)


def test_offsets_that_do_not_fit_are_an_error():
    with pytest.raises(
        DataError, match="2 labels need 3 offsets that end at 8; got 2 that end at 8"
    ):
        TokenArrays(np.zeros(8), np.array([0, 8]), np.array([0, 1]))
