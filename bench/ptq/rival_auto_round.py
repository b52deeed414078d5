"""What auto-round makes of the same models, formats and tokens.

    ENV/bin/python bench/ptq/rival_auto_round.py --llama MODELS/llama-imdb --bert out/ptq/bert
        --data DATA/imdb [--out out/ptq/auto-round.jsonl]

ENV is an environment of its own with auto-round from PyPI; the project neither imports nor needs
it. SignRound with its own number of steps and rows, in single precision (`amp=False`) and without
torch.compile; the variable AUTO_ROUND_ITERATIONS sets another number of steps.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from auto_round import AutoRound
from rivals import run
from schemes import Scheme
from subjects import Batch, Subject
from transformers import AutoTokenizer

ITERATIONS = int(os.environ.get("AUTO_ROUND_ITERATIONS", "200"))
ROWS = 8
"""Steps, and rows of a step: its own defaults."""
FORMS: dict[str, dict[str, Any]] = {
    "MXINT4": {"data_type": "mx_int"},
    "MXFP4": {"data_type": "mx_fp"},
    "NVFP4": {"data_type": "nv_fp"},
    "Q4_K": {
        "data_type": "int_asym_dq",
        "sym": False,
        "super_bits": 6,
        "super_group_size": 8,
    },
}
"""Formats of blocks -> its own settings."""


def sign_round(subject: Subject, scheme: Scheme, seed: int) -> Any:
    """The model with auto-round's weights and simulated activations."""
    model = subject.load()
    batches = subject.calibration(seed)
    rows = sum(len(b["input_ids"]) for b in batches)
    quantiser = AutoRound(
        model,
        AutoTokenizer.from_pretrained(subject.folder),
        bits=scheme.bits,
        group_size=scheme.group or -1,
        **{"sym": True, **FORMS.get(scheme.form, {})},
        act_bits=scheme.activation or 16,
        act_group_size=-1,
        act_dynamic=True,
        iters=ITERATIONS,
        nsamples=rows,
        seqlen=batches[0]["input_ids"].shape[1],
        batch_size=ROWS,
        enable_torch_compile=False,
        dataset=_by_eight(batches),
        seed=42,
        amp=False,
        device_map=subject.device,
    )
    found, _ = quantiser.quantize()
    return found.to(subject.device, torch.float32).eval()


def _by_eight(batches: list[Batch]) -> list[Batch]:
    """Calibration data as auto-round takes it: batches of no more rows than it trains on."""
    whole = {k: torch.cat([b[k] for b in batches]) for k in batches[0]}
    count = len(whole["input_ids"])
    return [{k: v[i : i + ROWS] for k, v in whole.items()} for i in range(0, count, ROWS)]


if __name__ == "__main__":
    run("auto-round", {"auto-round": sign_round}, __doc__ or "")
