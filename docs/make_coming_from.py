"""Writes docs/coming_from.md: what programs for DeepWok/mase say, and what it is here.

python docs/make_coming_from.py
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from pathlib import Path

from chop.compat.old_configs import BY_CLASS, OLD_FORMATS, OLD_OPS
from chop.compat.old_files import SECTIONS
from chop.compat.old_models import OLD_HUB_NAMES, OLD_MODELS
from chop.compat.old_names import OLD_NAMES
from chop.models.named import OLD_TASKS
from chop.nn.quantizers.operands import FOR_ALL, WITHOUT_EFFECT
from chop.passes.base import OLD_KEYS

PAGE = Path(__file__).resolve().parent / "coming_from.md"
PROGRAMS = PAGE.parents[1] / "tests" / "compat" / "old_programs"
RESULTS = PAGE.parents[1] / "bench" / "results" / "safe.json"
INTRODUCTION = """# Coming from DeepWok/mase

This page lists the names, calls and settings of [DeepWok/mase](https://github.com/DeepWok/mase)
that are accepted here, and what each is. An old name that has no use here is accepted and logged
once. A misspelt name or key is an error.

Written by `docs/make_coming_from.py` from the tables that the code itself reads.
"""
RUN = """## What was run

The tests and labs of DeepWok/mase themselves were not run. The tests here run {count} programs of
our own (`tests/compat/old_programs`), which make the calls of its tutorials and labs with the same
imports, names and keywords:

{programs}

They run on tiny models and a few rows of data (`tests/compat/test_old_programs.py`). Results are
not compared with those of DeepWok/mase.

`bench/old_programs.py` also loads its TOML files of quantise settings: of {tomls} files with such
settings, {loaded} were loaded and applied to small models through the Python call
(`quantize_transform_pass`), on {date}.
"""
FILES = """
## TOML files on the command line

`mase quantize MODEL --config FILE` and `mase prune MODEL --config FILE` read these sections of old
files. A file without one of them is refused, with the names of the sections that are understood.
The model, the dataset and the settings of training are not read from old files: give them as
options. Old files for searches (`[search.search_space]`, `[search.strategy]`) are refused: write
the table `[search]` that `mase search --dry-run` prints.

"""
DATA = """
`MaseDataModule(name)` takes a built-in dataset (`digits`, `sequences`, `toy`), a folder with
`train.npz` and `test.npz` that hold one array for each column and one called `labels`, or text with
a tokenizer.
"""
CALLS = (
    ("`MaseGraph.from_module(model)`", "`MaseGraph(model)`"),
    (
        "`MaseGraph(model, cf_args={…})`",
        "`MaseGraph(model)`: arguments with their defaults are no inputs",
    ),
    ("`mg.draw(file=path)`", "`mg.draw(path)`"),
    ("`mg.export()`", '`mg.export("mase_graph")`'),
    ("`isinstance(meta, dict)`", 'true of every record in `node.meta["mase"]`'),
    (
        "`get_trainer(model, data, tokenizer, metric, folder)`",
        "`get_trainer(model, data, tokenizer, metric, output_dir=folder)`",
    ),
    (
        "`summarize_quantization_analysis_pass(before, after, save_dir=…)`",
        '`summarize_quantization_analysis_pass(after, {"original_graph": before, "save_dir": …})`',
    ),
    ("`./ch train MODEL DATASET`", "`mase train MODEL --dataset DATASET`"),
    ("`./ch transform --config FILE`", "`mase quantize MODEL --config FILE` (see below)"),
    ("`./ch search --config FILE`", "`mase search MODEL`, with a file of its own (see below)"),
)


def table(headers: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    """Two columns of Markdown."""
    lines = [f"| {headers[0]} | {headers[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {old} | {new} |" for old, new in rows)])


def run_programs() -> str:
    """Return the section that states which programs and files were run."""
    rows = []
    for file in sorted(PROGRAMS.glob("*.py")):
        told = ast.get_docstring(ast.parse(file.read_text())) or ""
        rows.append((f"`{file.stem}`", told.split("\n")[0]))
    record = json.loads(RESULTS.read_text())["old_programs"]
    told = record.get("results", record)
    return RUN.format(
        count=len(rows),
        programs=table(("program", "what it calls"), rows),
        tomls=told["quantise_tomls"],
        loaded=told["quantise_tomls_loaded"],
        date=told["quantise_tomls_counted"].partition(" ")[0],
    )


def sections() -> str:
    """Return the table of the sections of TOML files."""
    rows = [
        (f"`{section.replace('`', '')}`", f"`mase {command}`: {told}")
        for command, understood in SECTIONS.items()
        for section, told in understood
    ]
    return FILES + table(("section", "is read by"), rows)


def names() -> str:
    """The table of imports."""
    rows = ((f"`{row.path}`", f"`{row.new}`") for row in OLD_NAMES)
    return table(("imported as", "is"), rows)


def keys() -> str:
    """The table of settings."""
    rows = [(f"`{key}` of any pass that does not use it", "no effect") for key in OLD_KEYS]
    rows += [(f"`{key}` in a layer's config", "no effect") for key in WITHOUT_EFFECT]
    for key, (field, values) in FOR_ALL.items():
        given = f'`<operand>_{field} = "{values[True]}"`' if values else f"`<operand>_{field}`"
        rows.append((f"`{key}` in a layer's config", f"{given} for every operand"))
    rows.append(('`<operand>_width = "NA"`', "the operand is not quantised"))
    rows += [
        (f'`name = "{old}"`', f'`name = "{new}"`' + (f": {but}" if but else ""))
        for old, (new, but) in OLD_FORMATS.items()
    ]
    rows += [(f"`[{BY_CLASS[0]}.{old}]`", f"`[{new}.config]`") for old, new in OLD_OPS.items()]
    rows += [(f"`[{each}.linear]`", "`[linear.config]`") for each in BY_CLASS]
    rows.append(("`[model_layer_0.self_attn.q_proj]`", "a rule by expression for that layer"))
    return table(("an old config's", "means"), rows)


def models() -> str:
    """The table of models and tasks."""
    rows = [
        (f'`get_model("{old.replace("_", "-")}")`', "built in, with random weights")
        for old in OLD_MODELS
    ]
    rows += [
        (f'`get_model("{old}")`', f'`get_model("{new}")`') for old, new in OLD_HUB_NAMES.items()
    ]
    rows += [(f'`task="{old}"`', f'`task="{new}"`') for old, new in OLD_TASKS.items()]
    return table(("an old model or task", "is"), rows)


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        run_programs(),
        "## Imports\n",
        names(),
        "\n`chop.nn.quantized` has every quantised layer; the rows above are examples.\n",
        "## Calls\n",
        table(("an old program's", "is"), CALLS),
        "\n## Settings\n",
        keys(),
        sections(),
        "\n## Models, tasks and data\n",
        models(),
        DATA,
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
