"""The page "How it works": the layers, drawn from the import contract and the packages' docstrings.

python docs/make_how.py
"""

from __future__ import annotations

import ast
import html
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "chop"
PAGE, PICTURE = ROOT / "docs" / "how_it_works.md", ROOT / "docs" / "images" / "layers.svg"
START, END = "<!-- layers: begin -->", "<!-- layers: end -->"
GROUPS = {
    "what people call": ("cli", "tools", "search", "pipelines", "report", "actions"),
    "what models and files are": ("dataset", "models", "export"),
    "what is done to a graph": ("passes",),
    "what it becomes": ("hw", "kernels", "distributed"),
    "what a graph is made of": ("nn.quantized", "nn.modules", "ir", "nn.quantizers"),
}
NAME = re.compile(r"\(([\w.]+)\)")
"""A part in a layer of a contract."""
COLOURS = ("#2b68d9", "#7a4bd3", "#17855a", "#cf5f0a", "#0a8190", "#66717f")


@dataclass(frozen=True)
class Part:
    """A package or module of `chop`: its name, what its docstring says, its modules and lines."""

    name: str
    says: str
    modules: int
    lines: int


def contracts() -> dict[str, list[list[Part]]]:
    """Return the layers of each package with a contract, from the top down."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {
        container: [
            [part(f"{container}.{name}".removeprefix("chop.")) for name in NAME.findall(row)]
            for row in contract["layers"]
        ]
        for contract in settings["contracts"]
        if contract["type"] == "layers"
        for container in contract["containers"]
    }


def layers() -> list[list[Part]]:
    """Return the layers of `chop`."""
    return contracts()["chop"]


def part(name: str) -> Part:
    """What the code says of a package or module."""
    place = SOURCE / Path(*name.split("."))
    package = place / "__init__.py"
    file = package if package.is_file() else place.with_suffix(".py")
    files = [*place.rglob("*.py")] if place.is_dir() else [file]
    files = [f for f in files if "quantized" not in f.parts or "quantized" in name]
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    first = re.split(r"\n\n|(?<=[.])\s", said)[0].replace("\n", " ").rstrip(":.")
    return Part(name, first, len(files), sum(len(f.read_text().splitlines()) for f in files))


def colour(name: str) -> str:
    """That of its group."""
    groups = [i for i, names in enumerate(GROUPS.values()) if name in names]
    return COLOURS[groups[0] if groups else len(GROUPS)]


def picture(rows: list[list[Part]]) -> str:
    """The layers from top to bottom; an arrow says that imports go down."""
    wide, step, left = 820, 46, 40
    parts = []
    for i, row in enumerate(rows):
        room = (wide - left - 10) / len(row)
        for k, each in enumerate(row):
            x, y = left + k * room, 12 + i * step
            tone = colour(each.name)
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{room - 8:.0f}" height="{step - 10}" rx="7" '
                f'fill="{tone}" fill-opacity="0.12" stroke="{tone}"/>'
                f'<text x="{x + (room - 8) / 2:.0f}" y="{y + 23}" text-anchor="middle">'
                f'{html.escape(each.name)} <tspan fill="#566170" font-size="11">'
                f"{each.lines:,} lines</tspan></text>"
            )
    high = 12 + len(rows) * step + 6
    arrow = (
        f'<path d="M18 16V{high - 20}" stroke="#8f9aa7" stroke-width="2" fill="none"/>'
        f'<path d="M11 {high - 26}l7 14 7-14z" fill="#8f9aa7"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" font-family="sans-serif" font-size="14" fill="#12171e">'
        f'<title>The layers of chop; imports go down</title><rect width="{wide}" height="{high}" '
        f'fill="#fff"/>{arrow}{"".join(parts)}</svg>\n'
    )


def table(rows: list[list[Part]]) -> str:
    """Every part with what it says of itself."""
    made = [f"| `chop.{p.name}` | {p.says} | {p.modules} |" for row in rows for p in row]
    return "\n".join(["| part | what it says of itself | modules |", "|---|---|---|", *made])


def page(text: str) -> str:
    """The page with its table as the code is."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    inside = (
        f"### Inside `{container}`\n\n{table(rows)}"
        for container, rows in contracts().items()
        if container != "chop"
    )
    made = "\n\n".join([table(layers()), *inside])
    return f"{before}{START}\n{made}\n{END}{after}"


def main() -> None:
    """Write the picture and the table."""
    PICTURE.write_text(picture(layers()), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
