"""Tries every model of the zoo and writes docs/coverage.md.

python docs/make_coverage.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import zoo  # noqa: E402
from traced_zoo import equal_at, same, traced, trains_alike  # noqa: E402

import chop.passes as passes  # noqa: E402
from chop import MaseGraph  # noqa: E402


def is_annotated(name: str) -> bool:
    """Whether the metadata passes run and the result is consistent."""
    graph, _ = passes.init_metadata_analysis_pass(traced(name))
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": zoo.case(name).inputs})
    passes.verify_metadata_analysis_pass(graph)
    return True


def comes_back(name: str) -> bool:
    """Whether the graph is the same after a round trip through a checkpoint."""
    inputs = zoo.case(name).inputs
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        traced(name).export(Path(folder) / "graph")
        loaded = MaseGraph.from_checkpoint(Path(folder) / "graph")
        return same(loaded.model(**inputs), traced(name).model(**inputs))


COLUMNS: dict[str, Callable[[str], bool]] = {
    "traced": lambda name: len(traced(name).nodes) > 0,
    "equal": lambda name: equal_at(name, zoo.case(name).inputs),
    "other shape": lambda name: equal_at(name, zoo.case(name).other_inputs),
    "gradients": lambda name: all(trains_alike(name)),
    "annotated": is_annotated,
    "checkpoint": comes_back,
}
"""What is tried of each model; each either holds, does not, or raises."""


def mark(check: Callable[[str], bool], name: str) -> str:
    """`yes`, `no`, or the error in short."""
    try:
        return "yes" if check(name) else "**no**"
    except Exception as error:  # the table says which model fails and why
        return f"**{type(error).__name__}**"


def rows() -> list[list[str]]:
    """One row for each model, with a line of progress."""
    table = []
    for number, name in enumerate(zoo.ZOO, 1):
        table.append([name, *(mark(check, name) for check in COLUMNS.values())])
        print(f"[{number}/{len(zoo.ZOO)}] {' | '.join(table[-1])}", flush=True)
    return table


def page(table: list[list[str]]) -> str:
    """The Markdown page."""
    counts = [sum(row[i + 1] == "yes" for row in table) for i in range(len(COLUMNS))]
    lines = [
        "# Models that can be captured",
        "",
        "Written by `make coverage`. Small random configurations; *equal* means bit-equal to the "
        "eager model at the traced shape, *other shape* at another batch size and sequence length "
        "(or image size), *gradients* that a training step from the same random state gives the "
        "same outputs bit for bit and the same gradients on the original parameters.",
        "",
        f"| model | {' | '.join(COLUMNS)} |",
        "|---|" + "---|" * len(COLUMNS),
        *(f"| {' | '.join(row)} |" for row in table),
        f"| **of {len(table)}** | " + " | ".join(f"**{c}**" for c in counts) + " |",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write docs/coverage.md; 1 where any cell is not `yes`."""
    torch.set_num_threads(1)
    table = rows()
    (ROOT / "docs" / "coverage.md").write_text(page(table))
    return int(any(cell != "yes" for row in table for cell in row[1:]))


if __name__ == "__main__":
    sys.exit(main())
