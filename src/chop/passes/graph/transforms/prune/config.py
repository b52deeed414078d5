"""The arguments of pruning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from chop.errors import ConfigError
from chop.nn.modules.activation_mask import CHOOSE
from chop.passes.graph.transforms.prune.granularity import check_granularity, n_of_m
from chop.passes.graph.transforms.prune.importance import check_method

STRUCTURES = ("channel", "head")
"""Granularities that remove rows and columns instead of masking weights."""


def _check_sparsity(sparsity: float) -> None:
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity must be at least 0 and below 1, got {sparsity}.")


@dataclass(frozen=True)
class PruneWeight:
    """What to prune of the weights.

    `sparsity`: the share to prune. `method`: what counts as little: random, l1-norm, l2-norm,
    taylor or movement. `scope`: the share holds for each layer ("local") or over all ("global").
    `granularity`: what goes together. Masked: elementwise, row, column, kernel, block, or N:M, such
    as 2:4, which keeps N of M neighbours and needs no sparsity. Removed from the model: channel,
    head. `block_size`: rows and columns of a block. `target_modules`: patterns of module paths, all
    where None.
    """

    sparsity: float | None = None
    method: str = "l1-norm"
    scope: Literal["local", "global"] = "local"
    granularity: str = "elementwise"
    block_size: tuple[int, int] = (4, 4)
    target_modules: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_method(self.method)
        check_granularity(self.granularity, STRUCTURES)
        if min(self.block_size) < 1:
            raise ConfigError(f"block_size must be at least 1 each, got {list(self.block_size)}.")
        pair = n_of_m(self.granularity)
        if pair is not None:
            self._check_n_of_m(*pair)
        elif self.sparsity is None:
            raise ConfigError("key 'sparsity' is missing.")
        _check_sparsity(self.share)

    def _check_n_of_m(self, n: int, m: int) -> None:
        if self.scope == "global":
            raise ConfigError(f"scope 'global' has no meaning for {n}:{m}; use 'local'.")
        if self.sparsity is not None and abs(self.sparsity - (1 - n / m)) > 1e-9:
            raise ConfigError(
                f"granularity {n}:{m} prunes {1 - n / m:g}, but sparsity is {self.sparsity}."
            )

    @property
    def share(self) -> float:
        """The share to prune."""
        pair = n_of_m(self.granularity)
        return 1 - pair[0] / pair[1] if pair is not None else float(self.sparsity or 0.0)


@dataclass(frozen=True)
class PruneActivation:
    """What to prune of the inputs of layers, while the model runs.

    `sparsity`: the share to prune. `method`: what counts as little: random or l1-norm. `scope`:
    with "local" each layer prunes that share of every sample; with "global" one threshold, found on
    the graph's example inputs, holds for all layers. `granularity`: elementwise. `target_modules`:
    patterns of module paths, all where None.
    """

    sparsity: float
    method: str = "l1-norm"
    scope: Literal["local", "global"] = "local"
    granularity: Literal["elementwise"] = "elementwise"
    target_modules: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_method(self.method, CHOOSE)
        _check_sparsity(self.sparsity)
        if self.scope == "global" and self.method == "random":
            raise ConfigError("scope 'global' has no meaning for random activations; use 'local'.")


@dataclass(frozen=True)
class PruneArgs:
    """What to prune, and what the methods need.

    `seed` decides random choices. Methods that score by gradients (taylor, movement) take them
    from `scores` (a GradientScores), else from a run over `batches` (with `loss`, a function of
    output and batch, where the model gives no loss), else from the parameters' `grad`.
    `dummy_in`: inputs for thresholds and shapes; the graph's own where None.
    """

    weight: PruneWeight | None = None
    activation: PruneActivation | None = None
    seed: int = 0
    batches: Any = None
    loss: Any = None
    scores: Any = None
    dummy_in: Any = None

    def __post_init__(self) -> None:
        if self.weight is None and self.activation is None:
            raise ConfigError("nothing to prune: give 'weight', 'activation' or both.")
