"""Arrays of `.npz` files: equal to what numpy reads, and refused where they are no numbers."""

import numpy as np
import pytest

from chop.dataset.data_module import load_splits
from chop.dataset.npz import array_names, read_arrays
from chop.errors import DataError


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_that_numpy_reads(save, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "fortran": np.asfortranarray(rng.normal(size=(3, 4))),
        "big_endian": rng.integers(0, 9, 5).astype(">i4"),
        "half": rng.normal(size=(2, 2, 2)).astype(np.float16),
        "empty": np.zeros((0, 3)),
        "one": np.array(3),
        "flags": np.array([True, False]),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == array_names(tmp_path / "a.npz") == list(arrays)
    for name, wanted in arrays.items():
        assert np.array_equal(found[name], wanted) and found[name].shape == wanted.shape
        assert found[name].dtype == wanted.dtype.newbyteorder("=")
        assert found[name].flags.writeable and found[name].flags.c_contiguous


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"x": np.ones((2, 2))}, r"no array 'labels'. Has: \['x'\]"),
        ({"labels": np.array([0, np.nan])}, r"'labels' has values that are NaN"),
        ({"labels": np.arange(2), "input_ids": np.array([[0.5], [1]])}, r"Allowed: whole numbers"),
        ({"labels": np.arange(2), "x": np.array(1.0)}, r"array 'x' is empty or one number"),
        ({"labels": np.arange(2), "x": np.array(["a", "b"])}, r"Allowed: numbers of up to 8 bytes"),
        ({"labels": np.arange(2), "x": np.ones(2, np.complex64)}, r"Allowed: numbers of up to"),
    ],
)
def test_columns_that_are_no_data_are_refused(arrays, words, tmp_path):
    np.savez(tmp_path / "train.npz", **arrays)
    with pytest.raises(DataError, match=words):
        load_splits(str(tmp_path))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"offsets": np.array([0, 9, 8])}, r"offsets. Allowed: whole numbers that grow from 0 on"),
        ({"offsets": np.array([2, 3, 8])}, r"offsets. Allowed: whole numbers that grow from 0 on"),
        ({"offsets": np.zeros((3, 1))}, r"offsets has 2 dimensions. Allowed: one"),
        ({"ids": np.array([0.0] * 8)}, r"ids: float64 numbers. Allowed: whole numbers"),
        ({"labels": np.array([0, -1])}, r"labels: tokens from -1 to 0. Allowed: 0 to"),
        ({"offsets": np.array([])}, r"2 labels need 3 offsets .* that end at nothing"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(changes, words, tmp_path):
    arrays = {"ids": np.arange(8), "offsets": np.array([0, 3, 8]), "labels": np.array([0, 1])}
    np.savez(tmp_path / "train.npz", **{**arrays, **changes})
    with pytest.raises(DataError, match=words):
        load_splits(str(tmp_path))
