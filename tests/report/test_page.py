"""The page in a real browser: headless Chromium, the file opened as a user opens it."""

import re
from urllib.parse import unquote

import pytest
from browsing import next_frame, too_wide, until
from report_data import SENSITIVITY, STUDY, SWEEP, annotated, compressed, many_nodes, with_hardware

from chop.report import Report, report_records, write_report
from chop.report.html import report_page
from chop.report.node_positions import place_blocks, place_nodes
from chop.report.page_parts import with_links

HOSTILE = "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'>"


@pytest.fixture
def visit(visit):
    """A report asks for nothing but itself."""
    opened = []

    def open_file(path, *given, **looks):
        opened.append(path.as_uri())
        return visit(path, *given, **looks)

    yield open_file
    assert visit.requests == opened


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report with every section; the RTL lies in a folder beside it."""
    folder = tmp_path_factory.mktemp("report")
    before = annotated()
    after, design = with_hardware(compressed(before))
    for stage in design["stages"]:
        (folder / "my run" / stage["file"]).parent.mkdir(parents=True, exist_ok=True)
        (folder / "my run" / stage["file"]).touch()
    shown = Report(
        "Two layers",
        {"float": before, "fixed point": after},
        {"accuracy": (0.91, 0.9)},
        [STUDY],
        [SWEEP],
        with_links(design, folder / "my run", folder),
        {"seed": 0, "config": {"width": 8}},
        SENSITIVITY,
    )
    return write_report(folder / "report.html", shown)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A report of 2 000 nodes."""
    graph = {**many_nodes(2000), "layout": 0}
    records = report_records(Report("Many", provenance={"seed": 0}))
    layouts = [{"nodes": place_nodes(graph), "blocks": None}]
    path = tmp_path_factory.mktemp("large") / "report.html"
    path.write_text(report_page({**records, "graphs": [graph], "layouts": layouts}))
    return path


def details(page):
    return page.locator(".inspector").inner_text()


def colours(page):
    page.locator("#graph .node").nth(4).wait_for()
    script = "all => all.map(e => getComputedStyle(e.querySelector('rect')).stroke)"
    return page.locator("#graph .node").evaluate_all(script)


def test_a_click_selects_a_node_and_shows_its_metadata(visit, report):
    page = visit(report)
    page.locator("#graph .node[data-name=fc1]").click()
    assert page.locator(".node.selected").get_attribute("data-name") == "fc1"
    text = details(page)
    for said in ("linear", "fixed8.5", "16×8", "fixed_linear", "data_in_0", "Weight"):
        assert said in text
    assert page.locator(".inspector svg[aria-label^='Histogram'] .bar-fill").count() > 4
    assert page.url.endswith("#node=fc1")


@pytest.mark.slow
def test_a_click_beside_the_nodes_selects_none(visit, report):
    page = visit(report, "#node=fc1")
    page.locator("svg.canvas").click(position={"x": 300, "y": 500})
    assert page.locator(".node.selected").count() == 0
    assert "Getting around" in details(page)


def test_a_link_opens_the_report_at_its_node(visit, report):
    page = visit(report, "#node=fc2")
    assert page.locator(".node.selected").get_attribute("data-name") == "fc2"
    page.evaluate("location.hash = '#node=fc1'")
    page.locator(".node.selected[data-name=fc1]").wait_for()


def test_the_search_marks_what_it_finds_and_enter_goes_there(visit, report):
    page = visit(report)
    page.get_by_label("Search nodes").fill("linear")
    assert page.locator("#graph .node.match").count() == 2
    assert page.locator("#graph .tools [role=status]").inner_text() == "2 of 5"
    dim = page.locator("#graph .node[data-name=relu]").evaluate("e => getComputedStyle(e).opacity")
    assert float(dim) < 0.5
    page.get_by_label("Search nodes").press("Enter")
    assert page.locator(".node.selected").get_attribute("data-name") == "fc1"


@pytest.mark.slow
def test_arrow_keys_walk_along_edges(visit, report):
    page = visit(report)
    page.locator("svg.canvas").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.locator(".node.selected").get_attribute("data-name") == "relu"
    page.keyboard.press("ArrowUp")
    assert page.locator(".node.selected").get_attribute("data-name") == "fc1"
    page.keyboard.press("Escape")
    assert page.locator(".node.selected").count() == 0


@pytest.mark.slow
def test_a_header_sorts_its_column_both_ways(visit, report):
    page = visit(report)
    table = page.get_by_role("table", name="layers")
    table.get_by_role("button", name="and 1 more that store no weights").click()
    for expected in (["fc1", "fc2", "relu"], ["relu", "fc2", "fc1"]):
        table.get_by_role("button", name="Layer").click()
        assert table.locator("tbody tr td:first-child").all_inner_texts() == expected
    table.get_by_role("button", name="FLOPs").click()  # the largest number first
    assert table.locator("tbody tr td:first-child").all_inner_texts()[0] == "fc1"
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("FLOPs")


@pytest.mark.slow
def test_rows_are_filtered_and_select_their_node(visit, report):
    page = visit(report)
    page.get_by_label("Filter layers").fill("relu")
    table = page.get_by_role("table", name="layers")
    assert table.locator("tbody tr").count() == 1
    table.locator("tbody tr").click()
    assert page.locator("#graph .node.selected").get_attribute("data-name") == "relu"
    assert table.locator("tbody tr[aria-selected=true]").count() == 1


@pytest.mark.share(3)
@pytest.mark.parametrize("way", ["kind", "sparsity", "cost"])
def test_colours_follow_what_is_asked_for(visit, report, way):
    page = visit(report)
    before, legend = colours(page), page.locator(".legend").inner_text()
    page.get_by_label("Colour by").select_option(way)
    assert colours(page) != before
    assert page.locator(".legend").inner_text() != legend


@pytest.mark.slow
def test_both_graphs_can_be_looked_at(visit, report):
    page = visit(report, "#node=fc1")
    assert "fixed8.5" in details(page)
    page.get_by_role("button", name="float", exact=True).click()
    assert page.locator(".inspector .chips").inner_text().split() == [
        "linear",
        "layer",
        "float32",
    ]
    assert "module_related_func" in details(page)  # the IR's own name is there, further down


def test_hovering_over_the_front_tells_the_trial(visit, report):
    page = visit(report)
    chart = page.locator("figure.chart", has_text="Pareto front")
    chart.locator(".dot:not(.faint)").first.hover()
    text = page.locator("#tooltip").inner_text()
    assert re.search(r"Trial \d", text)
    assert "accuracy" in text and "fc1.weight_width" in text
    page.mouse.move(5, 5)
    assert page.locator("#tooltip").is_hidden()


@pytest.mark.slow
def test_points_of_a_figure_are_told_by_keyboard_too(visit, report):
    page = visit(report)
    page.locator("#sweeps .chart svg").focus()
    page.keyboard.press("ArrowRight")
    assert "share of weights pruned" in page.locator("#tooltip").inner_text()


@pytest.mark.slow
def test_a_trial_that_is_clicked_is_shown_whole(visit, report):
    page = visit(report)
    page.get_by_role("table", name="trials of widths").locator("tr[data-name='3']").click()
    side = page.get_by_role("region", name="Trial", exact=True).inner_text()
    assert "Trial 3" in side and "failed" in side and "the loss is not finite" in side


def test_the_trial_that_was_applied_is_marked_and_selected(visit, tmp_path):
    study = {**STUDY, "applied": 1}
    page = visit(write_report(tmp_path / "report.html", Report("Applied", studies=[study])))
    side = page.get_by_role("region", name="Trial", exact=True).inner_text()
    assert "Trial 1" in side and "the model of this trial was kept" in side
    assert "trial 1 applied" in page.locator("#search .study header").inner_text()
    chart = page.locator("figure.chart", has_text="Pareto front")
    assert "applied" in chart.inner_text()


@pytest.mark.slow
def test_the_map_of_losses_marks_what_was_chosen_and_tells_the_rest(visit, report):
    page = visit(report)
    chosen = page.locator("#sensitivity td.chosen")
    assert chosen.count() == 2
    assert page.locator("#sensitivity thead th").all_inner_texts()[1].startswith("mxint2")
    chosen.first.hover()
    told = page.locator("#tooltip").inner_text()
    assert "fc1, mxint4" in told and "4.25" in told and "yes" in told
    cells = page.locator("#sensitivity td.num")
    assert cells.count() == 6
    script = "all => all.map(e => getComputedStyle(e).backgroundColor)"
    assert len(set(cells.evaluate_all(script))) == 6


def test_the_bottleneck_is_marked(visit, report):
    page = visit(report)
    marked = page.locator("#hardware .node.bottleneck")
    assert marked.count() == 1
    assert "bottleneck" in marked.text_content()
    marked.hover()
    assert "cycles per tensor" in page.locator("#tooltip").inner_text()


@pytest.mark.slow
def test_stages_lead_to_their_rtl_in_the_diagram_and_in_the_table(visit, report):
    page = visit(report)
    for place in ("#hardware svg a", "#hardware td a"):
        links = page.locator(place).evaluate_all("all => all.map(e => e.getAttribute('href'))")
        assert len(links) >= 3
        assert all((report.parent / unquote(link)).is_file() for link in links)


@pytest.mark.slow
def test_a_routed_design_tells_its_clock_its_load_and_its_roofs(visit, report):
    page = visit(report)
    told = page.locator("#hardware").inner_text()
    assert "135.8 MHz (135.8, 120.3, 131 by seed)" in told and "265,293" in told
    assert "Roofline at 135.8 MHz" in told and "4,066 cycles" in told
    assert "% busy" in page.locator("#hardware .node.bottleneck").text_content()
    assert page.locator("#hardware .chart .dot").count() >= 5


@pytest.mark.slow
def test_dark_and_light_follow_the_system_and_the_button(visit, report):
    def ground(page):
        text = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", text)[:3]))

    page = visit(report)
    assert ground(page) > 600
    page.emulate_media(color_scheme="dark")
    assert ground(page) < 150
    page.locator("#theme").click()  # light
    assert ground(page) > 600
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()  # dark
    assert ground(page) < 150


def test_every_section_is_there_and_only_those_with_data(visit, report, tmp_path):
    def sections(page):
        return page.locator("nav a").all_inner_texts()

    assert sections(visit(report)) == [
        "Graph",
        "Before and after",
        "Sensitivity",
        "Search",
        "Sweeps",
        "Hardware",
        "Provenance",
    ]
    small = write_report(tmp_path / "small.html", Report("small", provenance={"seed": 1}))
    assert sections(visit(small)) == ["Provenance"]


def test_the_page_fits_a_telephone(visit, report):
    page = visit(report, look="phone")
    until(page, lambda: too_wide(page) <= 0)
    stage, legend = (
        page.locator(f"#graph {part}").bounding_box() for part in (".stage", ".legend")
    )
    assert legend["y"] >= stage["y"] + stage["height"] - 1  # beside the graph, not over it


def test_every_control_has_a_name(visit, report):
    page = visit(report)
    unnamed = page.locator("button, input, select").evaluate_all(
        "all => all.filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length))"
        ".map(e => e.outerHTML)"
    )
    assert unnamed == []


def test_text_can_be_read_on_its_ground_in_both_themes(visit, report):
    script = """() => {
      const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const light = (name) => {
        const probe = document.body.appendChild(document.createElement("i"));
        probe.style.color = `var(${name})`;
        paint.fillStyle = getComputedStyle(probe).color;
        probe.remove();
        paint.fillRect(0, 0, 1, 1);
        const parts = [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
          .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      };
      const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const grounds = ["--ground", "--surface", "--raised"];
      const inks = ["--ink", "--muted", "--accent"];
      const pairs = inks.flatMap((ink) => grounds.map((ground) => [ink, ground]));
      const all = [...pairs, ["--on-accent", "--accent"]];
      return all.map(([a, b]) => [a, b, contrast(light(a), light(b))]);
    }"""
    page = visit(report)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        weak = [row for row in page.evaluate(script) if row[2] < 4.5]
        assert weak == []  # WCAG 2, level AA


@pytest.mark.slow
def test_two_thousand_nodes_are_searched_selected_and_fitted(visit, large):
    page = visit(large)
    page.locator("#graph .node").first.wait_for()
    assert page.locator("#graph .node").count() < 400  # only what is seen is drawn
    page.get_by_role("button", name="Fit the whole graph").click()
    until(page, lambda: page.locator("#graph .node").count() == 2000)
    assert "far" in page.locator("svg.canvas").get_attribute("class")
    page.get_by_label("Search nodes").fill("add_1999")
    assert page.locator("#graph .tools [role=status]").inner_text() == "1 of 2000"
    page.get_by_label("Search nodes").press("Enter")
    until(page, lambda: page.locator("#graph .node").count() < 400)
    page.get_by_label("Search nodes").fill("")
    page.locator(".node[data-name=mul_1998]").click()
    assert "mul_1998" in details(page)


@pytest.mark.slow
def test_dragging_moves_and_the_wheel_zooms_once_the_graph_was_clicked(visit, large):
    page = visit(large)
    transform = page.locator("svg.canvas > g")

    def now():
        next_frame(page)
        return transform.get_attribute("transform")

    start = now()
    page.mouse.move(500, 600)
    page.mouse.wheel(0, -200)
    assert now() == start
    page.evaluate("window.scrollTo(0, 0)")
    page.mouse.down()
    page.mouse.move(400, 500, steps=4)
    page.mouse.up()
    until(page, lambda: now() != start)
    moved = now()
    assert moved.split("scale")[1] == start.split("scale")[1]
    page.locator("svg.canvas").focus()
    page.mouse.wheel(0, -200)
    until(page, lambda: now().split("scale")[1] != start.split("scale")[1])


def test_names_from_outside_cannot_break_the_page(visit, tmp_path):
    graph = many_nodes(12)
    graph["nodes"][3]["name"] = graph["label"] = HOSTILE
    graph["nodes"][3]["settings"] = {HOSTILE: HOSTILE}
    study = {**STUDY, "name": HOSTILE}
    records = report_records(Report(HOSTILE, studies=[study], provenance={HOSTILE: HOSTILE}))
    layouts = [{"nodes": place_nodes(graph), "blocks": None}]
    path = tmp_path / "report.html"
    path.write_text(
        report_page({**records, "graphs": [{**graph, "layout": 0}], "layouts": layouts})
    )
    page = visit(path)
    page.locator("#graph .node").nth(3).click()
    assert HOSTILE in details(page)
    assert page.title() == HOSTILE
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0


@pytest.mark.share(2)
@pytest.mark.parametrize(("count", "level"), [(400, "Nodes"), (600, "Blocks")])
def test_a_large_graph_opens_as_blocks(visit, tmp_path, count, level):
    graph = many_nodes(count)
    for i, node in enumerate(graph["nodes"]):
        node["module"] = f"layers.{i // 50}"
    records = report_records(Report("Layers", provenance={"seed": 0}))
    layouts = [{"nodes": place_nodes(graph), "blocks": place_blocks(graph)}]
    path = tmp_path / "report.html"
    path.write_text(
        report_page({**records, "graphs": [{**graph, "layout": 0}], "layouts": layouts})
    )
    assert visit(path).locator("#graph [aria-pressed=true]").first.inner_text() == level
