"""Store the results of a benchmark with their provenance: shared by the programs here.

A record has the commit, whether the checkout had changes, a hash of the code that it measures, the
machine, the versions, the command and the date. `MEASURED` lists the packages behind each result.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chop.report.provenance import gather_provenance

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
SOURCE = ROOT / "src"
MEASURED = {
    "decode_cpu": ("chop/kernels", "chop/ir/graph"),
    "export": ("chop/export", "chop/nn"),
    "generate_cpu": ("chop/kernels", "chop/ir/graph", "chop/nn"),
    "generate_cuda": ("chop/kernels", "chop/ir/graph", "chop/nn"),
    "graph": ("graph",),
    "hardware": ("chop/hw",),
    "hardware_transformer": ("chop/hw", "chop/nn/quantizers"),
    "kernels_cpu": ("chop/kernels",),
    "kernels_cuda": ("chop/kernels",),
    "physical": ("chop/hw",),
    "prune_gpu": ("chop/passes/prune", "chop/passes/pack"),
    "prune_methods": ("chop/passes/prune", "chop/passes/ptq"),
    "prune_structured": ("chop/passes/prune",),
    "ptq": ("chop/passes/ptq", "chop/nn/quantizers"),
    "qat_step": ("chop/nn",),
    "qat_step_gpu": ("chop/nn",),
    "quantize_cpu": ("chop/nn/quantizers",),
    "quantize_gpu": ("chop/nn/quantizers",),
    "search_engine": ("chop/search",),
    "shard": ("chop/distributed",),
    "trace": ("chop/ir",),
}
"""Result file -> folders of src that it measures; a file that is not listed measures all of src."""
NATIVE = (".cpp", ".cu", ".h", ".sv")


def code_hash(folders: Iterable[str]) -> str:
    """Return a digest of the code in `folders` of src; docstrings and comments do not count."""
    digest = hashlib.sha256()
    for folder in sorted(folders):
        for file in sorted((SOURCE / folder).rglob("*")):
            if file.suffix == ".py":
                digest.update(_stripped(file.read_text(encoding="utf-8")).encode())
            elif file.suffix in NATIVE:
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _stripped(source: str) -> str:
    """Return the syntax tree of `source` without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for statement in list(getattr(node, "body", None) or []) if _has_body(node) else []:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_text and isinstance(statement.value.value, str):
                node.body.remove(statement)  # type: ignore[attr-defined]
    return ast.dump(tree)


def _has_body(node: ast.AST) -> bool:
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def provenance(name: str) -> dict[str, Any]:
    """Return the provenance of the result file `name`, written by this process."""
    script = Path(sys.argv[0]).resolve()
    place = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    folders = MEASURED.get(name, ("chop", "graph"))
    code = {"commit": _git("rev-parse", "HEAD"), "folders": list(folders)}
    code |= {"hash": code_hash(folders), "has_changes": bool(_git("status", "--porcelain"))}
    command = shlex.join(["python", str(place), *sys.argv[1:]])
    return {**gather_provenance(), "command": command, "code": code}


def _git(*words: str) -> str:
    """Return the answer of git; empty outside a checkout."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def save(name: str, results: Any) -> Path:
    """Write `results` with their provenance to `bench/results/<name>.json`."""
    return _write(name, {**provenance(name), "results": results})


def save_section(name: str, section: str, results: Any) -> Path:
    """Write `results` with their provenance under `section` of `bench/results/<name>.json`.

    The file is a mapping by section. The other sections stay.
    """
    file = RESULTS / f"{name}.json"
    sections = json.loads(file.read_text()) if file.exists() else {}
    sections[section] = {**provenance(name), "results": results}
    return _write(name, dict(sorted(sections.items())))


def _write(name: str, content: dict[str, Any]) -> Path:
    """Replace the result file in one step."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    draft.replace(file)
    return file
