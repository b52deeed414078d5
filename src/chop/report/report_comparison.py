"""One page that compares saved reports.

A saved report contains its records, so no model is measured or loaded again.
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
from chop.report.page_parts import PageRecord
from chop.report.provenance import gather_provenance

PAGE = "report.html"
_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.S)
HIGHER = ("accuracy", "f1", "precision", "recall", "matthews_correlation", "agreement", "fmax")
LOWER = ("perplexity", "loss", "mse", "mae", "latency", "cycles", "bytes", "bits", "flops")
LOWER_CELLS = ("lut", "ff", "dsp", "bram", "lutram")
LAST = ("parameters", "FLOPs")
"""Measures that come after the others."""


@takes(path=NEW_FILE, reports=MANY, title=TEXT)
def compare_reports(
    path: str | Path, reports: Sequence[str | Path], title: str = "Reports side by side"
) -> Path:
    """Write a page that compares saved reports: files, or folders with a `report.html`."""
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
    """Raise if a report is given twice: every difference would be zero."""
    files = [_file(place).resolve() for place in places]
    twice = next((p for p, f in zip(places, files, strict=True) if files.count(f) > 1), None)
    if twice is not None:
        raise ConfigError(f"compare: {twice} is given twice. Give reports of different runs.")


def _file(place: Path) -> Path:
    return place / PAGE if place.is_dir() else place


def read_report(place: Path) -> PageRecord:
    """Return the records that a saved report contains."""
    file = _file(place)
    if not file.is_file():
        raise DataError(f"{file}: no such report. Write one: mase report MODEL.")
    match = _DATA.search(file.read_text(encoding="utf-8"))
    if match is None:
        raise DataError(f"{file}: it is no report of MASE; there are no records in it.")
    try:
        records: PageRecord = json.loads(match[1])
    except json.JSONDecodeError as error:
        raise DataError(f"{file}: its records are damaged ({error}).") from error
    return records


def comparison_record(reports: Sequence[PageRecord], places: Sequence[str]) -> PageRecord:
    """Return titles, a row of values per measure, and the format of each layer per report."""
    if len(reports) < 2:
        raise DataError(f"compare_reports: two reports or more are needed, got {len(reports)}.")
    measures = [measures_of(report) for report in reports]
    names = dict.fromkeys(name for each in measures for name in each)
    ordered = sorted(names, key=lambda name: name in LAST)
    titles = [str(report.get("title", "")) for report in reports]
    return {
        "reports": [
            {"title": f"{t} ({p})" if titles.count(t) > 1 else t, "place": p}
            for t, p in zip(titles, places, strict=True)
        ],
        "measures": [_measure(name, [each.get(name) for each in measures]) for name in ordered],
        "layers": _layers(reports),
    }


def measures_of(report: Mapping[str, Any]) -> dict[str, PageRecord]:
    """Return value and unit of everything a report measured, by name."""
    cards = {
        str(card["name"]).replace("_", " "): {"value": card["value"], "unit": card["unit"]}
        for card in report.get("cards", ())
        if isinstance(card.get("value"), int | float)
    }
    hardware = _hardware_measures(report)
    if any(name.startswith("cycles per") for name in cards):
        hardware.pop("cycles per tensor", None)
    pace = (report.get("generation") or [{}])[0].get("tokens_per_s")
    speed = {} if pace is None else {"tokens per second": {"value": pace, "unit": "number"}}
    return {**cards, **hardware, **speed}


def _hardware_measures(report: Mapping[str, Any]) -> dict[str, PageRecord]:
    hardware, routing = report.get("hardware") or {}, report.get("routing") or {}
    summary, area = hardware.get("summary") or {}, hardware.get("area") or {}
    measures = {
        "cycles per tensor": summary.get("predicted_interval", hardware.get("interval")),
        "latency in cycles": summary.get("simulated_latency"),
        **{cell.upper(): area.get(cell) for cell in LOWER_CELLS if area.get(cell)},
        "Fmax in MHz": routing.get("fmax_mhz"),
    }
    for name, cell in routing.get("utilisation", {}).items():  # after placement, if there was one
        measures[name] = cell["used"]
    return {name: {"value": v, "unit": "number"} for name, v in measures.items() if v is not None}


def _measure(name: str, results: Sequence[PageRecord | None]) -> PageRecord:
    unit = next(each["unit"] for each in results if each is not None)
    values = [None if each is None else each["value"] for each in results]
    return {"name": name, "unit": unit, "better": better_end(name), "values": values}


def better_end(name: str) -> str | None:
    """Return the better end of a measure, or None if neither is better.

    >>> [better_end(n) for n in ("accuracy", "weight bytes", "LUT", "parameters")]
    ['higher', 'lower', 'lower', None]
    """
    words = name.lower()
    if "per second" in words or any(word in words for word in HIGHER):
        return "higher"
    is_lower = words in LOWER_CELLS or any(word in words for word in LOWER)
    return "lower" if is_lower else None


def _layers(reports: Sequence[PageRecord]) -> list[PageRecord]:
    """Return the formats of each layer with weights that two reports or more contain."""
    last = [report["graphs"][-1]["nodes"] if report.get("graphs") else [] for report in reports]
    layers = [{n["name"]: n for n in nodes if n.get("weight")} for nodes in last]
    names = dict.fromkeys(name for nodes in layers for name in nodes)
    shared = [name for name in names if sum(name in nodes for nodes in layers) > 1]
    rows = []
    for name in shared:
        nodes = [each.get(name) for each in layers]
        formats = [
            n and {"format": n.get("format", ""), "bits": n.get("format_bits")} for n in nodes
        ]
        rows.append({"name": name, "formats": formats})
    return rows
