"""Loading of weights with the interface of DeepWok/mase: `load_model`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph

LOAD_TYPES = ("mz", "pt", "pl")
LIGHTNING_PREFIX = "model."


def load_model(load_name: str | Path, load_type: str = "mz", model: nn.Module | None = None) -> Any:
    """Return the model of a MaseGraph checkpoint ("mz"), or `model` with weights from a file.

    "pt" is a state dict of torch, "pl" a checkpoint of Lightning. Only tensors and plain values
    are read from either.
    """
    if load_type not in LOAD_TYPES:
        raise CheckpointError(
            f"load_model: unknown load_type '{load_type}'. Allowed: {', '.join(LOAD_TYPES)}."
        )
    if load_type == "mz":
        return MaseGraph.from_checkpoint(load_name).model
    if model is None:
        raise CheckpointError(f"load_model: load_type '{load_type}' needs a model to load into.")
    try:
        stored = torch.load(load_name, map_location="cpu", weights_only=True)
        weights = stored.get("state_dict", stored)
        if load_type == "pl":
            weights = {k.removeprefix(LIGHTNING_PREFIX): v for k, v in weights.items()}
            weights = {k: v for k, v in weights.items() if k in model.state_dict()}
        model.load_state_dict(weights)
    except (OSError, RuntimeError, AttributeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"load_model: '{load_name}' does not fit: {error}") from error
    return model
