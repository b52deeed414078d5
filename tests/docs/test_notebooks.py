"""The tutorials as notebooks: made from scripts and pages, and executed cell by cell."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from test_tutorials import CASES, NAMES, SLOW, registries  # noqa: F401

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
make_notebooks = importlib.import_module("make_notebooks")
FAST = "inputs"
"""The one that the plain tests execute: the scripts of the others are run there already."""


def marked(case):
    is_slow = case.id not in (FAST, *SLOW)
    marks = [*case.marks, *([pytest.mark.slow] if is_slow else [])]
    return pytest.param(*case.values, marks=marks, id=case.id)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_what_its_script_and_page_say(name):
    text = (DOCS / "notebooks" / f"{name}.ipynb").read_text()
    assert text == make_notebooks.text(name), "run python docs/make_notebooks.py"
    cells = json.loads(text)["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    assert "lesson" not in "".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    assert f"(notebooks/{name}.ipynb)" in (DOCS / "notebooks.md").read_text()


@pytest.mark.no_cover  # tests of the parts measure those
@pytest.mark.parametrize("name", [marked(case) for case in CASES])
def test_a_notebook_runs_from_top_to_bottom(name, registries, tmp_path, monkeypatch):  # noqa: F811
    if name == "export":
        pytest.importorskip("onnxruntime", reason="needs masegraph[export]")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    world = {"__name__": "__main__"}
    for number, code in enumerate(cells):
        if "IPython" not in code:  # which only shows the figures
            exec(compile(code, f"{name}, cell {number}", "exec", dont_inherit=True), world)
    assert list((tmp_path / "out" / "tutorials" / name).glob("*.txt"))
