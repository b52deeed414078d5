"""Observers choose the range of a format from what they saw of a tensor."""

import dataclasses

import pytest
import torch

from chop.errors import ConfigError
from chop.nn.quantizers import MXFP, Integer, Log, MinifloatDenorm, ScaleInteger
from chop.passes.ptq.observe.format_ranges import ranged, rules_of, slot_rows
from chop.passes.ptq.observe.histogram import Histogram
from chop.passes.ptq.observe.observers import OBSERVERS, RuleObserver, make_observer

FORMATS = {
    "tensor": ScaleInteger(8),
    "channels": ScaleInteger(8, granularity="channel", axis=-1),
    "groups": ScaleInteger(4, granularity="group", group_size=4),
    "unsigned": ScaleInteger(8, is_signed=False),
    "fixed": Integer(8),
    "float": MinifloatDenorm(6, exponent_width=3),
    "log": Log(6),
}


def outliers(rows=1500, columns=8, strength=20.0):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, columns, generator=draw) * torch.linspace(0.5, 2, columns)
    x[:2] *= strength
    return x


def observed(name, form, batches):
    observer = make_observer(name, "here")
    for batch in batches:
        observer.observe(slot_rows(form, batch, by_row=False))
    return observer, observer.range_for(ranged(form))


def error(form, low, high, x):
    rows = slot_rows(form, x, by_row=False)
    return float((ranged(form).represent(rows, low, high) - rows).square().sum())


@pytest.mark.share(2)
@pytest.mark.parametrize("label", FORMATS)
@pytest.mark.parametrize("name", OBSERVERS)
def test_every_observer_chooses_a_range_that_the_format_takes(name, label):
    form, x = FORMATS[label], outliers()
    _, (low, high) = observed(name, form, x.chunk(7))
    _, again = observed(name, form, x.chunk(7))
    assert torch.equal(low, again[0]) and torch.equal(high, again[1])
    assert (low <= 0).all() and (high >= 0).all() and (high > low).all()
    settings = ranged(form).settings(low, high)
    if getattr(form, "granularity", None) == "group":
        return  # a tuple of scales is for columns, one each
    if "scale" in settings:
        scales = tuple(settings["scale"].tolist())
        settings["scale"] = scales[0] if form.granularity == "tensor" else scales
    found = dataclasses.replace(form, **settings).quantize(x)
    # what the search believed the format gives is what it gives
    rows = slot_rows(form, x, by_row=False)
    expected = ranged(form).represent(rows, low, high)
    torch.testing.assert_close(slot_rows(form, found, by_row=False), expected)


@pytest.mark.parametrize("label", FORMATS)
def test_least_squares_errs_no_more_than_the_whole_range(label):
    form, x = FORMATS[label], outliers(strength=8.0)
    _, whole = observed("min_max", form, x.chunk(5))
    _, best = observed("mse", form, x.chunk(5))
    assert error(form, *best, x) <= error(form, *whole, x) * 1.0001
    if label == "groups":
        assert error(form, *best, x) < 0.9 * error(form, *whole, x)


def test_least_squares_finds_the_best_scale_of_four_bits():
    form, x = ScaleInteger(4), outliers()
    _, (low, high) = observed("mse", form, x.chunk(3))
    largest = x.abs().amax()[None]
    errors = [error(form, -largest * k / 200, largest * k / 200, x) for k in range(1, 201)]
    assert error(form, low, high, x) < 1.02 * min(errors)


def test_percentile_leaves_out_what_is_rare_and_min_max_does_not():
    x = torch.arange(-5000.0, 5001.0)[torch.randperm(10001)]
    form = ScaleInteger(8)
    _, (low, high) = observed({"name": "percentile", "percentile": 99.0}, form, x.chunk(11))
    assert float(low) == pytest.approx(-4900, abs=10)
    assert float(high) == pytest.approx(4900, abs=10)
    _, whole = observed("min_max", form, x.chunk(11))
    assert (float(whole[0]), float(whole[1])) == (-5000, 5000)


def test_moving_average_follows_the_batches():
    form = ScaleInteger(8)
    batches = [torch.tensor([1.0, -1.0]), torch.tensor([3.0, 0.5])]
    _, (low, high) = observed({"name": "moving_average", "momentum": 0.75}, form, batches)
    assert (float(low), float(high)) == (-0.75, 1.5)


def test_entropy_keeps_the_bulk_and_gives_up_the_outliers():
    form, x = ScaleInteger(8), outliers(20000, strength=50.0)
    _, (low, high) = observed("entropy", form, x.chunk(4))
    assert 4 < float(torch.maximum(-low, high)) < 0.6 * float(x.abs().max())


def test_a_histogram_counts_every_value_once_however_they_are_cut():
    x = outliers(6000, 3).T
    whole, parts = Histogram(3), Histogram(3)
    whole.add(x)
    for part in x.split(100, 1):
        parts.add(part)
    assert whole.bins == parts.bins == 4096  # fewer than the values: they are counted
    for points, counts in (whole.points, parts.points):
        assert counts.sum(1).tolist() == [6000] * 3
        width = points[:, 1:2] - points[:, :1]
        assert ((x.mean(1) - (points * counts).sum(1) / 6000).abs() < width[:, 0]).all()
    few = Histogram(3)
    few.add(x[:, :50])
    assert torch.equal(few.points[0], x[:, :50].sort(1).values)  # as they are


def test_memory_is_bounded_whatever_is_seen():
    seen = Histogram(1000)
    for _ in range(5):
        seen.add(torch.randn(1000, 700))
    assert seen.points[1].numel() <= 2**20


def test_the_rule_of_shared_exponents_is_the_one_that_errs_least():
    form, x = MXFP("e2m1"), outliers(256, 64)
    observer = RuleObserver(form)
    for batch in x.chunk(4):
        observer.observe(batch)
    errors = {r.scale_rule: float((r.quantize(x) - x).square().sum()) for r in rules_of(form)}
    assert observer.settings() == {"scale_rule": min(errors, key=errors.get)}
    assert len(errors) == 4


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("minmax", r"here: .*'minmax'.*Did you mean 'min_max'"),
        ({"name": "percentile", "percentile": 20}, "above 50 and at most 100, got 20"),
        ({"name": "percentile", "share": 20}, "unknown key 'share'"),
        ({"name": "moving_average", "momentum": 1.0}, "from 0 to less than 1, got 1.0"),
    ],
)
def test_wrong_observers_are_told(given, told):
    with pytest.raises(ConfigError, match=told):
        make_observer(given, "here")
