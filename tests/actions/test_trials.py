"""Questions to trials as plain data."""

from chop.actions.trials import COPIED_FROM, failures


def trial(number, state, **attributes):
    return {"number": number, "state": state, "attributes": attributes}


def test_a_trial_that_repeats_another_is_not_a_failure():
    trials = [
        trial(0, "complete"),
        trial(1, "failed"),
        trial(2, "failed", **{COPIED_FROM: 1}),
        trial(3, "pruned"),
    ]
    assert [t["number"] for t in failures(trials)] == [1]
