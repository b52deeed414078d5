"""Tables of parameters: all rows stay, and those outside the sample are slow."""

from covering import first_and_slow, rotated, slow_unless


def is_slow(value):
    return [mark.name for mark in getattr(value, "marks", ())] == ["slow"]


def test_all_but_the_first_are_slow_and_none_is_lost():
    rows = first_and_slow(["a", "b", ("c", 1)], 1)
    assert rows[0] == "a" and list(map(is_slow, rows)) == [False, True, True]
    assert [row.values for row in rows[1:]] == [("b",), ("c", 1)]


def test_those_that_are_rejected_are_slow():
    assert list(map(is_slow, slow_unless(range(4), lambda k: k % 2))) == [True, False, True, False]


def test_rows_that_take_turns_meet_every_column():
    columns = list("abcdefg")
    turns = [rotated(columns, turn) for turn in range(3)]
    assert sorted(value for turn in turns for value in turn) == columns
    assert rotated(columns, 3) == turns[0]
