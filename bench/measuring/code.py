"""Hash of the code behind a result: results of older code are marked, and measured again.

`MEASURED` names the modules of each result file. Only code counts: comments, docstrings and layout
do not change the hash, nor does the version of Python that computes it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"
EVERYTHING = ("chop", "graph")
HARDWARE = ("chop/hw", "chop/nn/quantizers")
PACKED = ("chop/kernels", "chop/passes/pack")
GPU_KERNELS = (
    "chop/nvrtc.py",
    *(
        f"chop/kernels/{file}"
        for file in (
            "device.py", "gpu.py", "hopper.cuh", "hopper.py", "hopper_few.cu", "hopper_few.cuh",
            "hopper_few4.cu", "hopper_few4.py", "hopper_many.cu", "hopper_many.py", "ops.py",
            "packed_formats.py",
        )
    ),
)  # fmt: skip
"""Packed products on a GPU."""
TRAINED = (
    "chop/nn/quantized",
    *(
        f"chop/nn/quantizers/{file}"
        for file in (
            "block_fp.py", "blocks.py", "exact.h", "gpu_formats.py", "integer.py", "kernels.cpp",
            "kernels.cu", "kernels.py", "minifloat.py", "minifloat_ieee.py", "mxint.py",
            "powers.py", "quantizer.py", "rounding.py", "together.py",
        )
    ),
)  # fmt: skip
"""Layers and formats of a training step through fake quantisation."""
ROUNDED = (
    "chop/passes/ptq",
    *(
        f"chop/nn/quantizers/{file}"
        for file in (
            "block_fp.py", "blocks.py", "exact.h", "gpu_formats.py", "integer.py", "kernels.cpp",
            "kernels.cu", "kernels.py", "minifloat.py", "mxfp.py", "mxint.py", "powers.py",
            "quantizer.py", "rounding.py", "scale_integer.py", "scaled_blocks.py",
        )
    ),
)  # fmt: skip
"""Post-training quantisation, and the formats of `bench/ptq`."""
SPLIT_TRAINING = (
    "chop/actions/loss_graph.py",
    "chop/actions/shard_checkpoints.py",
    "chop/actions/split_training.py",
    "chop/cli/rank_launcher.py",
    "chop/cli/split_run.py",
    "chop/distributed/gathered_layers.py",
    "chop/distributed/graph_parts.py",
    "chop/distributed/process_group.py",
    "chop/distributed/local_calls.py",
    "chop/distributed/parameter_copies.py",
    "chop/distributed/redistribution.py",
    "chop/distributed/sharded_model.py",
    "chop/distributed/split_plan.py",
    "chop/distributed/split_step.py",
    "chop/ir/expert_mixtures.py",
)
"""Training on several processes, its checkpoints and its recovery."""
DECODER = (
    "chop/hw/decode",
    "chop/hw/reference/plain_llama.py",
    "chop/hw/streams/fifo",
    "chop/nn/quantizers/arithmetic",
    *(
        f"chop/nn/quantizers/{file}"
        for file in (
            "blocks.py", "integer.py", "mxint.py", "powers.py", "quantizer.py", "rounding.py",
        )
    ),
)  # fmt: skip
"""Decode engine: RTL, models and arithmetic."""
CAPTURE = ("chop/ir/trace", "chop/ir/ops", "chop/ir/guards.py", "chop/ir/modes.py")
MEASURED: dict[str, tuple[str, ...]] = {
    "safe/rank kills": SPLIT_TRAINING,
    "area_designs": ("chop/hw",),
    "area_grid": ("chop/hw",),
    "boards": ("chop/hw",),
    "constant_digits": HARDWARE,
    "constant_weights": HARDWARE,
    "decode_cpu": ("chop/kernels", "chop/ir/graph"),
    "decode_files": ("chop/kernels", "chop/ir/graph"),
    "end_to_end_cpu": (*PACKED, "chop/nn"),
    "end_to_end_cuda": (*PACKED, "chop/nn"),
    "export": ("chop/export", "chop/nn"),
    "generate_cpu": ("chop/kernels", "chop/ir/graph", "chop/nn"),
    "generate_cuda": (*GPU_KERNELS, "chop/kernels/layers.py", "chop/ir/graph"),
    "graph": ("graph",),
    "hardware": ("chop/hw",),
    "hardware_pareto": HARDWARE,
    "hardware_transformer": HARDWARE,
    "kernels_cpu": ("chop/kernels",),
    "kernels_cpu_x86": ("chop/kernels",),
    "kernels_cuda": ("chop/kernels",),
    "kernels_cuda/linear": GPU_KERNELS,
    "mnist_tables": (*HARDWARE, "chop/nn/modules/lookup_tables.py"),
    "physical": ("chop/hw",),
    "prune_gpu": ("chop/passes/prune", "chop/passes/pack"),
    "prune_methods": ("chop/passes/prune", "chop/passes/ptq"),
    "prune_structured": ("chop/passes/prune",),
    "large": ("chop/export", "chop/nn/quantizers", "chop/passes/ptq"),
    "llm_rtl": DECODER,
    "llm_rtl/routed": (*DECODER, "chop/hw/area/inventory.py", "chop/hw/flow/route"),
    "ptq": ROUNDED,
    "ptq_formats": (
        *ROUNDED,
        "chop/export/gguf_k_types.py",
        "chop/export/gguf_types.py",
        "chop/nn/quantizers/nvfp4.py",
    ),
    "ptq_allocation": ("chop/passes/ptq", "chop/nn/quantizers"),
    "ptq_memory": ("chop/passes/ptq", "chop/nn/quantizers"),
    "ptq_rivals": (),
    "qat_step": TRAINED,
    "qat_step_gpu": TRAINED,
    "quantize_cpu": ("chop/nn/quantizers",),
    "quantize_cpu_x86": ("chop/nn/quantizers",),
    "quantize_gpu": ("chop/nn/quantizers",),
    "right/hardware": HARDWARE,
    "right/shard": ("chop/distributed",),
    "right/shard brute force": ("chop/distributed",),
    "right/shard memory": ("chop/distributed",),
    "right/transformers": CAPTURE,
    "search_engine": ("chop/search",),
    "serve": ("chop/serve", "chop/ir/graph", "chop/kernels"),
    "shard": ("chop/distributed",),
    "solver": ("chop/passes/ptq", "chop/nn/quantizers"),
    "trace": ("chop/ir",),
}
"""Result file, or "file/section" -> folders or modules of src that it measures.

Files without a row measure all of src. An empty row measures other tools only.
"""
NATIVE = (".c", ".cpp", ".cu", ".cuh", ".h", ".sv", ".svh")


def measured(name: str, section: str = "") -> tuple[str, ...]:
    """Return the folders and modules that a result file, or a section of it, measures."""
    return MEASURED.get(f"{name}/{section}", MEASURED.get(name, EVERYTHING))


def code_hash(places: Iterable[str]) -> str:
    """Return a digest of the code in folders and modules of src."""
    digest = hashlib.sha256()
    for file in (file for place in sorted(places) for file in _files(SOURCE / place)):
        if file.suffix == ".py" or file.suffix in NATIVE:
            status = file.stat()
            digest.update(_code(file, (status.st_mtime_ns, status.st_size)))
    return digest.hexdigest()[:12]


@functools.cache
def _code(file: Path, stamp: tuple[int, int]) -> bytes:
    """Return the code of a file; `stamp` changes with it."""
    if file.suffix != ".py":
        return file.read_bytes()
    words: list[str] = []
    _collect(ast.parse(file.read_text(encoding="utf-8")), words)
    return "\0".join(words).encode()


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*"))


def _collect(node: Any, words: list[str], *, in_f_string: bool = False) -> None:
    """Add the parts of a syntax tree to `words` in order, without docstrings and empty fields."""
    if isinstance(node, list):
        for each in node:
            if not _is_text(each):
                _collect(each, words, in_f_string=in_f_string)
    elif isinstance(node, ast.Constant) and node.value == "" and in_f_string:
        return  # Python 3.12 adds empty texts to f-strings
    elif isinstance(node, ast.AST):
        words.append(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if value is not None and value != []:  # newer releases of Python have more fields
                words.append(field)
                _collect(value, words, in_f_string=isinstance(node, ast.JoinedStr))
        words.append(".")
    else:
        words.append(repr(node))


def _is_text(node: Any) -> bool:
    """Return whether a statement is a docstring or another text that does nothing."""
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def is_current(name: str, record: Mapping[str, Any]) -> bool:
    """Return whether a record of the result file `name` belongs to today's code."""
    code = record.get("code", {})
    places = code.get("folders", measured(name))
    return not places or ("hash" in code and code["hash"] == _todays_hash(tuple(places)))


@functools.cache
def _todays_hash(places: tuple[str, ...]) -> str:
    return code_hash(places)


def age(name: str, record: Mapping[str, Any]) -> str:
    """Return the state of a record's code in words: today's, or the commit it was measured on."""
    if is_current(name, record):
        return "today's"
    commit = record.get("code", {}).get("commit", "")
    return f"older: {commit[:8]}" if commit else "older: commit not recorded"
