"""Selection of query heads that share keys and values: the same number from every group.

The label of such a head is its place in the group (`Coupling.by_query`). Shapes depend on places
only. The order of heads within a group changes nothing, so each group selects its own heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chop.passes.prune.channel_labels import Labels
from chop.passes.prune.coupling import Coupling
from chop.passes.prune.granularity import keep_largest_of_rows

Scorer = Callable[[str, nn.Parameter], Tensor | None]
"""Return the scores of the weight of the layer at a path; None if it has none."""
Mask = NDArray[np.bool_]


class HeadChoice:
    """Mask of the query heads of one block that stay; `groups` are the labels of their places."""

    def __init__(self, groups: Labels) -> None:
        self.groups = groups
        self._total: NDArray[np.float64] = np.zeros(0)
        self._count: NDArray[np.float64] = np.zeros(0)
        self.keep: Mask = np.zeros(0, dtype=bool)

    def heads(self, labels: Labels) -> tuple[Labels, Labels]:
        """Return the indices of a dimension that belong to heads, and the head of each."""
        index = np.flatnonzero(np.isin(labels, self.groups))
        places = labels[index]
        begins = (places[1:] != places[:-1]) | (np.diff(index) > 1)
        return index, np.concatenate([[0], np.cumsum(begins)]) if len(index) else index

    def add(self, scores: Tensor, dim: int, labels: Labels) -> None:
        """Add the scores of a weight along one of its dimensions."""
        index, head = self.heads(labels)
        if not len(index):
            return
        sums = scores.sum([i for i in range(scores.dim()) if i != dim]).double().cpu().numpy()
        if not len(self._total):
            self._total, self._count = np.zeros(head[-1] + 1), np.zeros(head[-1] + 1)
        np.add.at(self._total, head, sums[index])
        np.add.at(self._count, head, scores.numel() / len(labels))

    def choose(self, share: float) -> Labels:
        """Keep the best heads of every group; return the labels of the places that are removed."""
        places = len(self.groups)
        count = min(round(share * places), places - 1)
        means = torch.tensor(self._total / self._count).reshape(-1, places)
        keep = keep_largest_of_rows(means, torch.full((len(means),), count))
        self.keep = keep.flatten().numpy()
        return self.groups[places - count :]

    def apply(self, labels: Labels, keep: Mask) -> None:
        """Write into the mask `keep` of one dimension which of the indices in heads stay."""
        index, head = self.heads(labels)
        keep[index] = self.keep[head]


def choose_query_heads(
    coupling: Coupling, families: Sequence[Labels], scorer: Scorer, share: float
) -> list[tuple[HeadChoice, Labels]]:
    """Return the heads that stay and the labels that are removed, for each family of labels."""
    roots = coupling.labels.roots()
    choices = [HeadChoice(groups) for groups in families]
    for path, weight in {id(w): (path, w) for path, _, w in coupling.producers}.values():
        scores = scorer(path, weight)
        if scores is None:
            continue
        for dim, labels in enumerate(coupling.tensors[id(weight)][1].dims):
            for choice in choices:
                choice.add(scores, dim, roots[labels])
    return [(choice, choice.choose(share)) for choice in choices]
