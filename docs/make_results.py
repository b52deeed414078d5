"""The page of measured results and the README's table, from the files of bench/results.

    python docs/make_results.py

To add a row to the table: a function under `@headline` that reads it from the files.
"""

from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE, README, IMAGES = ROOT / "docs" / "results.md", ROOT / "README.md", ROOT / "docs" / "images"
MOST_ROWS, MOST_COLUMNS, LONGEST = 12, 9, 48
START, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEADLINES: list[Callable[[], tuple[str, str, str, str]]] = []


def read(name: str, section: str | None = None) -> Any:
    """The results of a file, or of a section of it."""
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    told = found[section] if section else found
    return told.get("results", told.get("records", told))


def headline(row: Callable[[], tuple[str, str, str, str]]) -> Callable[..., Any]:
    """Register a row: what is measured, here, the other, and by which command."""
    HEADLINES.append(row)
    return row


def ratios(values: Iterable[float]) -> str:
    """The range of ratios: `0.33 to 0.36`."""
    told = sorted(values)
    low, high = f"{told[0]:.2f}", f"{told[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


# -- the rows that matter --------------------------------------------------------------------------


@headline
def captured() -> tuple[str, str, str, str]:
    """Types of transformers that are captured."""
    found = json.loads((RESULTS / "right.json").read_text())["transformers"]
    same = found["equal"] + found["equal_up_to_rounding"]
    told = f"{found['captured']} of {found['built']} captured, {same} equal"
    return "Hugging Face model types that build small", told, "the eager model", "`make coverage`"


def perplexities(scheme: str, rows: Iterable[Mapping[str, Any]], method: str) -> float:
    """The mean over the seeds of a method's perplexities."""
    return statistics.fmean(
        r["perplexity"]
        for r in rows
        if (r["subject"], r["scheme"], r["method"]) == ("llama-imdb", scheme, method)
        and r["held"] == 3094
    )


def rounded(scheme: str) -> tuple[str, str, str, str]:
    """Perplexity after rounding by effect, here and by two tools."""
    ours = perplexities(scheme, read("ptq"), "gptq")
    others = {
        "llm-compressor": perplexities(
            scheme, read("ptq_rivals", "llmcompressor"), "llmcompressor"
        ),
        "auto-round": perplexities(scheme, read("ptq_rivals", "auto-round"), "auto-round"),
    }
    start = perplexities("float", read("ptq"), "float")
    best = min(ours, *others.values())
    bold = {v: f"**{v:.2f}**" if v == best else f"{v:.2f}" for v in (ours, *others.values())}
    told = ", ".join(f"{name} {bold[value]}" for name, value in others.items())
    bits = re.findall(r"\d+", scheme)[0]
    what = f"Perplexity, weights in {bits} bits, no training (float {start:.2f})"
    return what, bold[ours], told, "`bench/ptq`"


@headline
def four_bits() -> tuple[str, str, str, str]:
    """Four bits in groups of 32."""
    return rounded("W4 group 32")


@headline
def three_bits() -> tuple[str, str, str, str]:
    """Three bits in groups of 32."""
    return rounded("W3 group 32")


@headline
def gguf() -> tuple[str, str, str, str]:
    """A GGUF file read by llama.cpp against the graph it was written from."""
    found = read("export", "perplexity")["Q4_0"]
    what = "The same file in another program: perplexity of Q4_0"
    return what, f"{found['ours']:.2f}", f"llama.cpp {found['llama.cpp']:.2f}", "`bench/export.py`"


@headline
def packed() -> tuple[str, str, str, str]:
    """Packed weights times few rows on the GPU."""
    rows = [r for r in read("kernels_cuda", "linear") if r["batch"] in (1, 4)]
    large = [r for r in rows if 14336 in r["shape"]]
    told = [f"{f.upper()} {ratios(r['ratio'] for r in large if r['format'] == f)}" for f in FORMATS]
    what = "Time of a linear layer, 4096×14336, 1 and 4 rows, H200"
    return what, ", ".join(told), "cuBLAS in bfloat16: 1", "`bench/kernels.py`"


FORMATS = ("mxint8", "mxint4")


@headline
def token() -> tuple[str, str, str, str]:
    """A token of a compiled Llama with the shapes of 8B."""
    rows = [r for r in read("generate_cuda", "decode") if r["kind"] == "compiled"]
    named = {r["weights"]: r["ratio_to_bfloat16"] for r in rows if r["shape"] == "8b"}
    told = ", ".join(f"{f.upper()} {named[f'{f}+fused']:.2f}" for f in FORMATS)
    what = "Time of a token, Llama of 8B shapes, compiled, H200"
    return what, told, "torch in bfloat16: 1", "`bench/generate.py`"


@headline
def decoded() -> tuple[str, str, str, str]:
    """Tokens a second on one core beside llama.cpp."""
    rows = read("decode_cpu")["tokens"]
    ours = next(r for r in rows if r["format"] == "mxint4 + MXINT8 x")
    other = next(r for r in rows if r["program"] != "ours" and "4" in r["format"])
    what = "Tokens a second of a 0.5B Llama in 4 bits, one core"
    told = f"{ours['model']:.1f} (its products alone {ours['fused']:.1f})"
    return what, told, f"llama.cpp **{other['model']:.1f}**", "`bench/decode_cpu.py`"


@headline
def trained() -> tuple[str, str, str, str]:
    """What training in formats costs."""
    cpu = ratios(row["step_ratio"] for row in read("qat_step")["steps"])
    return "Time of a training step in 8 bits, CPU", cpu, "float32: 1", "`bench/qat_step.py`"


@headline
def pruned() -> tuple[str, str, str, str]:
    """Half of the heads and channels removed."""
    found = read("prune_structured")["speedup"]
    what = "Speed of BERT-base, half of its heads and channels removed, CPU"
    return what, f"{found:.2f} ×", "unpruned: 1", "`bench/prune_structured.py`"


@headline
def vision() -> tuple[str, str, str, str]:
    """A vision transformer in RTL."""
    found = read("hardware_transformer", "vit")
    told = f"{found['values_exact']:,} of {found['values_compared']:,} values bit-exact"
    what = f"Vision transformer in RTL, accuracy {found['accuracy']['trained_in_integers']:.3f}"
    other = f"PyTorch, accuracy {found['accuracy']['float']:.3f}"
    return what, told, other, "`bench/hardware_transformer.py`"


def headline_table() -> str:
    """The rows as Markdown."""
    head = "| measured | MASE | beside | by |\n|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row())} |\n" for row in HEADLINES)


# -- charts ----------------------------------------------------------------------------------------

CHARTS = {"results_perplexity": "perplexity_bars", "results_kernels": "kernel_bars"}


def perplexity_bars() -> tuple[str, list[tuple[str, float]]]:
    """Perplexity of three tools at 4 and 3 bits."""
    rows: list[tuple[str, float]] = [("float", perplexities("float", read("ptq"), "float"))]
    for scheme, bits in (("W4 group 32", "4 bits"), ("W3 group 32", "3 bits")):
        rows.append((f"{bits}, to the nearest", perplexities(scheme, read("ptq"), "nearest")))
        rows.append((f"{bits}, MASE", perplexities(scheme, read("ptq"), "gptq")))
        for tool in ("llmcompressor", "auto-round"):
            value = perplexities(scheme, read("ptq_rivals", tool), tool)
            rows.append((f"{bits}, {tool}", value))
    return "Perplexity of a Llama of 15.7 M after rounding its weights (less is better)", rows


def kernel_bars() -> tuple[str, list[tuple[str, float]]]:
    """Time of a layer by format and rows, in times of bfloat16."""
    rows = [r for r in read("kernels_cuda", "linear") if 14336 in r["shape"]]
    order = ("mxint8", "mxint4", "mxfp8", "mxfp4")
    told = []
    for form in order:
        for batch in (1, 16, 64):
            own = [r["ratio"] for r in rows if (r["format"], r["batch"]) == (form, batch)]
            if own:
                told.append((f"{form}, {batch} rows", statistics.fmean(own)))
    return "Time of a 4096×14336 layer on an H200, in times of cuBLAS bfloat16", told


def bars(title: str, rows: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars as SVG, each with its number."""
    wide, step, left = 760, 26, 220
    most = max(value for _, value in rows)
    parts = []
    for i, (label, value) in enumerate(rows):
        y, length = 46 + i * step, (wide - left - 80) * value / most
        colour = "#2b68d9" if "MASE" in label or "mx" in label else "#8f9aa7"
        name = html.escape(label)
        parts.append(
            f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{name}</text>'
            f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="17" fill="{colour}"/>'
            f'<text x="{left + length + 7:.1f}" y="{y + 15}">{value:.4g}</text>'
        )
    high = 46 + len(rows) * step + 10
    head = f'<text x="14" y="26" font-size="15" font-weight="600">{html.escape(title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}" font-family="sans-serif" font-size="13" fill="#12171e">'
        f'<rect width="{wide}" height="{high}" fill="#fff"/>{head}{"".join(parts)}</svg>\n'
    )


# -- everything ------------------------------------------------------------------------------------


def page() -> str:
    """The whole page."""
    files = sorted(RESULTS.glob("*.json"))
    sections = [_file(path) for path in files]
    return "\n".join(
        [
            "# Measured results",
            "",
            "Written by `python docs/make_results.py` from `bench/results`: every number is in a"
            " file there, with the command, the machine and the date.",
            "",
            "## In short",
            "",
            headline_table(),
            *(f"![{globals()[make]()[0]}](images/{name}.svg)\n" for name, make in CHARTS.items()),
            "## All of it",
            "",
            *sections,
        ]
    )


def _file(path: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))
    parts = [f"### {path.stem.replace('_', ' ')}", ""]
    if "results" in found or "records" in found:
        return "\n".join([*parts, *_section(found)])
    for name, told in found.items():
        parts += [f"**{name}**", "", *_section(told)]
    return "\n".join(parts)


def _section(told: Mapping[str, Any]) -> list[str]:
    facts = [_machine(told.get("machine"), told.get("gpu")), str(told.get("date", ""))[:10]]
    about = ", ".join(fact for fact in facts if fact)
    command = f"`{told['command']}`" if told.get("command") else ""
    skipped = ("command", "date", "machine", "versions", "about", "results", "records")
    rest = {key: value for key, value in told.items() if key not in skipped}
    body = told.get("results", told.get("records", rest))
    line = ": ".join(part for part in (command, about) if part)
    return [line, "", *_tables(body), ""]


def _machine(told: Any, gpu: Any) -> str:
    if isinstance(told, str):
        return f"{told}, {gpu}" if gpu else told
    if not isinstance(told, Mapping):
        return ""
    name = (
        told.get("gpu") if told.get("gpu") not in (None, "none", "") else told.get("processor", "")
    )
    return f"{name}, {told['cores']} cores" if "cores" in told else str(name)


def _tables(body: Any) -> list[str]:
    """Lists of records as tables; mappings of numbers as one of two columns."""
    if isinstance(body, list):
        return [_table([row for row in body if isinstance(row, Mapping)])]
    if not isinstance(body, Mapping):
        return [str(body)]
    nested = {k: v for k, v in body.items() if isinstance(v, list) and v and _is_records(v)}
    rows = {k: v for k, v in body.items() if isinstance(v, Mapping) and _is_flat(v)}
    flat = {k: v for k, v in body.items() if not isinstance(v, list | Mapping)}
    made = [_table([{"": k, "value": v} for k, v in flat.items()])] if flat else []
    made += [_table([{"": k, **v} for k, v in rows.items()])] if rows else []
    for name, records in nested.items():
        made += [f"*{name.replace('_', ' ')}*", "", _table(records)]
    return made


def _is_records(rows: list[Any]) -> bool:
    return all(isinstance(row, Mapping) for row in rows)


def _is_flat(told: Mapping[str, Any]) -> bool:
    return not any(isinstance(v, list | Mapping) for v in told.values())


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    keys = dict.fromkeys(k for row in rows for k, v in row.items() if not isinstance(v, Mapping))
    columns = [key for key in keys if not key.endswith("_rounds")][:MOST_COLUMNS]
    if not rows or not columns:
        return ""
    head = f"| {' | '.join(c.replace('_', ' ') for c in columns)} |\n|{'---|' * len(columns)}\n"
    body = "".join(
        f"| {' | '.join(_cell(row.get(c)) for c in columns)} |\n" for row in rows[:MOST_ROWS]
    )
    rest = len(rows) - MOST_ROWS
    return head + body + (f"\n…and {rest} more rows.\n" if rest > 0 else "")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return "×".join(map(str, value))[:LONGEST]
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def readme(text: str) -> str:
    """The README with its table as measured."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{headline_table()}{END}{after}"


def main() -> None:
    """Write the page, its charts and the README's table."""
    for name, make in CHARTS.items():
        (IMAGES / f"{name}.svg").write_text(bars(*globals()[make]()), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
