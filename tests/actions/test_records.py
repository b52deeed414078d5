import csv

import pytest

from chop.actions.records import append_record, find_record, read_records, write_csv
from chop.errors import DataError


def test_records_are_read_in_the_order_they_were_added(tmp_path):
    file = tmp_path / "deep" / "records.jsonl"
    for i in range(3):
        append_record(file, {"i": i})
    assert read_records(file) == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert read_records(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("torn", ['{"i": 1', "{", '{"i": 1}'])
def test_a_line_cut_short_by_a_kill_is_no_record_and_is_written_over(tmp_path, torn):
    file = tmp_path / "records.jsonl"
    append_record(file, {"i": 0})
    with file.open("a") as opened:
        opened.write(torn)
    assert read_records(file) == [{"i": 0}]
    append_record(file, {"i": 2})
    assert read_records(file) == [{"i": 0}, {"i": 2}]


@pytest.mark.parametrize(
    ("line", "words"), [("no json", "not a readable JSON"), ("[1]", "not a JSON object")]
)
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, line, words):
    (tmp_path / "records.jsonl").write_text('{"i": 0}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"records.jsonl, line 2: {words}"):
        read_records(tmp_path / "records.jsonl")


def test_a_record_is_found_by_part_of_its_fields():
    records = [{"width": 4, "seed": 0}, {"width": 8, "seed": 0, "after": 0.5}]
    assert find_record(records, {"width": 8}) == records[1]
    assert find_record(records, {"width": 8, "seed": 1}) is None
    assert find_record(records, {"depth": None}) is None


def test_a_table_has_every_field_of_every_record(tmp_path):
    file = write_csv(tmp_path / "deep" / "table.csv", [{"a": 1}, {"a": 2, "b": "x"}])
    with file.open() as opened:
        assert list(csv.DictReader(opened)) == [{"a": "1", "b": ""}, {"a": "2", "b": "x"}]
    assert [path.name for path in file.parent.iterdir()] == ["table.csv"]
