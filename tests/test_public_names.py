"""No public name disappears unless the changelog says so."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "public_names.txt"
REMEDY = "python .ci/public_names.py --write"


@pytest.fixture(scope="module")
def lister():
    spec = importlib.util.spec_from_file_location("public_names", ROOT / ".ci" / "public_names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_importable(name):
    """Return True if programs can import `name`, as the attribute of a module or as a module."""
    place, _, attribute = name.rpartition(".")
    try:
        if hasattr(importlib.import_module(place), attribute):
            return True
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def unexplained(listed, current, changelog):
    """Return the listed names that no program can import and that the changelog does not name."""
    told = set(re.findall(r"`([\w.]+)`", changelog))
    gone = (name for name in listed if name not in current and name not in told)
    return [name for name in gone if not is_importable(name)]


def test_no_public_name_disappears_in_silence(lister):
    """A name that moved is imported: `chop.compat` answers it."""
    listed, current = LIST.read_text().split(), set(lister.Checkout(ROOT).names())
    assert unexplained(listed, current, (ROOT / "CHANGELOG.md").read_text()) == []
    assert sorted(current - set(listed)) == [], f"new names; run {REMEDY}"


def test_a_name_that_is_gone_is_seen():
    listed, current = ["chop.search.Integer", "chop.search.Whole"], {"chop.search.Integer"}
    assert unexplained(listed, current, "") == ["chop.search.Whole"]
    assert unexplained(listed, current, "- `chop.search.Whole` is now `chop.search.Integer`.") == []
    moved = ["chop.tools.logger.get_logger", "chop.hw.proofs.Verdict", "chop.hw.library.fifo"]
    assert unexplained([*moved, "chop.hw.nowhere.Thing"], set(), "") == ["chop.hw.nowhere.Thing"]


SOURCES = {
    "literal": ('__all__ = ["a", "b"]', ["a", "b"]),
    "keys of a table": ('_LAZY = {"b": "x", "a": "y"}\n__all__ = sorted(_LAZY)', ["a", "b"]),
    "unpacked": ('_MORE = ("b",)\n__all__ = ["a", *_MORE]', ["a", "b"]),
    "comprehension": (
        '_T = {"m": ("a", "b")}\n_N = {n: m for m, names in _T.items() for n in names}\n'
        "__all__ = list(_N)",
        ["a", "b"],
    ),
    "another module": (
        'from chop import part\n__all__ = ["a", *part.__all__]',
        ["a", "inner"],
    ),
    "explicit imports": (
        "from x import a as a\nfrom x import hidden\nfrom x import b as b",
        ["a", "b"],
    ),
    "star": ("from chop.part import *", ["inner"]),
}


@pytest.mark.parametrize("case", SOURCES)
def test_exports_are_read_from_the_source(case, lister, tmp_path):
    text, expected = SOURCES[case]
    folder = tmp_path / "src" / "chop"
    folder.mkdir(parents=True)
    (folder / "part.py").write_text('__all__ = ["inner"]\n')
    (folder / "__init__.py").write_text(text + "\n")
    assert lister.Checkout(tmp_path).exports("chop") == expected


def test_the_api_reference_makes_names_public(lister, tmp_path):
    (tmp_path / "src" / "chop").mkdir(parents=True)
    (tmp_path / "docs" / "api").mkdir(parents=True)
    (tmp_path / "src" / "chop" / "part.py").write_text(
        "def f(): ...\nclass C: ...\ndef _g(): ...\n"
    )
    (tmp_path / "docs" / "api" / "page.md").write_text("# Page\n\n::: chop.part\n")
    assert lister.Checkout(tmp_path).names() == ["chop.part.C", "chop.part.f"]
