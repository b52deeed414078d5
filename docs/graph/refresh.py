"""Run the code of the chapters and write what it prints under it.

Every block marked `python` is run, one chapter in one namespace; the block marked `text` after it
holds what it printed. A test checks that refreshing changes nothing.

    python docs/graph/refresh.py
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAIR = re.compile(
    r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```|```python\n(?P<quiet>.*?)```", re.S
)


def refreshed(chapter: str) -> str:
    """`chapter` with every printed block as its code prints it now."""
    namespace: dict[str, Any] = {"__name__": "chapter"}

    def replace(match: re.Match[str]) -> str:
        code = match["code"] or match["quiet"]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "chapter", "exec"), namespace)
        if match["code"] is None:
            return match[0]
        return f"```python\n{code}```\n\n```text\n{out.getvalue().rstrip()}\n```"

    return PAIR.sub(replace, chapter)


def chapters() -> list[Path]:
    """The chapters in reading order."""
    return sorted(HERE.glob("[0-9][0-9]_*.md"))


def main() -> None:
    """Refresh every chapter in place."""
    for path in chapters():
        before = path.read_text(encoding="utf-8")
        after = refreshed(before)
        path.write_text(after, encoding="utf-8")
        print(f"{path.name}: {'unchanged' if after == before else 'refreshed'}")


if __name__ == "__main__":
    main()
