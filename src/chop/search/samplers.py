"""Samplers and pruners by name, checked against the space and the objectives."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from chop.errors import ConfigError, MissingDependencyError
from chop.registry import Registry
from chop.search.optuna_private import CmaEsSampler, TPESampler, reseed
from chop.search.pruning import RULES, Rule
from chop.search.space import Choice, Dimension, Integer, ParameterValue, Space
from chop.search.trial import trial_seed

LARGEST_GRID = 1_000_000
"""Points; the grid sampler stores their order."""


def distribution(dimension: Dimension) -> BaseDistribution:
    """Return the dimension as Optuna stores it."""
    if isinstance(dimension, Choice):
        return CategoricalDistribution(dimension.values)
    if isinstance(dimension, Integer):
        return IntDistribution(**vars(dimension))
    return FloatDistribution(**vars(dimension))


class GridSampler(BaseSampler):
    """Every point of a finite space once, in an order that `seed` shuffles.

    The trial number determines the point, so workers need no coordination and a search can resume.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._points = {name: list(d.points or ()) for name, d in space.dimensions.items()}
        size = math.prod(map(len, self._points.values()))
        self._order = random.Random(seed).sample(range(size), size)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return no dimension: each is sampled independently."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return no value: each dimension is sampled independently."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the value of `param_name`: its digit in the number of the point."""
        rest = self._order[trial.number % len(self._order)]
        for name, points in self._points.items():
            rest, digit = divmod(rest, len(points))
            if name == param_name:
                return points[digit]
        raise ConfigError(f"sampler 'grid': the space has no dimension '{param_name}'.")


class BruteForceSampler(optuna.samplers.BruteForceSampler):
    """Brute force of Optuna without its own end test: the search knows when all points are done."""

    def after_trial(self, *_: Any) -> None:
        """Do nothing."""


class SeededSampler(BaseSampler):
    """Sampler that draws trial n of a study in the same way in every worker.

    It seeds the generators for every trial. Torch, which the Gaussian process uses, has one thread
    while it samples: the threads of several workers would slow each other down.
    """

    def __init__(self, inner: BaseSampler, study: str, seed: int) -> None:
        self.inner, self._study, self._seed = inner, study, seed

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Seed the generators, then call the inner sampler."""
        reseed(self.inner, trial_seed(f"{self._study}/sampler/{self._seed}", trial.number))
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Call the inner sampler."""
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Call the inner sampler with one thread."""
        with one_thread():
            return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(self, *args: Any) -> Any:
        """Call the inner sampler."""
        return self.inner.sample_independent(*args)

    def after_trial(self, *args: Any) -> None:
        """Call the inner sampler."""
        self.inner.after_trial(*args)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, if torch is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class SamplerKind:
    """Summary of a sampler, its constructor from space and seed, and its requirements."""

    label: str
    make: Callable[[Space, int], BaseSampler]
    needs_finite: bool = False
    needs_numbers: bool = False
    one_objective: bool = False
    packages: tuple[str, ...] = ()


def _seeded(cls: Callable[..., BaseSampler], **options: Any) -> Callable[..., BaseSampler]:
    return lambda _, seed: cls(seed=seed, **options)


_QUIET = {"warn_independent_sampling": False}
SAMPLERS: Registry[SamplerKind] = Registry("sampler")
"""Samplers by name. To add one: `SAMPLERS.register(name, SamplerKind(…), aliases)`."""
for _names, _kind in {
    ("grid",): SamplerKind("Every point of a finite space once.", GridSampler, needs_finite=True),
    ("random",): SamplerKind("Points drawn independently.", _seeded(optuna.samplers.RandomSampler)),
    ("tpe",): SamplerKind(
        "Tree-structured Parzen estimator: points like the good ones, unlike the bad ones.",
        _seeded(TPESampler),
    ),
    ("nsga2", "nsga-ii"): SamplerKind(
        "Genetic, for several objectives.", _seeded(optuna.samplers.NSGAIISampler)
    ),
    ("nsga3", "nsga-iii"): SamplerKind(
        "Genetic, for many objectives, with reference points.",
        _seeded(optuna.samplers.NSGAIIISampler),
    ),
    ("gp",): SamplerKind(
        "Gaussian process: the point of the highest expected improvement.",
        _seeded(optuna.samplers.GPSampler),
        packages=("torch", "scipy"),
    ),
    ("cmaes", "cma-es"): SamplerKind(
        "Evolution of a normal distribution over numbers.",
        _seeded(CmaEsSampler, **_QUIET),
        needs_numbers=True,
        one_objective=True,
        packages=("cmaes",),
    ),
    ("qmc",): SamplerKind(
        "Quasi-random sequence, more even than random.",
        _seeded(optuna.samplers.QMCSampler, scramble=True, **_QUIET),
        packages=("scipy",),
    ),
    ("brute",): SamplerKind(
        "Every point of a space with conditions once.",
        _seeded(BruteForceSampler),
        needs_finite=True,
    ),
}.items():
    SAMPLERS.register(_names[0], _kind, _names[1:])


PRUNERS: Registry[Callable[[], BasePruner]] = Registry("pruner")
"""Constructors of pruners by name."""
PRUNERS.register("none", optuna.pruners.NopPruner)
PRUNERS.register("median", optuna.pruners.MedianPruner)
PRUNERS.register("hyperband", optuna.pruners.HyperbandPruner)
PRUNERS.register("successive_halving", optuna.pruners.SuccessiveHalvingPruner)
PRUNERS.register("hypervolume", optuna.pruners.HyperbandPruner)
PRUNERS.check(RULES, "pruning.RULES")


def make_sampler(
    sampler: str | BaseSampler, space: Space, objectives: int, *, study: str, seed: int
) -> BaseSampler:
    """Return the sampler called `sampler`, or `sampler` itself if it is an object of Optuna."""
    if isinstance(sampler, optuna.samplers.CmaEsSampler) and not isinstance(sampler, CmaEsSampler):
        raise ConfigError(
            "sampler: Optuna's CmaEsSampler runs pickles that it finds in the study. "
            "Take 'cmaes', which does the same without."
        )
    if isinstance(sampler, BaseSampler):
        return sampler
    kind = SAMPLERS[sampler]
    _check_sampler(SAMPLERS.canonical(sampler), kind, space, objectives)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return SeededSampler(kind.make(space, seed), study, seed)


def _check_sampler(name: str, kind: SamplerKind, space: Space, objectives: int) -> None:
    for package in kind.packages:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"sampler '{name}': {package} is not installed. "
                "Install it: pip install 'masegraph[search]'."
            )
    continuous = [n for n, d in space.dimensions.items() if d.points is None]
    if kind.needs_finite and continuous:
        raise ConfigError(
            f"sampler '{name}': dimension '{continuous[0]}' has no list of values. "
            "Give it as a Choice, or take a sampler such as 'random' or 'tpe'."
        )
    if name == "grid" and (space.size or 0) > LARGEST_GRID:
        raise ConfigError(
            f"sampler 'grid': the space has {space.size} points. "
            f"Allowed: {LARGEST_GRID}. 'random' visits such a space as evenly."
        )
    if kind.needs_numbers and all(isinstance(d, Choice) for d in space.dimensions.values()):
        raise ConfigError(
            f"sampler '{name}': every dimension is a Choice, and it needs an Integer or a Real. "
            "Take 'tpe' or 'random'."
        )
    if kind.one_objective and objectives > 1:
        raise ConfigError(
            f"sampler '{name}': there are {objectives} objectives. Allowed: one. "
            "Take 'nsga2', 'nsga3', 'tpe' or 'gp'."
        )


def make_pruner(pruner: str | BasePruner, objectives: int) -> BasePruner:
    """Return the pruner called `pruner`, or `pruner` itself if it is an object of Optuna.

    With several objectives names refer to `pruning.RULES`, and Optuna prunes nothing.
    """
    optuna_pruner = pruner if isinstance(pruner, BasePruner) else PRUNERS[pruner]()
    if objectives == 1 or isinstance(optuna_pruner, optuna.pruners.NopPruner):
        return optuna_pruner
    if isinstance(pruner, str) and PRUNERS.canonical(pruner) in RULES:
        return optuna.pruners.NopPruner()
    shown = pruner if isinstance(pruner, str) else type(pruner).__name__
    raise ConfigError(
        f"pruner '{shown}': there are {objectives} objectives, and Optuna's pruners take one. "
        f"Allowed by name: none, {', '.join(RULES)}."
    )


def pruning_rule(pruner: str | BasePruner, objectives: int) -> Rule | None:
    """Return the rule that prunes a search with several objectives, or None."""
    is_ours = objectives > 1 and isinstance(pruner, str)
    return RULES.get(PRUNERS.canonical(str(pruner))) if is_ours else None


class RandomTrial:
    """Trial with uniform random values, for points outside a study."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self.params: dict[str, ParameterValue] = {}

    def suggest_categorical(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return one of `choices`."""
        return self._store(name, self._generator.choice(list(choices)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> ParameterValue:
        """Return an integer from `low` to `high`."""
        return self._store(name, self._generator.choice(range(low, high + 1, step)))

    def suggest_float(
        self, name: str, low: float, high: float, *, log: bool = False
    ) -> ParameterValue:
        """Return a number from `low` to `high`."""
        return self._store(name, self._generator.uniform(low, high))

    def _store(self, name: str, value: ParameterValue) -> ParameterValue:
        self.params[name] = value
        return value
