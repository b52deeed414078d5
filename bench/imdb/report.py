"""Tables and figures from the records that run.py wrote.

    python bench/imdb/report.py mase_output/imdb --to bench/imdb

Writes <to>/results.md, <to>/records.csv with every measurement, and under <to>/figures each figure
as PNG and SVG with its data as CSV.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import published
from tabulate import tabulate

from chop.actions.records import MeasurementRecord, read_records, write_csv
from chop.report import draw_sweep

Values = list[float]
COMMAND = "python bench/imdb/run.py --data DATA/imdb --model MODELS/bert-tiny"
FIGURES = ("fixed_point_width", "integer_bits", "fraction_bits", "sparsity", "lora_rank")
SPARSITIES = tuple(i / 10 for i in range(1, 10))


def main() -> None:
    """Read, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, help="folder with the .jsonl files of run.py")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    found = Found(load(options.records))
    options.to.mkdir(parents=True, exist_ok=True)
    (options.to / "results.md").write_text(write(found))
    write_csv(options.to / "records.csv", found.records)
    for name in draw(found, options.to / "figures"):
        print(name)
    print(options.to / "results.md")


def load(folder: Path) -> list[MeasurementRecord]:
    """Every record of a folder; of points measured twice the last, which the others start from."""
    records = [r for file in sorted(folder.glob("*.jsonl")) for r in read_records(file)]
    if not records:
        raise SystemExit(f"{folder}: no records. Run bench/imdb/run.py first.")
    return list({str(_identity(r)): r for r in records}.values())


IDENTITY = ("sweep", "seed", "split", "width", "method", "sparsity", "rank", "structure")
BITS = ("integer_bits", "fraction_bits")


def _identity(record: MeasurementRecord) -> list[Any]:
    bits = record.get(record["sweep"]) if record["sweep"] in BITS else None
    return [*(record.get(name) for name in IDENTITY), bits]


@dataclass(frozen=True)
class Found:
    """Records, and questions to them."""

    records: list[MeasurementRecord]

    def of(self, sweep: str, **fields: Any) -> list[MeasurementRecord]:
        """The records of a kind with these fields, by seed."""
        chosen = [r for r in self.records if r["sweep"] == sweep]
        chosen = [r for r in chosen if all(r.get(k) == v for k, v in fields.items())]
        return sorted(chosen, key=lambda r: r["seed"])

    def values(self, field: str, sweep: str, **fields: Any) -> Values:
        """A field of those records."""
        return [r[field] for r in self.of(sweep, **fields)]

    def seeds(self, sweep: str) -> list[int]:
        """The seeds of a kind."""
        return sorted({r["seed"] for r in self.of(sweep)})

    def gaps(self, field: str, other: str, sweep: str, **fields: Any) -> Values:
        """For each seed: that field less the accuracy of the kind `other`."""
        reference = {r["seed"]: r["after"] for r in self.of(other)}
        found = self.of(sweep, **fields)
        return [r[field] - reference[r["seed"]] for r in found if r["seed"] in reference]


def show(values: Values, digits: int = 4) -> str:
    """The mean, with the lowest and highest where there are several."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return f"{mean} (1 seed)"
    return f"{mean} ({min(values):.{digits}f} … {max(values):.{digits}f})"


# -- what must be shown -------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A requirement: the mean of `values` must be at least `bound` (and of several the least)."""

    text: str
    bound: float
    values: Callable[[Found], list[Values]]

    def row(self, found: Found) -> list[str]:
        """The claim, what was measured and whether it holds."""
        groups = [values for values in self.values(found) if values]
        if not groups:
            return [self.text, f"≥ {self.bound:+.3f}", "not measured", "–"]
        worst = min(groups, key=statistics.fmean)
        holds = "yes" if statistics.fmean(worst) >= self.bound else "no"
        return [self.text, f"≥ {self.bound:+.3f}", show(worst), holds]


def _over_random(found: Found) -> list[Values]:
    """At each sparsity, l1-norm less random, seed by seed."""
    gaps = []
    for sparsity in SPARSITIES:
        pair = [found.of("sparsity", method=m, sparsity=sparsity) for m in ("random", "l1-norm")]
        random = {r["seed"]: r["after"] for r in pair[0]}
        ours = pair[1]
        gaps.append([r["after"] - random[r["seed"]] for r in ours if r["seed"] in random])
    return gaps


CLAIMS = (
    Claim("float, fine-tuned: accuracy", 0.85, lambda f: [f.values("after", "base")]),
    Claim(
        "QAT at 8 bits, fitted split, less float",
        -0.005,
        lambda f: [f.gaps("after", "base", "fixed_point_width", split="fitted", width=8)],
    ),
    Claim(
        "PTQ at 16 bits, even split, less float",
        -0.002,
        lambda f: [f.gaps("before", "base", "fixed_point_width", split="half", width=16)],
    ),
    Claim(
        "PTQ at 16 bits, fitted split, less float",
        -0.002,
        lambda f: [f.gaps("before", "base", "fixed_point_width", split="fitted", width=16)],
    ),
    Claim(
        "l1-norm at 50 %, fine-tuned, less unpruned",
        -0.01,
        lambda f: [f.gaps("after", "base", "sparsity", method="l1-norm", sparsity=0.5)],
    ),
    Claim("l1-norm less random, fine-tuned, at the worst sparsity", 0.0, _over_random),
    Claim(
        "LoRA of rank 8 less training the same layers whole",
        -0.01,
        lambda f: [f.gaps("after", "frozen_embeddings", "lora_rank", rank=8)],
    ),
)


# -- tables -------------------------------------------------------------------------------------

Table = tuple[str, list[str], list[list[str]]]


def claims_table(found: Found) -> Table:
    """What was asked for, beside what was measured."""
    rows = [claim.row(found) for claim in CLAIMS]
    shares = found.values("share", "lora_rank", rank=8)
    if shares:
        holds = "yes" if max(shares) <= 0.02 else "no"
        text = "LoRA of rank 8: share of parameters that train"
        rows.append([text, "≤ 0.020", show(shares), holds])
    return "What is claimed", ["claim", "bound", "mean (lowest … highest)", "holds"], rows


def width_table(found: Found) -> Table:
    """Fixed point over widths."""
    rows = []
    for width, (ptq, qat) in published.WIDTHS.items():
        cells = [str(width), f"{ptq:.4f}", f"{qat:.4f}"]
        for split in ("half", "fitted"):
            for stage in ("before", "after"):
                values = found.values(stage, "fixed_point_width", split=split, width=width)
                cells.append(show(values))
        rows.append(cells)
    splits = ["PTQ, even split", "QAT, even split", "PTQ, fitted", "QAT, fitted"]
    return "Fixed-point width", ["bits", "published PTQ", "published QAT", *splits], rows


def bits_table(found: Found) -> Table:
    """Integer and fraction bits apart."""
    rows = []
    for sweep, held in (("integer_bits", "4 fraction bits"), ("fraction_bits", "5 integer bits")):
        for bits in sorted({r[sweep] for r in found.of(sweep)}):
            values = [found.values(stage, sweep, **{sweep: bits}) for stage in ("before", "after")]
            is_published = sweep == "fraction_bits" and bits == 5
            theirs = "{:.4f}, {:.4f}".format(*published.TEN_BITS) if is_published else ""
            name = sweep.replace("_", " ")
            rows.append([f"{bits} {name}, {held}", *(show(v) for v in values), theirs])
    return "Integer and fraction bits", ["split", "PTQ", "QAT", "published PTQ, QAT"], rows


def sparsity_table(found: Found) -> Table:
    """Pruning of the float model, before and after fine-tuning."""
    rows = []
    for sparsity in SPARSITIES:
        cells = [f"{sparsity:.1f}"]
        for method in ("random", "l1-norm"):
            for stage in ("before", "after"):
                values = found.values(stage, "sparsity", method=method, sparsity=sparsity)
                cells.append(show(values))
        rows.append(cells)
    heads = ["random", "random, fine-tuned", "l1-norm", "l1-norm, fine-tuned"]
    return "Sparsity of the float model", ["sparsity", *heads], rows


def lab_table(found: Found) -> Table:
    """Pruning on top of 16-bit fixed point, as published."""
    rows = []
    for sparsity, theirs in published.SPARSITIES.items():
        cells = [f"{sparsity:.1f}", *(f"{value:.4f}" for value in theirs)]
        for method in ("random", "l1-norm"):
            values = found.values("after", "quantized_sparsity", method=method, sparsity=sparsity)
            cells.append(show(values))
        rows.append(cells)
    heads = ["published random", "published l1-norm", "random", "l1-norm"]
    return "Sparsity at 16 bits, fine-tuned", ["sparsity", *heads], rows


def lora_table(found: Found) -> Table:
    """Adapters beside training the same layers whole."""
    rows = []
    for rank in sorted({r["rank"] for r in found.of("lora_rank")}):
        share = found.values("share", "lora_rank", rank=rank)
        gap = found.gaps("after", "frozen_embeddings", "lora_rank", rank=rank)
        accuracy = found.values("after", "lora_rank", rank=rank)
        rows.append([f"LoRA, rank {rank}", f"{100 * share[0]:.2f} %", show(accuracy), show(gap)])
    whole = found.of("frozen_embeddings")
    if whole:
        share, accuracy = whole[0]["share"], [r["after"] for r in whole]
        rows.append(["the same layers whole", f"{100 * share:.2f} %", show(accuracy), ""])
    heads = ["trained", "share of parameters", "accuracy", "less whole"]
    return "Adapters, embeddings frozen, fused before evaluation", heads, rows


def structure_table(found: Found) -> Table:
    """N:M, blocks, and channels and heads that are removed."""
    rows = []
    for structure in dict.fromkeys(r["structure"] for r in found.of("structure")):
        records = found.of("structure", structure=structure)
        sizes = f"{records[0]['encoder_before']} → {records[0]['encoder_after']}"
        stages = [[r[stage] for r in records] for stage in ("before", "after")]
        gap = found.gaps("after", "base", "structure", structure=structure)
        rows.append([structure, sizes, *(show(values) for values in stages), show(gap)])
    heads = ["structure, 50 %", "encoder parameters", "pruned", "fine-tuned", "less unpruned"]
    return "Structured sparsity", heads, rows


TABLES = (
    claims_table,
    width_table,
    bits_table,
    sparsity_table,
    lab_table,
    structure_table,
    lora_table,
)


def write(found: Found) -> str:
    """The results as Markdown."""
    base = found.of("base")
    record = base[0] if base else found.records[0]
    train, test = record["reviews"]
    compared = ", ".join(f"{value:.4f}" for value in published.BASE.values())
    parts = [
        "# BERT-tiny on IMDb: fine-tuning, fixed point, pruning, adapters",
        f"Accuracy on {test} test reviews after training on {train}; up to 512 tokens; "
        f"{record['device']}, torch {record['torch']}. Cells are the mean over seeds with the "
        "lowest and highest. PTQ and “pruned” are before, QAT and "
        "“fine-tuned” after one more epoch. “Even split” gives half of the bits to the fraction; "
        "“fitted” gives each operand of each layer what its range allows. Published figures are "
        "from course reports on the same task.",
        f"Float, fine-tuned: {show(found.values('after', 'base'))}; published {compared}.",
        f"    {COMMAND}\n    python bench/imdb/report.py mase_output/imdb",
    ]
    for make in TABLES:
        title, heads, rows = make(found)
        if rows:
            text = tabulate(rows, heads, tablefmt="github", disable_numparse=True)
            parts += [f"## {title}", text]
    parts.append(recipes(found))
    return "\n\n".join(parts) + "\n"


def recipes(found: Found) -> str:
    """How each kind was trained, and with which seeds."""
    chosen = {r["sweep"]: (r["learning_rate"], r["epochs"]) for r in found.records}
    rows = [
        [name, f"{rate:g}", str(epochs), ", ".join(map(str, found.seeds(name)))]
        for name, (rate, epochs) in chosen.items()
    ]
    heads = ["kind", "learning rate", "epochs", "seeds"]
    return "## Training\n\n" + tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def draw(found: Found, folder: Path) -> list[Path]:
    """The figures of every sweep that has records."""
    base: Sequence[float] = found.values("after", "base")
    levels = {"float": statistics.fmean(base)} if base else None
    drawn = [name for name in FIGURES if found.of(name)]
    return [
        path
        for name in drawn
        for path in draw_sweep(name, found.of(name), folder / name, levels=levels)
    ]


if __name__ == "__main__":
    main()
