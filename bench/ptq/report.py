"""The tables of bench/ptq, from bench/results/ptq*.json into docs/results_quantisation.md.

    python bench/ptq/report.py

The page keeps everything outside the two marks.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from formats_report import tables
from methods import FORMATS, METHODS
from rows import Row
from schemes import SCHEMES
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "results_quantisation.md"
MARKS = ("<!-- ptq: written by bench/ptq/report.py -->", "<!-- end of ptq -->")
RIVALS = ("llmcompressor", "auto-round")
SUBJECTS = {
    "llama-imdb": ("perplexity", "{:.2f}", "lower is better"),
    "bert-tiny": ("accuracy", "{:.4f}", "higher is better"),
}
"""Model -> what is measured, how it is printed, which way is better."""
RATIO = ("sqnr", "{:.1f}", "dB, higher is better")
DIVERGENCE = ("divergence", "{:.2g}", "lower is better, nats")


def main() -> None:
    """Write the page."""
    rows = [row for subject in SUBJECTS for row in _rows("ptq", subject)]
    for rival in RIVALS:
        rows += _rows("ptq_rivals", rival)
    text = "\n\n".join([*_tables(rows), *_allocation(), *_memory(), *tables()])
    page = PAGE.read_text()
    before, _, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
    print(PAGE)


def _rows(name: str, section: str) -> list[Row]:
    file = RESULTS / f"{name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    rows: list[Row] = found.get(section, {}).get("results", [])
    return rows


def _tables(rows: list[Row]) -> list[str]:
    found = []
    helds = sorted({(r["subject"], r["held"]) for r in rows}, key=lambda each: -each[1])
    for subject, held in sorted(helds, key=lambda each: list(SUBJECTS).index(each[0])):
        kind = SUBJECTS[subject]
        own = [r for r in rows if (r["subject"], r["held"]) == (subject, held)]
        floats = [r for r in own if r["scheme"] == "float"]
        if not floats:
            continue
        base = floats[0]
        of = "tokens" if subject == "llama-imdb" else "reviews"
        count = base["held"] * 512 if of == "tokens" else base["held"]
        metric = kind[0]
        found.append(
            f"`{subject}`: {metric} on {count:,} {of} held out ({kind[2]}); "
            f"float {kind[1].format(base[metric])}."
        )
        found.append(_table(own, kind))
        found.append(f"The same, signal-to-noise ratio of the logits ({RATIO[2]}).")
        found.append(_table(own, RATIO))
        found.append(f"Divergence from the float model's distribution ({DIVERGENCE[2]}).")
        found.append(_table(own, DIVERGENCE))
    return found


def _table(rows: list[Row], kind: tuple[str, str, str]) -> str:
    metric, form, told = kind
    columns = [m for m in (*METHODS, *RIVALS) if any(r["method"] == m for r in rows)]
    lines = []
    for scheme in (*SCHEMES, *FORMATS):
        cells = {m: _values(rows, scheme, m, metric) for m in columns}
        if any(cells.values()):
            best = _best(cells, told)
            shown = [_cell(cells[m], form, is_best=m == best) for m in columns]
            lines.append([scheme, *shown])
    return str(tabulate(lines, ["format", *columns], "github", disable_numparse=True))


def _values(rows: list[Row], scheme: str, method: str, metric: str) -> list[float]:
    mine = [r for r in rows if r["scheme"] == scheme and r["method"] == method]
    return [r[metric] for r in mine if metric in r]


def _best(cells: dict[str, list[float]], told: str) -> str:
    means = {m: statistics.mean(v) for m, v in cells.items() if v}
    choose: Any = min if told.startswith("lower") else max
    return str(choose(means, key=means.__getitem__))


def _cell(values: Sequence[float], form: str, *, is_best: bool) -> str:
    """The mean over seeds, with half of their range."""
    if not values:
        return ""
    text = form.format(statistics.mean(values))
    if len(values) > 1:
        text += " ± " + form.format((max(values) - min(values)) / 2)
    return f"**{text}**" if is_best else text


def _allocation() -> list[str]:
    file = RESULTS / "ptq_allocation.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    texts = []
    for subject, section in found.items():
        r = section["results"]
        lines = [
            [
                f"{b['budget']:g}",
                *(f"{b[k]['loss']:.3g}" for k in ("allocated", "greedy", "uniform")),
            ]
            for b in r["budgets"]
        ]
        texts += [
            f"Assignments of widths to the {r['layers']} layers of `{subject}`: rank correlation "
            f"{r['rank_correlation']:.3f} of predicted and true loss over {r['assignments']} drawn "
            f"at random; the prediction takes 1/{r['times_faster']:.0f} of the time of a sweep. "
            "True loss in nats at a budget of bits per weight:",
            tabulate(lines, ["bits", "allocated", "greedy", "one width"], "github"),
        ]
    return texts


def _memory() -> list[str]:
    file = RESULTS / "ptq_memory.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return [
        f"{r['method']} of llama-imdb ({r['scheme']}) on {r['tokens']:,} tokens and "
        f"{r['threads']} threads: {r['processor_minutes']:.1f} minutes of processor time, "
        f"{r['peak_mib']:,.0f} MiB at most, the model ({r['model_mib']:,.0f} MiB) included; one "
        f"block's activations are {r['block_mib']:,.0f} MiB."
        for r in (section["results"] for section in found.values())
    ]


if __name__ == "__main__":
    main()
