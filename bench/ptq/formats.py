"""The table of formats on real models: SmolLM2-135M on WikiText-2, and all-MiniLM-L6-v2.

    python bench/ptq/formats.py prepare --models smollm2=MODELS/smollm2 minilm=MODELS/minilm
        --text DATA/wikitext-2 --tokens out/formats
    python bench/ptq/formats.py measure --models smollm2=MODELS/smollm2 minilm=MODELS/minilm
        --tokens out/formats --rows out/formats/rows.jsonl --device cuda --tools mase
    python bench/ptq/formats.py report out/formats/rows.jsonl

A folder of models has the files of transformers; `unpack FILE.gguf FOLDER` makes one from a GGUF
file. Every row is written as soon as it is measured. Any number of processes may measure into one
file at the same time, and a run that is interrupted resumes. The tools besides `mase` need their
own packages: llmcompressor, auto-round. `report` makes bench/results/ptq_formats.json; from it,
report.py makes the tables of docs/results_quantisation.md.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import importlib.metadata
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from real_models import CALIBRATED, KINDS, RealModel, prepare, unpacked
from rows import ERROR, Row, SharedRows, latest, read_rows
from schemes import BLOCKS, SCHEMES, Scheme
from subjects import SEEDS
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))  # the code of the record, without this package

FORMATS: dict[str, Scheme] = {
    **{name: SCHEMES[name] for name in ("W4 group 32", "W4 group 128", "W3 group 32")},
    **BLOCKS,
}
"""Rows of the table."""
INTEGERS = tuple(name for name in FORMATS if name not in BLOCKS)


@dataclass(frozen=True)
class Tool:
    """A program: the module here that calls it, its package, and its formats by method.

    A method is a function of the module. `plain`: methods without data, which have one row.
    """

    module: str
    package: str
    methods: dict[str, tuple[str, ...]]
    plain: tuple[str, ...] = ()


TOOLS = {
    "mase": Tool(
        "formats_here",
        "",
        {
            "nearest": tuple(FORMATS),
            "gptq": (*INTEGERS, "MXINT4", "MXFP4", "NVFP4"),
            "importance": ("Q4_K",),
        },
        ("nearest",),
    ),
    "llm-compressor": Tool(
        "rival_llmcompressor", "llmcompressor", {"gptq": (*INTEGERS, "MXFP4", "NVFP4")}
    ),
    "auto-round": Tool("rival_auto_round", "auto-round", {"sign_round": tuple(FORMATS)}),
}
"""To add a tool, add a row."""


class Wanted(NamedTuple):
    """One row of the table; without a tool, it is the float model."""

    model: RealModel
    tool: str
    method: str
    scheme: str
    seed: int | None

    def names(self) -> Row:
        """Return what tells the row from the others."""
        version = version_of(self.tool)
        return {
            "subject": self.model.name,
            "tool": f"{self.tool} {version}".strip(),
            "scheme": self.scheme,
            "method": self.method,
            "seed": self.seed,
            "held": self.model.held,
            "calibration": self.model.rows,
        }


def version_of(tool: str) -> str:
    """Return the version of another tool; empty for this one, whose code has a hash."""
    package = TOOLS[tool].package if tool in TOOLS else ""
    return importlib.metadata.version(package) if package else ""


def wanted(args: argparse.Namespace, models: list[RealModel]) -> Iterator[Wanted]:
    """Yield the rows of the table: all of the first seed, then all of the next."""
    for model in models:
        yield Wanted(model, "", "float", "float", None)
    for seed in args.seeds:
        for name in args.tools:
            for method, formats in TOOLS[name].methods.items():
                is_plain = method in TOOLS[name].plain
                if is_plain and seed != args.seeds[0]:
                    continue
                for scheme in (f for f in formats if f in args.formats):
                    for model in models:
                        yield Wanted(model, name, method, scheme, None if is_plain else seed)


@functools.cache
def reference(model: RealModel) -> list[Tensor]:
    """Return the float model's results to compare with."""
    return model.reference(model.load())


def measured(each: Wanted) -> Row:
    """Return what was measured and where, or why nothing could be."""
    about = {**where(), **({"code": own_code()} if each.tool == "mase" else {})}
    try:
        quantised: Callable[..., Any] = each.model.load
        if each.tool:
            module = importlib.import_module(TOOLS[each.tool].module)
            function = getattr(module, each.method)
            quantised = functools.partial(
                function, each.model, FORMATS[each.scheme], each.seed or 0
            )
        return {**each.model.measured(quantised(), reference(each.model)), **about}
    except (Exception, SystemExit):  # a tool may fail in any way: a result too
        return {ERROR: traceback.format_exc(limit=-3), **about}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # other processes share the GPU


def where() -> Row:
    """Return the machine and the versions that a row comes from."""
    has_gpu = torch.cuda.is_available()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {
        "machine": torch.cuda.get_device_name() if has_gpu else platform.machine(),
        "versions": {"python": platform.python_version(), **versions},
    }


@functools.cache
def own_code() -> str:
    """Return the hash of the code that a row of this package measures."""
    code = importlib.import_module("measuring.code")
    return str(code.code_hash(code.measured("ptq_formats")))


# -- commands --------------------------------------------------------------------------------------


def _prepare(args: argparse.Namespace) -> None:
    for name, folder in args.models.items():
        prepare(name, folder, args.text, args.tokens / f"{name}.npz")


def _unpack(args: argparse.Namespace) -> None:
    unpacked(args.file, args.folder)


def _measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    rows = SharedRows(args.rows, args.seconds, again=args.again)
    models = [
        KINDS[name](
            name,
            folder,
            args.tokens / f"{name}.npz",
            args.held,
            args.device,
            args.windows or CALIBRATED[name],
        )
        for name, folder in args.models.items()
    ]
    for each in wanted(args, models):
        rows.make(each.names(), functools.partial(measured, each))


def _report(args: argparse.Namespace) -> None:
    report = importlib.import_module("formats_report")  # needs this package
    report.save(latest([row for file in args.files for row in read_rows(file)]))


def _folder_by_name(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if name not in KINDS or not folder:
        known = ", ".join(f"{each}=FOLDER" for each in KINDS)
        raise argparse.ArgumentTypeError(f"'{text}': expected {known}")
    return name, Path(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    unpack = commands.add_parser("unpack", help="make a folder of transformers from a GGUF file")
    unpack.add_argument("file", type=Path)
    unpack.add_argument("folder", type=Path)
    unpack.set_defaults(run=_unpack)
    report = commands.add_parser("report", help="make the record from files of rows")
    report.add_argument("files", type=Path, nargs="+")
    report.set_defaults(run=_report)
    tokens = commands.add_parser("prepare", help="write the tokens of the texts")
    tokens.add_argument("--text", type=Path, required=True, help="folder of WikiText-2")
    tokens.set_defaults(run=_prepare)
    measure = commands.add_parser("measure", help="measure the rows that are missing")
    measure.set_defaults(run=_measure)
    for each in (tokens, measure):
        each.add_argument("--models", type=_folder_by_name, nargs="+", required=True)
        each.add_argument("--tokens", type=Path, required=True, help="folder of prepared tokens")
    measure.add_argument("--rows", type=Path, required=True, help="file to append to")
    measure.add_argument("--tools", nargs="*", default=list(TOOLS), choices=TOOLS)
    measure.add_argument("--formats", nargs="*", default=list(FORMATS), choices=FORMATS)
    measure.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    measure.add_argument("--windows", type=int, help="rows to calibrate on")
    measure.add_argument("--held", type=int, default=0, help="rows to measure on; 0: all")
    measure.add_argument("--device", default="cpu")
    measure.add_argument("--threads", type=int, default=1)
    measure.add_argument("--seconds", type=float, help="begin no row after them")
    measure.add_argument("--again", action="store_true", help="measure rows with an error again")
    args = parser.parse_args()
    if "models" in args:
        args.models = dict(args.models)
    return args


def main() -> None:
    """Run the command."""
    args = _arguments()
    args.run(args)


if __name__ == "__main__":
    main()
