"""The site builds without a warning, reads from disk, and fits every window."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import LOOKS, too_wide, until

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
site_hooks = importlib.import_module("site_hooks")
NEEDS_MKDOCS = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("griffe") is None,
    reason="mkdocs is not installed: pip install 'masegraph[docs]'",
)
FIRST = ("index", "newcomer", "how_it_works", "gallery", "results", "notebooks", "search")
"""Pages that are looked at in every window; the others in a narrow one."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run([*command, folder], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip()
    return folder


@pytest.mark.slow
@NEEDS_MKDOCS
def test_the_site_builds_strictly(site):
    reference = (site / "api" / "quantizers.html").read_text()
    assert "chop.nn.quantizers.integer.Integer" in reference
    assert "&gt;&gt;&gt; </span>" in reference and "<blockquote>" not in reference


@pytest.mark.slow
@NEEDS_MKDOCS
@pytest.mark.parametrize("look", LOOKS)
def test_pages_log_nothing_and_fit_their_window(visit, site, look):
    pages = [site / f"{name}.html" for name in FIRST]
    for file in pages if look != "phone" else sorted(site.rglob("*.html")):
        if file.parent.name != "gallery" and file.name != "404.html":
            page = visit(file, look=look)
            assert (str(file.relative_to(site)), max(0, too_wide(page))) == (
                str(file.relative_to(site)),
                0,
            )


@pytest.mark.slow
@NEEDS_MKDOCS
def test_the_search_works_from_disk(visit, site):
    page = visit(site / "tutorials" / "qat.html")
    page.keyboard.press("/")
    page.get_by_label("Search the site").fill("packed checkpoint")
    page.locator("#found a").first.wait_for()
    assert page.locator("#found mark").count() > 0
    page.get_by_label("Search the site").press("Enter")
    until(page, lambda: "packed_checkpoints" in page.url)


@pytest.mark.slow
@NEEDS_MKDOCS
def test_the_first_page_has_the_install_line_and_a_picture_of_a_report(visit, site):
    page = visit(site / "index.html")
    assert "pip install" in page.locator("main").inner_text()
    picture = page.locator("main img").first
    assert picture.evaluate("e => e.naturalWidth") > 600
    page.get_by_role("link", name="Open a report").click()
    page.locator("#graph .node").first.wait_for()
    assert "gallery/demo.html" in page.url


@pytest.mark.slow
@NEEDS_MKDOCS
def test_a_narrow_window_has_a_menu(visit, site):
    page = visit(site / "index.html", look="phone")
    assert not page.locator("#sections").is_visible()
    page.get_by_role("button", name="Menu").click()
    page.locator("#sections").get_by_text("Start", exact=True).click()
    page.get_by_role("link", name="Gallery of reports").first.click()
    until(page, lambda: page.url.endswith("gallery.html"))


def test_the_index_of_the_search_has_a_place_for_each_heading():
    content = '<h1 id="a">One<a class="headerlink">¶</a></h1><p>first words</p><h2 id="b">Two</h2>'
    assert site_hooks.places_of("p.html", "Page", content) == [
        {"url": "p.html#a", "page": "Page", "title": "One", "text": "first words"},
        {"url": "p.html#b", "page": "Page", "title": "Two", "text": ""},
    ]


@pytest.mark.share(3)
@pytest.mark.parametrize("look", LOOKS)
def test_the_theme_fits_every_window_and_finds_from_disk(visit, tmp_path, look):
    """The parts of the theme alone, as the plain tests can afford them."""
    theme = ROOT / "docs" / "theme"
    for name in ("theme.js", "theme.css"):
        (tmp_path / name).write_text((theme / name).read_text())
    (tmp_path / "search").mkdir()
    places = [{"url": "page.html#x", "page": "Page", "title": "Pruning", "text": "zeros"}]
    (tmp_path / "search" / "index.js").write_text(f"window.searchIndex = {json.dumps(places)};")
    jinja2 = pytest.importorskip("jinja2", reason="needs masegraph[docs]")
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(theme))
    environment.filters["url"] = lambda path: path
    wide = f"<h1>Page</h1><table><tr><td>{'wide ' * 40}</td></tr></table><pre>{'x' * 300}</pre>"
    shown = environment.get_template("main.html").render(
        config={"site_name": "MASE", "extra_css": []},
        base_url=".",
        nav=type("Nav", (list,), {"homepage": {"url": "page.html"}})(),
        page={"title": "Page", "content": wide},
    )
    (tmp_path / "page.html").write_text(shown)
    page = visit(tmp_path / "page.html", look=look)
    assert too_wide(page) <= 0
    page.get_by_label("Search the site").fill("zeros")
    page.locator("#found a").first.wait_for()
    assert page.locator("#found").inner_text().startswith("Pruning")
