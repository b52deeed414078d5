"""Writes the table of names in docs/cli.md: what each registry holds.

python docs/make_names.py
"""

from __future__ import annotations

import re
from pathlib import Path

from chop.cli.names import REGISTRIES, registered_names

PAGE = Path(__file__).resolve().parent / "cli.md"
MARKS = ("<!-- names: written by docs/make_names.py -->", "<!-- end of names -->")
ELSEWHERE = {"passes": "[All passes](passes.md)", "ops": "`mase list ops`"}
"""Kinds with too many names for a row of a table."""


def table() -> str:
    """A row for each kind: its names, and where a name of your own is registered."""
    lines = ["| `mase list …` | names |", "|---|---|"]
    for kind in REGISTRIES:
        shown = ELSEWHERE.get(kind) or ", ".join(f"`{name}`" for name in registered_names(kind))
        lines.append(f"| `{kind}` | {shown} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """`text` with the table between its marks as the registries have it now."""
    between = re.compile(f"{re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}", re.S)
    return between.sub(lambda _: f"{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}", text)


def main() -> None:
    """Bring the page up to date."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name}: {len(REGISTRIES)} kinds of names")


if __name__ == "__main__":
    main()
