"""What llm-compressor makes of the same models, formats and tokens.

    ENV/bin/python bench/ptq/rival_llmcompressor.py --llama MODELS/llama-imdb --bert out/ptq/bert
        --data DATA/imdb [--out out/ptq/llmcompressor.jsonl]

ENV is an environment of its own with llmcompressor from PyPI; the project neither imports nor needs
it. Weights by GPTQ with its columns ordered by activation and ranges by least squared error, the
settings of its own examples.
"""

from __future__ import annotations

from typing import Any

import torch
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationScheme,
    preset_name_to_scheme,
)
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from loguru import logger
from rivals import run
from schemes import Scheme
from subjects import Batch, Subject
from torch.utils.data import DataLoader

PRESETS = {"MXFP4": "MXFP4A16", "NVFP4": "NVFP4A16"}
"""Formats of blocks -> its own name of weights alone in them."""


def gptq(subject: Subject, scheme: Scheme, seed: int) -> Any:
    """The model with llm-compressor's weights and simulated activations."""
    torch.manual_seed(seed)
    model = subject.load()
    loader = DataLoader(list(_rows(subject.calibration(seed))), batch_size=None)  # type: ignore[arg-type]
    recipe = GPTQModifier(
        config_groups={"all": _scheme(scheme)}, ignore=list(subject.head), actorder="static"
    )
    oneshot(model=model, dataset=loader, recipe=[recipe], num_calibration_samples=len(loader))
    return model.eval()


def _rows(batches: list[Batch]) -> list[Batch]:
    """Windows or reviews one by one."""
    return [
        {k: v[i : i + 1] for k, v in batch.items()}
        for batch in batches
        for i in range(len(batch["input_ids"]))
    ]


def _scheme(scheme: Scheme) -> QuantizationScheme:
    if scheme.form:
        preset = preset_name_to_scheme(PRESETS[scheme.form], ["Linear"])
        preset.weights = preset.weights.model_copy(update={"observer": "mse"})
        return preset
    weights = QuantizationArgs(
        num_bits=scheme.bits,
        strategy="group" if scheme.group else "channel",
        group_size=scheme.group or None,
        symmetric=True,
        observer="mse",
    )
    activations = QuantizationArgs(num_bits=8, strategy="token", dynamic=True, symmetric=True)
    return QuantizationScheme(
        targets=["Linear"],
        weights=weights,
        input_activations=activations if scheme.activation else None,
    )


if __name__ == "__main__":
    logger.remove()
    run("llmcompressor", {"llmcompressor": gptq}, __doc__ or "")
