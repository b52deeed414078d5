"""Rows of a journey's table that come from other programs: the same file, the same inputs."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chop import MaseGraph
from chop.actions.trainer import scores_of
from chop.cli.checkpoints import checkpoint_path
from chop.cli.journey_table import shown
from chop.export import from_onnx
from chop.ir.trace.inputs import Signature

PROGRAM = Path(__file__).with_name("journey_peer.py")
NAMES = {"onnx": "onnxruntime", "gguf": "llama.cpp"}
ABSENT = 3
ROWS, LENGTHS = 4, (8, 16, 24, 32)
"""Rows for a comparison; of language models, prefixes with these numbers of tokens."""
Record = dict[str, Any]


def compare_exports(
    out: Path, records: Sequence[Record], inputs: Any, peer: str | None
) -> list[Record]:
    """Return a record for each exported file; `inputs`: function of a model -> its test rows."""
    kinds = [kind for kind in NAMES if any(r["step"] == f"export {kind}" for r in records)]
    variants = [*dict.fromkeys(record["variant"] for record in records)]
    outcomes = {(r["variant"], r["step"]): r["outcome"] for r in records}
    return [
        _record(variant, f"{kind} in {NAMES[kind]}", _exported(out, variant, kind, inputs, peer))
        if outcomes.get((variant, f"export {kind}")) == "done"
        else _record(
            variant, f"{kind} in {NAMES[kind]}", f"needs 'export {kind}', which was refused."
        )
        for kind in kinds
        for variant in variants
    ]


def compare_original(file: Path, inputs: Sequence[np.ndarray], peer: str | None) -> Record:
    """Return a record of the outputs of an ONNX file here and in onnxruntime."""
    title = "original file in onnxruntime"
    if peer is None:
        return _record("float", title, "no --peers PYTHON was given.")
    model = from_onnx(file).model.eval()
    with torch.no_grad():
        ours = _tensors(model(*(torch.from_numpy(np.array(x)) for x in inputs)))
    theirs = _run(peer, "onnx", file, inputs)
    return _record("float", title, theirs if isinstance(theirs, str) else _difference(ours, theirs))


def _record(variant: str, step: str, outcome: str | Mapping[str, Any]) -> Record:
    head = {"variant": variant, "step": step, "command": "", "seconds": 0.0, "peak_bytes": 0}
    if isinstance(outcome, str):
        return {**head, "outcome": "refused", "cell": "refused", "reason": outcome}
    return {**head, "outcome": "done", "cell": shown(outcome), "figures": dict(outcome)}


def _exported(out: Path, variant: str, kind: str, inputs: Any, peer: str | None) -> Any:
    if peer is None:
        return "no --peers PYTHON was given."
    folder = out / variant.replace(" ", "-")
    model = _graph(folder / "model").model.eval()
    rows: dict[str, torch.Tensor] = inputs(model)
    file = folder / f"export-{kind}" / f"model.{kind}"
    if kind == "gguf":
        return _next_tokens(model, rows["input_ids"], file, peer)
    with torch.no_grad():
        ours = _tensors(model(**rows))
    theirs = _run(peer, kind, file, [value.numpy() for value in rows.values()])
    return theirs if isinstance(theirs, str) else _difference(ours, theirs)


def _graph(folder: Path) -> MaseGraph:
    """Return the graph that a command stored in `folder`."""
    path = checkpoint_path(folder)
    assert path is not None, f"{folder}: a step that is done has a checkpoint"
    return MaseGraph.from_checkpoint(path)


def _next_tokens(model: Any, ids: torch.Tensor, file: Path, peer: str) -> Any:
    """Compare the next token after prefixes of the rows, and its probability."""
    shares, worst = [], 0.0
    for length in LENGTHS:
        theirs = _run(peer, "gguf", file, [ids[:, :length].numpy()])
        if isinstance(theirs, str):
            return theirs
        with torch.no_grad():
            output = model(**_inputs_of(model, ids[:, :length]))
            scores = scores_of(output)[:, -1].float().log_softmax(-1)
        tokens = torch.from_numpy(theirs[0])
        shares += (scores.argmax(-1) == tokens).tolist()
        ours = scores[torch.arange(len(tokens)), tokens].numpy()
        worst = max(worst, float(np.abs(ours - theirs[1]).max()))
    return {
        "equal next tokens": f"{sum(shares)} of {len(shares)}",
        "largest difference (nats)": worst,
    }


def _inputs_of(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the inputs of a language model for whole rows of tokens."""
    values = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return {name: values[name] for name in Signature.of(model).names if name in values}


def _run(peer: str, kind: str, file: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray] | str:
    """Return the outputs of the other program, or the reason why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(source, *inputs)
        words = [peer, str(PROGRAM), kind, str(file), str(source), str(target)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode == 0:
            stored = np.load(target)
            return [stored[name] for name in stored.files]
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        reason = said[-1].replace(str(file), file.name) if said else f"exit code {done.returncode}"
        return f"{NAMES[kind]} {'is absent' if done.returncode == ABSENT else 'failed'}: {reason}"


def _difference(ours: Sequence[torch.Tensor], theirs: Sequence[np.ndarray]) -> Any:
    """Return the largest difference over all outputs, absolute and of the largest value."""
    pairs = [(a.double().numpy(), b.astype(float)) for a, b in zip(ours, theirs, strict=False)]
    wrong = [f"{a.shape} and {b.shape}" for a, b in pairs if a.shape != b.shape]
    if wrong or len(ours) != len(theirs):
        return f"outputs differ in shape or number: {wrong or (len(ours), len(theirs))}."
    largest = max(float(np.abs(a - b).max()) for a, b in pairs)
    size = max(float(np.abs(a).max()) for a, _ in pairs)
    if largest == 0:
        return {"outputs": "equal"}
    return {"largest difference": largest, "of the largest value": largest / max(size, 1e-30)}


def _tensors(output: Any) -> list[torch.Tensor]:
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(output, torch.Tensor):
        return [output]
    return [value for value in values if isinstance(value, torch.Tensor)]
