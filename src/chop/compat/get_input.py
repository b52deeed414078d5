"""Inputs for a model from a data module, as programs for DeepWok/mase ask for them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from chop.dataset.data_module import LABELS, MaseDataModule
from chop.errors import DataError

Loader = Literal["train", "val", "test"]
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", LABELS)


class InputGenerator:
    """The inputs of a model, batch by batch, as mappings from name to tensor.

    `which_dataloader` is "train", "val" or "test"; `max_batches` stops after so many. An input
    that is alone is called `x`, as a plain model's forward calls it; `model_info` and `task` are
    as programs give them.
    """

    def __init__(
        self,
        data_module: MaseDataModule | None = None,
        model_info: Any = None,
        task: str = "cls",
        which_dataloader: Loader = "train",
        max_batches: int | None = None,
        *,
        datamodule: MaseDataModule | None = None,
    ) -> None:
        module = data_module or datamodule
        if module is None:
            raise DataError("InputGenerator: data_module is missing.")
        loaders = ("train", "val", "test")
        if which_dataloader not in loaders:
            raise DataError(
                f"InputGenerator: unknown which_dataloader '{which_dataloader}'. "
                f"Allowed: {', '.join(loaders)}."
            )
        self.loader = getattr(module, f"{which_dataloader}_dataloader")()
        self.max_batches, self.model_info, self.task = max_batches, model_info, task
        self._batches: Iterator[dict[str, Any]] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The inputs from the first on."""
        for number, batch in enumerate(self.loader):
            if self.max_batches is not None and number >= self.max_batches:
                return
            yield _inputs(batch)

    def __next__(self) -> dict[str, Any]:
        if self._batches is None:
            self._batches = iter(self)
        return next(self._batches)

    def __call__(self) -> Iterator[dict[str, Any]]:
        return iter(self)


def _inputs(batch: Any) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return dict(batch)
    return {"x": batch[0] if isinstance(batch, tuple | list) else batch}


def get_dummy_input(
    model_info: Any,
    data_module: MaseDataModule,
    task: str = "cls",
    device: str | torch.device = "cpu",
) -> dict[str, Any]:
    """The first batch of inputs, on `device`."""
    first = next(iter(InputGenerator(data_module, model_info, task, "train")))
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in first.items()}


def get_cf_args(
    model_info: Any = None, task: str = "cls", model: nn.Module | None = None
) -> dict[str, Any]:
    """The arguments of a text model's forward that are no inputs, with their defaults.

    A model of another kind has none.
    """
    if model is None or not getattr(model_info, "is_nlp_model", False):
        return {}
    parameters = inspect.signature(model.forward).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.default is not p.empty and p.name not in TEXT_INPUTS
    }
