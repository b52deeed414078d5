"""Write the README's support matrix: which target holds a weight format exactly.

    python docs/make_support.py

Each cell is tried: a small model is quantised, then packed, exported or lowered to RTL. To add a
format, add a row to `FORMATS`; to add a target, add a function to `TARGETS`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ExportError, HardwareError
from chop.export import to_compressed_tensors, to_gguf, to_huggingface, to_onnx
from chop.hw.lower import DesignSpec, lower
from chop.kernels import pack
from chop.nn.quantizers import make_quantizer

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- support: begin -->", "<!-- support: end -->"
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed point (`fixed8.4`)": ("integer", {"width": 8, "frac_width": 4}),
    "MXINT8": ("mxint", {"width": 8, "block_size": 32}),
    "MXINT4": ("mxint", {"width": 4, "block_size": 32}),
    "MXFP8 (E4M3)": ("mxfp", {"element": "e4m3", "block_size": 32}),
    "MXFP4 (E2M1)": ("mxfp", {"element": "e2m1", "block_size": 32}),
    "FP8 (E4M3)": ("fp8", {"element": "e4m3"}),
    "block floating point, 8 bits": ("block_fp", {"width": 8, "block_size": 32}),
    "minifloat, 8 bits": ("minifloat_ieee", {"width": 8, "exponent_width": 4}),
    "logarithmic, 8 bits": ("log", {"width": 8}),
    "ternary": ("ternary", {}),
    "binary": ("binary", {}),
}
"""Row of the matrix -> name of the format and its settings."""


def llama(name: str, settings: dict[str, Any]) -> MaseGraph:
    """Return a small Llama whose linear weights are in the format."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "bos_token_id": 0}
    config = transformers.LlamaConfig(**sizes, **heads, eos_token_id=0)
    model = transformers.LlamaForCausalLM(config).eval()
    graph = MaseGraph(model, dummy_in={"input_ids": torch.arange(16).reshape(2, 8)})
    weights = {f"weight_{key}": value for key, value in settings.items()}
    rule = {"name": name, **weights, "data_in_name": "NA", "bias_name": "NA"}
    passes.quantize_transform_pass(graph, {"linear": {"config": rule}})
    return graph


def trains(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Compute a gradient through the rounded layer."""
    graph = llama(name, settings)
    graph.model.train()
    graph.model(torch.arange(16).reshape(2, 8)).logits.square().sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in graph.model.parameters())


def packs(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Pack a weight into the bytes that the kernels read."""
    layout = make_quantizer(name, settings, name).packed_layout
    if layout is None:
        raise ExportError(f"{name}: no packed layout")
    pack(torch.randn(64, 64), layout.name)


def gguf(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Write a GGUF file."""
    to_gguf(llama(name, settings), folder / "model.gguf", "F16")


def onnx(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Write an ONNX file."""
    to_onnx(llama(name, settings), folder / "model.onnx")


def compressed(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Write a compressed-tensors folder."""
    to_compressed_tensors(llama(name, settings), folder / "compressed")


def hugging_face(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Write a transformers folder that needs this package to load."""
    to_huggingface(llama(name, settings), folder / "hf")


def rtl(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Lower a linear layer to a hardware design."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    graph = MaseGraph(layers, dummy_in=torch.randn(2, 32))
    passes.init_metadata_analysis_pass(graph)
    passes.add_common_metadata_analysis_pass(graph)
    roles = ("data_in", "weight", "bias")
    rule = {f"{role}_{key}": value for role in roles for key, value in settings.items()}
    last = {f"{role}_width": 8 for role in roles} | {f"{role}_frac_width": 4 for role in roles}
    rules = {"0": {"config": {"name": name, **rule}}, "2": {"config": {"name": "integer", **last}}}
    passes.quantize_transform_pass(graph, {"by": "name", **rules})
    port = next(iter(graph.fx_graph.nodes)).meta["mase"]["common"]["results"]["data_out_0"]
    port["type"], port["precision"] = "fixed", [12, 8]  # only the caller knows the input's range
    lower(graph, DesignSpec(2))


REFUSALS = (ExportError, HardwareError)
TARGETS: dict[str, Callable[[str, dict[str, Any], Path], None]] = {
    "train": trains,
    "packed kernels (CPU, NVIDIA)": packs,
    "llama.cpp (GGUF)": gguf,
    "onnxruntime (ONNX)": onnx,
    "vLLM (compressed-tensors)": compressed,
    "transformers": hugging_face,
    "RTL": rtl,
}
"""Column of the matrix -> the attempt. A target that lacks the format raises one of `REFUSALS`."""


def is_supported(target: str, row: str) -> bool:
    """Return whether the target holds the format of a row exactly."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            TARGETS[target](*FORMATS[row], Path(folder))
    except REFUSALS:
        return False
    return True


def matrix() -> str:
    """Return the matrix as Markdown."""
    lines = [f"| weights in | {' | '.join(TARGETS)} |", f"|---|{'---|' * len(TARGETS)}"]
    for row in FORMATS:
        cells = ["yes" if is_supported(target, row) else "–" for target in TARGETS]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def readme(text: str, table: str) -> str:
    """Return the README with `table` between its marks."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table}{END}{after}"


if __name__ == "__main__":
    README.write_text(readme(README.read_text(encoding="utf-8"), matrix()), encoding="utf-8")
