"""Least time of segments that each take one of several known solutions, within a memory limit.

Equal segments form a group. The integer programme has the number of segments of each group that
take each solution, and the memory for a moment, which is the largest of the solutions in use. HiGHS
solves it (`scipy.optimize.milp`). Without scipy there are no mixtures; the bound stays valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RELATIVE_GAP = 1e-6
"""Gap at which the integer programme ends, relative to its objective."""
SECONDS = 2.0
"""Most seconds of the integer programme."""


@dataclass(frozen=True)
class MixGroup:
    """Equal segments and their solutions: one row of `columns` each, seconds, bytes, moment."""

    count: int
    columns: np.ndarray


def mixed(groups: Sequence[MixGroup], memory: float) -> list[np.ndarray] | None:
    """Return how many segments of each group take each solution; None if nothing fits."""
    try:
        from scipy import optimize, sparse
    except ImportError:
        return None
    columns = np.concatenate([group.columns for group in groups])
    seconds, size, moment = columns.T
    count = len(columns)
    owner = np.repeat(np.arange(len(groups)), [len(group.columns) for group in groups])
    most = np.array([group.count for group in groups])[owner].astype(float)
    unit = max(memory, 1.0)
    # variables: segments per solution, whether it is in use, memory for a moment
    eye, zeros = sparse.eye(count), sparse.csr_matrix((count, count))
    column = sparse.csr_matrix((count, 1))
    members = sparse.csr_matrix((np.ones(count), (owner, np.arange(count))))
    rows = [
        [members, sparse.csr_matrix((len(groups), count)), sparse.csr_matrix((len(groups), 1))],
        [sparse.csr_matrix(size / unit), sparse.csr_matrix((1, count)), sparse.csr_matrix([[1.0]])],
        [eye, -sparse.diags(most), column],
        [zeros, sparse.diags(moment / unit), column - 1.0 * np.ones((count, 1))],
    ]
    counts = np.array([group.count for group in groups], dtype=float)
    upper = np.concatenate([counts, [memory / unit], np.zeros(2 * count)])
    lower = np.concatenate([counts, np.full(1 + 2 * count, -np.inf)])
    scale = max(float(seconds.max()), 1e-30)
    result = optimize.milp(
        np.concatenate([seconds / scale, np.zeros(count + 1)]),
        integrality=np.concatenate([np.ones(2 * count), [0]]),
        bounds=optimize.Bounds(0, np.concatenate([most, np.ones(count), [1.0]])),
        constraints=optimize.LinearConstraint(sparse.bmat(rows, format="csc"), lower, upper),
        options={"mip_rel_gap": RELATIVE_GAP, "time_limit": SECONDS},
    )
    if result.x is None:
        return None
    picked = np.round(result.x[:count]).astype(int)
    return [picked[owner == i] for i in range(len(groups))]
