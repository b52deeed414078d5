"""Importance of each weight: the scores that pruning compares.

To add a method, add a row to `METHODS`. A score has the shape of the weight; the lowest scores are
pruned first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, PassError
from chop.ir.trace.environment import evaluation_mode, kept_buffers
from chop.registry import suggest


@dataclass(frozen=True)
class PruningMethod:
    """A pruning method: one of `score`, `product` and `scaled`, or none with `makes_up`.

    `score` takes the weight and a random generator; `product` the weight and its gradient;
    `scaled` the weight and the norms of its inputs, in its shape. `scope`: the default scope.
    `makes_up`: the remaining weights change to compensate for the pruned ones.
    """

    score: Callable[[Tensor, torch.Generator], Tensor] | None = None
    product: Callable[[Tensor, Tensor], Tensor] | None = None
    scaled: Callable[[Tensor, Tensor], Tensor] | None = None
    scope: str = "local"
    makes_up: bool = False

    @property
    def needs_inputs(self) -> bool:
        """True if the method needs the inputs of layers on calibration data."""
        return self.scaled is not None or self.makes_up


METHODS: dict[str, PruningMethod] = {
    "random": PruningMethod(score=lambda w, generator: torch.rand(w.shape, generator=generator)),
    "l1-norm": PruningMethod(score=lambda w, generator: w.abs()),
    "l2-norm": PruningMethod(score=lambda w, generator: w.square()),
    # first order: change of the loss if the weight becomes zero
    "taylor": PruningMethod(product=lambda w, gradient: (w * gradient).abs()),
    # positive if a step of descent moves the weight away from zero
    "movement": PruningMethod(product=lambda w, gradient: -(w * gradient)),
    # change of the layer's output for uncorrelated inputs (Sun et al., 2023)
    "wanda": PruningMethod(scaled=lambda w, norms: w.abs() * norms, scope="row"),
    # the same for correlated inputs, with compensation (Frantar and Alistarh, 2023)
    "sparsegpt": PruningMethod(makes_up=True),
}


def check_method(method: str, allowed: Iterable[str] = METHODS) -> None:
    """Raise if `method` is not one of `allowed`."""
    if method not in allowed:
        raise ConfigError(f"method: unknown method '{method}'. {suggest(method, allowed)}")


class GradientScores:
    """Scores summed over gradients: call `update` after each backward pass.

    scores = GradientScores(mg.model, "movement")
    for batch in loader:
        mg.model(**batch)["loss"].backward()
        scores.update()
    """

    def __init__(self, model: nn.Module, method: str) -> None:
        product = METHODS[method].product if method in METHODS else None
        if product is None:
            able = [name for name, each in METHODS.items() if each.product is not None]
            raise ConfigError(f"GradientScores: '{method}' takes no gradients. Allowed: {able}.")
        self.model, self.method, self.product = model, method, product
        self._sums: dict[int, tuple[nn.Parameter, Tensor]] = {}

    def update(self) -> None:
        """Add the scores of the gradients that the parameters have now."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                new = self.product(parameter.detach(), parameter.grad)
                old = self._sums.get(id(parameter))
                total = new if old is None else old[1] + new
                self._sums[id(parameter)] = (parameter, total)  # kept alive: ids are not reused

    def of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the score of a parameter; None if no gradient reached it."""
        entry = self._sums.get(id(parameter))
        return None if entry is None else entry[1]


def gather_scores(
    model: nn.Module, method: str, batches: Iterable[Any] | None, loss: Callable[..., Any] | None
) -> GradientScores | None:
    """Return the gradient scores on `batches`, or of the current gradients; None if not needed.

    The model, its gradients and its mode stay unchanged.
    """
    if METHODS[method].product is None:
        return None
    scores = GradientScores(model, method)
    if batches is None:
        scores.update()
        return scores
    before = [(p, p.grad) for p in model.parameters()]
    try:
        with evaluation_mode(model), kept_buffers(model), torch.enable_grad():
            for batch in batches:
                model.zero_grad(set_to_none=True)
                _loss_of(model, batch, loss).backward()  # type: ignore[no-untyped-call]
                scores.update()
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient
    return scores


def _loss_of(model: nn.Module, batch: Any, loss: Callable[..., Any] | None) -> Tensor:
    value: Tensor
    if isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*(batch if isinstance(batch, tuple | list) else (batch,)))
    if loss is not None:
        value = loss(output, batch)
        return value
    if not isinstance(output, Mapping) or "loss" not in output:
        raise PassError(
            "prune: the model gives no loss. Give one: loss=lambda output, batch: a scalar tensor."
        )
    value = output["loss"]
    return value


def score(
    parameter: nn.Parameter,
    method: str,
    path: str,
    *,
    seed: int,
    gradients: GradientScores | None = None,
    norms: Tensor | None = None,
) -> Tensor:
    """Return the score of a layer's weight; random scores depend only on `seed` and `path`."""
    scaled = METHODS[method].scaled
    if scaled is not None:
        assert norms is not None, f"{method} needs the norms of inputs"
        return scaled(parameter.detach().float(), norms)
    by_value = METHODS[method].score
    if by_value is not None:
        generator = torch.Generator().manual_seed(seed + zlib.crc32(path.encode()))
        return by_value(parameter.detach().float(), generator).to(parameter.device)
    summed = None if gradients is None else gradients.of(parameter)
    if summed is None:
        raise PassError(
            f"prune: method '{method}' needs gradients and '{path}' has none. Call backward() "
            "first, or give batches (and loss, where the model gives none)."
        )
    return summed.float()
