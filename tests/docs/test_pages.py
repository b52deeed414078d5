"""The pages of docs/ and of the root: their Python blocks run, their links lead somewhere."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from chop.actions import METRICS
from chop.dataset import DATASETS
from chop.nn.quantizers import FORMATS
from chop.passes import PASSES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

NEEDS_A_SIMULATOR = (
    "hardware",
    "hardware_numbers",
    "hardware_design",
    "hardware_parts",
    "hardware_components",
)
"""Pages run by tests that skip where a tool is missing: tests/hw/test_docs.py."""
RUN = [
    page
    for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    if "```python" in page.read_text() and page.stem not in NEEDS_A_SIMULATOR
]
ALL = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


TRAINS = ("search", "train")
"""Pages whose code trains many times: `make slow` runs them."""


def _marked(page):
    marks = pytest.mark.slow if page.stem in TRAINS else ()
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.fixture
def registry():
    """A page may register what it needs; the registries are put back after it."""
    with PASSES.restored(), METRICS.restored(), DATASETS.restored():
        yield PASSES


@pytest.mark.share(4)
@pytest.mark.no_cover  # tests of the parts measure those
@pytest.mark.parametrize("page", [_marked(page) for page in RUN])
def test_the_code_of_a_page_runs(page, registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = {"__name__": page.stem}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for number, block in enumerate(blocks):
        code = compile(block, f"{page.name}, block {number}", "exec", dont_inherit=True)
        exec(code, world)
    assert blocks
    if page.stem == "README":
        assert world["reached"] > 0.93  # what the page shows as printed is 0.950


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def links(page: Path) -> list[str]:
    """Targets of the page's links and images that are not on the web."""
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    return [t for t in targets if not re.match(r"[a-z]+:", t)]


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: lower case, words joined by hyphens."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", h).strip().lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(found), f"{page.name} links to {target}"


def test_a_broken_link_would_be_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One Thing\n[a](absent.md) `[b](code.md)` [c](https://x.org) [d](#one-thing)")
    assert links(page) == ["absent.md", "#one-thing"]
    assert anchors(page) == {"one-thing"}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(DOCS)))
def test_every_page_can_be_reached_from_the_menu(page):
    menu = (ROOT / "mkdocs.yml").read_text()
    assert f" {page.relative_to(DOCS)}\n" in menu


def test_the_page_of_passes_is_what_the_registry_says(registry):
    make_passes = importlib.import_module("make_passes")
    assert (DOCS / "passes.md").read_text() == make_passes.page()
    assert all(f"### `{name}`" in make_passes.page() for name in PASSES)


def test_the_page_of_formats_has_every_format_and_draws_it():
    make_formats = importlib.import_module("make_formats")
    text = (DOCS / "formats.md").read_text()
    assert make_formats.page(text) == text
    drawn = {name for family in make_formats.FAMILIES.values() for name in family}
    assert drawn | set(make_formats.NOT_DRAWN) == set(FORMATS)
    for family in make_formats.FAMILIES:
        assert f"(images/formats_{family}.svg)" in text


def test_the_journeys_are_those_of_the_file():
    make_journeys = importlib.import_module("make_journeys")
    assert (DOCS / "journeys.md").read_text() == make_journeys.page(), "docs/make_journeys.py"
    for each in make_journeys.journeys():
        assert each.name in make_journeys.SUBJECTS
        for step in each.steps.values():
            assert step.get("figures") or step.get("reason"), (each.name, step["step"])


def test_the_results_are_those_of_the_files():
    make_results = importlib.import_module("make_results")
    assert (DOCS / "results.md").read_text() == make_results.page(), "docs/make_results.py"
    text = (ROOT / "README.md").read_text()
    assert make_results.readme(text) == text
    assert len(make_results.HEADLINES) <= 10
    page = make_results.SHARD_PAGE.read_text()
    assert make_results.filled(page, {"matrix": make_results.shard_matrix()}) == page


def test_figures_of_older_code_are_marked_and_linked_to_their_files(monkeypatch):
    make_results = importlib.import_module("make_results")
    stale = {"ptq"}
    monkeypatch.setattr(make_results, "is_current", lambda name, record: name not in stale)
    lines = make_results.headline_table("bench/results").splitlines()
    for line in lines[2:-2]:
        assert (make_results.OLDER in line) == ("(bench/results/ptq.json)" in line), line
        assert "(bench/results/" in line
    assert lines[-1] == make_results.NOTE
    three_bits, kernels, digits, *_ = make_results.headlines().splitlines()
    assert three_bits.endswith(make_results.OLDER)
    assert make_results.OLDER not in kernels + digits
    stale.clear()
    assert make_results.OLDER not in make_results.headline_table() + make_results.headlines()


def test_every_row_of_the_readme_has_the_mark_of_todays_code():
    """A row that was current and is no longer must get its mark: `make figures`."""
    make_results = importlib.import_module("make_results")
    text = (ROOT / "README.md").read_text()
    for row in make_results.HEADLINES:
        (what, ours, *_), sources = make_results.with_sources(row)
        assert sources, f"{row.__name__} reads no result file"
        assert f"| {what} | {ours}{make_results.mark(sources)} |" in text, "docs/make_results.py"


def test_the_layers_are_those_of_the_code():
    make_how = importlib.import_module("make_how")
    drawn = {part.name for row in make_how.layers() for part in row}
    picture = (DOCS / "images" / "layers.svg").read_text()
    assert all(f">{name} <" in picture and part_said(name) for name in drawn)
    inside = [part.name for rows in make_how.contracts().values() for row in rows for part in row]
    assert {"passes.rewrite", "passes.ptq.solve", "ir.ops"} <= set(inside)
    assert [name for name in inside if not part_said(name)] == []


def test_the_walk_shows_the_rooms_and_the_component_folders_of_the_code():
    make_how = importlib.import_module("make_how")
    text = (DOCS / "how_it_works.md").read_text()
    rooms = [part.name for row in make_how.contracts()["chop.hw"] for part in row]
    picture = (DOCS / "images" / "rooms.svg").read_text()
    assert [name for name in rooms if f">{name} <" not in picture] == []
    assert make_how.folder_table() in text, "docs/make_how.py"
    assert len(make_how.folder_table().splitlines()) == 8


def test_the_paths_of_the_walk_exist():
    text = (DOCS / "how_it_works.md").read_text()
    walk = text.partition("## A walk through the code")[2].partition("\n## ")[0]
    paths = re.findall(r"`((?:cli|passes|ir|nn|hw)/[\w/.]+)`", walk)
    assert len(paths) >= 6
    assert [path for path in paths if not (ROOT / "src" / "chop" / path).exists()] == []


def part_said(name):
    return f"| `chop.{name}` |" in (DOCS / "how_it_works.md").read_text()


def test_the_first_screen_of_the_readme_has_what_a_visitor_needs():
    lines = (ROOT / "README.md").read_text().splitlines()
    first = next(line for line in lines[1:] if line and not line.startswith("!["))
    assert len(first.split()) <= 25
    screen = "\n".join(lines[:30])
    for words in ("pip install", "<!-- headlines: end -->", "report_smollm2.png", "| Get RTL |"):
        assert words in screen
    assert len(lines) < 145 and max(map(len, lines)) <= 400


def test_every_step_of_the_newcomer_is_timed():
    make_newcomer = importlib.import_module("make_newcomer")
    text = (DOCS / "newcomer.md").read_text()
    assert all(f"| {step} | `{command}` |" in text for step, command in make_newcomer.STEPS.items())
    assert "def build()" in make_newcomer.own_model()


def test_the_table_of_names_is_what_the_registries_say():
    text = (DOCS / "cli.md").read_text()
    assert importlib.import_module("make_names").page(text) == text


def test_the_values_drawn_are_those_of_the_format():
    make_formats = importlib.import_module("make_formats")
    small = make_formats.make("integer", {"width": 3, "frac_width": 0})
    assert make_formats.values(small).tolist() == [-4, -3, -2, -1, 0, 1, 2, 3]
    _, error = make_formats.relative_error("integer", small)
    assert error[0] == 1.0 and error.max() <= 1.0  # what is small becomes zero


def test_troubleshooting_quotes_messages_that_exist():
    joined = (re.sub(r'"\s*\n\s*f?"', "", p.read_text()) for p in (ROOT / "src").rglob("*.py"))
    source = "\n".join(joined)
    rows = re.findall(
        r"^\| ([^|]*`[^|]*)\|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE
    )
    quotes = [quote for cell in rows for quote in re.findall(r"`([^`]+)`", cell)]
    assert len(quotes) > 15
    assert [quote for quote in quotes if quote not in source] == []


def test_the_support_matrix_lists_every_row_and_is_true():
    make_support = importlib.import_module("make_support")
    rows = re.findall(r"<!-- support: begin -->\n(.*?)<!--", (ROOT / "README.md").read_text(), re.S)
    head, _, *body = rows[0].splitlines()
    cells = {r.split(" | ")[0][2:]: r.strip("| ").split(" | ")[1:] for r in body}
    assert list(cells) == list(make_support.FORMATS)
    assert head == f"| weights in | {' | '.join(make_support.TARGETS)} |"
    for row, target in (("MXINT4", "RTL"), ("FP8 (E4M3)", "llama.cpp (GGUF)")):
        is_written = cells[row][list(make_support.TARGETS).index(target)] == "yes"
        assert make_support.is_supported(target, row) == is_written
