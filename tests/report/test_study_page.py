import pytest
from report_data import STUDY, trial

from chop.errors import DataError
from chop.report.study_page import study_record


def test_infeasible_trials_and_copies_are_not_on_the_front():
    good, cheap, copied = trial(0, 0.5, 2), trial(1, 0.9, 1), trial(2, 0.6, 1)
    cheap["attributes"] = {"constraints": {"bytes": 3.0}}
    copied["attributes"] = {"copied_from": 0}
    record = study_record({**STUDY, "trials": [good, cheap, copied]})
    assert record["front"] == [0]
    assert len(record["trials"]) == 3


def test_the_best_so_far_only_improves_and_failed_trials_do_not_count():
    best = study_record(STUDY)["best"]
    assert best["accuracy"] == [(0, 0.90), (4, 0.95)]
    assert best["bits"] == [(0, 6.0), (1, 3.0)]


def test_trials_without_a_finite_value_are_not_on_the_front():
    odd = {**STUDY, "trials": [trial(0, float("nan"), 1.0), trial(1, None, 1.0), trial(2, 0.5, 2)]}
    assert study_record(odd)["front"] == [2]


def test_importance_is_by_objective_the_largest_first():
    told = study_record(STUDY)["importance"]
    assert list(told["accuracy"]) == ["fc1.weight_width", "fc2.weight_width"]
    flat = {**STUDY, "importance": {"a": 0.1, "b": 0.9}}
    assert list(study_record(flat)["importance"]["accuracy"]) == ["b", "a"]
    assert study_record({**STUDY, "importance": None})["importance"] is None


def test_a_study_needs_objectives_with_a_known_direction():
    with pytest.raises(DataError, match="study 'widths': no objectives"):
        study_record({**STUDY, "objectives": {}})
    with pytest.raises(DataError, match=r"objectives.loss: unknown direction 'down'. Allowed: max"):
        study_record({**STUDY, "objectives": {"loss": "down"}})


def test_the_trial_that_was_applied_must_be_one_of_the_study():
    assert study_record(STUDY)["applied"] is None
    assert study_record({**STUDY, "applied": 1})["applied"] == 1
    with pytest.raises(DataError, match="applied: it has no trial 99"):
        study_record({**STUDY, "applied": 99})
