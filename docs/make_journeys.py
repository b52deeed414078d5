"""Write docs/journeys.md from bench/results/journeys.json.

    python docs/make_journeys.py

To describe a new model, add a row to `SUBJECTS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE, PAGE = ROOT / "bench" / "results" / "journeys.json", ROOT / "docs" / "journeys.md"
SUBJECTS = {
    "mlp": "perceptron of this package; true labels of 8×8 digits",
    "cnn": "convolutional network of this package; true labels of 8×8 digits",
    "magika": "types of files; true types of 200 files of a Python installation",
    "swift-f0": "pitch of sound; true frequencies of synthesised glides, within 50 cents",
    "basic-pitch": "notes in sound; true onsets and keys of synthesised notes, within 50 ms",
    "silero-vad": "speech or silence; true segments of a recording (package pyannote-audio)",
    "openwakeword": "embeddings of speech; cosine to the float model on a recording",
    "pp-ocr-rec": "text in an image; true texts of rendered words, read without a fault",
    "pp-ocr-det": "places of words; true boxes of rendered words (F-measure)",
    "pp-ocr-cls": "direction of text; true directions of rendered words",
    "minilm": "sentence embeddings with a linear classifier; true labels of IMDb reviews",
    "bert-tiny": "classifier, trained here first; true labels of IMDb reviews",
    "tabpfn": "classifier of tables; true labels of wine samples",
    "smollm2": "language model; perplexity of WikiText-2",
    "llama-imdb": "language model; perplexity of IMDb reviews",
}
"""Model -> what it does; what its measure is compared with."""
COLUMNS = {
    "float": "float",
    "8, nearest": "8 bits nearest",
    "8, data": "8 bits gptq",
    "4, nearest": "4 bits nearest",
    "4, data": "4 bits gptq",
    "mixed": "",
    "pruned": "pruned",
}
"""Heading -> model of the journey; `mixed` is any other number of bits."""
SHIPPED = ("8 bits", "4 bits")
MIXED = " mixed"
"""End of the name of a section with the float model and the one with mixed precision alone."""
GOALS = {"8 bits": (0.005, 0.01), "4 bits": (0.02, 0.03), "mixed": (0.005, 0.01)}
"""Allowed loss of the best model of so many bits: absolute, or as a share of float."""
FALLING = ("perplexity",)
"""Measures that are better if smaller."""


class Journey:
    """The records of one model by variant and step."""

    def __init__(
        self, name: str, section: Mapping[str, Any], mixed: Mapping[str, Any] | None = None
    ) -> None:
        self.name, self.section = name, section
        self.mixed = None if mixed is None else Journey(f"{name}{MIXED}", mixed)
        self.results = section["results"]
        self.steps = {(s["variant"], s["step"]): s for s in self.results.get("steps", ())}
        self.reasons = self.results.get("reasons", [])

    def cell(self, variant: str, step: str, *figures: str) -> str:
        """Return figures of one step, or the refusal with the number of its reason."""
        record = self.steps.get((variant, step))
        if record is None:
            return "not run"
        if "reason" in record:
            return self.refusal(record["outcome"], self.reasons.index(record["reason"]) + 1)
        values = record["figures"]
        return ", ".join(_number(values[name]) for name in figures or values if name in values)

    def refusal(self, outcome: str, number: int) -> str:
        """Return the cell of a reason; a step that was not reached is no refusal."""
        is_missing = self.reasons[number - 1].startswith("not run")
        return f"{'not run' if is_missing else outcome} [{number}]"

    def detail(self, cell: str) -> str:
        """Return a cell of the whole table; an empty one has its figure under float."""
        found = re.fullmatch(r"(\w+) \[(\d+)\]", cell)
        return (self.refusal(found[1], int(found[2])) if found else cell) or "see float"

    @property
    def variants(self) -> list[str]:
        """Models of the journey in order."""
        return [*dict.fromkeys(variant for variant, _ in self.steps)]

    def variant(self, heading: str) -> str | None:
        """Return the model of a column; None if the journey has none."""
        name = COLUMNS[heading]
        others = [v for v in self.variants if " bits " in v and not v.startswith(SHIPPED)]
        found = name if name in self.variants else None
        return next(iter(others), None) if heading == "mixed" else found

    def row(self, heading: str, step: str, *figures: str) -> str:
        """Return one cell of a summary table; mixed precision may be a journey of its own."""
        variant = self.variant(heading)
        if variant is None:
            is_apart = heading == "mixed" and self.mixed is not None
            return self.mixed.row(heading, step, *figures) if is_apart else "not run"
        cell = self.cell(variant, step, *figures)
        return f"{cell} ({variant.rpartition(' ')[0]})" if heading == "mixed" else cell

    def loss(self, bits: str) -> tuple[float, float] | None:
        """Return the loss of the best model of so many bits: absolute, as a share of float."""
        if bits == "mixed" and self.variant(bits) is None and self.mixed is not None:
            return self.mixed.loss(bits)
        chosen = [self.variant("mixed")] if bits == "mixed" else self._of(bits)
        metric, float_value = self._measure("float") or ("", 0.0)
        values = [found[1] for found in map(self._measure, filter(None, chosen)) if found]
        if not metric or not values:
            return None
        sign = -1.0 if metric in FALLING else 1.0
        absolute = min(sign * (float_value - value) for value in values)
        share = absolute / float_value
        return (share if metric in FALLING else absolute), share

    def _of(self, bits: str) -> list[str]:
        """Return the models of so many bits that a goal is about: with 4 bits, those with data."""
        names = [v for v in self.variants if v.startswith(f"{bits} ")]
        return [v for v in names if bits != "4 bits" or not v.endswith("nearest")]

    def _measure(self, variant: str) -> tuple[str, float] | None:
        figures = self.steps.get((variant, "evaluate"), {}).get("figures")
        return next(iter(figures.items()), None) if figures else None


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def journeys() -> list[Journey]:
    """Return the journeys of the result file with formats that ship."""
    sections = json.loads(FILE.read_text(encoding="utf-8"))
    names = [name for name in sections if not name.endswith(MIXED)]
    every = [Journey(n, sections[n], sections.get(f"{n}{MIXED}")) for n in names]
    return [each for each in every if "4 bits nearest" in each.variants]


def measured(every: Sequence[Journey]) -> str:
    """Return the table of the measure of each model."""
    rows = []
    for each in every:
        record = each.steps.get(("float", "evaluate"), {})
        metric = next(iter(record.get("figures", {"": 0}))).replace("_", " ")
        cells = [each.row(heading, "evaluate") for heading in COLUMNS]
        rows.append([f"[{each.name}](#{each.name})", metric, *cells])
    return _table(["model", "measure", *COLUMNS], rows)


def goals(every: Sequence[Journey]) -> str:
    """Return the table of the losses against float, each with the verdict."""
    rows = [[each.name, *(_verdict(each.loss(bits), bits) for bits in GOALS)] for each in every]
    return _table(["model", "8 bits", "4 bits with data", "mixed"], rows)


def _verdict(loss: tuple[float, float] | None, bits: str) -> str:
    """Return a loss, and whether it is within the goal; a gain is a loss below zero."""
    if loss is None:
        return "not run"
    absolute, share = loss
    is_within = absolute <= GOALS[bits][0] + 1e-9 or share <= GOALS[bits][1] + 1e-9
    return f"{share:.2%}, {'within' if is_within else 'missed'}"


def sizes(every: Sequence[Journey]) -> str:
    """Return the table of bytes and latencies."""
    heads = [
        "model",
        "parameters",
        "float, bytes in ONNX or GGUF",
        "8 bits, bytes",
        "4 bits, bytes",
    ]
    heads += [
        "float, ms",
        "8 bits packed, ms",
        "4 bits packed, ms",
        "4 bits, memory added by calls (MiB)",
    ]
    rows = []
    for each in every:
        exported = "export gguf" if ("float", "export gguf") in each.steps else "export onnx"
        rows.append(
            [
                each.name,
                each.cell("float", "model", "parameters"),
                each.cell("float", exported, "bytes"),
                each.row("8, nearest", "model", "bytes"),
                each.row("4, nearest", "model", "bytes"),
                each.cell("float", "latency", "latency (ms)"),
                each.row("8, nearest", "latency packed", "latency (ms)"),
                each.row("4, nearest", "latency packed", "latency (ms)"),
                each.row("4, nearest", "latency packed", "added memory (MiB)"),
            ]
        )
    return _table(heads, rows)


def elsewhere(every: Sequence[Journey]) -> str:
    """Return the table of the comparisons with other programs."""
    heads = [
        "model",
        "original file",
        "program of exports",
        "float",
        "8 bits, data",
        "4 bits, data",
    ]
    rows = []
    for each in every:
        has_gguf = ("float", "gguf in llama.cpp") in each.steps
        step = "gguf in llama.cpp" if has_gguf else "onnx in onnxruntime"
        own = each.cell("float", "original file in onnxruntime", *DIFFERENCES)
        cells = [each.row(h, step, *DIFFERENCES) for h in ("float", "8, data", "4, data")]
        rows.append([each.name, own, step.split(" in ")[1], *cells])
    return _table(heads, rows)


DIFFERENCES = ("outputs", "of the largest value", "equal next tokens", "largest difference (nats)")
"""Figures of a comparison with another program."""


def hardware(every: Sequence[Journey]) -> str:
    """Return the table of the simulations."""
    tried = [each for each in every if ("fixed point", "simulate RTL") in each.steps]
    rows = [[each.name, each.cell("fixed point", "simulate RTL")] for each in tried]
    return _table(["model", "8-bit fixed point, simulated"], rows)


def details(each: Journey) -> str:
    """Return every cell of one journey, and the reasons of its refusals."""
    table = each.results["table"]
    heads = list(table[0])
    reasons = [f"{n}. {_plain(reason)}" for n, reason in enumerate(each.reasons, start=1)]
    text = SUBJECTS[each.name]
    code = each.section["code"]["commit"][:8]
    when = f"Measured on {each.section['date'][:10]} at commit {code}."
    rows = [[each.detail(row[head]) for head in heads] for row in table]
    parts = [f"## {each.name}", f"{text[0].upper()}{text[1:]}. {when}", _table(heads, rows)]
    if each.mixed is not None:
        parts += [*(["\n".join(reasons)] if reasons else []), _mixed_details(each.mixed)]
        return "\n\n".join(parts)
    return "\n\n".join([*parts, *(["\n".join(reasons)] if reasons else [])])


def _mixed_details(each: Journey) -> str:
    """Return every cell of the model with mixed precision, measured apart from the others."""
    table = each.results["table"]
    heads = [head for head in table[0] if head != "float"]
    code, when = each.section["code"]["commit"][:8], each.section["date"][:10]
    rows = [
        [each.detail(row[head]) for head in heads]
        for row in table
        if any(row[h] for h in heads[1:])
    ]
    reasons = [f"{n}. {_plain(reason)}" for n, reason in enumerate(each.reasons, start=1)]
    parts = [f"Mixed precision, measured on {when} at commit {code}:", _table(heads, rows)]
    return "\n\n".join([*parts, *(["\n".join(reasons)] if reasons else [])])


def _plain(text: str) -> str:
    """Return a reason as one line of Markdown."""
    return re.sub(r"([<>|*_\[\]])", r"\\\1", " ".join(text.split()))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines
    )


INTRODUCTION = """\
# Journeys of real models

[`mase journey`](journey.md) led these models of others from their file to a result. Every cell is
a figure, or a refusal with the number of its reason below; `not run` is a step that the run did
not reach. `python bench/journeys.py` measures
them, and `python docs/make_journeys.py` writes this page.

Weights have 8 or 4 bits in formats of the target (ONNX or GGUF); activations are floats. `nearest`
rounds without data. `data` is GPTQ on calibration rows; with 4 bits, the layers that lose most have
8 bits. Layers that 8 bits cannot hold have 16 (basic-pitch). `mixed` is an average over the model,
with the width of each layer chosen by data and GPTQ.
`pruned` has 30 % of the weights removed, and one epoch of training after it.

All latencies were measured while the machine ran other programs (load 10 to 20 on two cores): they
are a rough guide only, and no claim."""


GOALS_TEXT = """\
The loss of the best model against float, as a share; a gain is below zero. The goal of 8 bits and
of mixed precision is 0.005 or 1 %, that of 4 bits with data 0.02 or 3 %."""
NOTES = """\
- basic-pitch begins with a bank of filters, whose magnitudes enter a logarithm. Rounded filters
  leak into silent bands, and the logarithm shows it: 8 bits without data have about 15 dB. With
  data, `mase quantize --bits 8` finds the low-pass filter `const_fold_opt__734` and the filters
  `const_fold_opt__664` and `const_fold_opt__655`, and gives them 16 bits: 29.6 dB on four
  calibration rows, and 37.1 dB on test rows with GPTQ for the others. Its measure does not show
  noise: 4 bits have 12.4 dB, and a higher onset F1 than float. The same logarithm magnifies the
  rounding of float32: against float64, the 8-bit model differs by 2.5e-4 here and by 1.3e-4 in
  onnxruntime, and the float model by 6e-4 here. So a difference of 3e-4 between the two programs is
  float32's own rounding. The 8e-4 of the model with 16-bit filters was not compared with float64.
- Convolutions are stored in few bits on disk, but have no packed layer in memory: `pack` lists them
  as not packed. The largest network of convolutions here has 11 MB of weights as floats, so that
  there is little memory to gain.
- A float GGUF file in F32 agrees with llama.cpp within 0.0014 nats (llama-imdb, 16 prefixes). The
  0.064 in the table of llama-imdb is older: the file was rounded to Q8_0. llama.cpp also rounds the
  inputs of such layers to 8 bits, which makes up 0.059 nats."""


def page() -> str:
    """Return the whole page."""
    every = journeys()
    parts = [
        INTRODUCTION,
        "## Measured by task",
        measured(every),
        "## Against the goals",
        GOALS_TEXT,
        goals(every),
        "## Notes",
        NOTES,
        "## Size and latency",
        sizes(every),
        "## Equal in other programs",
        "The largest difference of the outputs, as a share of the largest output. For language"
        " models: the next token after 16 prefixes, and the largest difference of its"
        " log-probability.",
        elsewhere(every),
        "## Hardware",
        hardware(every),
        *(details(each) for each in every),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
