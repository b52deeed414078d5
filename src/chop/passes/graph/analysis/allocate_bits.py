"""Choose the format of each layer with the least loss under a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass

Row = Mapping[str, Any]
Numbers = npt.NDArray[np.float64]
DIGITS = 9
"""Significant digits of a loss: further digits depend on the order of additions."""


@dataclass(frozen=True)
class AllocateBitsArgs:
    """Settings of `allocate_bits_analysis_pass`.

    `table` and `formats`: those of `sensitivity_analysis_pass`. `budget`: the largest cost of the
    assignment. `unit`: "bits" of an average weight, "bytes" of all weights, or "cost", from `costs`
    of each layer and format, such as cycles.
    """

    table: list[dict[str, Any]] = field(default_factory=list)
    formats: dict[str, dict[str, Any]] = field(default_factory=dict)
    budget: float = 0.0
    unit: Literal["bits", "bytes", "cost"] = "bits"
    costs: dict[str, dict[str, float]] = field(default_factory=dict)


@graph_pass("allocate_bits_analysis_pass", AllocateBitsArgs)
def allocate_bits_analysis_pass(graph: MaseGraph, args: AllocateBitsArgs) -> PassResult:
    """Assign formats to layers with the least predicted loss under a budget.

        _, found = sensitivity_analysis_pass(mg, {"data": batches, "formats": formats})
        _, chosen = allocate_bits_analysis_pass(mg, {**found, "budget": 4.5})
        quantize_transform_pass(mg, chosen["config"])

    First an integer programme finds the exact optimum of the sum of the layers' losses. If the
    table has the moves of each sample, errors of different layers add up or cancel. Then exchanges
    of one or two layers follow, from that optimum and from the best single format, until none
    lowers the joint loss. Products of different layers are weighted by their statistical support.
    `info["config"]` are arguments of `quantize_transform_pass`; `info["assignment"]` has the format
    of each layer, `info["loss"]` and `info["cost"]` its predicted loss and its cost in the unit of
    the budget.
    """
    _check(graph, args)
    problem = Problem.of(args)
    if problem.least_cost > args.budget * (1 + 1e-12):
        raise ConfigError(
            f"allocate_bits.budget: {args.budget:g} {args.unit}, and the cheapest formats take "
            f"{problem.least_cost:.4g}. Allow more, or give a narrower format."
        )
    rows = problem.best()
    chosen = [args.table[i] for i in rows]
    rules = {row["node"]: {"config": dict(args.formats[row["format"]])} for row in chosen}
    return graph, {
        "config": {"by": "name", **rules},
        "assignment": {row["node"]: row["format"] for row in chosen},
        "loss": problem.loss(rows),
        "cost": problem.cost(rows),
    }


def _check(graph: MaseGraph, args: AllocateBitsArgs) -> None:
    if not args.table:
        raise ConfigError("allocate_bits.table: empty. Run sensitivity_analysis_pass first.")
    names = {node.name for node in graph.fx_graph.nodes}
    for row in args.table:
        if row["node"] not in names:
            raise ConfigError(f"allocate_bits.table: the graph has no node '{row['node']}'.")
        if row["format"] not in args.formats:
            raise ConfigError(f"allocate_bits.formats: '{row['format']}' of the table is missing.")
    if not args.budget > 0:
        raise ConfigError(f"allocate_bits.budget: must be positive, got {args.budget}.")


@dataclass(frozen=True)
class Problem:
    """Rows of a table, of which one is to be selected for each layer.

    `layers`: the rows of each layer. `moves`: the move of each sample by each row, (rows, samples).
    The loss of an assignment is the sum of squares of the summed moves, mixed by `trust` with the
    sum of the layers' own losses.
    """

    layers: list[list[int]]
    costs: Numbers
    losses: Numbers
    moves: Numbers | None
    labels: list[str]
    budget: float
    trust: float = 1.0

    @staticmethod
    def of(args: AllocateBitsArgs) -> Problem:
        """Return the problem of a table and a budget."""
        layers: dict[str, list[int]] = {}
        for i, row in enumerate(args.table):
            layers.setdefault(row["node"], []).append(i)
        columns = [row.get("moves") for row in args.table]
        moves = None if None in columns else np.array(columns, dtype=np.float64)
        rows = list(layers.values())
        return Problem(
            rows,
            np.array([_cost(args, row) for row in args.table]),
            np.array([float(f"{row['loss']:.{DIGITS}g}") for row in args.table]),
            moves,
            [row["format"] for row in args.table],
            args.budget,
            0.0 if moves is None else trust_in_products(moves, rows),
        )

    @property
    def least_cost(self) -> float:
        """Cost of the cheapest row of every layer."""
        return float(sum(self.costs[rows].min() for rows in self.layers))

    def cost(self, rows: list[int]) -> float:
        """Return the cost of an assignment."""
        return float(self.costs[rows].sum())

    def loss(self, rows: list[int]) -> float:
        """Return the predicted loss of an assignment."""
        alone = float(self.losses[rows].sum())
        if self.moves is None:
            return alone
        together = float(np.square(self.moves[rows].sum(0)).sum())
        return float(f"{self.trust * together + (1 - self.trust) * alone:.{DIGITS}g}")

    def is_allowed(self, rows: list[int]) -> bool:
        """Return True if an assignment is within the budget."""
        return self.cost(rows) <= self.budget * (1 + 1e-12)

    def best(self) -> list[int]:
        """Return the rows with the least loss."""
        starts = [self._separate_optimum(), *self._uniform()]
        if self.moves is None:
            return starts[0]
        return min((self._exchanged(rows) for rows in starts), key=self.loss)

    def _uniform(self) -> list[list[int]]:
        """Return the best allowed assignment of one format to every layer, if there is one."""
        uniform = []
        for label in dict.fromkeys(self.labels):
            rows = [
                next((i for i in layer if self.labels[i] == label), -1) for layer in self.layers
            ]
            if -1 not in rows and self.is_allowed(rows):
                uniform.append(rows)
        return sorted(uniform, key=self.loss)[:1]

    def _separate_optimum(self) -> list[int]:
        """Return the rows with the least sum of the layers' own losses, exactly."""
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
        except ImportError as error:
            raise ConfigError("allocate_bits: needs scipy. Install masegraph[search].") from error
        one = np.zeros((len(self.layers), len(self.costs)))
        for number, rows in enumerate(self.layers):
            one[number, rows] = 1
        within = LinearConstraint(self.costs[None], ub=self.budget * (1 + 1e-12))
        solution = milp(
            # losses span many powers of ten: scaled, they exceed the solver's tolerances
            self.losses / max(float(np.abs(self.losses).max()), 1e-300),
            constraints=[LinearConstraint(one, 1, 1), within],
            integrality=np.ones_like(self.losses),
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0.0},
        )
        if solution.x is None:
            raise ConfigError(f"allocate_bits: the solver found nothing: {solution.message}")
        return [max(rows, key=lambda i: solution.x[i]) for rows in self.layers]

    def _exchanged(self, rows: list[int]) -> list[int]:
        """Exchange the rows of one or two layers, the best first, while this lowers the loss."""
        current = list(rows)
        while True:
            new = self._best_exchange(current)
            if not (self.is_allowed(new) and self.loss(new) < self.loss(current)):
                return current
            current = new

    def _best_exchange(self, rows: list[int]) -> list[int]:
        """Return the allowed exchange with the least loss, of all singles and pairs at once.

        A row that is selected already changes nothing: a pair with one is a single exchange.
        """
        assert self.moves is not None, "losses that only add up have an exact optimum"
        layer = np.empty(len(self.costs), dtype=int)
        for number, own in enumerate(self.layers):
            layer[own] = number
        current = np.array(rows)[layer]
        moved = self.moves - self.moves[current]
        dearer = self.costs - self.costs[current]
        together = 2 * moved @ self.moves[rows].sum(0) + np.square(moved).sum(1)
        alone = self.trust * together + (1 - self.trust) * (self.losses - self.losses[current])
        change = alone[:, None] + alone[None] + 2 * self.trust * moved @ moved.T
        room = self.budget * (1 + 1e-12) - self.cost(rows)
        is_out = (layer[:, None] == layer[None]) | (dearer[:, None] + dearer[None] > room)
        change[is_out] = np.inf
        first, second = divmod(int(change.argmin()), len(layer))
        new = list(rows)
        new[layer[first]], new[layer[second]] = first, second
        return new


def trust_in_products(moves: Numbers, layers: list[list[int]]) -> float:
    """Return the share of the products of different layers' moves beyond chance, from 0 to 1.

    Independent moves over n samples have a mean squared cosine of 1/n, and the mean over all pairs
    of layers deviates a little from it. Only the part above is trusted; otherwise the least loss
    would be that of the luckiest draws.
    """
    directions = moves / np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1e-300)
    squares = np.square(directions @ directions.T)
    for rows in layers:
        squares[np.ix_(rows, rows)] = 0
    entries = squares.size - sum(len(rows) ** 2 for rows in layers)
    if entries == 0 or not squares.any():
        return 1.0
    pairs = len(layers) * (len(layers) - 1) / 2
    deviation = 1 + 2 * (2 / pairs) ** 0.5  # two deviations: the square of a normal varies by 2
    by_chance = deviation * entries / moves.shape[1]
    return float(min(1.0, max(0.0, 1 - by_chance / squares.sum())))


def _cost(args: AllocateBitsArgs, row: Row) -> float:
    if args.unit == "cost":
        try:
            return float(args.costs[row["node"]][row["format"]])
        except KeyError as error:
            raise ConfigError(
                f"allocate_bits.costs: no number for '{row['node']}' in '{row['format']}'."
            ) from error
    bits = float(row["bits"]) * int(row["elements"])
    if args.unit == "bytes":
        return bits / 8
    sizes: dict[str, int] = {r["node"]: r["elements"] for r in args.table}
    return bits / sum(sizes.values())
