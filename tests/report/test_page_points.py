"""What a person sees first in a report, looked at in Chromium: light, dark and narrow."""

import pytest
from browsing import LOOKS, PATIENCE, too_wide, until
from report_data import SENSITIVITY, STUDY, SWEEP, annotated, compressed, with_hardware

from chop.report import Report, compare_reports, write_report

ROUTE = {
    "part": "ice40-up5k",
    "clocks": {"1": 21.5, "2": 23.25, "3": 22.0},
    "used": {"lut": 1200, "dsp": 8},
    "available": {"lut": 5280, "dsp": 8},
    "mhz": 23.25,
    "path": [{"kind": "logic", "nanoseconds": 1.25, "where": "u_top.u_fc1.q", "stage": "fc1"}],
    "simulated": "",
}
PLAN = {
    "plan": {
        "mesh": {"shape": [1, 2]},
        "strategies": {
            "fc1": [{"name": "column", "result": "S(1)"}],
            "relu": [{"name": "replicate", "result": "R"}],
        },
    },
    "cost": [{"measure": "memory of a device", "value": 1.5, "unit": "MB"}],
    "verification": None,
}
WRITTEN = {"model": "llama", "text": "Once upon", "tokens_per_s": 92.0, "weight_bytes": 62_934_656}
CALIBRATED = {"Ranges that were seen": [{"node": "fc1", "operand": "weight", "low": -0.5}]}


def every_section(applied=1):
    before = annotated()
    after, design = with_hardware(compressed(before))
    sweep = [{**record, "baseline": 0.97} for record in SWEEP]
    return Report(
        "Two layers",
        {"float": before, "fixed point": after},
        {"accuracy": (0.91, 0.9)},
        [{**STUDY, "applied": applied}],
        [sweep],
        design,
        {"seed": 0},
        SENSITIVITY,
        CALIBRATED,
        [WRITTEN],
        PLAN,
        ROUTE,
    )


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Two saved reports and the page that compares them."""
    folder = tmp_path_factory.mktemp("points")
    whole = write_report(folder / "report.html", every_section())
    small = Report("Float", {"float": annotated()}, {"accuracy": 0.91}, provenance={})
    other = write_report(folder / "other.html", small)
    return whole, compare_reports(folder / "compare.html", [whole, other])


@pytest.fixture(scope="module")
def seen(browser, reports):
    """The report, opened once for all that only look at it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    page.goto(reports[0].as_uri())
    yield page
    page.close()


@pytest.mark.share(3)
@pytest.mark.parametrize("look", LOOKS)
def test_every_page_fits_its_window_and_logs_nothing(visit, reports, look):
    for file in reports:
        page = visit(file, look=look)
        until(page, lambda page=page: too_wide(page) <= 0)


CUT = """e => e.scrollWidth > e.clientWidth + 1
    || e.getBoundingClientRect().left < 0
    || e.getBoundingClientRect().right > innerWidth + 1"""
"""Whether a part of the page is cut off, or beside the window."""


@pytest.mark.share(3)
@pytest.mark.parametrize("width", [360, 390, 400])
def test_a_phone_shows_the_whole_title_and_every_entry_of_the_menu(visit, reports, width):
    for file in reports:
        page = visit(file, look="phone")
        page.set_viewport_size({"width": width, "height": 780})
        until(page, lambda page=page: too_wide(page) <= 0)
        for part in ("#title", "nav#sections", "nav#sections a", "#theme"):
            for each in page.locator(part).all():
                assert not each.evaluate(CUT), f"{part}: {each.inner_text()}"


def test_the_graph_is_coloured_by_precision_with_ordered_bits(seen):
    legend = seen.locator("#graph .legend").inner_text()
    assert seen.get_by_label("Colour by").input_value() == "precision"
    assert legend.index("8 bits fixed") < legend.index("32 bits float")
    script = "all => all.map(e => getComputedStyle(e.querySelector('rect')).stroke)"
    assert len(set(seen.locator("#graph .node").evaluate_all(script))) == 2


def test_words_come_before_the_names_of_the_ir(seen):
    boxes = seen.locator("#graph svg.canvas").text_content()
    assert "input" in boxes and "placeholder" not in boxes
    seen.get_by_label("Colour by").select_option("kind")
    legend = seen.locator("#graph .legend").inner_text()
    assert "layer" in legend and "module_related_func" not in legend


def test_the_applied_trial_stands_first_marked_and_selected(seen):
    row = seen.get_by_role("table", name="trials of widths").locator("tbody tr").first
    assert "applied" in row.inner_text() and row.get_attribute("aria-selected") == "true"
    assert "Trial 1" in seen.get_by_role("region", name="Trial", exact=True).inner_text()


def test_the_front_stands_before_the_curves_and_flat_curves_are_absent(seen):
    titles = seen.locator("#search figure h3").all_inner_texts()
    assert titles[0].startswith("Pareto front")
    assert [t for t in titles if t.startswith("Best")] == [
        "Best accuracy so far (higher is better)",
        "Best bits so far (lower is better)",
    ]


@pytest.mark.slow
def test_a_study_that_never_improved_has_no_curve(visit, tmp_path):
    study = {**STUDY, "trials": STUDY["trials"][:1]}
    page = visit(write_report(tmp_path / "r.html", Report("One", studies=[study], provenance={})))
    assert not [t for t in page.locator("figure h3").all_inner_texts() if t.startswith("Best")]


@pytest.mark.slow
def test_axes_end_where_accuracy_ends(visit, tmp_path):
    sweep = [{**record, "after": 1.0} for record in SWEEP]
    page = visit(write_report(tmp_path / "r.html", Report("All", sweeps=[sweep], provenance={})))
    ticks = page.locator("#sweeps text").all_text_contents()
    told = [float(t.split()[0].rstrip("%")) for t in ticks if t.endswith("%")]
    assert max(told) == 100.0


def test_a_sweep_shows_the_model_before_compression(seen):
    text = seen.locator("#sweeps").text_content()
    assert "uncompressed 97.00" in text and "Accuracy over share of weights pruned" in text


def test_formats_shapes_and_counts_have_one_notation(seen):
    stages = seen.get_by_role("table", name="stages").inner_text()
    assert "fixed8" in stages and "Q8" not in stages and "→" in stages and "->" not in stages
    assert "4.25 bits" in seen.locator("#sensitivity").inner_text()


def test_rows_without_weights_are_folded_until_they_are_asked_for(seen):
    table = seen.get_by_role("table", name="layers")
    assert table.locator("tbody tr.pick").count() == 2
    table.get_by_role("button", name="and 1 more that store no weights").click()
    assert table.locator("tbody tr.pick").count() == 3


@pytest.mark.slow
def test_a_wide_table_shows_that_there_is_more(visit, reports):
    page = visit(reports[0], look="phone")
    edges = page.locator("#layers .edges")
    until(page, lambda: "more-right" in edges.get_attribute("class"))
    page.locator("#layers .scroll").evaluate("e => { e.scrollLeft = e.scrollWidth }")
    until(page, lambda: "more-right" not in edges.get_attribute("class"))
    assert "more-left" in edges.get_attribute("class")


def test_sections_of_other_runs_show_their_numbers(seen):
    assert "92 tokens/s" in seen.locator("#generation").inner_text()
    assert "Once upon" in seen.locator("#generation").inner_text()
    sharding = seen.locator("#sharding").inner_text()
    assert "1 × 2 (2 devices)" in sharding and "column" in sharding and "1.5 MB" in sharding
    assert "weight" in seen.locator("#calibration").inner_text()
    routing = seen.locator("#routing").inner_text()
    assert "ice40-up5k, 23.25 MHz" in routing and "1,200 of 5,280" in routing
    assert "Critical path: 1.25 ns in 1 steps" in routing


def test_reports_stand_side_by_side_with_the_best_marked(visit, reports):
    page = visit(reports[1])
    table = page.get_by_role("table", name="Measures")
    heads = " ".join(table.locator("thead th").all_inner_texts())
    for name in ("accuracy", "weight bytes", "bits per weight", "cycles per tensor", "LUT", "Fmax"):
        assert name in heads
    best = table.locator("td.best").all_inner_texts()
    assert any(text.startswith("91.00") for text in best)
    assert "fixed8.5" in page.get_by_role("table", name="Precision of each layer").inner_text()
