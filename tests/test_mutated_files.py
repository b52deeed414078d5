"""Damaged and forged files of every kind: a sample of what bench/safe.py runs in full."""

import file_kinds
import pytest


@pytest.fixture(scope="module")
def found():
    return file_kinds.run(400)


def test_no_mutated_file_does_harm(found):
    _, wrong = found
    assert wrong == []


def test_the_sample_has_files_that_are_refused_and_files_that_are_read(found):
    counts, _ = found
    assert sum(sum(c.values()) for c in counts.values()) >= 300
    assert set(counts) == set(file_kinds.kinds())
    for kind, words in counts.items():
        assert words[file_kinds.REFUSED], kind
    read = [w[file_kinds.EQUAL] + w[file_kinds.FAITHFUL] for w in counts.values()]
    assert sum(read) > 60
    # a checkpoint has few bytes that do not matter: its description has no indentation
    assert sum(count > 0 for count in read) >= len(read) - 3


@pytest.fixture(scope="module")
def verdicts():
    jobs = [job for job in file_kinds.forged_jobs() if not job.kind.startswith("checkpoint: ")]
    return {job.kind: (word, detail) for job, word, detail in file_kinds.verdicts(jobs)}


OWN_TEST = "checkpoint: "
"""Edits of a checkpoint are read by tests/ir/test_forgeries.py."""


@pytest.mark.parametrize(
    "name", [name for name in file_kinds.forged_files() if not name.startswith(OWN_TEST)]
)
def test_a_file_forged_by_hand_is_refused_with_words(verdicts, name):
    word, detail = verdicts[name]
    assert word == file_kinds.REFUSED, detail


ONCE_WRONG = (
    ("checkpoint, forged", 404),  # `is_applied` without a format
    ("checkpoint, forged", 541),
    ("folder, tokenizer forged", 304),  # the vocabulary lacks the token for unknown words
)


def test_files_that_were_once_accepted_or_raw_are_refused():
    jobs = [file_kinds.Job(kind, seed) for kind, seed in ONCE_WRONG]
    verdicts = {job: word for job, word, _ in file_kinds.verdicts(jobs)}
    assert set(verdicts.values()) == {file_kinds.REFUSED}, verdicts
