"""The page "How it works": layers, rooms of the hardware, and what a component folder has.

The import contract, the docstrings of the packages and the folders themselves are read.

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
ROOMS_PICTURE = ROOT / "docs" / "images" / "rooms.svg"
BLOCKS = ("layers", "folders")
"""Generated parts of the page, each between the comments `<!-- name: begin -->` and `end`."""
FOLDER_FILE = re.compile(r"^ {4}([\w<>.]+) {2,}(\S.*)$", re.M)
"""A file and what it holds, in the docstring of `chop.hw.design.folders`."""
GROUPS = {
    "what people call": ("cli", "tools", "search", "pipelines", "report", "serve", "actions"),
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


def picture(rows: list[list[Part]], title: str) -> str:
    """Draw the layers from top to bottom; an arrow shows that imports go down."""
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
        f'<title>{title}; imports go down</title><rect width="{wide}" height="{high}" '
        f'fill="#fff"/>{arrow}{"".join(parts)}</svg>\n'
    )


def table(rows: list[list[Part]]) -> str:
    """Every part with what it says of itself."""
    made = [f"| `chop.{p.name}` | {p.says} | {p.modules} |" for row in rows for p in row]
    return "\n".join(["| part | what it says of itself | modules |", "|---|---|---|", *made])


def folder_table() -> str:
    """Return what a component folder has: each file, its content, and how many folders have it."""
    text = (SOURCE / "hw" / "design" / "folders.py").read_text(encoding="utf-8")
    rooms = [SOURCE / "hw" / room for room in ("streams", "library")]
    folders = {file.parent for room in rooms for file in room.glob("*/*.sv")}
    rows = [
        f"| `{name}` | {content.split(';')[0]} | {count_files(folders, name)} |"
        for name, content in FOLDER_FILE.findall(ast.get_docstring(ast.parse(text)) or "")
    ]
    header = f"| file | what it holds | of {len(folders)} folders |"
    return "\n".join([header, "|---|---|---|", *rows])


def count_files(folders: set[Path], name: str) -> int:
    """Return the number of folders that have the file; `<module>.sv` is named as its folder."""
    return sum((folder / name.replace("<module>", folder.name)).is_file() for folder in folders)


def layer_tables() -> str:
    """Return the tables of all contracts, that of `chop` first."""
    inside = (
        f"### Inside `{container}`\n\n{table(rows)}"
        for container, rows in contracts().items()
        if container != "chop"
    )
    return "\n\n".join([table(layers()), *inside])


def page(text: str) -> str:
    """Return the page with its generated parts as the code is."""
    for name, made in zip(BLOCKS, (layer_tables(), folder_table()), strict=True):
        start, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{made}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the pictures and the tables."""
    PICTURE.write_text(picture(layers(), "The layers of chop"), encoding="utf-8")
    rooms = picture(contracts()["chop.hw"], "The rooms of chop.hw")
    ROOMS_PICTURE.write_text(rooms, encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
