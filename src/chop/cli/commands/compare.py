"""`mase compare`: saved reports side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL, OutputOptions

EXAMPLES = (
    "mase compare out/report out/other_report",
    "mase compare out/a out/b out/c --out out/abc",
)
PAGE = "compare.html"


@dataclass(frozen=True, kw_only=True)
class CompareConfig(OutputOptions):
    """Comparison."""

    reports: Annotated[
        tuple[str, ...],
        "Two or more reports: files, or folders that `mase report` or `mase demo` wrote.",
    ] = field(default=(), metadata=POSITIONAL)
    title: Annotated[str, "Title of the page."] = "Reports side by side"
    out: Path = Path("out/compare")


def run(config: CompareConfig, session: Session) -> dict[str, Any]:
    """Read the reports, print their measures, write the page."""
    from chop.report.report_comparison import (
        check_different,
        compare_reports,
        comparison_record,
        read_report,
    )

    if len(config.reports) < 2:
        raise UsageError("compare: give two reports or more: mase compare out/a out/b.")
    places = [_report_folder(Path(name)) for name in config.reports]
    check_different(places)
    record = comparison_record([read_report(place) for place in places], list(config.reports))
    titles = [report["title"] for report in record["reports"]]
    session.console.table(
        [
            {"measure": m["name"], **dict(zip(titles, m["values"], strict=True))}
            for m in record["measures"]
        ]
    )
    page = compare_reports(session.folder / PAGE, places, config.title)
    session.console.say(f"\n{config.out / PAGE}: opens without a network")
    return {"page": str(config.out / PAGE), "bytes": page.stat().st_size, **record}


def _report_folder(folder: Path) -> Path:
    """Return the folder of the report: for a demonstration its folder `report`."""
    inner = folder / "report"
    return inner if (inner / "report.html").is_file() else folder
