import csv
import sys

import pytest

from chop.errors import DataError, MissingDependencyError
from chop.report import Axes, draw_curves, draw_sweep, make_curve, sweep_curves

pytest.importorskip("matplotlib", reason="needs the extra 'train': pip install 'mase[train]'")


def accuracy(before):
    return {"before": before, "after": before + 0.1}


RECORDS = [
    {"sweep": "sparsity", "method": method, "seed": seed, "sparsity": x, **accuracy(y)}
    for method, drop in (("random", 0.5), ("l1-norm", 0.2))
    for seed in (0, 1)
    for x, y in ((0.9, 0.8 - drop + seed / 100), (0.1, 0.8))
]
AXES = Axes("a finding", "share", "accuracy", {"float": 0.85})


def test_a_curve_has_mean_and_spread_in_the_order_of_x():
    records = [{"x": 2, "y": 0.1}, {"x": 1, "y": 0.5}, {"x": 2, "y": 0.3}, {"x": 3, "y": None}]
    curve = make_curve("c", records, "x", "y")
    assert (curve.x, curve.low, curve.high) == ((1, 2), (0.5, 0.1), (0.5, 0.3))
    assert curve.mean == pytest.approx((0.5, 0.2))


def test_a_sweep_has_a_curve_for_each_variant_and_stage():
    labels = [curve.label for curve in sweep_curves("sparsity", RECORDS)]
    assert labels == [
        "random pruned",
        "random pruned and fine-tuned",
        "l1-norm pruned",
        "l1-norm pruned and fine-tuned",
    ]


def test_a_figure_is_saved_in_both_formats_with_the_numbers_it_shows(tmp_path):
    written = draw_sweep("sparsity", RECORDS, tmp_path / "deep" / "figure")
    assert sorted(path.suffix for path in written) == [".csv", ".png", ".svg"]
    assert sorted((tmp_path / "deep").iterdir()) == sorted(written)
    with (tmp_path / "deep" / "figure.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == 4 * 2
    assert (rows[1]["curve"], rows[1]["x"]) == ("random pruned", "0.9")
    assert [float(rows[1][k]) for k in ("mean", "low", "high")] == pytest.approx(
        [0.305, 0.30, 0.31]
    )


def test_the_title_states_the_finding(tmp_path):
    draw_sweep("sparsity", RECORDS, tmp_path / "figure")
    text = (tmp_path / "figure.svg").read_text()
    assert "random pruned and fine-tuned is best: 0.9000 at sparsity 0.1" in text
    assert "accuracy" in text


def test_the_same_records_give_the_same_file(tmp_path):
    curves = sweep_curves("sparsity", RECORDS)
    for name in ("a", "b"):
        draw_curves(tmp_path / name, curves, AXES)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(DataError, match="there is nothing to draw in"):
        draw_curves(tmp_path / "a", [], AXES)


def test_drawing_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'mase\[train\]'"):
        draw_curves(tmp_path / "a", sweep_curves("sparsity", RECORDS), AXES)
