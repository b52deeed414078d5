"""Training of tables for MNIST: the images that are kept back, and interruptions."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import mnist_tables

    monkeypatch.setattr(mnist_tables, "HELD_BACK", 40)
    monkeypatch.setattr(mnist_tables, "BATCH", 16)
    yield mnist_tables
    sys.modules.pop("mnist_tables", None)


def images(tables, count=120):
    """Return images that are bright in the rows of their class."""
    source = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (count,), generator=source)
    pixels = torch.randint(0, 140, (count, 28, 28), generator=source)
    for pixel, label in zip(pixels, labels.tolist(), strict=True):
        pixel[2 * label + 3 : 2 * label + 6] += 110
    return tables.Images(pixels.to(torch.uint8), labels)


def setting(tables, epochs=4):
    return tables.Setting((60, 30), 2.0, epochs=epochs)


def same(one, other):
    return all(
        np.array_equal(a, b)
        for pair in zip(one.layers, other.layers, strict=True)
        for a, b in zip(*pair, strict=True)
    )


def test_an_interrupted_training_resumes_to_the_same_tables(tables, tmp_path, monkeypatch):
    data = images(tables)
    tables.Training(setting(tables), data, tmp_path / "whole.npz").run()
    cut = tables.Training(setting(tables), data, tmp_path / "cut.npz")
    save = cut.save

    def stop_after_two():
        save()
        if cut.epochs == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cut, "save", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    torch.rand(7)
    resumed = tables.Training(setting(tables), data, tmp_path / "cut.npz")
    resumed.run()
    whole, parts = (tables.restore(tmp_path / f"{name}.npz") for name in ("whole", "cut"))
    assert same(whole, parts) and whole.facts == parts.facts
    assert not list(tmp_path.glob("*.pt")), "the checkpoint stays"


def test_the_chosen_epoch_is_the_best_on_images_that_are_not_learned_from(tables, tmp_path):
    data = images(tables)
    training = tables.Training(setting(tables, 6), data, tmp_path / "a.npz")
    assert len(training.learned.pixels) == 80
    assert torch.equal(training.held_back.pixels, data.pixels[80:])
    counts, right = [], training.right
    training.right = lambda: counts.append(right()) or counts[-1]
    training.run()
    stored = tables.restore(tmp_path / "a.npz")
    assert stored.facts == {
        "training_images": 80, "validation_images": 40,
        "validation_right": max(counts), "chosen_epoch": counts.index(max(counts)) + 1,
    }  # fmt: skip
    sums = tables.integer_sums(stored, data.pixels[80:].numpy())
    assert (sums.argmax(1) == data.labels[80:].numpy()).sum() == max(counts)


def test_a_checkpoint_of_other_settings_is_refused(tables, tmp_path):
    data = images(tables)
    tables.Training(setting(tables), data, tmp_path / "a.npz").save()
    with pytest.raises(SystemExit, match="of a training with other settings"):
        tables.Training(setting(tables, 9), data, tmp_path / "a.npz").run()


def test_older_files_have_no_choice(tables):
    stored = tables.restore(BENCH / "mnist" / "small.npz")
    assert stored.facts == {} and len(stored.layers) == 2
