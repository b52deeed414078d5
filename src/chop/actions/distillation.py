"""Distillation: a compressed model follows the scores and module outputs of a float teacher."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.actions.batch_columns import LABELS, takes
from chop.actions.trainer import GraphTrainer, scores_of
from chop.errors import ConfigError
from chop.ir.graph_fingerprint import LENGTH, add_tensor
from chop.ir.trace.environment import evaluation_mode

MASK = "attention_mask"


@dataclass(frozen=True)
class Distillation:
    """Settings of a training that follows a teacher.

    `temperature`: divisor of the scores before the softmax. `modules`: paths of modules whose
    outputs are followed too. `module_weight`: weight of their relative squared errors in the loss.
    `label_weight`: weight of the loss for the labels.
    """

    teacher: nn.Module
    temperature: float = 1.0
    modules: tuple[str, ...] = ()
    module_weight: float = 1.0
    label_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature: {self.temperature}. Allowed: a number above 0.")
        for name in ("module_weight", "label_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}: {getattr(self, name)}. Allowed: 0 or more.")

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that a checkpoint of the same training has."""
        digest = hashlib.sha256()
        for name, tensor in self.teacher.state_dict().items():
            add_tensor(digest, name, tensor)
        return {
            "teacher": digest.hexdigest()[:LENGTH],
            "temperature": self.temperature,
            "follow": ",".join(self.modules),
            "module_weight": self.module_weight,
            "label_weight": self.label_weight,
        }

    def check(self, student: nn.Module, batch: Mapping[str, Any]) -> None:
        """Raise ConfigError if the student cannot follow the teacher on `batch`."""
        sizes = [
            getattr(getattr(m, "config", None), "vocab_size", None) for m in (student, self.teacher)
        ]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ConfigError(_other_scores("a vocabulary of", *sizes))
        for role, model in (("model", student), ("teacher", self.teacher)):
            for path in self.modules:
                _check_module(model, path, role)
        with torch.no_grad(), evaluation_mode(student):
            ours, ours_at = self._run(student, batch)
            theirs, theirs_at = self._teach(batch)
        if ours.shape != theirs.shape:
            raise ConfigError(
                _other_scores("scores of shape", list(ours.shape), list(theirs.shape))
            )
        for path in self.modules:
            if ours_at[path].shape != theirs_at[path].shape:
                shapes = [list(outputs[path].shape) for outputs in (ours_at, theirs_at)]
                raise ConfigError(
                    f"follow: '{path}' returns shape {shapes[0]} in the model and {shapes[1]} in "
                    "the teacher. Allowed: modules whose outputs have one shape."
                )

    def loss(self, student: nn.Module, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """Return the loss on a batch, without that of the labels, and the student's output."""
        with torch.no_grad():
            theirs, theirs_at = self._teach(batch)
        with _outputs(student, self.modules) as ours_at:
            output = student(**_inputs(student, batch))
        mask = batch.get(MASK)
        loss = divergence(logits_of(output), theirs, mask, self.temperature)
        loss = loss * self.temperature**2  # so that gradients keep their size
        for path in self.modules:
            loss = loss + self.module_weight * _relative_error(ours_at[path], theirs_at[path], mask)
        return loss, output

    def measure(self, student: nn.Module, batches: Sequence[Mapping[str, Any]]) -> float:
        """Return the mean divergence from the teacher on batches, in nats for each prediction."""
        total = count = 0.0
        with torch.no_grad(), evaluation_mode(student):
            for batch in batches:
                mask = batch.get(MASK)
                ours, theirs = self._run(student, batch)[0], self._teach(batch)[0]
                places = float(_places(ours, mask).sum())
                total, count = (
                    total + float(divergence(ours, theirs, mask)) * places,
                    count + places,
                )
        return total / max(count, 1.0)

    def _teach(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        device = next((t.device for t in batch.values() if isinstance(t, Tensor)), None)
        self.teacher.to(device)
        with evaluation_mode(self.teacher):
            return self._run(self.teacher, batch)

    def _run(self, model: nn.Module, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        with _outputs(model, self.modules) as outputs:
            return logits_of(model(**_inputs(model, batch))), outputs


def _other_scores(what: str, ours: Any, theirs: Any) -> str:
    return (
        f"teacher: it has {what} {theirs}, and the model {ours}. Allowed: a teacher with the "
        "vocabulary or classes of the model."
    )


def _inputs(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a batch that a model takes."""
    inputs = {name: value for name, value in batch.items() if takes(model, name)}
    if not inputs.keys() - {LABELS}:
        names = ", ".join(inspect.signature(model.forward).parameters)
        raise ConfigError(
            f"teacher: {type(model).__name__} takes {names}, and the data has {', '.join(batch)}. "
            "Allowed: a teacher with the inputs of the model."
        )
    return inputs


def logits_of(output: Any) -> Tensor:
    """Return the scores in an output, which may begin with a loss."""
    if isinstance(output, tuple) and len(output) > 1 and output[0].dim() == 0:
        output = output[1:]
    return scores_of(output)


def _check_module(model: nn.Module, path: str, role: str) -> None:
    """Raise ConfigError if a model does not call the module `path`."""
    if isinstance(model, fx.GraphModule):
        paths = [str(node.target) for node in model.graph.nodes if node.op == "call_module"]
    else:
        paths = [name for name, _ in model.named_modules() if name]
    if path not in paths:
        near = get_close_matches(path, paths, 1, 0.0)
        hint = f" The nearest is '{near[0]}'." if near else ""
        raise ConfigError(f"follow: the {role} calls no module '{path}'.{hint}")


@contextlib.contextmanager
def _outputs(model: nn.Module, paths: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Yield the outputs of modules, filled when the model runs inside the context."""
    outputs: dict[str, Tensor] = {}

    def remember(path: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            outputs[path] = output if isinstance(output, Tensor) else output[0]

        return hook

    with contextlib.ExitStack() as stack:
        for path in paths:
            handle = model.get_submodule(path).register_forward_hook(remember(path))
            stack.callback(handle.remove)
        yield outputs


def _places(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return True at each prediction that counts: padding does not."""
    shape = scores.shape[:-1]
    if mask is None or mask.shape != shape:
        return torch.ones(shape, dtype=torch.bool, device=scores.device)
    return mask.bool()


def divergence(
    scores: Tensor, teacher: Tensor, mask: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Return the mean Kullback-Leibler divergence of two models' distributions.

    >>> divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 3.0]])).item()
    0.0
    """
    ours, theirs = (F.log_softmax(x.float() / temperature, -1) for x in (scores, teacher))
    each = (theirs.exp() * (theirs - ours)).sum(-1)
    places = _places(scores, mask)
    return (each * places).sum() / places.sum().clamp(min=1)


def _relative_error(ours: Tensor, theirs: Tensor, mask: Tensor | None) -> Tensor:
    """Return the squared error of outputs relative to the teacher's squares."""
    places = _places(ours, mask)[..., None]
    error = ((ours - theirs).float().square() * places).sum()
    return error / (theirs.float().square() * places).sum().clamp(min=1e-12)


class DistillingTrainer(GraphTrainer):
    """A GraphTrainer whose training loss is the distance from a teacher."""

    def __init__(self, model: nn.Module, *, distillation: Distillation, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.distillation = distillation
        self.facts |= distillation.facts

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the distance from the teacher while training, otherwise the loss of the labels."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss, output = self.distillation.loss(model, inputs)
        if self.distillation.label_weight:
            own = super().compute_loss(model, inputs, False, num_items_in_batch)
            loss = loss + self.distillation.label_weight * own
        return (loss, output) if return_outputs else loss
