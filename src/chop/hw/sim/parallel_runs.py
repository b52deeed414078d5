"""A long run in parallel processes, merged to the result of one process.

Every part but the first begins some tensors early. These bring the design to its steady pace, and
overlap with the end of the part before, which must show the same cycles.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from chop.hw.design.stream import Stream
from chop.hw.sim.verdict import Verdict
from chop.hw.timing.stalls import Times, Timing

LEAD = 8
"""Tensors (or groups that go together) by which a part begins early."""
PART_CYCLES = 500_000
"""Fewer cycles are not worth a process."""


@dataclass(frozen=True)
class RunPart:
    """The tensors from `start` to `stop`, of which the first `lead` belong to the part before."""

    start: int
    stop: int
    lead: int


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def worthwhile_jobs(cycles: int) -> int:
    """Return the number of processes worth starting for `cycles` cycles."""
    return max(min(usable_cores(), cycles // PART_CYCLES), 1)


def split(tensors: int, together: int, jobs: int) -> list[RunPart]:
    """Return at most `jobs` parts of similar work, each of whole groups of `together` tensors."""
    lead = LEAD * together
    jobs = max(min(jobs, tensors // (2 * lead)), 1)
    groups = tensors // together
    ends = [groups * k // jobs * together for k in range(jobs + 1)]
    return [RunPart(max(begin - lead, 0), end, min(lead, begin)) for begin, end in pairwise(ends)]


def joined(
    parts: Sequence[RunPart], verdicts: Sequence[Verdict], streams: Mapping[str, Stream]
) -> Verdict | None:
    """Return the verdict of all parts; None unless all are exact and continue each other."""
    if not all(verdict.is_exact for verdict in verdicts):
        return None
    timing = verdicts[0].timing
    for part, verdict in zip(parts[1:], verdicts[1:], strict=True):
        longer = _continued(timing, part, verdict.timing, streams)
        if longer is None:
            return None
        timing = longer
    outputs = {
        name: np.concatenate(
            [v.outputs[name][p.lead :] for p, v in zip(parts, verdicts, strict=True)]
        )
        for name in verdicts[0].outputs
    }
    return replace(
        verdicts[0],
        tensors=parts[-1].stop,
        compared=sum(values.size for values in outputs.values()),
        timing=timing,
        outputs=outputs,
        simulated_cycles=sum(verdict.simulated_cycles for verdict in verdicts),
        jobs=len(parts),
    )


def _continued(
    before: Timing, part: RunPart, after: Timing, streams: Mapping[str, Stream]
) -> Timing | None:
    """Return `before` with the rest of `after`, shifted by the cycles of the shared tensors."""
    moved = set()
    for first, second in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
        for name, times in second.items():
            beats = streams[name].beats
            settled = part.lead // 2 * beats  # from here on the lead must run as the run before
            late = _numbers(first[name])[part.start * beats + settled :]
            early = _numbers(times)[settled : part.lead * beats]
            if late.size != early.size:
                return None
            moved |= set(np.unique(late - early).tolist())
    if len(moved) != 1:
        return None
    shift, lead = moved.pop(), part.lead

    def appended(first: Mapping[str, Times], second: Mapping[str, Times]) -> dict[str, Times]:
        return {
            name: np.concatenate(
                [_numbers(first[name]), _numbers(times)[lead * streams[name].beats :] + shift]
            ).astype(np.uint32)
            for name, times in second.items()
        }

    return Timing(appended(before.inputs, after.inputs), appended(before.outputs, after.outputs))


def _numbers(times: Times) -> npt.NDArray[np.int64]:
    return np.asarray(times, dtype=np.int64)
