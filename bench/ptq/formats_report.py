"""The record of the table of formats, from its rows, and its tables for the docs.

The claim: this package is never worse than the best other tool by more than the spread. The spread
is half of the range over the seeds, the larger one of the two tools.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from formats import FORMATS, TOOLS, own_code
from measuring.record import read_section, save_section
from rows import ERROR, Row
from tabulate import tabulate

RECORD = "ptq_formats"
OURS = "mase"
METRICS = {"smollm2": "perplexity", "minilm": "relative_error"}
"""Model -> the figure of the claim; lower is better."""
TABLES = {
    "smollm2": {
        "perplexity": ("perplexity on all of WikiText-2's test text (lower is better)", "{:.2f}"),
        "divergence": ("divergence from the float model (nats, lower is better)", "{:.3g}"),
        "sqnr": ("signal-to-noise ratio of the logits (dB, higher is better)", "{:.1f}"),
    },
    "minilm": {
        "relative_error": ("mean squared relative error of embeddings (lower is better)", "{:.3g}"),
        "cosine": ("mean cosine to the float embedding (higher is better)", "{:.4f}"),
        "neighbours": ("sentences whose nearest neighbour stays (higher is better)", "{:.1%}"),
    },
}
"""Model -> figures of its tables, each with its title and how it is printed."""


def save(rows: Sequence[Row]) -> None:
    """Write a section for each model; raise if rows of this package are of other code."""
    for row in rows:
        code = row.get("code", own_code())
        if code != own_code():
            raise SystemExit(
                f"{row['subject']} {row['scheme']} {row['method']}: measured on the code {code}, "
                f"not on today's, {own_code()}. Measure it again."
            )
    for name in METRICS:
        own = [row for row in rows if row["subject"] == name]
        if own:
            print(save_section(RECORD, name, {"verdicts": verdicts(name, own), "rows": own}))


def verdicts(name: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return for each format how far this package is from the best other tool."""
    found = []
    for scheme in FORMATS:
        ours = spread_of(rows, scheme, OURS, METRICS[name])
        others = {
            tool: values
            for tool in TOOLS
            if tool != OURS and (values := spread_of(rows, scheme, tool, METRICS[name]))
        }
        if ours and others:
            best = min(others, key=lambda tool: others[tool][0])
            worse = ours[0] - others[best][0]
            spread = max(ours[1], others[best][1])
            found.append(
                {
                    "scheme": scheme,
                    "metric": METRICS[name],
                    "ours": ours[0],
                    "best": others[best][0],
                    "tool": best,
                    "spread": spread,
                    "holds": worse <= spread,
                }
            )
    return found


def tables() -> list[str]:
    """Return the tables of the record for the docs; none without a record."""
    texts = []
    for name, metrics in TABLES.items():
        rows = read_section(RECORD, name).get("rows", [])
        for metric, (title, form) in metrics.items():
            if rows:
                texts += _table(name, rows, metric, title, form)
    return texts


def _table(name: str, rows: Sequence[Row], metric: str, title: str, form: str) -> list[str]:
    floats = [row[metric] for row in rows if row["scheme"] == "float"]
    start = f"; float {form.format(floats[0])}" if metric == METRICS["smollm2"] else ""
    nearest = {s: [r[metric] for r in rows if _is_nearest(r, s) and metric in r] for s in FORMATS}
    lines = []
    for scheme in FORMATS:
        cells = {tool: figures(rows, scheme, tool, metric) for tool in TOOLS}
        means = {tool: statistics.mean(values) for tool, values in cells.items() if values}
        choose: Any = min if "lower" in title else max
        best = choose(means, key=means.__getitem__) if means else ""
        shown = [_cell(cells[tool], form, is_best=tool == best) for tool in TOOLS]
        lines.append([scheme, _cell(nearest[scheme], form), *shown])
    headers = ["format", "MASE, nearest", "MASE", *(tool for tool in TOOLS if tool != OURS)]
    return [
        f"`{name}`: {title}{start}.",
        str(tabulate(lines, headers, "github", disable_numparse=True)),
    ]


def _is_nearest(row: Row, scheme: str) -> bool:
    return bool(row["scheme"] == scheme and row["method"] in TOOLS[OURS].plain)


def _cell(values: Sequence[float], form: str, *, is_best: bool = False) -> str:
    """Return the mean over seeds, with half of their range; the number of seeds if it is not 3."""
    if not values:
        return ""
    text = form.format(statistics.mean(values))
    if len(values) > 1:
        text += " ± " + form.format((max(values) - min(values)) / 2)
    return f"**{text}**" if is_best else text


def spread_of(
    rows: Sequence[Row], scheme: str, tool: str, metric: str
) -> tuple[float, float, int] | None:
    """Return mean, half of the range and number of the values of a tool; None without values."""
    values = figures(rows, scheme, tool, metric)
    if not values:
        return None
    return statistics.mean(values), (max(values) - min(values)) / 2, len(values)


def figures(rows: Sequence[Row], scheme: str, tool: str, metric: str) -> list[float]:
    """Return the values of a tool over its seeds, by its method with data."""
    plain = TOOLS[tool].plain if tool in TOOLS else ()
    return [
        row[metric]
        for row in rows
        if row["scheme"] == scheme
        and row["tool"].partition(" ")[0] == tool
        and row["method"] not in plain
        and ERROR not in row
    ]
