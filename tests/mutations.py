"""Files with random damage: mutated, read, and judged. Shared by the tests and by bench/safe.py.

Damage to bytes must be refused, or change nothing that is read. Forged structure, whose checksums
are made to fit, must be refused, or be read as exactly what it says. Whatever happens, nothing
runs, and no error but those of this package comes out.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import sqlite3
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forgeries
import numpy_reader
import torch
from file_kinds import EQUAL, FAITHFUL, OTHER, Executed, Forged, Kind
from scratch import new_folder
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.actions.readers import check_hardware, check_sensitivity, check_study, check_sweep
from chop.actions.records import read_records
from chop.config import load_toml, parse
from chop.errors import ChopError
from chop.files import read_json
from chop.hw.sim.emit import read_interface
from chop.ir.store.checkpoint import digest
from chop.passes.graph.interface.adapter_files import (
    load_lora_adapter_interface_pass,
    save_lora_adapter_interface_pass,
)
from chop.report.page_records import sweep_figures
from chop.report.study_page import study_record
from chop.search.apply import find_trial, read_study
from chop.search.study_storage import open_store

NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 0.5, -0.0, 1e308, "", "x", "self", "torch"),
    *("__class__", "forward", "os.system", "builtins.exec", "torch.load", "x\n", "x;y", "../../x"),
    *([], {}, [[]], {"a": 1}, [0] * 50, {"$node": "x"}, {"$tuple": []}, {"$function": "os.system"}),
    *(
        {"$own": "weight"},
        {"$torch": "float16"},
        {"$float": "nan"},
        "torch.relu",
        "softmax",
        "data",
    ),
    *({"$quantizer": ["integer", {"width": 8}]}, {"made_by": "os.system", "of": []}, "complete"),
]
BYTES = (
    b"",
    b"\0",
    b"\xff",
    b"{",
    b"}",
    b'"',
    b",",
    b"9",
    b"-",
    b"NaN",
    b"__import__('os')",
    b"\n",
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to three small changes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 1, 2, 8, 64)))
        kind = rng.randrange(5)
        piece = data[start:end]
        if kind == 0 and piece:
            piece = bytes([piece[0] ^ (1 << rng.randrange(8))]) + piece[1:]
        elif kind == 1:
            piece = b""
        elif kind == 2:
            piece = rng.choice(BYTES)
        elif kind == 3:
            piece = piece + piece
        else:
            piece = rng.choice(BYTES) + piece
        data = data[:start] + piece + data[end:]
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.03 else data


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        found.append((value, key))
        if isinstance(item, dict | list):
            _places(item, found)
    return found


def forged(told: Any, rng: random.Random) -> Any:
    """Plain data with one to three changes of its structure."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        owner, key = rng.choice(_places(told, []))
        other, there = rng.choice(_places(told, []))
        kind = rng.randrange(7)
        if kind <= 1:
            owner[key] = json.loads(json.dumps(rng.choice(NASTY)))
        elif kind == 2:
            del owner[key]
        elif kind == 3 and isinstance(owner, dict):
            owner[str(rng.choice(NASTY))[:40]] = owner.pop(key)
        elif kind == 4:
            owner[key] = json.loads(json.dumps(other[there]))
        elif kind == 5 and isinstance(owner, list):
            owner.insert(rng.randrange(len(owner) + 1), json.loads(json.dumps(owner[key])))
        elif isinstance(owner[key], int | float) and not isinstance(owner[key], bool):
            owner[key] = owner[key] + rng.choice((-1, 1, 0.5, 1e9))
        else:
            owner[key] = [owner[key]]
    return told


# -- checkpoints -----------------------------------------------------------------------------


def normal(value: Any) -> Any:
    """A description without what has two spellings."""
    if isinstance(value, list):
        return [normal(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$dict"} and isinstance(value["$dict"], list):
        pairs = value["$dict"]
        if all(isinstance(k, str) and not k.startswith("$") for k, _ in pairs):
            return {k: normal(v) for k, v in pairs}
        return {"$dict": [[normal(k), normal(v)] for k, v in pairs]}
    if value.keys() == {"$set"}:
        return {"$set": sorted((normal(v) for v in value["$set"]), key=repr)}
    if value.keys() == {"$record"}:
        name, fields = value["$record"]
        return {"$record": [name, {k: normal(v) for k, v in fields.items() if v is not None}]}
    return {k: normal(v) for k, v in value.items()}


def _said(told: Mapping[str, Any]) -> Any:
    unordered = ("modules", "attributes", "aliases", "views", "tensors", "training")
    kept = {k: normal(v) for k, v in told.items() if k not in ("id", "sha256", "version")}
    for module in kept["modules"].values():
        if isinstance(module, dict) and str(module.get("class", "")).endswith("LSTM"):
            module["attributes"].setdefault("proj_size", 0)  # as torch does on load
    return {k: dict(sorted(v.items())) if k in unordered else v for k, v in kept.items()}


def _exported(graph: MaseGraph, folder: Path) -> Any:
    graph.export(folder / "again")
    return _said(json.loads((folder / "again.json").read_text()))


def _judge_checkpoint(folder: Path, told: Any) -> str:
    with forgeries.listening() as heard:
        graph = MaseGraph.from_checkpoint(folder / "model")
    if heard:
        raise Executed(heard)
    if told is None:
        same = _exported(graph, folder) == _said(forgeries.description())
        return EQUAL if same else OTHER
    return FAITHFUL if _exported(graph, folder) == _said(told) else OTHER


def checkpoint_bytes(folder: Path, rng: random.Random) -> str:
    """Damage in either file."""
    suffix = rng.choice((".json", ".json", ".safetensors"))
    for each in (".json", ".safetensors"):
        shutil.copy(forgeries.valid().with_suffix(each), folder / f"model{each}")
    file = folder / f"model{suffix}"
    file.write_bytes(damaged(file.read_bytes(), rng))
    return _judge_checkpoint(folder, None)


def checkpoint_forged(folder: Path, rng: random.Random) -> str:
    """Another graph with a checksum that fits."""
    told = forged(forgeries.description(), rng)
    forgeries.write_forged(folder, told)
    return _judge_checkpoint(folder, told)


# -- packed checkpoints ----------------------------------------------------------------------


@functools.cache
def packed() -> tuple[Path, dict[str, torch.Tensor]]:
    """A packed checkpoint with each kind of scale, and the tensors it holds."""
    torch.manual_seed(0)
    graph = MaseGraph(
        nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))), dummy_in=torch.ones(1, 6)
    )
    formats = (
        {"name": "block_fp", "weight_width": 3, "weight_block_size": [2, 4], "data_in_width": 8},
        {"name": "scale_integer", "weight_width": 4, "weight_granularity": "channel"},
        {"name": "binary_residual", "weight_axis": 0},
    )
    rules: dict[str, Any] = {f"{i}": {"config": config} for i, config in enumerate(formats)}
    passes.quantize_transform_pass(graph, {"by": "name", **rules})
    passes.prune_transform_pass(graph, {"weight": {"sparsity": 0.3, "scope": "local"}})
    path = new_folder("packed.") / "model"
    graph.export(path, save_format="packed")
    return path, MaseGraph.from_checkpoint(path).model.state_dict()


def packed_bytes(folder: Path, rng: random.Random) -> str:
    """Damage in either file."""
    path, state = packed()
    for each in (".json", ".safetensors"):
        shutil.copy(path.with_suffix(each), folder / f"model{each}")
    file = folder / f"model{rng.choice(('.json', '.safetensors'))}"
    file.write_bytes(damaged(file.read_bytes(), rng))
    found = MaseGraph.from_checkpoint(folder / "model").model.state_dict()
    same = found.keys() == state.keys() and all(torch.equal(found[k], state[k]) for k in state)
    return EQUAL if same else OTHER


def packed_forged(folder: Path, rng: random.Random) -> str:
    """Other records with a checksum that fits; what they say is what numpy reads by the page."""
    path, _ = packed()
    told = json.loads(path.with_suffix(".json").read_text())
    told["packed"] = forged(told["packed"], rng)
    told["sha256"] = digest(told)
    (folder / "model.json").write_text(json.dumps(told))
    shutil.copy(path.with_suffix(".safetensors"), folder / "model.safetensors")
    found = MaseGraph.from_checkpoint(folder / "model").model.state_dict()
    said = numpy_reader.read(folder / "model")
    pairs = ((found[name].float(), torch.from_numpy(v).float()) for name, v in said.items())
    return FAITHFUL if all(torch.equal(a, b) for a, b in pairs) else OTHER


# -- adapters --------------------------------------------------------------------------------


@functools.cache
def _adapter() -> tuple[Any, Path]:
    torch.manual_seed(0)
    plain = MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), dummy_in=torch.ones(1, 4))
    tuned, _ = passes.insert_lora_adapter_transform_pass(
        MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), dummy_in=torch.ones(1, 4)),
        {"rank": 2, "alpha": 3.0},
    )
    for parameter in tuned.model.parameters():
        nn.init.normal_(parameter)
    folder = new_folder("adapter.")
    save_lora_adapter_interface_pass(tuned, {"path": folder})
    return plain, folder


@functools.cache
def peft_adapter() -> tuple[dict[str, Any], bytes]:
    """As PEFT writes it: without our notes."""
    from safetensors.torch import load_file, save

    _, folder = _adapter()
    config = json.loads((folder / "adapter_config.json").read_text())
    return config, save(load_file(folder / "adapter_model.safetensors"), {"format": "pt"})


def load_adapter(folder: Path) -> dict[str, Any]:
    import copy

    graph = copy.deepcopy(_adapter()[0])
    with forgeries.listening() as heard:
        load_lora_adapter_interface_pass(graph, {"path": folder})
    if heard:
        raise Executed(heard)
    layers = {n: m for n, m in graph.model.named_modules() if hasattr(m, "lora_A")}
    return {
        n: (m.alpha, m.rank, m.lora_dropout.p, m.lora_A.weight.tolist(), m.lora_B.weight.tolist())
        for n, m in layers.items()
    }


@functools.cache
def _adapter_meaning() -> dict[str, Any]:
    return load_adapter(_adapter()[1])


def adapter_bytes(folder: Path, rng: random.Random) -> str:
    """Damage in either file of an adapter that this package wrote."""
    _, valid = _adapter()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(valid / name, folder / name)
    file = folder / rng.choice(("adapter_config.json", "adapter_model.safetensors"))
    file.write_bytes(damaged(file.read_bytes(), rng))
    return EQUAL if load_adapter(folder) == _adapter_meaning() else OTHER


def adapter_forged(folder: Path, rng: random.Random) -> str:
    """Other settings beside weights as PEFT writes them."""
    config, weights = peft_adapter()
    told = forged(json.loads(json.dumps(config)), rng)
    (folder / "adapter_config.json").write_text(json.dumps(told))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    found = load_adapter(folder)
    dropout = told.get("lora_dropout")
    is_said = all(row[2] == (0.0 if dropout is None else dropout) for row in found.values())
    return FAITHFUL if is_said else OTHER


# -- studies, settings and reports -------------------------------------------------------------

STUDY = {
    "name": "search",
    "objectives": {"accuracy": "maximize", "bits": "minimize"},
    "sampler": "tpe",
    "seed": 0,
    "trials": [
        {
            "number": n,
            "state": "complete" if n else "failed",
            "values": {"accuracy": 0.5 + n / 10, "bits": 4.0 + n} if n else {},
            "params": {"width": n, "format": "integer"},
            "attributes": {"seed": n, "constraints": {"small": -1.0}},
            "seconds": 1.5,
            "reason": None if n else "out of memory",
        }
        for n in range(4)
    ],
}
RECORDS = [
    {"sweep": "sparsity", "method": m, "seed": 0, "sparsity": s, "before": 0.7, "after": 0.8}
    for m in ("random", "l1-norm")
    for s in (0.1, 0.5)
]
HARDWARE = {
    "inputs": ["data_in_0"],
    "outputs": ["data_out_0"],
    "stages": [{"stage": "fc", "module": "fixed_linear", "cycles": 4, "multipliers": 8}],
    "streams": [
        {"source": "data_in_0", "target": "fc", "width": 8, "beats": 2},
        {"source": "fc", "target": "data_out_0", "width": 8, "beats": 2},
    ],
    "bottleneck": "fc",
}
DESIGN = {
    "name": "top",
    "cycles": 4,
    "inputs": {"data_in_0": {"shape": [4], "parallelism": 2, "precision": [8, 4]}},
    "outputs": {"data_out_0": {"shape": [4], "parallelism": 2, "precision": [8, 4]}},
    "stages": [],
    "connections": {},
}


SENSITIVITY = {
    "table": [
        {"layer": "fc", "format": f"mxint{w}", "bits": w + 0.25, "elements": 64, "loss": 4.0**-w}
        for w in (4, 8)
    ],
    "assignment": {"fc": "mxint4"},
    "bits": 4.25,
    "loss": 0.004,
}


def _text(told: Any, rng: random.Random, *, lines: bool = False) -> bytes:
    """Forged structure, or damaged text."""
    if rng.random() < 0.6:
        told = forged(json.loads(json.dumps(told)), rng)
    rows = told if lines and isinstance(told, list) else [told]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return data if rng.random() < 0.6 else damaged(data, rng)


def _reread(file: Path, found: Any) -> str:
    """Whether what was found is what another reader of JSON finds."""
    wanted = json.dumps(json.loads(file.read_bytes()))  # as text: NaN is not NaN
    return FAITHFUL if wanted == json.dumps(found) else OTHER


def study_json(folder: Path, rng: random.Random) -> str:
    """A study as `apply` and reports read it."""
    file = folder / "study.json"
    file.write_bytes(_text(STUDY, rng))
    found, _ = read_study(file)
    study_record(check_study(found, str(file)))
    find_trial(found, rng.choice(("accuracy", "best", 1, 2)))
    return _reread(file, found)


@functools.cache
def _study_db() -> bytes:
    folder = new_folder("study.")
    store = open_store(folder / "study.db")
    from optuna import create_study
    from optuna.distributions import IntDistribution

    study = create_study(storage=store.storage, study_name="s", direction="maximize")
    for n in range(3):
        trial = study.ask({"x": IntDistribution(0, 9)})
        trial.set_user_attr("seed", n)
        study.tell(trial, n * 0.5)
    with sqlite3.connect(folder / "study.db") as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (folder / "study.db").read_bytes()


def study_db(folder: Path, rng: random.Random) -> str:
    """A database of a study with damage; what can be read of it is plain data."""
    file = folder / "study.db"
    data = bytearray(_study_db())
    for _ in range(rng.choice((1, 4, 64))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    file.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)
    with forgeries.listening() as heard:
        store = open_store(file)
        for study in store.storage.get_all_studies():
            store.storage.get_all_trials(study._study_id)
    known = (str(folder), "journal", "def __init__(self, **kwargs)")  # of SQLAlchemy's own tables
    told = [h for h in heard if not any(word in h for word in known)]
    if told:
        raise Executed(told)
    return FAITHFUL


def records(folder: Path, rng: random.Random) -> str:
    """Records of a sweep, as reports read them."""
    file = folder / "records.jsonl"
    file.write_bytes(_text(RECORDS, rng, lines=True))
    found = read_records(file)
    sweep_figures(check_sweep(found, str(file)))
    wanted = [json.loads(row) for row in file.read_text().split("\n")[:-1] if row]
    return FAITHFUL if json.dumps(found) == json.dumps(wanted) else OTHER


def hardware_report(folder: Path, rng: random.Random) -> str:
    """The report of emitted hardware."""
    file = folder / "report.json"
    file.write_bytes(_text(HARDWARE, rng))
    found = check_hardware(read_json(file, ChopError), str(file))
    from chop.report.page_records import _hardware

    _hardware(found)
    return _reread(file, found)


def sensitivity(folder: Path, rng: random.Random) -> str:
    """The losses of formats in layers."""
    file = folder / "sensitivity.json"
    file.write_bytes(_text(SENSITIVITY, rng))
    return _reread(file, check_sensitivity(read_json(file, ChopError), str(file)))


def design(folder: Path, rng: random.Random) -> str:
    """The description of emitted hardware."""
    file = folder / "design.json"
    file.write_bytes(_text(DESIGN, rng))
    found = read_interface(folder)
    told = json.loads(file.read_bytes())
    same = (found.name, list(found.inputs), found.cycles) == (
        told["name"],
        list(told["inputs"]),
        told["cycles"],
    )
    return FAITHFUL if same else OTHER


@dataclass(frozen=True)
class Settings:
    """Settings of every plain type."""

    width: int = 8
    ratio: float = 0.5
    name: str = "x"
    flags: tuple[bool, ...] = ()
    nested: dict[str, int] | None = None
    limit: int | None = None


TOML = b"""
width = 8
ratio = 0.25
name = "layer"
flags = [true, false]
limit = "NA"
[nested]
a = 1
b = 2
"""


def toml(folder: Path, rng: random.Random) -> str:
    """Settings with damage, or of other types."""
    file = folder / "settings.toml"
    file.write_bytes(damaged(TOML, rng))
    found = parse(Settings, load_toml(file), "settings")
    told = tomllib.loads(file.read_text())
    same = all(
        getattr(found, key)
        == (None if value == "NA" else tuple(value) if key == "flags" else value)
        for key, value in told.items()
    )
    return FAITHFUL if same else OTHER


KINDS: dict[str, Kind] = {
    "checkpoint, damaged": Kind(checkpoint_bytes, 0.09),
    "packed checkpoint, damaged": Kind(packed_bytes, 0.03),
    "packed checkpoint, forged": Kind(packed_forged, 0.06),
    "checkpoint, forged": Kind(checkpoint_forged, 0.24),
    "adapter, damaged": Kind(adapter_bytes, 0.06),
    "adapter, forged": Kind(adapter_forged, 0.06),
    "study.json": Kind(study_json, 0.1),
    "study.db": Kind(study_db, 0.04),
    "records": Kind(records, 0.1),
    "hardware report": Kind(hardware_report, 0.06),
    "sensitivity.json": Kind(sensitivity, 0.04),
    "design.json": Kind(design, 0.06),
    "TOML": Kind(toml, 0.1),
}
"""Each kind of file, how it is judged, and its share of a run."""


def forged_files() -> list[Forged]:
    """Return the edits of a valid checkpoint."""

    def write(edit: forgeries.Edit, folder: Path) -> None:
        description = forgeries.description()
        edit(description)
        forgeries.write_forged(folder, description)

    return [
        Forged(f"checkpoint: {name}", functools.partial(write, edit), _load_checkpoint, words)
        for name, edit, words in forgeries.forgeries()
    ]


def _load_checkpoint(folder: Path) -> MaseGraph:
    return MaseGraph.from_checkpoint(folder / "model")


def warm_up() -> None:
    """Read a valid file of each kind: what is imported and compiled of installed packages is."""
    MaseGraph.from_checkpoint(forgeries.valid())
    _adapter_meaning()
    packed()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "study.db").write_bytes(_study_db())
        open_store(Path(folder, "study.db"))
