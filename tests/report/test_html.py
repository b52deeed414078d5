import json
import re
from pathlib import Path

import pytest
import transformers
from report_data import annotated, compressed

import chop.passes as passes
import chop.report.html as html
from chop import MaseGraph
from chop.report import Report, write_report
from chop.report.html import SCRIPTS, STYLES, report_page

ASSETS = Path(html.__file__).parent / "assets"
HOSTILE = "</script><img src=x onerror=alert(1)>{{data}}<!--\u2028"


def embedded(page):
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text[1])


def test_the_report_is_one_file_written_whole(tmp_path):
    path = write_report(tmp_path / "deep" / "report.html", Report("a model", {"g": annotated()}))
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert path.read_text().rstrip().endswith("</html>")


def test_the_page_holds_its_records_and_its_size(tmp_path):
    page = report_page({"title": "t", "provenance": {"seed": 1}})
    assert embedded(page) == {"title": "t", "provenance": {"seed": 1}}
    stated = float(re.search(r"One file of (\d+) kB", page)[1])
    assert stated == pytest.approx(len(page.encode()) / 1000, abs=1)


def test_nothing_in_the_records_can_end_the_script_or_add_markup():
    page = report_page({"title": HOSTILE, "provenance": {HOSTILE: HOSTILE}})
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert embedded(page)["provenance"] == {HOSTILE: HOSTILE}


def test_the_page_asks_for_nothing_outside_itself():
    page = report_page({"title": "t"})
    own = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert "http://" not in own and "https://" not in own
    assert "default-src 'none'" in page
    assert "@import" not in page and "url(" not in page.replace("url(#", "")


def test_every_asset_is_used_and_every_import_comes_before():
    assert {p.name for p in ASSETS.iterdir()} == {*SCRIPTS, *STYLES, "template.html"}
    for number, name in enumerate(SCRIPTS):
        wanted = re.findall(r'from "\./(.*)";', (ASSETS / name).read_text())
        assert set(wanted) <= set(SCRIPTS[:number]), name


def test_names_that_a_module_imports_are_exported_there():
    for name in SCRIPTS:
        for names, source in re.findall(
            r'import \{(.*)\} from "\./(.*)";', (ASSETS / name).read_text()
        ):
            text = (ASSETS / source).read_text()
            for each in names.split(","):
                assert re.search(rf"^export (const|function|class) {each.strip()}\b", text, re.M), (
                    each
                )


def test_no_script_makes_markup_from_text():
    for name in SCRIPTS:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|eval\(", (ASSETS / name).read_text()
        )


def test_a_small_report_is_small():
    before = annotated()
    report = Report("r", {"a": before, "b": compressed(before)})
    assert len(report_page(html.report_records(report))) < 200_000


@pytest.mark.slow
def test_bert_base_before_and_after_is_below_three_megabytes(tmp_path):
    model = transformers.BertForSequenceClassification(transformers.BertConfig()).eval()
    before = MaseGraph(model, hf_input_names=["input_ids", "attention_mask", "labels"])
    before, _ = passes.init_metadata_analysis_pass(before)
    before, _ = passes.add_common_metadata_analysis_pass(before)
    report = Report("BERT-base", {"before": before, "after": compressed(before, ("linear",))})
    assert write_report(tmp_path / "report.html", report).stat().st_size < 3_000_000
