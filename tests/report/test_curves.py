import csv
import sys
from importlib import resources

import pytest

from chop.errors import DataError, MissingDependencyError
from chop.report import Axes, curves, draw_curves, draw_sweep, make_curve, sweep_curves
from chop.report.search_figures import draw_best_so_far

pytest.importorskip("matplotlib", reason="needs the extra 'train': pip install 'masegraph[train]'")


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


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, in place of their files."""
    kept = []
    monkeypatch.setattr(curves, "save_figure", lambda path, figure, rows: kept.append(figure) or [])
    return kept


def test_the_title_says_what_is_shown(tmp_path, figures):
    draw_sweep("sparsity", RECORDS, tmp_path / "figure")
    assert figures[0].axes[0].get_title() == "Accuracy over share of weights pruned"


def test_the_legend_is_off_the_data_and_colours_are_the_reports(tmp_path, figures):
    draw_sweep("sparsity", RECORDS, tmp_path / "figure")
    (plane,) = figures[0].axes
    assert plane.get_legend() is None and len(figures[0].legends) == 1
    assert [line.get_color() for line in plane.get_lines()] == list(curves.COLOURS[:4])
    tokens = resources.files("chop.report").joinpath("assets/tokens.css").read_text()
    for i, colour in enumerate(curves.COLOURS):
        assert f"--c{i}: light-dark({colour}," in tokens


def test_a_sweep_shows_the_model_before_compression_and_ends_at_one(tmp_path, figures):
    records = [{**r, "baseline": 0.97, "after": 1.0} for r in RECORDS]
    draw_sweep("sparsity", records, tmp_path / "figure")
    (plane,) = figures[0].axes
    assert plane.get_ylim()[1] == 1.0
    assert plane.get_lines()[-1].get_label() == "uncompressed"
    assert plane.get_lines()[-1].get_ydata()[0] == 0.97


def test_the_best_so_far_is_drawn_in_steps(tmp_path, figures):
    study = {"name": "s", "objectives": {"accuracy": "maximize"}, "trials": []}
    for number, value in enumerate((0.5, 0.4, 0.8)):
        trial = {"number": number, "state": "complete", "values": {"accuracy": value}}
        study["trials"].append({**trial, "params": {}, "attributes": {}})
    draw_best_so_far(tmp_path / "best", {"tpe": study})
    assert figures[0].axes[0].get_lines()[0].get_drawstyle() == "steps-post"
    assert not figures[0].legends  # one curve needs none


def test_the_same_records_give_the_same_file(tmp_path):
    for name in ("a", "b"):
        draw_curves(tmp_path / name, sweep_curves("sparsity", RECORDS), AXES)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(DataError, match="there is nothing to draw in"):
        draw_curves(tmp_path / "a", [], AXES)


def test_drawing_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'masegraph\[train\]'"):
        draw_curves(tmp_path / "a", sweep_curves("sparsity", RECORDS), AXES)
