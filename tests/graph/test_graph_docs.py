"""The chapters: what they show as printed output is what their code prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "docs/graph").glob("[0-9][0-9]_*.md"))


@pytest.fixture(scope="module")
def refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs/graph/refresh.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_printed_output_in_the_chapters_is_true(path: Path, refresh: ModuleType) -> None:
    text = path.read_text(encoding="utf-8")
    assert "```text\n" in text and "```text\n```" not in text
    assert refresh.refreshed(text) == text


def test_a_stale_output_would_be_noticed(refresh: ModuleType) -> None:
    stale = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    assert refresh.refreshed(stale) == stale.replace("3", "2")


def test_every_file_of_the_package_has_its_chapter() -> None:
    covered = " ".join(path.read_text(encoding="utf-8").splitlines()[0] for path in CHAPTERS)
    files = {path.name for path in (ROOT / "src/graph").glob("*.py")}
    missing = {name for name in files if f"`{name}`" not in covered}
    assert missing == {"__init__.py", "errors.py", "ops.py"}  # told of in chapter 1
