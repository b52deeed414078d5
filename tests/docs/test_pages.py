"""Every page of docs/ is run as it stands: its Python blocks, from top to bottom."""

import re
from pathlib import Path

import pytest

from chop.passes import PASSES

DOCS = Path(__file__).parents[2] / "docs"
NEEDS_A_SIMULATOR = ("hardware",)
"""Pages run by tests that skip where a tool is missing: tests/hw/test_docs.py."""
PAGES = [
    p
    for p in sorted(DOCS.glob("*.md"))
    if "```python" in p.read_text() and p.stem not in NEEDS_A_SIMULATOR
]


@pytest.fixture
def registry():
    """A page may register a pass of its own; the registry is put back after it."""
    before = dict(PASSES._things)
    yield PASSES
    PASSES._things.clear()
    PASSES._things.update(before)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, registry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = {"__name__": page.stem}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number}", "exec"), world)
    assert blocks


def test_links_between_pages_lead_somewhere():
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
