"""Peak memory of `mase quantize --model-free` on shards shaped as an 8 B model.

python bench/large.py [--layers 2] [--formats nvfp4 mxfp4 mxint4 fp8_block] [--folder FOLDER]

The shards are made here, with random weights in bfloat16: a model of 32 layers is 16 GB. The
memory depends on the largest tensor, not on the number of layers. Each format runs in a process of
its own, and its peak is compared with the prediction and with the bound: two tensors of the largest
size and 1 GiB. The results go to bench/results/large.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring.checked import once
from measuring.record import save
from safetensors.torch import save_file
from tabulate import tabulate

HIDDEN, INNER, KEYS, VOCABULARY = 4096, 14336, 1024, 128256
LAYER = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
"""Matrices of a layer of Llama 3 8 B."""
LARGEST = 2 * VOCABULARY * HIDDEN
GIB = 1 << 30
LIMITS = {"peak_over_prediction": 1.1, "peak_over_bound": 1.0}


def matrix(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random matrix; rows repeat with another scale, to be made fast."""
    rows_made = torch.randn(min(rows, 512), columns, generator=generator).bfloat16()
    return rows_made.repeat(-(-rows // len(rows_made)), 1)[:rows].mul_(0.02).contiguous()


def make_shards(folder: Path, layers: int) -> None:
    """Write one shard for the table, one for the head and one for each layer."""
    generator = torch.Generator().manual_seed(0)
    names = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(layers)), "lm_head"]
    places: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        shapes = {f"{name}.{k}": v for k, v in LAYER.items()} if ".layers." in name else {}
        shapes = shapes or {name: (VOCABULARY, HIDDEN)}
        file = f"model-{number:05}-of-{len(names):05}.safetensors"
        tensors = {f"{k}.weight": matrix(*v, generator) for k, v in shapes.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"}))


def is_smaller(record: dict[str, Any]) -> bool:
    """Return whether the job wrote a smaller folder."""
    return 0 < record["bytes_after"] < record["bytes_before"]


def measure(source: Path, form: str, out: Path) -> dict[str, Any]:
    """Return seconds and memory of one format, in a process of its own."""
    words = ["quantize", str(source), "--model-free", "--format", form, "--out", str(out)]

    def job() -> dict[str, Any]:
        subprocess.run(
            [sys.executable, "-m", "mase", *words], check=True, stdout=subprocess.DEVNULL
        )
        return dict(json.loads((out / "result.json").read_text()))

    record, seconds, _ = once(form, job, is_smaller)
    shutil.rmtree(out)
    bound = 2 * LARGEST + GIB
    return {
        "format": form,
        "seconds": seconds,
        "GB_per_second": record["bytes_before"] / seconds / 1e9,
        "peak_GiB": record["peak_bytes"] / GIB,
        "predicted_GiB": record["predicted_peak_bytes"] / GIB,
        "peak_over_prediction": record["peak_bytes"] / record["predicted_peak_bytes"],
        "peak_over_bound": record["peak_bytes"] / bound,
        "ratio": record["bytes_after"] / record["bytes_before"],
    }


def main() -> None:
    """Make the shards, measure, print, and write bench/results/large.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--formats", nargs="+", default=["nvfp4", "mxfp4", "mxint4", "fp8_block"])
    parser.add_argument("--folder", type=Path, help="for the shards; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        source = Path(place, "source")
        source.mkdir()
        make_shards(source, args.layers)
        rows = [measure(source, form, Path(place, "out")) for form in args.formats]
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    print(save("large", {"limits": LIMITS, "layers": args.layers, "rows": rows}))


if __name__ == "__main__":
    main()
