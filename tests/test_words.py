"""The check of plain English notices what it forbids."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / ".ci" / "words.py"


@pytest.fixture(scope="module")
def words():
    spec = importlib.util.spec_from_file_location("words", FILE)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["words"] = module
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("words")


@pytest.mark.parametrize(
    "source",
    [
        '"""Of many things."""',
        'def f():\n    """Whether it is so."""',
        'X = 1\n"""What it is."""',
        "found = 1",
        "def f(told): ...",
        'def f():\n    """Return the layers anew."""',
    ],
)
def test_a_forbidden_word_is_noticed(words, source, tmp_path, monkeypatch):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    file = tmp_path / "src" / "module.py"
    file.parent.mkdir()
    file.write_text(source)
    assert len(list(words.python_hits(file))) == 1


def test_plain_text_passes(words, tmp_path, monkeypatch):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text('"""Plain text."""\n\n\ndef f(x):\n    """Return x."""\n    return x\n')
    assert list(words.python_hits(file)) == []


def test_code_and_tables_are_no_sentences(words, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nOne sentence. Two.\n\n| a | b |\n\n```\ncode anew\n```\n")
    assert words.prose(page).split() == ["One", "sentence.", "Two."]


def test_a_limit_above_the_count_is_noticed(words):
    hits = [words.Hit("src/chop/hw/a.py", 1, "of")] * words.LIMITS["chop/hw"]
    lines = words.loose_limits(hits)
    assert len(lines) == len(words.LIMITS) - 1 and not any("chop/hw" in line for line in lines)
    assert words.excess(hits) == [] and len(words.excess(hits * 2)) == 2 * len(hits)
