"""Saved reports, read back and compared."""

import pytest
from report_data import annotated

from chop.errors import DataError
from chop.report import Report, compare_reports, write_report
from chop.report.page_parts import format_text
from chop.report.report_comparison import comparison_record, measures_of, read_report


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    report = Report("One", {"float": annotated()}, {"accuracy": (0.9, 0.8)}, provenance={})
    return write_report(folder / "report.html", report)


def test_a_saved_report_is_read_back_by_file_and_by_folder(saved):
    records = read_report(saved)
    assert records == read_report(saved.parent)
    assert measures_of(records)["accuracy"] == {"value": 0.8, "unit": "share"}


def test_ten_reports_have_ten_values_of_each_measure(saved):
    records = read_report(saved)
    told = comparison_record([records] * 10, [f"out/{i}" for i in range(10)])
    assert all(len(measure["values"]) == 10 for measure in told["measures"])
    assert told["reports"][3]["title"] == "One (out/3)"  # titles alike are told apart
    assert [row["name"] for row in told["layers"]] == ["fc1", "fc2"]


def test_a_measure_that_one_report_lacks_is_left_open(saved):
    records = read_report(saved)
    told = comparison_record([records, {**records, "cards": []}], ["a", "b"])
    accuracy = next(m for m in told["measures"] if m["name"] == "accuracy")
    assert accuracy["values"] == [0.8, None] and accuracy["better"] == "higher"


def test_what_is_no_report_is_told(tmp_path, saved):
    page = tmp_path / "page.html"
    page.write_text("<html></html>")
    with pytest.raises(DataError, match="it is no report of MASE"):
        compare_reports(tmp_path / "c.html", [page, saved])
    with pytest.raises(DataError, match=r"no such report\. Write one: mase report"):
        read_report(tmp_path / "absent")
    with pytest.raises(DataError, match="two reports or more are needed, got 1"):
        compare_reports(tmp_path / "c.html", [saved])
    page.write_text('<script id="data" type="application/json">{</script>')
    with pytest.raises(DataError, match="its records are damaged"):
        read_report(page)


def test_formats_are_written_in_one_way():
    assert format_text("Q16.8 floor") == "fixed16.8 floor"
    assert format_text("mxint8") == "mxint8" and format_text("float32") == "float32"
