"""Kernels: torch.compile, fused attention and packed weights, measured before and after.

python docs/tutorials/torch_compile.py [--model MODELS/bert-tiny]
"""

from __future__ import annotations

import copy

import torch
from introduction import build, example
from lesson import Setting, start, table
from matplotlib.figure import Figure

import chop.passes as passes
from chop import MaseGraph
from chop.actions.latency import latency_figure, latency_table, measure_latency
from chop.kernels import dequantize_mxint8, pack, unpack
from chop.nn.quantizers import MXInt


def capture(setting: Setting) -> MaseGraph:
    """BERT with its attention written out: matmul, softmax, matmul."""
    model = build(setting)
    model.set_attn_implementation("eager")
    return MaseGraph(model, hf_input_names=["input_ids", "attention_mask"])


def fuse(mg: MaseGraph) -> tuple[MaseGraph, list]:
    fused, info = passes.fuse_attention_transform_pass(copy.deepcopy(mg))
    return fused, [[site["site"], site["fused"]] for site in info["sites"]]


def compare(mg: MaseGraph, fused: MaseGraph, setting: Setting):
    backend = "inductor" if setting.is_full else "eager"
    return measure_latency(
        {"as written": mg, "fused attention": fused, "torch.compile": fused},
        dict(example(setting)),
        iterations=(5, 50, 200) if setting.is_full else (5, 20),
        prepare={"torch.compile": lambda model: torch.compile(model, backend=backend)},
    )


def memory(mg: MaseGraph, embeddings: bool) -> dict:
    _, info = passes.pack_weights_transform_pass(
        copy.deepcopy(mg), {"format": "mxint8", "embeddings": embeddings}
    )
    return info


def bytes_by_kind(info: dict, when: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in info["modules"]:
        kind = "Linear" if "Linear" in record["kind"] else record["kind"]
        found[kind] = found.get(kind, 0) + record[when]
    return found


def draw_memory(infos: dict[str, dict], setting: Setting) -> None:
    """Where the bytes are, before and after."""
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    bars = {"float": bytes_by_kind(next(iter(infos.values())), "before")}
    bars |= {name: bytes_by_kind(info, "after") for name, info in infos.items()}
    kinds = list(dict.fromkeys(kind for bar in bars.values() for kind in bar))
    for place, bar in enumerate(bars.values()):
        left = 0.0
        for number, kind in enumerate(kinds):
            width = bar.get(kind, 0) / 1e6
            label = kind if place == 0 else None
            axes.barh(place, width, left=left, color=f"C{number}", label=label)
            left += width
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set(xlabel="megabytes", title="Embeddings are most of a small BERT")
    axes.legend()
    figure.savefig(setting.out / "memory.svg", metadata={"Date": None})


def one_conversion() -> str:
    """MXINT8 to bfloat16 by its bits, beside the value the format says."""
    codes = torch.tensor([[0b0110_0000, 0b0011_0000, -96]], dtype=torch.int8)
    exponent = torch.tensor([[127]], dtype=torch.uint8)  # 2^0
    found = dequantize_mxint8(codes, exponent, 16)[0]
    return table(
        [
            [c, f"{c / 64:g}", f"{v:g}"]
            for c, v in zip(codes[0].tolist(), found.tolist(), strict=True)
        ],
        ["code", "code / 64 · 2^0", "bfloat16"],
    )


def main(setting: Setting) -> None:
    """Fuse, compile, pack."""
    mg = capture(setting)
    fused, sites = fuse(mg)
    setting.show("fused", table(sites, ["softmax", "fused"]))
    given = example(setting)
    with torch.no_grad():
        difference = (mg.model(**given).logits - fused.model(**given).logits).abs().max()
    assert difference < 1e-5

    _, info = passes.compile_transform_pass(copy.deepcopy(fused), {"backend": "eager"})
    setting.show("breaks", f"graph breaks: {info['breaks']}")
    records = compare(mg, fused, setting)
    setting.show("latency", latency_table(records))
    latency_figure(records, setting.out / "latency.svg")

    setting.show("conversion", one_conversion())
    weight = torch.randn(128, 512)
    packed = pack(weight, "mxint8", group_size=32)
    assert torch.equal(unpack(packed), MXInt(8, block_size=32).quantize(weight))
    infos = {
        "linear layers alone": memory(mg, embeddings=False),
        "embeddings too": memory(mg, embeddings=True),
    }
    rows = [[name, info["ratio"]] for name, info in infos.items()]
    setting.show("memory", table(rows, ["packed to MXINT8", "bytes, of float"]))
    draw_memory(infos, setting)


if __name__ == "__main__":
    start(main, "torch_compile", __doc__)
