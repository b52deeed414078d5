"""Files from outside the package, taken from CONTRIBUTING.md, and registries that are put back."""

import contextlib
import re
import sys
from pathlib import Path

import pytest

from chop.cli import named_objects
from chop.cli.names import REGISTRIES, registry

GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def section(title: str) -> str:
    """The text of the section `title` of CONTRIBUTING.md."""
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.S | re.M)
    return found


def code_of(title: str) -> str:
    """The Python of the section `title`."""
    (code,) = re.findall(r"```python\n(.*?)```", section(title), re.S)
    return code


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """`outside("mine.py", text)` writes a file of the user's; what it registers goes after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named_objects, "_LOADED", set())
    written = []

    def write(name: str, text: str) -> str:
        written.append(Path(name).stem)
        (tmp_path / name).write_text(text)
        return name

    with contextlib.ExitStack() as stack:
        for kind in REGISTRIES:
            stack.enter_context(registry(kind).restored())
        yield write
    for name in written:
        sys.modules.pop(name, None)
