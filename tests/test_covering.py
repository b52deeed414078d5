"""Tables of parameters: all rows stay, and those outside the sample are slow."""

import pytest
from covering import drawn, first_and_slow, rotated, slow_unless


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


def test_a_share_has_its_size_every_value_and_another_draw_for_other_names():
    rows = {f"0 {a}-{b}": {("a", a), ("b", b)} for a in range(6) for b in "xyz"}
    kept = drawn(rows, 2)
    assert len(kept) == 9 and set().union(*(rows[name] for name in kept)) == set().union(
        *rows.values()
    )
    others = drawn({f"1{name[1:]}": row for name, row in rows.items()}, 2)
    assert {name[1:] for name in others} != {name[1:] for name in kept}


def test_a_share_of_few_rows_is_never_empty():
    assert len(drawn({"only": {1}}, 4)) == 1 and drawn({}, 2) == set()


@pytest.mark.share(3)
@pytest.mark.parametrize("a", range(6))
@pytest.mark.parametrize("b", "xyz")
def test_one_in_three_cases_of_this_table_is_fast(a, b, request):
    cases = [item for item in request.session.items if item.obj is request.function]
    assert sum(item.get_closest_marker("slow") is None for item in cases) <= 6
