"""The column loop of GPTQ and SparseGPT: every column is the optimum behind those before it."""

import pytest
import torch

from chop.passes.ptq.solve.column_feedback import decide_columns, inverse_factor


def problem(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows + columns)
    x = torch.randn(3 * columns, columns, generator=draw, dtype=torch.double)
    return torch.randn(rows, columns, generator=draw, dtype=torch.double), x.T @ x


def optimum(weight, hessian, decided, i):
    """Return columns `i` and later with the least output error while the first are `decided`."""
    error = weight[:, :i] - decided[:, :i]
    return weight[:, i:] + torch.linalg.solve(hessian[i:, i:], hessian[i:, :i] @ error.T).T


@pytest.mark.parametrize(
    ("rows", "columns", "block"), [(3, 1, 4), (4, 9, 4), (2, 12, 5), (5, 8, 128)]
)
def test_each_column_is_the_optimum_behind_those_decided_before(rows, columns, block):
    weight, hessian = problem(rows, columns)
    work, seen = weight.clone(), []

    def decide(i, column):
        seen.append(i)
        expected = optimum(weight, hessian, work, i)[:, 0]
        torch.testing.assert_close(column, expected, rtol=1e-8, atol=1e-8)
        return column.round()

    decide_columns(work, inverse_factor(hessian, 0.0), decide, block)
    assert seen == list(range(columns))
    assert torch.equal(work, work.round())


def test_columns_that_are_left_alone_change_nothing():
    weight, hessian = problem(4, 7)
    work = weight.clone()
    decide_columns(work, inverse_factor(hessian, 0.01), lambda i, column: column.clone(), block=3)
    assert torch.equal(work, weight)
