"""The arguments of pruning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.errors import ConfigError
from chop.nn.modules.activation_mask import CHOOSE
from chop.passes.prune.granularity import check_granularity, n_of_m
from chop.passes.prune.importance import METHODS, check_method

QUERY = "query_head"
STRUCTURES = ("channel", "head", QUERY)
"""Granularities that remove rows and columns instead of masking weights."""


@dataclass(frozen=True)
class PruneWeight:
    """Pruning of weights."""

    sparsity: Annotated[float | None, "Share of the weights to prune."] = None
    method: Annotated[
        str, "Importance of weights: random, l1-norm, l2-norm, taylor, movement, wanda, sparsegpt."
    ] = "l1-norm"
    scope: Annotated[
        Literal["row", "local", "global"] | None,
        "The share holds for each row of each weight (row, default of wanda), for each layer "
        "(local, default of all others), or over all layers (global).",
    ] = None
    granularity: Annotated[
        str,
        "Unit of pruning. Masked: elementwise, row, column, kernel, block, or N:M, such as 2:4, "
        "which keeps N of M neighbours and needs no sparsity. Removed from the model: channel, "
        "head, query_head.",
    ] = "elementwise"
    block_size: Annotated[tuple[int, int], "Rows and columns of a block."] = (4, 4)
    target_modules: Annotated[tuple[str, ...] | None, "Patterns of module paths. Default: all."] = (
        None
    )

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
        self._check_scope()

    def _check_scope(self) -> None:
        if self.scope == "row" and self.granularity in ("row", *STRUCTURES):
            raise ConfigError(
                f"scope 'row' has no meaning for granularity '{self.granularity}'; use 'local'."
            )
        if self.scope == "global" and self.granularity == QUERY:
            raise ConfigError(
                f"scope 'global' has no meaning for granularity '{QUERY}': of the heads that share "
                "keys and values as many go as of any others; use 'local'."
            )

        if not METHODS[self.method].makes_up:
            return
        if self.scope == "global":
            raise ConfigError(
                f"method '{self.method}' prunes layer by layer; scope must be 'local' or 'row'."
            )
        if self.granularity != "elementwise" and n_of_m(self.granularity) is None:
            raise ConfigError(
                f"method '{self.method}' prunes single weights: granularity must be 'elementwise' "
                f"or N:M, got '{self.granularity}'."
            )

    def _check_n_of_m(self, n: int, m: int) -> None:
        if self.scope == "global":
            raise ConfigError(f"scope 'global' has no meaning for {n}:{m}; use 'local'.")
        if self.sparsity is not None and abs(self.sparsity - (1 - n / m)) > 1e-9:
            raise ConfigError(
                f"granularity {n}:{m} prunes {1 - n / m:g}, but sparsity is {self.sparsity}."
            )

    @property
    def compared_within(self) -> str:
        """The scope, or the default of the method."""
        if self.scope is None and self.granularity in ("row", *STRUCTURES):
            return "local"
        return self.scope or METHODS[self.method].scope

    @property
    def share(self) -> float:
        """The share to prune."""
        pair = n_of_m(self.granularity)
        return 1 - pair[0] / pair[1] if pair is not None else float(self.sparsity or 0.0)


def _check_sparsity(sparsity: float) -> None:
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity must be at least 0 and below 1, got {sparsity}.")


@dataclass(frozen=True)
class PruneActivation:
    """Pruning of the inputs of layers while the model runs."""

    sparsity: Annotated[float, "Share of the inputs of layers to prune."]
    method: Annotated[str, "Importance of inputs: random or l1-norm."] = "l1-norm"
    scope: Annotated[
        Literal["local", "global"],
        "local: each layer prunes the share of every sample. global: one threshold, found on the "
        "graph's example inputs, holds for all layers.",
    ] = "local"
    granularity: Annotated[Literal["elementwise"], "Unit of pruning."] = "elementwise"
    target_modules: Annotated[tuple[str, ...] | None, "Patterns of module paths. Default: all."] = (
        None
    )

    def __post_init__(self) -> None:
        check_method(self.method, CHOOSE)
        _check_sparsity(self.sparsity)
        if self.scope == "global" and self.method == "random":
            raise ConfigError("scope 'global' has no meaning for random activations; use 'local'.")


@dataclass(frozen=True)
class PruneArgs:
    """Settings of `prune_transform_pass`, and the data that the methods need.

    `seed` decides random choices. Methods that score by gradients (taylor, movement) use `scores`
    (a GradientScores), else a run over `batches`, else the parameters' `grad`. `loss`: a function
    of output and batch, for a model that returns no loss. Methods that use the inputs of layers
    (wanda, sparsegpt) calibrate on `batches`, an iterable or a function that returns one, up to
    `num_samples` rows. `damping`: share of the mean that is added to the diagonal of the Hessian.
    `keep`: a folder for checkpoints of finished layers, from which an interrupted run resumes.
    `dummy_in`: inputs for thresholds and shapes; the graph's own if None.
    """

    weight: PruneWeight | None = None
    activation: PruneActivation | None = None
    seed: int = 0
    batches: Any = None
    loss: Any = None
    scores: Any = None
    dummy_in: Any = None
    num_samples: int | None = None
    damping: float = 0.01
    keep: str | Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.damping < 1:
            raise ConfigError(f"damping: must lie between 0 and 1, got {self.damping}.")
        if self.weight is None and self.activation is None:
            raise ConfigError("nothing to prune: give 'weight', 'activation' or both.")
