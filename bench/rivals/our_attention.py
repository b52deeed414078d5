"""The attention of the ViT's first layer as MASE has it: its integers, its design, its cells."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hardware_transformer
import numpy as np
import torch
from measuring.record import save_section
from torch import Tensor, nn

from chop.hw.flow.synth import synthesize
from chop.hw.lower import Parallelism, lower
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator
from chop.hw.timing.cycles import interval
from chop.ir.ops import node_module
from chop.passes.rewrite.node_formats import node_quantizers

OPS = ("linear", "softmax", "matmul")
WHOLE = -99
"""In the place of places: the result is not rounded."""
LANES = (1, 2, 4)
"""Foldings of our design."""


class Layer(nn.Module):
    """Attention and its projections, without norm and residual."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer.out(self.layer._attention(x))
        return y


class Attention:
    """The quantised graph of the attention that `hardware_transformer.py` has trained."""

    def __init__(self, trained: Path) -> None:
        _, data, _ = hardware_transformer.trained_vit(trained)
        model = hardware_transformer.DigitsVit()
        kept = torch.load(trained / "vit.pt")["float"]
        model.load_state_dict(kept)
        first = model.eval().layers[0]
        with torch.no_grad():
            patches = model.patches(data.train_images[:128]).flatten(2).transpose(1, 2)
            self.rows = first.norm1(patches + model.positions)
        widths: dict[str, dict[str, int]] = {op: {} for op in OPS}
        self.graph = hardware_transformer.quantized_graph(Layer(first), (self.rows,), widths)

    def write(self, file: Path) -> None:
        """The integers' values of each projection, and the places after the point of all."""
        told: dict[str, Any] = {}
        products = iter((("scores", "query", "key"), ("values", "weights", "value")))
        for node in self.graph.fx_graph.nodes:
            op = node.meta["mase"].common.mase_op
            if op == "linear":
                layer, name = node_module(node), str(node.target).rpartition(".")[2]
                formats = layer.quantizers
                told[f"{name}_weight"] = formats["weight"](layer.weight).detach().numpy()
                told[f"{name}_bias"] = formats["bias"](layer.bias).detach().numpy()
                told[f"{name}_in"] = formats["data_in"].frac_width
                told.setdefault(f"{name}_out", getattr(formats["data_out"], "frac_width", WHOLE))
            elif op == "matmul":
                told |= _places(node, next(products))
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **told)
        print(file, {k: v for k, v in told.items() if np.ndim(v) == 0})

    def count(self, folder: Path, copies: dict[str, int]) -> None:
        """Cells of the rival's parts and of our design, folded in several ways."""
        parts = {}
        for name, number in copies.items():
            area = synthesize(folder / name)
            parts[name] = {"copies": number, "lut": area.lut, "ff": area.ff, "dsp": area.dsp}
            print(name, parts[name], flush=True)
        whole = {k: sum(p["copies"] * p[k] for p in parts.values()) for k in ("lut", "ff", "dsp")}
        ours = [self._folded(lanes) for lanes in LANES]
        result = {"alkaid": {"interval": 1, **whole, "parts": parts}, "mase": ours}
        print(save_section("hardware_transformer", "rival_attention", result))

    def _folded(self, lanes: int) -> dict[str, Any]:
        lowered = lower(self.graph, Parallelism(lanes))
        with tempfile.TemporaryDirectory() as scratch:
            emit(lowered.design, Path(scratch))
            codes = lowered.encode(self.rows[:4])
            Simulator(lowered.design, Path(scratch)).run(codes).require_exact()
            area = synthesize(Path(scratch))
        kinds = {kind: getattr(area, kind) for kind in ("lut", "ff", "dsp", "bram")}
        told = {"lanes": lanes, "interval": interval(lowered.design), **kinds}
        print(told, flush=True)
        return told


def _places(node: Any, names: tuple[str, str, str]) -> dict[str, int]:
    """The places after the point of a product's result, and of its operands, which round what the
    projections give."""
    quantizers = node_quantizers(node)
    assert quantizers is not None, "the products are quantised"
    result, *operands = names
    told = {f"{result}_out": int(quantizers["data_out"].frac_width)}
    roles = [role for role in quantizers if role != "data_out"]
    for role, name in zip(roles, operands, strict=True):
        told[f"{name}_out"] = int(quantizers[role].frac_width)
    return told
