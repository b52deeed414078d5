"""Damaged and forged files of every kind: a sample of what bench/safe.py runs in full."""

import mutations
import pytest


@pytest.fixture(scope="module")
def found():
    return mutations.run(600)


def test_no_mutated_file_runs_code_or_is_read_as_something_else_or_ends_in_a_raw_error(found):
    _, wrong = found
    assert wrong == []


def test_the_sample_has_files_that_are_refused_and_files_that_are_read(found):
    counts, _ = found
    assert sum(sum(c.values()) for c in counts.values()) >= 500
    assert set(counts) == set(mutations.KINDS)
    for kind, words in counts.items():
        assert words[mutations.REFUSED], kind
        assert words[mutations.EQUAL] + words[mutations.FAITHFUL], kind
