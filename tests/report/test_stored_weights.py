import pytest
import torch

from chop.nn.quantizers import Integer
from chop.report.stored_weights import BINS, SAMPLE, histogram


def test_a_histogram_counts_every_value():
    told = histogram(torch.randn(50, 40))
    assert len(told["counts"]) == BINS
    assert sum(told["counts"]) == 2000
    assert "sampled" not in told


@pytest.mark.parametrize("width", [2, 4, 6, 8])
def test_bins_of_rounded_values_cover_equally_many_levels(width):
    x = torch.arange(-(2 ** (width - 1)), 2 ** (width - 1)) / 2**width
    told = histogram(Integer(width, width)(x.repeat(8)))
    assert len(told["counts"]) <= BINS
    assert len(set(told["counts"][:-1])) == 1  # the last bin may reach beyond the last level


def test_a_large_tensor_is_sampled_and_says_so():
    told = histogram(torch.randn(3 * SAMPLE))
    assert sum(told["counts"]) == told["sampled"] == SAMPLE


def test_odd_tensors_have_histograms_too():
    assert histogram(torch.full((4,), 2.0))["counts"] == [4]
    assert sum(histogram(torch.tensor([1.0, float("inf"), 2.0]))["counts"]) == 2
    assert histogram(torch.tensor([float("nan")])) is None
