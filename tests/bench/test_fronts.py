"""Fronts of a comparison: the best conversion of a model, and the models to convert."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
MODULES = ("measuring", "perceptrons_hgq", "mnist_tables")


@pytest.fixture
def rival(monkeypatch):
    for folder in (BENCH, BENCH / "rivals"):
        monkeypatch.syspath_prepend(str(folder))
    import perceptrons_hgq

    yield perceptrons_hgq
    for name in [n for n in sys.modules if n.split(".")[0] in MODULES]:
        del sys.modules[name]


def row(model, lut, right):
    return {"model": model, "lut": lut, "right": right}


def test_a_row_on_the_front_is_beaten_by_none_in_both(rival):
    from measuring.fronts import front

    rows = [row("a", 5, 90), row("b", 4, 90), row("c", 9, 91), row("d", 10, 91), row("e", 2, 80)]
    assert [each["model"] for each in front(rows, "lut")] == ["e", "b", "c"]


def test_the_conversion_with_the_fewest_luts_counts_and_failures_do_not(rival):
    from measuring.fronts import fewest_luts

    rows = [row("a", 7, 9), row("a", 5, 9), {"model": "b", "error": "text"}, row("a", 6, 9)]
    assert fewest_luts(rows) == [row("a", 5, 9)]


def models(folder, *pairs):
    for number, (accuracy, estimate) in enumerate(pairs):
        place = folder / f"run{number % 2}"
        place.mkdir(exist_ok=True)
        (place / f"{number:05d}_{accuracy:.5f}_{estimate:.0f}.keras").touch()


def names(paths):
    return [path.stem.split("_", 1)[1] for path in paths]


def test_models_far_behind_the_front_are_not_converted(rival, tmp_path):
    models(tmp_path, (0.97, 5000), (0.96, 6000), (0.95, 3000), (0.97, 5100), (0.94, 3200))
    chosen = names(rival.kept(tmp_path, 9))
    assert chosen == ["0.97000_5000", "0.95000_3000", "0.94000_3200"]
    assert names(rival.kept(tmp_path, 9, 4000)) == chosen[1:]


def test_few_models_of_many_are_spread_over_the_estimates(rival, tmp_path):
    models(tmp_path, *((0.90 + k / 1000, 1000 * 1.1**k) for k in range(40)))
    estimates = [float(path.stem.split("_")[2]) for path in rival.kept(tmp_path, 5)]
    assert len(estimates) == 5 and estimates[0] > 40_000 and estimates[-1] == 1000
    ratios = np.array(estimates[:-1]) / estimates[1:]
    assert ratios.max() / ratios.min() < 1.25


def test_the_data_of_mnist_is_split_as_our_training_splits_it(rival, tmp_path, monkeypatch):
    import mnist_tables
    import torch

    pixels = torch.arange(30 * 784).reshape(30, 28, 28).to(torch.uint8)
    data = mnist_tables.Images(pixels, torch.arange(30) % 10)
    monkeypatch.setattr(mnist_tables, "HELD_BACK", 12)
    monkeypatch.setattr(mnist_tables, "load", lambda folder, part: data)
    training = mnist_tables.Training(mnist_tables.Setting((60, 30), 2.0), data, tmp_path / "a.npz")
    options = rival.argparse.Namespace(subject="mnist", file=tmp_path / "d.npz", images=tmp_path)
    rival.write_data(options)
    arrays = rival.read_data(tmp_path / "d.npz", rival.SUBJECTS["mnist"])
    for name, part in (("train", training.learned), ("choice", training.held_back)):
        assert np.array_equal(arrays[f"{name}_x"] * 256, part.pixels.flatten(1).numpy())
        assert np.array_equal(arrays[f"{name}_y"], part.labels.numpy())
