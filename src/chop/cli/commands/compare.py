"""`mase compare`: saved reports side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chop.cli.configs import POSITIONAL, OutputOptions
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.report.report_comparison import (
    check_different,
    compare_reports,
    comparison_record,
    read_report,
)

PAGE = "compare.html"


@dataclass(frozen=True, kw_only=True)
class CompareConfig(OutputOptions):
    """The comparison.

    `reports`: two or more reports, each a folder that `mase report` or `mase demo` wrote or a file.
    `title`: at the top of the page.
    """

    reports: tuple[str, ...] = field(default=(), metadata=POSITIONAL)
    title: str = "Reports side by side"
    out: Path = Path("out/compare")


def run(config: CompareConfig, session: Session) -> dict[str, Any]:
    """Read the reports, print what they measured, write the page."""
    if len(config.reports) < 2:
        raise UsageError("compare: give two reports or more: mase compare out/a out/b.")
    places = [_place(Path(name)) for name in config.reports]
    check_different(places)
    told = comparison_record([read_report(place) for place in places], list(config.reports))
    session.console.table(table_rows(told))
    page = compare_reports(session.folder / PAGE, places, config.title)
    session.console.say(f"\n{config.out / PAGE}: opens without a network")
    return {"page": str(config.out / PAGE), "bytes": page.stat().st_size, **told}


def _place(given: Path) -> Path:
    """The report itself, or the folder `report` of a demonstration."""
    inner = given / "report"
    return inner if (inner / "report.html").is_file() else given


def table_rows(told: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each measure, a column for each report."""
    titles = [report["title"] for report in told["reports"]]
    return [
        {"measure": m["name"], **dict(zip(titles, m["values"], strict=True))}
        for m in told["measures"]
    ]
