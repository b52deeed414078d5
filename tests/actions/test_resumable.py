import pytest

from chop.actions.records import read_records
from chop.actions.resumable import duration, run_sweep

POINTS = [{"width": width} for width in (4, 6, 8)]


def test_an_interrupted_sweep_measures_the_rest_alone(tmp_path):
    path, measured = tmp_path / "sweep.jsonl", []

    def measure(point):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(point["width"])
        return {"after": point["width"] / 10}

    with pytest.raises(KeyboardInterrupt):
        run_sweep(POINTS, measure, path)
    assert len(read_records(path)) == 2
    measured.clear()
    records = run_sweep(POINTS, measure, path)
    assert measured == [8]
    assert [(r["width"], r["after"]) for r in records] == [(4, 0.4), (6, 0.6), (8, 0.8)]
    assert (tmp_path / "sweep.csv").read_text().startswith("width,after,seconds\n4,0.4,")


def test_a_sweep_says_how_far_it_is_and_how_long_it_has_left(tmp_path):
    said = []
    run_sweep(POINTS, lambda point: {}, tmp_path / "sweep.jsonl", said.append)
    assert [(p.done, p.total) for p in said] == [(1, 3), (2, 3), (3, 3)]
    assert said[0].seconds_left > said[2].seconds_left == 0.0
    assert str(said[2]) == "3 of 3, about 0 s left"


def test_durations_read_well():
    assert [duration(s) for s in (7.4, 60, 130, 7330)] == [
        "7 s",
        "1 min 0 s",
        "2 min 10 s",
        "2 h 2 min",
    ]
