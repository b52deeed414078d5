import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.config import parse
from chop.errors import ConfigError
from chop.passes.ptq.observe.tensor_statistics import STATISTICS, rows


def pieces(seed, count):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, 5, generator=generator) * 2 + 1 for _ in range(count)]


def gathered(name, parts, **config):
    found = parse(STATISTICS[name], config, name)
    for part in parts:
        found.update(part)
    return found.compute()


@pytest.mark.parametrize("dims", ["all", [0, 2], [0]])
@pytest.mark.parametrize("name", sorted(set(STATISTICS) - {"histogram"}))
def test_pieces_give_what_the_whole_gives(name, dims):
    parts = pieces(0, 3)
    whole = gathered(name, [torch.cat(parts)], dims=dims)
    streamed = gathered(name, parts, dims=dims)
    assert whole.keys() == streamed.keys()
    for key, value in whole.items():
        if name == "record":  # in the order of the pieces
            streamed[key], value = streamed[key].sort().values, value.sort().values
        torch.testing.assert_close(streamed[key], value)


@pytest.mark.parametrize("name", ["variance_precise", "variance_online"])
def test_variance_is_torchs(name):
    parts = pieces(1, 4)
    found = gathered(name, parts, dims=[0, 2])
    whole = rows(torch.cat(parts), [0, 2])
    torch.testing.assert_close(found["variance"], whole.var(-1))
    torch.testing.assert_close(found["mean"], whole.mean(-1))
    assert found["count"] == whole.shape[-1]


def test_one_observation_has_no_variance():
    assert gathered("variance_online", [torch.tensor([3.0])])["variance"] == 0
    assert gathered("variance_precise", [torch.tensor([3.0])])["variance"] == 0


def test_ranges_are_torchs():
    parts = pieces(2, 3)
    whole = torch.cat(parts).flatten()
    assert gathered("range_min_max", parts)["max"] == whole.max()
    assert gathered("range_min_max", parts, abs=True)["min"] == whole.abs().min()
    quantile = gathered("range_quantile", parts, quantile=0.9)
    torch.testing.assert_close(quantile["min"], whole.quantile(0.05))
    torch.testing.assert_close(quantile["max"], whole.quantile(0.95))
    torch.testing.assert_close(gathered("abs_mean", parts)["abs_mean"], whole.abs().mean())


def test_n_sigma_is_the_mean_give_or_take():
    parts = pieces(3, 2)
    whole = torch.cat(parts).flatten()
    found = gathered("range_n_sigma", parts, num_sigmas=2.0)
    torch.testing.assert_close(found["max"], whole.mean() + 2 * whole.std())
    torch.testing.assert_close(found["range"], 4 * whole.std())


def test_dims_none_reduces_over_the_pieces_alone():
    parts = pieces(4, 5)
    found = gathered("mean", parts, dims=None)
    torch.testing.assert_close(found["mean"], torch.stack(parts).mean(0))


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), min_size=1, max_size=5))
def test_a_histogram_loses_no_value_and_its_edges_hold_all(parts):
    tensors = [torch.tensor(part, dtype=torch.float64) for part in parts]
    found = gathered("histogram", tensors, bins=8)
    whole = torch.cat(tensors)
    assert found["count"] == whole.numel()
    assert found["edges"][0] <= whole.min()
    assert found["edges"][-1] >= whole.max()


def test_a_histogram_of_one_piece_is_torchs():
    values = pieces(5, 1)[0].double()
    found = gathered("histogram", [values], bins=16)
    counts, edges = torch.histogram(values, 16)
    torch.testing.assert_close(found["edges"], edges)
    assert found["counts"].tolist() == counts.tolist()


def test_a_histogram_passes_over_infinities():
    found = gathered("histogram", [torch.tensor([0.0, 1.0, -torch.inf])])
    assert found["count"] == 2
    assert gathered("histogram", [torch.tensor([torch.inf])])["count"] == 0


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("histogram", {"bins": 3}, "bins must be even and at least 2, got 3"),
        ("histogram", {"dims": [0]}, r"a histogram is over dims 'all', got \[0\]"),
        ("range_quantile", {"quantile": 0.0}, "quantile must be above 0 and at most 1, got 0.0"),
        ("mean", {"dimz": "all"}, "unknown key 'dimz'. Did you mean 'dims'?"),
    ],
)
def test_configuration_is_checked(name, config, message):
    with pytest.raises(ConfigError, match=message):
        parse(STATISTICS[name], config, name)
