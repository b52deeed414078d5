"""The tutorials: each script runs in its small setting, and its page agrees with it."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from pathlib import Path

import pytest

from chop.hw import lower
from chop.hw.sim import emit

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
sys.path.insert(0, str(TUTORIALS))

import lesson  # noqa: E402
import refresh  # noqa: E402

NAMES = refresh.names()
SIMULATED = {"hardware": ("verilator", "g++", "pyosys"), "own_layer": ("verilator", "g++")}
"""Tutorials that need a simulator, and the tools that they need."""


SLOW = (
    "export",
    "hardware",
    "lora",
    "mixed_precision",
    "nas",
    "post_training",
    "pruning",
    "qat",
    "torch_compile",
)
"""Tutorials that train many times, or synthesise: `make slow` runs them."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    simulated = [pytest.mark.sim(*SIMULATED[name])] if name in SIMULATED else []
    return [*simulated, *([pytest.mark.slow] if name in SLOW else [])]


CASES = [pytest.param(name, marks=marks(name), id=name) for name in NAMES]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One folder for all, as from the shell: what one tutorial trained, the next loads."""
    return tmp_path_factory.mktemp("tutorials")


@pytest.fixture
def registries(monkeypatch):
    """A tutorial may register what is its own; it is gone afterwards."""
    monkeypatch.setattr(lower.LOWERINGS, "_things", dict(lower.LOWERINGS._things))
    monkeypatch.setattr(emit, "_LIBRARIES", list(emit._LIBRARIES))


@pytest.mark.share(3)
@pytest.mark.no_cover  # tests of the parts measure those
@pytest.mark.parametrize("name", CASES)
def test_a_tutorial_prints_and_draws_what_its_page_shows(name, shared, registries):
    if name == "export":
        pytest.importorskip("onnxruntime", reason="needs masegraph[export]")
    out = shared / name
    lesson.run(importlib.import_module(name).main, lesson.Setting(out))
    printed = refresh.printed_in(out)
    page = refresh.text_of(name)
    shown = {match["name"]: match["text"] for match in refresh.PRINTED.finditer(page)}
    assert set(shown) == set(printed)
    assert {k: shape(v) for k, v in shown.items()} == {k: shape(v) for k, v in printed.items()}
    for figure in refresh.FIGURE.findall(page):
        assert (out / Path(figure).name).stat().st_size > 0


def shape(text: str) -> str:
    """The text without what differs from machine to machine: numbers, how many, and their room."""
    numbered = re.sub(r"\d[\d.e+-]*", "#", text)
    return re.sub(r"(?:# )+", "# ", re.sub(r"[\s-]+", " ", numbered) + " ").strip()


@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_page_is_in_its_script(name):
    script = "\n".join(line.strip() for line in (TUTORIALS / f"{name}.py").read_text().splitlines())
    page = refresh.text_of(name)
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", page, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        lines = [line.strip() for line in textwrap.dedent(block).strip().splitlines()]
        assert "\n".join(lines) in script, block


@pytest.mark.parametrize("name", NAMES)
def test_figures_of_a_page_are_small(name):
    page = refresh.text_of(name)
    for figure in refresh.FIGURE.findall(page):
        assert (TUTORIALS / figure).stat().st_size < 150_000


def test_a_stale_page_would_be_noticed():
    page = "<!-- printed: sum -->\n\n```text\nold 3\n```\n"
    assert refresh.refreshed(page, {"sum": "new 3\n"}) == page.replace("old", "new")
    assert shape("old 3") != shape("new 3") and shape("a 3.1e-05") == shape("a 12")
