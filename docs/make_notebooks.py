"""The tutorials as notebooks, made from the same scripts and pages: docs/notebooks/NAME.ipynb.

    python docs/make_notebooks.py

A notebook needs no file beside it: what the scripts share (docs/tutorials/lesson.py) is its first
cell. Each definition of a script is a cell, after the words of the page about it, and the steps of
its `main` are cells of their own. There are no outputs in them; a test executes every one.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS, NOTEBOOKS = ROOT / "docs" / "tutorials", ROOT / "docs" / "notebooks"
sys.path.insert(0, str(TUTORIALS))

import refresh  # noqa: E402

UNUSED = ("start", "run")
"""Of what the scripts share: the command line, which a notebook has no need of."""
BESIDE = 'Path(__file__).parent / "rtl"'
"""How a script names the folder beside it; a notebook writes that folder itself."""
BLOCK = re.compile(r"```py(?:thon)?\n(.*?)```", re.S)
MARKS = re.compile(r"<!--.*?-->\n*|```text\n.*?```\n*|!\[[^\]]*\]\([^)]*\)\n*", re.S)
SHOWN = """from IPython.display import SVG, display

for figure in sorted(setting.out.glob("*.svg")):
    display(SVG(str(figure)))"""


def cell(kind: str, text: str, number: int) -> dict[str, Any]:
    """A cell of a notebook."""
    told = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    lines = text.strip("\n").splitlines(keepends=True)
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {**told, **more, "source": lines}


def source(text: str, node: ast.stmt) -> str:
    """The lines of a statement, with decorators and the comments right above it."""
    lines = text.splitlines()
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno])


def is_plain(node: ast.stmt) -> bool:
    """Whether a statement is part of the notebook: no docstring, no import of a file beside it."""
    if isinstance(node, ast.ImportFrom):
        return node.module != "__future__" and not is_beside(node)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not is_text and not isinstance(node, ast.If)


def is_beside(node: ast.stmt) -> bool:
    """Whether a statement imports from another script of the folder."""
    return isinstance(node, ast.ImportFrom) and (TUTORIALS / f"{node.module}.py").exists()


def borrowed(script: str) -> list[str]:
    """What other tutorials that a script imports from define, each in a cell."""
    imports = [n for n in ast.parse(script).body if is_beside(n)]
    names = [n.module for n in imports if isinstance(n, ast.ImportFrom) and n.module != "lesson"]
    texts = [(TUTORIALS / f"{name}.py").read_text(encoding="utf-8") for name in names]
    return ["\n\n\n".join(statements(text)[:-1]) for text in texts]


def statements(text: str) -> list[str]:
    """The top level of a script, each definition by itself, imports and constants together."""
    made: list[str] = []
    was_plain = False
    for node in filter(is_plain, ast.parse(text).body):
        is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
        part = source(text, node)
        if made and was_plain and not is_definition:
            made[-1] = f"{made[-1]}\n{part}"
        else:
            made.append(part)
        was_plain = not is_definition
    return made


def shared_cell() -> str:
    """Everything of the shared file but its command line."""
    text = (TUTORIALS / "lesson.py").read_text(encoding="utf-8")
    nodes = [n for n in ast.parse(text).body if getattr(n, "name", "") not in UNUSED]
    parts = [source(text, n) for n in nodes if is_plain(n)]
    parts = [part for part in parts if not part.startswith("import argparse")]
    imports = [part for part in parts if part.startswith(("import ", "from "))]
    rest = [part for part in parts if part not in imports]
    quiet = 'get_report_logger().setLevel("WARNING")\ntransformers.logging.set_verbosity_error()'
    return "\n\n".join(["\n".join(imports), *rest, quiet])


def files_cell(folder: Path) -> str:
    """Code that writes the files of a folder beside the scripts."""
    found = sorted(p for p in folder.rglob("*") if p.suffix in (".sv", ".py", ".svh"))
    written = {str(p.relative_to(folder.parent)): p.read_text(encoding="utf-8") for p in found}
    rows = "\n".join(f'files["{name}"] = """{text}"""' for name, text in written.items())
    return (
        f"files = {{}}\n{rows}\nfor name, text in files.items():\n"
        "    Path(name).parent.mkdir(parents=True, exist_ok=True)\n"
        "    Path(name).write_text(text)"
    )


def prose_by_block(name: str) -> tuple[str, list[tuple[str, str]]]:
    """The words before the first block of code, and after each: (code, what follows it)."""
    parts = BLOCK.split(refresh.text_of(name))
    words = [re.sub(r"```\n.*?```\n*", "", MARKS.sub("", part), flags=re.S) for part in parts[::2]]
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).strip() for text in words]
    title = re.sub(r"^#+ (A walk through it: )?", "", plain[0], count=1)
    first = f"# {title[:1].upper()}{title[1:]}"
    return first, list(zip(parts[1::2], plain[1:], strict=True))


def flat(code: str) -> str:
    """Code without the space that is different in a page and a script."""
    return re.sub(r"\s+", "", code)


def notebook(name: str) -> dict[str, Any]:
    """The notebook of a tutorial."""
    script = (TUTORIALS / f"{name}.py").read_text(encoding="utf-8")
    needs_files = BESIDE in script
    script = script.replace(BESIDE, 'Path("rtl")')
    first, told = prose_by_block(name)
    cells: list[tuple[str, str]] = [("markdown", first), ("code", shared_cell())]
    if needs_files:
        cells.append(("code", files_cell(TUTORIALS / "rtl")))
    cells += [("code", text) for text in borrowed(script)]
    *parts, main = statements(script)
    for part in parts:
        cells.append(("code", part))
        cells += [("markdown", w) for code, w in told if w and flat(code) in flat(part)]
    cells.append(("code", f'setting = Setting(Path("out/tutorials/{name}"))\ntorch.manual_seed(0)'))
    for step in steps(main):
        cells.append(("code", step))
        cells += [("markdown", w) for code, w in told if w and flat(code) in flat(step)]
    cells.append(("code", SHOWN))
    made = [cell(kind, text, i) for i, (kind, text) in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    meta = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}


def steps(main: str) -> list[str]:
    """The statements of `main`, at the top level, as few cells as show something."""
    function = ast.parse(main).body[0]
    assert isinstance(function, ast.FunctionDef), "the last definition of a tutorial is its main"
    lines = main.splitlines()
    made = []
    for node in function.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        own = lines[node.lineno - 1 : node.end_lineno]
        first = node.lineno - 1
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
            own.insert(0, lines[first])
        made.append("\n".join(line.removeprefix("    ") for line in own))
    return gathered(made)


def gathered(parts: list[str]) -> list[str]:
    """Statements up to and with one that shows something are one cell."""
    cells, waiting = [], []
    for part in parts:
        waiting.append(part)
        if re.search(r"show\(|print\(|draw|report\(", part):
            cells.append("\n".join(waiting))
            waiting = []
    return [*cells, *(["\n".join(waiting)] if waiting else [])]


def text(name: str) -> str:
    """The file of a notebook."""
    return json.dumps(notebook(name), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every notebook."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for name in refresh.names():
        (NOTEBOOKS / f"{name}.ipynb").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
