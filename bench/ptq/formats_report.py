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
from subjects import SEEDS
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
            results = {"verdicts": verdicts(name, own), "rows": [_short(row) for row in own]}
            print(save_section(RECORD, name, results))


def _short(row: Row) -> Row:
    """Return a row whose error has the message alone, without the files of its machine."""
    if ERROR not in row:
        return row
    lines = [line for line in row[ERROR].splitlines() if not line.startswith(("  File", "    "))]
    return {**row, ERROR: "\n".join(lines[1:])}


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


ABOUT = """## Two real models

SmolLM2-135M-Instruct and all-MiniLM-L6-v2, by `bench/ptq/formats.py`: {machine}. All linear layers
except the head are rounded; activations stay floats. WikiText-2's test text is joined and cut into
windows of 1,024 tokens with a stride of 1,024; the words `<unk>` are removed. The seeds draw the
calibration data from the validation text: 128 windows of 512 tokens, or the first 64 tokens of 512
paragraphs for MiniLM, which is measured on 4,096 sentences. MASE uses GPTQ with its own search, and
for Q4_K the fit of a GGUF file weighted by the mean squares of the inputs. SmolLM2 comes in Q4_1,
so the float model has at most 16 values in a block of 32 weights, which suits Q4_K. llm-compressor
refuses groups of 128 for rows of 576 weights. Formats not yet measured with MASE are left out."""


def tables() -> list[str]:
    """Return the tables of the record for the docs; none without a record."""
    texts = []
    known = [row for name in TABLES for row in read_section(RECORD, name).get("rows", [])]
    if known:
        texts.append(ABOUT.format(machine=", ".join(sorted({row["machine"] for row in known}))))
    for name, metrics in TABLES.items():
        rows = read_section(RECORD, name).get("rows", [])
        if not read_section(RECORD, name).get("verdicts"):
            continue
        for metric, (title, form) in metrics.items():
            texts += _table(name, rows, metric, title, form)
        texts.append(_summary(name))
    return texts


def _summary(name: str) -> str:
    """Return where the claim holds, and where it does not."""
    own = read_section(RECORD, name)["verdicts"]
    others = [
        f"{v['scheme']} ({v['tool']}: {v['best']:.4g}, MASE: {v['ours']:.4g}, "
        f"spread {v['spread']:.2g})"
        for v in own
        if not v["holds"]
    ]
    text = (
        f"In {len(own) - len(others)} of {len(own)} formats of `{name}`, MASE is at most the spread"
    )
    text += f" worse than the best other tool by {METRICS[name].replace('_', ' ')}"
    return f"{text}; not in {'; '.join(others)}." if others else f"{text}."


def _table(name: str, rows: Sequence[Row], metric: str, title: str, form: str) -> list[str]:
    start = ""
    if metric == METRICS["smollm2"]:
        floats = [row[metric] for row in rows if row["scheme"] == "float"]
        start = f"; float {form.format(floats[0])}"
    nearest = {s: [r[metric] for r in rows if _is_nearest(r, s) and metric in r] for s in FORMATS}
    lines = []
    for scheme in FORMATS:
        cells = {tool: figures(rows, scheme, tool, metric) for tool in TOOLS}
        means = {tool: statistics.mean(values) for tool, values in cells.items() if values}
        choose: Any = min if "lower" in title else max
        best = choose(means, key=means.__getitem__) if means else ""
        if not cells[OURS]:
            continue
        shown = [_drawn(cells[tool], form, is_best=tool == best) for tool in TOOLS]
        lines.append([scheme, _cell(nearest[scheme], form), *shown])
    headers = ["format", "MASE, nearest", "MASE", *(tool for tool in TOOLS if tool != OURS)]
    return [
        f"`{name}`: {title}{start}.",
        str(tabulate(lines, headers, "github", disable_numparse=True)),
    ]


def _is_nearest(row: Row, scheme: str) -> bool:
    return bool(row["scheme"] == scheme and row["method"] in TOOLS[OURS].plain)


def _drawn(values: Sequence[float], form: str, *, is_best: bool) -> str:
    """Return a cell, with the number of seeds if some are missing."""
    text = _cell(values, form, is_best=is_best)
    is_whole = len(values) in (0, len(SEEDS))
    return text if is_whole else f"{text} ({len(values)} of {len(SEEDS)} seeds)"


def _cell(values: Sequence[float], form: str, *, is_best: bool = False) -> str:
    """Return the mean over seeds, with half of their range."""
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
