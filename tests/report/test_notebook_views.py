"""What notebooks show: whole, escaped, self-contained, and of bounded size."""

import html
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from report_data import STUDY, annotated, compressed, with_hardware

import chop.passes as passes
from chop import MaseGraph, notebook
from chop.export import ExportReport
from chop.export.export_report import TensorRecord
from chop.passes.emit_design import lowered_design
from chop.passes.info import PassInfo
from chop.report import Report
from chop.report.stored_weights import weight_record
from chop.search import SearchResult

HOSTILE = "</td><script>alert(1)</script>\"'&"
VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """Reads HTML, and holds its tags, its words and the pages in its frames."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.frames, self.addresses = [], [], [], [], []
        self.feed(text)
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "srcdoc":
                self.frames.append(value)
            if name in ("src", "href", "action") or name.startswith("on"):
                self.addresses.append(value)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_data(self, data):
        self.words.append(data)


def test_a_graph_is_shown_with_its_inspector():
    page = Page(compressed(annotated())._repr_html_())
    assert page.addresses == [] and "script" not in page.tags
    assert len(page.frames) == 1 and "Content-Security-Policy" in page.frames[0]
    assert "fc1" in page.frames[0]
    assert "linear" in page.words


def test_a_layer_that_keeps_its_scales_is_shown_as_it_computes():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    graph = MaseGraph(model, dummy_in={"input": torch.ones(1, 4)})
    config = {"name": "scale_integer", "weight_width": 4, "data_in_width": "NA"}
    config |= {"bias_width": "NA", "weight_scale": "stored"}
    graph, _ = passes.quantize_transform_pass(graph, {"linear": {"config": config}})
    layer = graph.model.get_submodule("0")
    layer.register_buffer("weight_scale", torch.tensor(0.25))
    node = next(n for n in graph.fx_graph.nodes if n.op == "call_module")
    record = weight_record(node)
    rounded = (layer.weight / 0.25).round().clamp(-7, 7) * 0.25
    assert (record["low"], record["high"]) == (rounded.min().item(), rounded.max().item())
    assert "<" in graph._repr_html_()


def test_a_large_graph_is_folded_and_says_so():
    graph = annotated()
    last = graph.fx_graph.output_node().args[0]
    with graph.fx_graph.inserting_before(graph.fx_graph.output_node()):
        for _ in range(5000):
            last = graph.fx_graph.call_function(torch.relu, (last,))
    made = graph._repr_html_()
    page = Page(made)
    assert len(made) < 100_000 and page.frames == []
    assert any("nodes are folded into" in words for words in page.words)


def test_a_study_is_shown_with_its_front_and_trials():
    fields = {k: STUDY[k] for k in ("name", "objectives", "sampler", "seed", "trials")}
    page = Page(SearchResult(**fields)._repr_html_())
    assert "svg" in page.tags and page.tags.count("circle") > 1
    assert page.tags.count("tr") == 1 + len(STUDY["trials"])
    one = dict(list(STUDY["objectives"].items())[:1])
    assert "polyline" in Page(SearchResult(**{**fields, "objectives": one})._repr_html_()).tags


def test_a_study_without_trials_is_shown():
    assert "0 trials" in SearchResult("s", {"loss": "minimize"}, "grid", 0, [])._repr_html_()


def test_an_export_is_shown_with_what_the_target_lacks():
    record = TensorRecord(HOSTILE, "w", "Integer()", "Q8_0", 4, 8, False, "rounded")
    report = ExportReport("gguf", Path("m.gguf"), [record] * 500, [f"not rounded: {HOSTILE}"])
    made = report._repr_html_()
    page = Page(made)
    assert "script" not in page.tags and html.escape(HOSTILE) in made
    assert page.tags.count("tr") == 1 + notebook.MOST_ROWS
    assert "300 more rows are not shown." in page.words


def test_a_report_is_a_page_within_the_cell():
    page = Page(Report("small & <big>", {"graph": annotated()})._repr_html_())
    assert "small &amp; &lt;big&gt;" in page.frames[0]


def test_a_picture_of_one_point_has_axes():
    made = notebook.scatter([(1.0, 1.0, "only", True)], "x <", "y")
    assert "x &lt;" in made and "nan" not in made


@pytest.mark.slow
@pytest.mark.parametrize("look", ["light", "dark"])
def test_the_inspector_answers_in_a_browser(visit, tmp_path, look):
    (tmp_path / "cell.html").write_text(f"<!doctype html>{compressed(annotated())._repr_html_()}")
    inside = visit(tmp_path / "cell.html", look=look).frame_locator("iframe")
    inside.locator("svg.canvas").wait_for()
    inside.locator("text=fc1").first.click(force=True)
    inside.locator(".inspector").get_by_text("weight").first.wait_for()


def test_what_a_pass_found_is_a_dict_that_shows_its_tables():
    _, info = passes.summarize_graph_analysis_pass(annotated())
    assert isinstance(info, dict) and dict(info) == info
    page = Page(info._repr_html_())
    assert page.tags.count("table") >= 1 and "parameters" in " ".join(page.words)
    assert json.loads(json.dumps({"a": 1})) == PassInfo({"a": 1})


def test_a_design_is_drawn_with_its_stages():
    graph, _ = with_hardware(compressed(annotated()))
    made = lowered_design(graph).design._repr_html_()
    page = Page(made)
    assert "svg" in page.tags and page.tags.count("table") == 1
    words = " ".join(page.words)
    assert "fixed_linear" in words and "a tensor every" in words
