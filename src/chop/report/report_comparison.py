"""Saved reports side by side: what each measured, in one page.

A saved report holds the records it is drawn from; nothing is measured or loaded again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.arguments import MANY, NEW_FILE, TEXT, takes
from chop.errors import ConfigError, DataError
from chop.files import write_whole
from chop.report.html import report_page
from chop.report.page_record import PageRecord
from chop.report.provenance import gather_provenance

PAGE = "report.html"
_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.S)
HIGHER = ("accuracy", "f1", "precision", "recall", "matthews_correlation", "agreement", "fmax")
LOWER = ("perplexity", "loss", "mse", "mae", "latency", "cycles", "bytes", "bits", "flops")
LOWER_CELLS = ("lut", "ff", "dsp", "bram", "lutram")
LAST = ("parameters", "FLOPs")
"""Cards that stand behind the others."""


@takes(path=NEW_FILE, reports=MANY, title=TEXT)
def compare_reports(
    path: str | Path, reports: Sequence[str | Path], title: str = "Reports side by side"
) -> Path:
    """Write a page that compares saved reports: files, or folders that hold a `report.html`."""
    places = [Path(report) for report in reports]
    check_different(places)
    read = [read_report(place) for place in places]
    page = {
        "title": title,
        "comparison": comparison_record(read, [str(place) for place in places]),
        "provenance": gather_provenance(reports=[str(place) for place in places]),
    }
    return write_whole(Path(path), report_page(page))


def check_different(places: Sequence[Path]) -> None:
    """Raise where one report is given twice: every difference would be zero."""
    files = [_file(place).resolve() for place in places]
    twice = next((p for p, f in zip(places, files, strict=True) if files.count(f) > 1), None)
    if twice is not None:
        raise ConfigError(f"compare: {twice} is given twice. Give reports of different runs.")


def _file(place: Path) -> Path:
    return place / PAGE if place.is_dir() else place


def read_report(place: Path) -> PageRecord:
    """The records that a saved report is drawn from."""
    file = _file(place)
    if not file.is_file():
        raise DataError(f"{file}: no such report. Write one: mase report MODEL.")
    found = _DATA.search(file.read_text(encoding="utf-8"))
    if found is None:
        raise DataError(f"{file}: it is no report of MASE; there are no records in it.")
    try:
        records: PageRecord = json.loads(found[1])
    except json.JSONDecodeError as error:
        raise DataError(f"{file}: its records are damaged ({error}).") from error
    return records


def comparison_record(reports: Sequence[PageRecord], places: Sequence[str]) -> PageRecord:
    """Titles, a row of values for each measure, and the format of each layer in each report."""
    if len(reports) < 2:
        raise DataError(f"compare_reports: two reports or more are needed, got {len(reports)}.")
    told = [measures_of(report) for report in reports]
    names = dict.fromkeys(name for measures in told for name in measures)
    ordered = sorted(names, key=lambda name: name in LAST)
    return {
        "reports": _titled(reports, places),
        "measures": [_measure(name, [measures.get(name) for measures in told]) for name in ordered],
        "layers": _layers(reports),
    }


def _titled(reports: Sequence[PageRecord], places: Sequence[str]) -> list[PageRecord]:
    """Each report by its title, or where two have the same by its place too."""
    titles = [str(report.get("title", "")) for report in reports]
    return [
        {"title": f"{t} ({p})" if titles.count(t) > 1 else t, "place": p}
        for t, p in zip(titles, places, strict=True)
    ]


def measures_of(report: Mapping[str, Any]) -> dict[str, PageRecord]:
    """Everything a report measured, by name: its value and unit."""
    cards = {
        str(card["name"]).replace("_", " "): {"value": card["value"], "unit": card["unit"]}
        for card in report.get("cards", ())
        if isinstance(card.get("value"), int | float)
    }
    hardware = _hardware_measures(report)
    if any(name.startswith("cycles per") for name in cards):
        hardware.pop("cycles per tensor", None)
    return {**cards, **hardware, **_generation_measures(report)}


def _hardware_measures(report: Mapping[str, Any]) -> dict[str, PageRecord]:
    hardware, routing = report.get("hardware") or {}, report.get("routing") or {}
    summary, area = hardware.get("summary") or {}, hardware.get("area") or {}
    cycles = summary.get("predicted_interval", hardware.get("interval"))
    told = {
        "cycles per tensor": cycles,
        "latency in cycles": summary.get("simulated_latency"),
        **{cell.upper(): area.get(cell) for cell in LOWER_CELLS if area.get(cell)},
        "Fmax in MHz": routing.get("fmax_mhz"),
    }
    for name, cell in routing.get("utilisation", {}).items():  # cells as placed, where they are
        told[name] = cell["used"]
    return {name: {"value": v, "unit": "number"} for name, v in told.items() if v is not None}


def _generation_measures(report: Mapping[str, Any]) -> dict[str, PageRecord]:
    runs = report.get("generation") or [{}]
    pace = runs[0].get("tokens_per_s")
    return {} if pace is None else {"tokens per second": {"value": pace, "unit": "number"}}


def _measure(name: str, told: Sequence[PageRecord | None]) -> PageRecord:
    unit = next(each["unit"] for each in told if each is not None)
    values = [None if each is None else each["value"] for each in told]
    return {"name": name, "unit": unit, "better": better_end(name), "values": values}


def better_end(name: str) -> str | None:
    """Whether more of a measure is better; None where it is neither.

    >>> [better_end(n) for n in ("accuracy", "weight bytes", "LUT", "parameters")]
    ['higher', 'lower', 'lower', None]
    """
    words = name.lower()
    if "per second" in words or any(word in words for word in HIGHER):
        return "higher"
    is_lower = words in LOWER_CELLS or any(word in words for word in LOWER)
    return "lower" if is_lower else None


def _layers(reports: Sequence[PageRecord]) -> list[PageRecord]:
    """A row for each layer with weights that two reports know: its format in each."""
    last = [report["graphs"][-1]["nodes"] if report.get("graphs") else [] for report in reports]
    told = [{n["name"]: n for n in nodes if n.get("weight")} for nodes in last]
    names = dict.fromkeys(name for nodes in told for name in nodes)
    shared = [name for name in names if sum(name in nodes for nodes in told) > 1]
    return [{"name": n, "formats": [_format(nodes.get(n)) for nodes in told]} for n in shared]


def _format(node: Mapping[str, Any] | None) -> PageRecord | None:
    if node is None:
        return None
    return {"format": node.get("format", ""), "bits": node.get("format_bits")}
