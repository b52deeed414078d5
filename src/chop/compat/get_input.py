"""Model inputs from a data module, with the interface of DeepWok/mase."""

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
    """Iterator over the batches of a data module, as mappings from input name to tensor.

    `which_dataloader` is "train", "val" or "test"; `max_batches` limits the number of batches. A
    single unnamed input is called `x`. `model_info` and `task` are stored and not used.
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
        """Yield the inputs of each batch, starting with the first."""
        for number, batch in enumerate(self.loader):
            if self.max_batches is not None and number >= self.max_batches:
                return
            if isinstance(batch, Mapping):
                yield dict(batch)
            else:
                yield {"x": batch[0] if isinstance(batch, tuple | list) else batch}

    def __next__(self) -> dict[str, Any]:
        if self._batches is None:
            self._batches = iter(self)
        return next(self._batches)

    def __call__(self) -> Iterator[dict[str, Any]]:
        return iter(self)


def get_dummy_input(
    model_info: Any,
    data_module: MaseDataModule,
    task: str = "cls",
    device: str | torch.device = "cpu",
) -> dict[str, Any]:
    """Return the first batch of inputs, on `device`."""
    first = next(iter(InputGenerator(data_module, model_info, task, "train")))
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in first.items()}


def get_cf_args(
    model_info: Any = None, task: str = "cls", model: nn.Module | None = None
) -> dict[str, Any]:
    """Return the arguments of a text model's forward that are not inputs, with their defaults.

    Return an empty dict for other models.
    """
    if model is None or not getattr(model_info, "is_nlp_model", False):
        return {}
    parameters = inspect.signature(model.forward).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.default is not p.empty and p.name not in TEXT_INPUTS
    }
