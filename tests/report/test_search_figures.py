import csv
import sys

import pytest

from chop.errors import DataError, MissingDependencyError
from chop.report.search_figures import (
    STAGES,
    best_curves,
    draw_best_so_far,
    draw_compression,
    draw_format_counts,
    draw_importance,
    draw_pareto,
    draw_precision_map,
    format_counts,
    front_rows,
    importance,
    layer_formats,
)

pytest.importorskip("matplotlib", reason="needs masegraph[search]")


def trial(number, params=None, state="complete", attributes=None, **values):
    return {
        "number": number,
        "state": state,
        "values": values,
        "params": params or {},
        "attributes": attributes or {},
        "seconds": 1.0,
        "reason": None,
    }


def study(*trials, **objectives):
    objectives = objectives or {"accuracy": "maximize"}
    given = {"name": "s", "objectives": objectives, "sampler": "tpe", "seed": 0}
    return {**given, "trials": list(trials)}


def accuracies(*values):
    return study(*(trial(i, accuracy=value) for i, value in enumerate(values)))


def rows(path):
    with path.with_suffix(".csv").open() as opened:
        return list(csv.DictReader(opened))


def test_the_curve_keeps_the_best_so_far():
    found = study(
        trial(0, accuracy=0.5),
        trial(1, state="failed"),
        trial(2, accuracy=0.4),
        trial(3, accuracy=0.9, attributes={"constraints": {"bits": 1.0}}),
        trial(4, accuracy=0.5, attributes={"copied_from": 0}),
        trial(5, accuracy=0.7),
    )
    (curve,) = best_curves({"tpe": found}, "accuracy")
    assert (curve.x, curve.mean) == ((1, 2, 3), (0.5, 0.5, 0.7)), "only trials with a result"


def test_what_is_minimised_goes_down():
    found = study(*(trial(i, loss=x) for i, x in enumerate((3, 4, 1))), loss="minimize")
    assert best_curves({"a": found}, "loss")[0].mean == (3, 3, 1)


def test_studies_of_several_seeds_are_one_curve_with_its_spread():
    (curve,) = best_curves({"tpe": [accuracies(0.1, 0.3), accuracies(0.3, 0.5)]}, "accuracy")
    assert curve.mean == pytest.approx((0.2, 0.4))
    assert (curve.low, curve.high) == ((0.1, 0.3), (0.3, 0.5))


def test_best_so_far_is_drawn_for_every_sampler(tmp_path):
    both = {"tpe": accuracies(0.1, 0.8), "random": accuracies(0.2, 0.3)}
    written = draw_best_so_far(tmp_path / "best", both)
    assert sorted(path.suffix for path in written) == [".csv", ".png", ".svg"]
    assert {row["curve"] for row in rows(tmp_path / "best")} == {"tpe", "random"}
    text = (tmp_path / "best.svg").read_text()
    assert "Best accuracy so far (higher is better)" in text


def test_compression_has_three_curves(tmp_path):
    draw_compression(tmp_path / "three", *(accuracies(0.1, x) for x in (0.9, 0.5, 0.8)))
    assert list(dict.fromkeys(row["curve"] for row in rows(tmp_path / "three"))) == list(STAGES)


BOTH = {"accuracy": "maximize", "bits": "minimize"}
POINTS = study(
    trial(0, accuracy=0.9, bits=8),
    trial(1, accuracy=0.8, bits=4),
    trial(2, accuracy=0.7, bits=6),
    trial(3, accuracy=0.95, bits=2, attributes={"constraints": {"area": 1}}),
    trial(4, state="failed"),
    trial(5, accuracy=0.9, bits=8, attributes={"copied_from": 0}),
    **BOTH,
)


def test_a_front_tells_who_is_beaten_and_who_is_infeasible():
    places = {row["trial"]: row["place"] for row in front_rows(POINTS, "bits", "accuracy")}
    assert places == {0: "front", 1: "front", 2: "beaten", 3: "infeasible"}


def test_a_front_is_drawn_with_points_to_compare_with(tmp_path):
    draw_pareto(tmp_path / "front", POINTS, points={"float": (32.0, 0.91)})
    text = (tmp_path / "front.svg").read_text()
    assert ": 2 of 4 trials" in text
    assert all(word in text for word in ("float", "infeasible", "beaten", "bits", "accuracy"))
    assert len(rows(tmp_path / "front")) == 4


def test_the_parameter_that_matters_is_the_most_important(tmp_path):
    trials = [
        trial(i, {"x": i % 7, "kind": "ab"[i % 2], "lr": i / 60, "same": 1}, accuracy=float(i % 7))
        for i in range(60)
    ]
    trials[0]["params"]["sometimes"] = 1
    shares = importance(study(*trials))
    assert {row["parameter"] for row in shares} == {"x", "kind", "lr"}
    assert shares[0]["parameter"] == "x"
    assert sum(row["importance"] for row in shares) == pytest.approx(1.0)
    draw_importance(tmp_path / "importance", study(*trials), most=2)
    assert "How much of the spread of " in (tmp_path / "importance.svg").read_text()
    assert len(rows(tmp_path / "importance")) == 3


LAYERS = {
    "by parameters": trial(
        0, {"fc1": "integer", "fc1.integer.width": 4, "fc2": "float", "lr": 0.1, "kind": "other"}
    ),
    "by options": trial(0, {"fc1": "integer(width=4, frac_width=2)", "fc2": "float"}),
    "by spellings": trial(0, {"fc1": "fixed4.2", "fc2": "float", "kind": "int8/other"}),
    "by names": trial(
        0, {"fc1.integer.width": 4}, attributes={"formats": {"fc1": "integer", "fc2": None}}
    ),
    "by configs": trial(
        0,
        attributes={
            "formats": {"fc1": {"name": "integer", "weight_width": 4}, "fc2": {"name": None}}
        },
    ),
}


@pytest.mark.parametrize("given", LAYERS.values(), ids=LAYERS)
def test_the_formats_of_a_trial_are_found(given):
    assert layer_formats(given) == [
        {"layer": "fc1", "format": "integer", "width": 4},
        {"layer": "fc2", "format": "float", "width": None},
    ]


def test_the_width_of_an_element_is_counted_from_its_name():
    given = trial(0, {"fc1": "mxfp(element=e4m3, weight_element=e2m1)", "fc2": "fp8(element=e5m2)"})
    assert [row["width"] for row in layer_formats(given)] == [4, 8]


def test_the_precision_of_each_layer_is_drawn(tmp_path):
    draw_precision_map(tmp_path / "map", LAYERS["by names"])
    assert [row["layer"] for row in rows(tmp_path / "map")] == ["fc1", "fc2"]
    text = (tmp_path / "map.svg").read_text()
    assert "trial 0: integer in 1 of 2 layers" in text
    assert "width of the weight, bits" in text


def test_formats_are_counted_among_all_and_among_the_best(tmp_path):
    found = study(
        trial(0, {"a": "integer", "b": "float"}, accuracy=0.5),
        trial(1, {"a": "mxint", "b": "mxint"}, accuracy=0.9),
        trial(2, {"a": "integer", "b": "integer"}, accuracy=0.1),
    )
    counts = {row["format"]: (row["all"], row["best"]) for row in format_counts(found, best=1)}
    assert counts == {
        "integer": (0.5, 0.0),
        "mxint": (pytest.approx(1 / 3), 1.0),
        "float": (pytest.approx(1 / 6), 0.0),
    }
    draw_format_counts(tmp_path / "counts", found, best=1)
    text = (tmp_path / "counts.svg").read_text()
    assert "Formats that layers were given" in text


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda p: draw_best_so_far(p, {}), "there is no study to draw"),
        (lambda p: draw_best_so_far(p, {"a": study()}), "there is nothing to draw"),
        (
            lambda p: draw_best_so_far(p, {"a": accuracies(1)}, "acuracy"),
            r"it has no objective 'acuracy'\. Did you mean 'accuracy'",
        ),
        (lambda p: draw_pareto(p, accuracies(1.0)), "a front needs two objectives"),
        (lambda p: draw_pareto(p, study(**BOTH)), "no trial is complete"),
        (lambda p: draw_importance(p, accuracies(1.0)), "1 results and 0 parameters that vary"),
        (lambda p: draw_precision_map(p, trial(7)), "trial 7: neither its attributes nor"),
        (lambda p: draw_format_counts(p, accuracies(1.0)), "no trial names the format"),
    ],
)
def test_what_cannot_be_drawn_says_why(tmp_path, draw, words):
    with pytest.raises(DataError, match=words):
        draw(tmp_path / "figure")


def test_importance_without_optuna_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'masegraph\[search\]'"):
        importance(accuracies(1.0))
