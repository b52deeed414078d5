"""Language models that generate: tokens, perplexity, caches, and the time of a token.

    python bench/generate.py tokens cache --model MODELS/llama-imdb --data DATA/imdb/lm
    python bench/generate.py decode --device cuda               # a Llama with the shapes of 8 B

Sections, each a function in `bench/generation/` that gives records:
tokens  greedy tokens of llama-imdb after every step that should not change them, and perplexity
cache   the same model with its cache in other number formats: capacity, agreement, perplexity
decode  the time of one token of a Llama with random weights, batch 1, static cache: bfloat16 and
        packed weights, eager and compiled (on a GPU as CUDA graphs), and ratios to bfloat16
batches tokens per second of that Llama, compiled, at batch 1, 8 and 32
rounded the same where layers round what they read to MXINT8, with and without the norms' help

To add a section, add a module there and a row to SECTIONS. Results go to
bench/results/generate_<device>.json, by section.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/graph.py must not stand for the package `graph`

import argparse
import importlib
from pathlib import Path
from typing import Any

import torch
import transformers
from measuring.record import save_section

sys.path.append(str(Path(__file__).parent / "generation"))
SECTIONS = {
    "tokens": "tokens",
    "cache": "caches",
    "decode": "decode",
    "batches": "batches",
    "rounded": "rounded",
}
"""Sections, and the module of each: its `measure(options)` gives records."""
FORMATS = ("bfloat16", "mxint8", "mxint4", "mxfp8", "mxfp4")
"""Of weights; each as it is and fused."""


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[*SECTIONS])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", help="folder of llama-imdb")
    parser.add_argument("--data", help="folder with calibration.npz and held.npz")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--new", type=int, default=80, help="tokens for each prompt")
    parser.add_argument(
        "--shape", choices=("8b", "1b", "tiny"), default="8b", help="of decode and batches"
    )
    formats = [name + how for name in FORMATS for how in ("", "+fused")]
    parser.add_argument("--formats", default=",".join(formats), help="of decode")
    return parser.parse_args()


def show(record: dict[str, Any]) -> None:
    """Print a record on one line."""
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}, flush=True)


def main() -> None:
    """Measure the sections asked for."""
    transformers.logging.set_verbosity_error()
    asked = options()
    torch.manual_seed(0)
    for section in asked.sections:
        records: list[dict[str, Any]] = []
        for record in importlib.import_module(SECTIONS[section]).measure(asked):
            show(record)
            records.append(record)
            file = save_section(f"generate_{asked.device}", section, records)
        print(file)


if __name__ == "__main__":
    main()
