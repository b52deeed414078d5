"""GPTQ with the sums over the inputs in files, compared with the same in memory."""

import os
from unittest.mock import Mock

import pytest
import torch
from covering import first_and_slow
from torch import nn

from chop import MaseGraph
from chop.nn.quantizers.formats import spelled_settings
from chop.passes import gptq_transform_pass, quantize_transform_pass
from chop.passes.ptq.observe import stored_matrix, stored_sums
from chop.passes.ptq.observe.stored_matrix import (
    FlippedMatrix,
    LiftedMatrix,
    LowerMatrix,
    StoredMatrix,
    product,
    solved,
    steps,
    stored_cholesky,
    stored_inverse,
)
from chop.passes.ptq.solve import sliced_rounding

SIZE = 50
PUBLISHED = {"target": "rounded", "rows": "equal", "rounds": 0, "order": "importance"}
CASES = {
    "published": ("int4/16", PUBLISHED),
    "fitted scales": ("int4/16", {"target": "rounded", "rows": "equal", "rounds": 1}),
    "defaults": ("mxint4", {}),
    "defaults of integers": ("int4/16", {}),
    "channel": ("int4/channel", {"order": "left_to_right", "rounds": 2}),
    "one scale": ("int4/tensor", {}),
    "scale of the tensor": ("nvfp4", {"rounds": 1}),
    "minifloat": ("mxfp4", {"target": "rounded"}),
}
"""Format and options."""


@pytest.fixture
def few_rows(monkeypatch):
    """Panels of a few rows, and files for all sums."""
    monkeypatch.setattr(stored_matrix, "PANEL_BYTES", 8 * SIZE * 16)
    monkeypatch.setattr(stored_sums, "SUMS_BYTES", 0)


@pytest.fixture
def factors(monkeypatch):
    """The function that factors a matrix in a file, whose calls are counted."""
    counted = Mock(wraps=stored_cholesky)
    monkeypatch.setattr(sliced_rounding, "stored_cholesky", counted)
    return counted


def symmetric(folder):
    x = torch.randn(80, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix, stored = x.T @ x, StoredMatrix(folder, SIZE)
    for inside in steps(SIZE, 7):
        stored.write(inside.start, matrix[inside])
    return matrix, stored


def test_factors_and_products_are_those_of_torch(few_rows, tmp_path):
    matrix, stored = symmetric(tmp_path)
    assert torch.equal(stored.rows(3, 40), matrix[3:40])
    lower = stored_cholesky(stored, tmp_path)
    assert len(lower.slices()) == 4
    expected = torch.linalg.cholesky(matrix)
    torch.testing.assert_close(lower.rows(0, SIZE), expected)
    inverse = stored_inverse(lower, tmp_path)
    torch.testing.assert_close(inverse.rows(3, 40), expected.inverse()[3:40])
    torch.testing.assert_close(
        FlippedMatrix(inverse).rows(5, 9), expected.inverse().flip(0, 1)[5:9]
    )
    x = torch.randn(5, SIZE, dtype=torch.float64)
    torch.testing.assert_close(product(x, stored + stored), 2 * x @ matrix)
    torch.testing.assert_close(solved(x, lower), x @ matrix.inverse())


def test_rows_and_columns_are_read_in_another_order(few_rows, tmp_path):
    matrix, stored = symmetric(tmp_path)
    order, lift = torch.randperm(SIZE), torch.rand(SIZE, dtype=torch.float64)
    expected = (matrix + lift.diag())[order][:, order]
    assert torch.equal(LiftedMatrix(stored, lift, order).rows(3, 30), expected[3:30])
    assert torch.equal(stored.diagonal(), matrix.diagonal())


def test_a_matrix_that_is_not_positive_definite_has_no_factor(few_rows, tmp_path):
    _, stored = symmetric(tmp_path)
    stored.write(30, torch.zeros(1, SIZE))
    assert stored_cholesky(stored, tmp_path) is None


def test_files_vanish_with_their_matrices(few_rows, tmp_path):
    _, stored = symmetric(tmp_path)
    lower = LowerMatrix(tmp_path, SIZE)
    lower.append(stored.rows(0, 16))
    assert os.listdir(tmp_path) == []


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, 16, bias=False)).eval()


def rounded(form, options, spill):
    """The weights after GPTQ, and the records."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 30, 48, generator=generator) @ torch.randn(48, 48, generator=generator)
    x[..., 7] = 0
    kind, settings = spelled_settings(form, "format")
    weight = {f"weight_{key}": value for key, value in settings.items()}
    config = {"name": kind.name, **weight, "data_in_name": "NA", "bias_name": "NA"}
    graph = MaseGraph(model(), dummy_in={"input": x[0]})
    quantize_transform_pass(graph, {"linear": {"config": config}})
    args = {"data": [{"input": batch} for batch in x], **options, "spill": spill}
    _, info = gptq_transform_pass(graph, args)
    return graph.model.state_dict(), info["layers"]


@pytest.mark.parametrize("name", first_and_slow([*CASES], 2))
def test_the_weights_are_those_of_the_sums_in_memory(name, few_rows, tmp_path, factors):
    form, options = CASES[name]
    expected, records = rounded(form, options, None)
    values, again = rounded(form, options, tmp_path)
    assert factors.call_count >= 2  # of two layers
    assert values.keys() == expected.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)
    assert [r["kept"] for r in again] == [r["kept"] for r in records]
    for ours, theirs in zip(again, records, strict=True):
        assert ours["rounded"] == pytest.approx(theirs["rounded"], rel=1e-6)
    assert os.listdir(tmp_path) == []


def test_narrow_layers_stay_in_memory():
    assert not stored_sums.are_stored(768, 768, before=True)
    assert stored_sums.are_stored(1024, 4096, before=False)
    assert stored_sums.are_stored(8192, 2048, before=False)
