"""Importance of the rows of calibration data, with one decoder layer in memory at a time.

The same numbers as `chop.passes.ptq.observe.curvature.row_importances` computes on a whole graph: a
forward run stores the input of each decoder layer, and a backward run computes each layer again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chop.actions.decoder_stream import HIDDEN, DecoderStream, LayerInputs
from chop.files import whole_file
from chop.passes.ptq.observe.curvature import RowWatch, importance_loss, shared_out

STATE = "generator"
"""Key of the random state behind a batch."""


class Boundaries:
    """Inputs of the decoder layers on one batch, in memory or in files of the folder `spill`."""

    def __init__(self, spill: Path | None) -> None:
        self.spill, self._tensors = spill, []  # type: ignore[var-annotated]

    def push(self, tensor: Tensor) -> None:
        """Store one more input."""
        if self.spill is None:
            self._tensors.append(tensor)
            return
        file = self.spill / f"boundary-{len(self._tensors):05}.pt"
        torch.save(tensor, file)
        self._tensors.append(file)

    def pop(self) -> Tensor:
        """Return the last input and drop it."""
        last = self._tensors.pop()
        if isinstance(last, Tensor):
            return last
        tensor: Tensor = torch.load(last, weights_only=True)
        last.unlink()
        return tensor


class BatchMeasures(ABC):
    """Results of a backward run over all layers: one file per batch, so that a run resumes.

    `modules`: the paths of the measured modules within each decoder layer. `load`: function that
    returns a decoder layer with these modules. `kind`: first part of the names of the files.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        stream: DecoderStream,
        modules: Sequence[Sequence[str]],
        folder: Path,
        load: Callable[[int], nn.Module],
    ) -> None:
        self.stream, self.modules, self.folder, self.load = stream, modules, folder, load

    def file(self, number: int) -> Path:
        """Return the file of a batch."""
        return self.folder / f"{self.kind}-{number:05}.safetensors"

    def measure(
        self, number: int, batch: Mapping[str, Any], inputs: LayerInputs, spill: Path | None
    ) -> None:
        """Measure one batch, unless an earlier run did."""
        if self.file(number).is_file():
            return
        draw = torch.Generator().manual_seed(0)
        if number:  # labels are drawn from one sequence over all batches
            draw.set_state(load_file(self.file(number - 1))[STATE])
        measured = self.measured(batch, inputs, Boundaries(spill), draw)
        with whole_file(self.file(number)) as draft:
            save_file({**measured, STATE: draw.get_state()}, draft)

    @abstractmethod
    def measured(
        self,
        batch: Mapping[str, Any],
        inputs: LayerInputs,
        boundaries: Boundaries,
        draw: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the results of one batch; `boundaries` is empty, `draw` draws the labels."""

    def result_of_layers(self, inputs: LayerInputs, boundaries: Boundaries) -> Tensor:
        """Run all layers and store the input of each; return the result as a leaf of a graph."""
        hidden = inputs.hidden
        with torch.no_grad():
            for number, sides in enumerate(inputs.sides):
                boundaries.push(hidden)
                hidden = first_tensor(self.stream.load_layer(number)(hidden, **sides))
        return hidden.detach().requires_grad_()


class RowImportances(BatchMeasures):
    """Squared gradients of the rows of each layer."""

    kind = "importances"

    def measured(
        self,
        batch: Mapping[str, Any],
        inputs: LayerInputs,
        boundaries: Boundaries,
        draw: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the squared gradients by the number of the layer and the path within it."""
        top = self.result_of_layers(inputs, boundaries)
        with torch.enable_grad(), self.stream.loaded_head():
            importance_loss(self.stream.outputs(batch, top), draw).backward()  # type: ignore[no-untyped-call]
        gradient, squares = top.grad, {}
        for number in reversed(range(len(inputs.sides))):
            x = boundaries.pop().requires_grad_(number > 0)
            layer, watches = self.load(number), {}
            for path in self.modules[number]:
                watches[path] = RowWatch()
                layer.get_submodule(path).register_forward_hook(watches[path])
            with torch.enable_grad():
                first_tensor(layer(**{HIDDEN: x}, **inputs.sides[number])).backward(gradient)  # type: ignore[no-untyped-call]
            gradient = x.grad
            for path, watch in watches.items():
                watch.end_batch()
                if watch.batches[0] is not None:
                    squares[f"{number}.{path}"] = watch.batches[0]
        return squares

    def of_layer(self, number: int, batches: int) -> list[dict[str, Tensor]]:
        """Return the weights of the rows of each module of a layer, batch by batch."""
        weights: list[dict[str, Tensor]] = [{} for _ in range(batches)]
        for path in self.modules[number]:
            read = [_read(self.file(batch), f"{number}.{path}") for batch in range(batches)]
            for own, each in zip(weights, shared_out(read), strict=True):
                if each is not None:
                    own[path] = each
        return weights


def _read(file: Path, name: str) -> Tensor | None:
    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name).clone() if name in opened.keys() else None  # noqa: SIM118


def first_tensor(result: Any) -> Tensor:
    """Return the activations in the result of a decoder layer."""
    activations: Tensor = result if isinstance(result, Tensor) else result[0]
    return activations
