"""Peak memory and time of `mase quantize` on folders shaped as an 8 B model.

python bench/large.py [--layers 2] [--shapes 8b] [--formats nvfp4 mxfp4 mxint4 fp8_block]
                      [--gptq published] [--calibration-rows 16] [--tokens 512]
                      [--limit 8] [--folder FOLDER]

The shards are made here, with random weights in bfloat16, in the folder for temporary files (TMPDIR
names another disk) or in `--folder`: there, the same command resumes behind the last finished row,
and GPTQ in the decoder layer that it was in. Each job runs in a process of its own. There are two
sections:

- `--model-free`, one row for each format. The memory depends on the largest tensor, not on the
  number of layers. Its bound is two tensors of the largest size and 1 GiB.
- `--method gptq --max-memory`, one row for each setting of `--gptq` (hours each at 8 B). `float`
  compares with the float model and weighs rows by the loss, `equal` weighs rows equally, `rounded`
  also compares with the rounded layers before, `published` is GPTQ as published. The activations
  and the sums over the inputs are in files. The bound is two decoder layers, the activations and
  1 GiB. `--layers 4` stands for the first and last two layers of a model.

`--limit` is a limit in GiB: the option --max-memory, and the data segment of the process (as
`ulimit -d`), beyond which an allocation fails. The results go to bench/results/large.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring.checked import once
from measuring.record import save
from safetensors.torch import save_file
from tabulate import tabulate

from chop.files import write_whole

GIB = 1 << 30
LIMITS = {"peak_over_prediction": 1.1, "peak_over_bound": 1.0}
NO_LIMIT = "1000GB"
GPTQ = {
    "float": {},
    "equal": {"rows": "equal"},
    "rounded": {"rows": "equal", "target": "rounded"},
    "published": {"rows": "equal", "target": "rounded", "rounds": 0, "order": "importance"},
}
"""Settings of GPTQ, from the most memory to the least."""


@dataclass(frozen=True)
class Shapes:
    """Sizes of a Llama."""

    hidden: int
    inner: int
    keys: int
    vocabulary: int
    heads: int

    @property
    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Weights of a decoder layer."""
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (self.keys, self.hidden),
            "self_attn.v_proj": (self.keys, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.inner, self.hidden),
            "mlp.up_proj": (self.inner, self.hidden),
            "mlp.down_proj": (self.hidden, self.inner),
            "input_layernorm": (self.hidden,),
            "post_attention_layernorm": (self.hidden,),
        }

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest tensor, in bfloat16."""
        return 2 * self.vocabulary * self.hidden

    @property
    def layer_bytes(self) -> int:
        """Bytes of a decoder layer, in float32."""
        return sum(4 * torch.Size(shape).numel() for shape in self.matrices.values())

    def config(self, layers: int) -> dict[str, Any]:
        """Return the content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            "num_hidden_layers": layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.keys * self.heads // self.hidden,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
        }


SHAPES = {
    "8b": Shapes(4096, 14336, 1024, 128256, 32),
    "1b": Shapes(2048, 8192, 512, 128256, 32),
    "small": Shapes(256, 896, 64, 2048, 8),
}
"""Shapes of Llama 3 8 B, of Llama 3.2 1 B, and small ones to try the program."""


def matrix(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random matrix; rows repeat with another scale, to be made fast."""
    rows_made = torch.randn(min(rows, 512), columns, generator=generator).bfloat16()
    return rows_made.repeat(-(-rows // len(rows_made)), 1)[:rows].mul_(0.02).contiguous()


def make_shards(folder: Path, shapes: Shapes, layers: int) -> None:
    """Write one shard for the table, one for the head and norm, and one for each layer."""
    generator = torch.Generator().manual_seed(0)
    table = (shapes.vocabulary, shapes.hidden)
    parts: list[dict[str, tuple[int, ...]]] = [{"model.embed_tokens": table}]
    for i in range(layers):
        parts.append({f"model.layers.{i}.{k}": v for k, v in shapes.matrices.items()})
    parts.append({"lm_head": table, "model.norm": (shapes.hidden,)})
    places: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = {
            f"{name}.weight": matrix(*shape, generator)
            if len(shape) == 2
            else torch.ones(shape, dtype=torch.bfloat16)
            for name, shape in part.items()
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(shapes.config(layers)))


def make_tokens(folder: Path, shapes: Shapes, count: int) -> None:
    """Write random tokens as a dataset."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name in ("train", "test"):
        np.savez(folder / f"{name}.npz", ids=draw.integers(0, shapes.vocabulary, count))


def is_smaller(record: dict[str, Any]) -> bool:
    """Return whether the job wrote a smaller folder."""
    return 0 < record["bytes_after"] < record["bytes_before"]


def run_job(
    name: str, words: list[str], out: Path, limit: float | None = None
) -> tuple[dict[str, Any], float]:
    """Return the record and the seconds of a job, in a process of its own."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (int(limit * GIB),) * 2)

    def job() -> dict[str, Any]:
        command = [sys.executable, "-m", "mase", "quantize", *words, "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=limited)
        return dict(json.loads((out / "result.json").read_text()))

    record, seconds, _ = once(name, job, is_smaller)
    shutil.rmtree(out)
    return record, seconds


def figures(record: dict[str, Any], seconds: float, bound: int) -> dict[str, Any]:
    """Return the figures that both sections have."""
    return {
        "seconds": seconds,
        "peak_GiB": record["peak_bytes"] / GIB,
        "predicted_GiB": record["predicted_peak_bytes"] / GIB,
        "peak_over_prediction": record["peak_bytes"] / record["predicted_peak_bytes"],
        "peak_over_bound": record["peak_bytes"] / bound,
        "ratio": record["bytes_after"] / record["bytes_before"],
    }


def measure_format(source: Path, form: str, shapes: Shapes, out: Path) -> dict[str, Any]:
    """Return seconds and memory of rounding to the nearest value, without the model."""
    record, seconds = run_job(form, [str(source), "--model-free", "--format", form], out)
    row = figures(record, seconds, 2 * shapes.largest_bytes + GIB)
    return {"format": form, **row, "GB_per_second": record["bytes_before"] / seconds / 1e9}


def measure_gptq(source: Path, name: str, args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Return seconds and memory of GPTQ, one decoder layer at a time."""
    shapes, tokens = SHAPES[args.shapes], args.calibration_rows * args.tokens
    data, spill = out.with_name("tokens"), out.with_name("spill")
    limit = NO_LIMIT if args.limit is None else f"{args.limit}GiB"
    if not data.exists():
        make_tokens(data, shapes, 2 * tokens + args.tokens)
    words = [str(source), "--bits", "4", "--method", "gptq", "--dataset", str(data)]
    words += ["--max-memory", limit, "--spill", str(spill), "--eval-batch-size", "1"]
    words += ["--calibration-rows", str(args.calibration_rows)]
    words += ["--max-token-len", str(args.tokens)]
    for key, value in GPTQ[name].items():
        words += ["--set", f"options.gptq.{key}={value}"]
    record, seconds = run_job(name, words, out, args.limit)
    activations = 4 * tokens * shapes.hidden
    row = figures(record, seconds, 2 * shapes.layer_bytes + activations + GIB)
    own = {"limit_GiB": args.limit, "layers_resumed": record["layers_resumed"]}
    return {"gptq": name, **row, "seconds_per_layer": max(record["layer_seconds"]), **own}


def finished_row(file: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the row in `file`; measure it if an earlier run has not."""
    if not file.is_file():
        write_whole(file, json.dumps(measure()))
    return dict(json.loads(file.read_text()))


def measure_all(place: Path, args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Return the rows of both sections, from files and shards in `place`."""
    shapes = SHAPES[args.shapes]
    sizes = f"{args.shapes}-{args.layers}-{args.calibration_rows}x{args.tokens}-{args.limit}"
    folder = place / sizes
    source, out = folder / "source", folder / "out"
    if not (source / "config.json").is_file():
        source.mkdir(parents=True, exist_ok=True)
        make_shards(source, shapes, args.layers)
    rows = [
        finished_row(folder / f"{form}.json", partial(measure_format, source, form, shapes, out))
        for form in args.formats
    ]
    layered = [
        finished_row(folder / f"gptq-{name}.json", partial(measure_gptq, source, name, args, out))
        for name in args.gptq
    ]
    return rows, layered


def main() -> None:
    """Make the shards, measure, print, and write bench/results/large.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--shapes", choices=SHAPES, default="8b")
    parser.add_argument("--formats", nargs="*", default=["nvfp4", "mxfp4", "mxint4", "fp8_block"])
    parser.add_argument("--gptq", nargs="*", choices=GPTQ, default=[])
    parser.add_argument("--calibration-rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512, help="in each calibration row")
    parser.add_argument("--limit", type=float, help="memory of a job with GPTQ, in GiB")
    parser.add_argument("--folder", type=Path, help="for shards and finished rows, kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows, layered = measure_all(args.folder or Path(scratch), args)
    for table in (rows, layered):
        print(tabulate(table, headers="keys", floatfmt=".3f"))
    sizes = {"layers": args.layers, "shapes": args.shapes}
    print(save("large", {"limits": LIMITS, **sizes, "rows": rows, "gptq": layered}))


if __name__ == "__main__":
    main()
