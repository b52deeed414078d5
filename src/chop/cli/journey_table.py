"""The table of `mase journey`: one row per step, one column per model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop.files import write_whole

JOURNEY, PAGE = "journey.json", "journey.md"
ABSENT = {"train": "see float", "compare with float": "the reference", "explain": "not quantised"}
"""Step that not every model has -> cell of the models without it."""


def shown(figures: Mapping[str, Any]) -> str:
    """Return figures as the text of a cell.

    >>> shown({"accuracy": 0.95, "bytes": 4765})
    'accuracy 0.95, bytes 4,765'
    """
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def reasons_of(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the different reasons of refused and failed steps, in order."""
    return [*dict.fromkeys(record["reason"] for record in records if "reason" in record)]


def table_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the table; a refusal has the number of its reason."""
    reasons = {reason: number for number, reason in enumerate(reasons_of(records), start=1)}
    variants = [*dict.fromkeys(record["variant"] for record in records)]
    rows: dict[str, dict[str, str]] = {}
    for record in records:
        title = record["step"]
        blank = {"step": title, **dict.fromkeys(variants, ABSENT.get(title, ""))}
        row = rows.setdefault(title, blank)
        number = f" [{reasons[record['reason']]}]" if "reason" in record else ""
        row[record["variant"]] = f"{record['cell']}{number}"
    order = [record["step"] for record in records if record["variant"] == variants[-1]]
    titles = sorted(rows, key=lambda title: order.index(title) if title in order else -1)
    return [rows[title] for title in titles]


def write_journey(
    folder: Path, model: str, dataset: str | None, records: Sequence[Mapping[str, Any]]
) -> None:
    """Write the records as JSON, and the table with reasons and commands as Markdown."""
    content = {"model": model, "dataset": dataset, "steps": list(records)}
    write_whole(folder / JOURNEY, f"{json.dumps(content, indent=1)}\n")
    reasons = [f"{n}. {reason}" for n, reason in enumerate(reasons_of(records), start=1)]
    costs = [
        {
            "model": record["variant"],
            "step": record["step"],
            "outcome": record["outcome"],
            "time (s)": f"{record['seconds']:.1f}",
            "peak memory (MiB)": f"{record['peak_bytes'] / 2**20:.0f}",
            "added memory (MiB)": f"{record['added_bytes'] / 2**20:.0f}",
            "command": f"`{record['command']}`",
        }
        for record in records
    ]
    parts = [
        f"# Journey of {model}{f' on {dataset}' if dataset else ''}",
        _markdown(table_of(records)),
        "## Reasons of refusals\n\n" + ("\n".join(reasons) or "None."),
        f"## Commands, time and memory\n\n{_markdown(costs)}",
    ]
    write_whole(folder / PAGE, "\n\n".join(parts) + "\n")


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    escaped = [{k: v.replace("|", "\\|").replace("\n", " ") for k, v in r.items()} for r in rows]
    return tabulate(escaped, headers="keys", tablefmt="pipe", disable_numparse=True)
