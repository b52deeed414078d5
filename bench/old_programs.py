"""How much of what was written for DeepWok/mase runs: section "old_programs" of safe.json.

python bench/old_programs.py [--configs FOLDER]

The programs are those of tests/compat/old_programs, which call what its tutorials and labs call.
FOLDER holds its TOML files (`configs` of a clone): each with quantise settings is loaded, applied
to the first of a few small models whose names fit, and the model run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring.record import provenance, read_section, save_section
from torch import nn
from transformers import AutoModelForSequenceClassification, LlamaConfig

from chop import MaseGraph
from chop.compat.old_configs import BY_CLASS
from chop.compat.old_models import VGG7, Blocks
from chop.errors import ChopError
from chop.models import get_model
from chop.passes import quantize_transform_pass

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "compat" / "old_programs"
ABOUT = "programs of ours that call what its tutorials and labs call; the tables of its TOML files"


class Chain(nn.Module):
    """Linear layers that are called `linear1` …, as a hand-written model calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2, self.linear3 = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear3(self.linear2(self.linear1(x)))


class TwoStages(nn.Module):
    """Layers at the places where the binary residual network has them."""

    def __init__(self) -> None:
        super().__init__()
        places = (0, 2, 5, 7, 10, 12)
        first = (nn.Linear(4, 4) if n in places else nn.ReLU() for n in range(13))
        second = (nn.ReLU() if n % 2 else nn.Linear(4, 4) for n in range(5))
        self.seq_blocks, self.seq_blocks_1 = nn.Sequential(*first), nn.Sequential(*second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seq_blocks_1(self.seq_blocks(x))


def jets() -> nn.Module:
    return Blocks(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU())


def llama() -> nn.Module:
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "pad_token_id": 0}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model: nn.Module = AutoModelForSequenceClassification.from_config(LlamaConfig(**sizes, **heads))
    return model


MODELS: tuple[tuple[Callable[[], nn.Module], tuple[int, ...] | None], ...] = (
    (lambda: get_model("toy", width=8), (2, 4)),
    (lambda: VGG7(width=4), (2, 3, 32, 32)),
    (Chain, (2, 4)),
    (TwoStages, (2, 4)),
    (jets, (2, 16)),
    (llama, None),
    (lambda: get_model("tiny_bert"), None),
)
"""Builders and the shape of an input; Hugging Face models make their own."""


RUNS_WITH = {
    "tutorial_3_qat": "tutorial_4_pruning",
    "tutorial_5_nas": "tutorial_6_mixed_precision",
}
"""A program whose files another reads runs in the test of the other."""


def programs_that_run() -> set[str]:
    """The programs that run to their end."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-rA",
        "tests/compat/test_old_programs.py",
    ]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    passed = set(re.findall(r"^PASSED .*\[(\w+)\]$", said, re.MULTILINE))
    return passed | {name for name, test in RUNS_WITH.items() if test in passed}


def quantise_settings(file: Path) -> dict[str, Any] | None:
    """The tables of a file that says how to quantise, None of any other."""
    tables = tomllib.loads(file.read_text())
    if "quantize" in tables.get("passes", {}) or any(key in tables for key in BY_CLASS):
        return tables
    rules = [value for value in tables.values() if isinstance(value, dict)]
    is_loose = rules and all(
        "name" in rule or "self_attn" in rule or "attention" in rule for rule in rules
    )
    return tables if is_loose else None


def loads(tables: dict[str, Any]) -> bool:
    """Whether some model takes the settings, has layers changed by them, and still runs."""
    for make, shape in MODELS:
        inputs = None if shape is None else {"x": torch.randn(shape)}
        graph = MaseGraph(make().eval(), dummy_in=inputs)
        try:
            graph, info = quantize_transform_pass(graph, tables)
        except ChopError:
            continue
        output = graph.model(**(graph.dummy_in or {}))
        if info["quantized"] and getattr(output, "logits", output).isfinite().all():
            return True
    return False


def main() -> None:
    """Count, print and write down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs", type=Path)
    given = parser.parse_args()
    counts: dict[str, Any] = {}
    done = programs_that_run()
    for kind in ("tutorial", "lab"):
        programs = {file.stem for file in PROGRAMS.glob(f"{kind}_*.py")}
        counts |= {f"{kind}s": len(programs), f"{kind}s_run": len(programs & done)}
    if given.configs is not None:
        files = sorted(given.configs.rglob("*.toml"))
        settings = {str(f): quantise_settings(f) for f in files}
        tables = {name: table for name, table in settings.items() if table is not None}
        loaded = {name: loads(table) for name, table in tables.items()}
        counts |= {"quantise_tomls": len(tables), "quantise_tomls_loaded": sum(loaded.values())}
        counts["quantise_tomls_counted"] = provenance("safe")["date"]
        print(*(name for name, is_loaded in loaded.items() if not is_loaded), sep="\n")
    print(counts)
    if given.configs is not None:  # the folder of this machine means nothing elsewhere
        sys.argv = ["FOLDER" if word == str(given.configs) else word for word in sys.argv]
    before = read_section("safe", "old_programs")
    kept = {name: count for name, count in before.items() if name.startswith("quantise_tomls")}
    print(save_section("safe", "old_programs", {**kept, **counts, "about": ABOUT}))


if __name__ == "__main__":
    main()
