"""What a simulation showed, compared with the golden integers and with the cycle model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.stream import Stream
from chop.hw.timing.cycles import Times, Timing


@dataclass(frozen=True)
class Pace:
    """How many beats were compared with the cycle model, and how many came in another cycle."""

    beats: int
    mistimed: int
    first_mistimed: str


UNPACED = Pace(0, 0, "")
"""Nothing was predicted."""


@dataclass(frozen=True)
class Verdict:
    """What a simulation showed: outputs and cycles compared, and where they first differ."""

    tensors: int
    compared: int
    mismatches: int
    first_mismatch: str
    handshake_violations: int
    surplus_beats: int
    timing: Timing
    outputs: Mapping[str, Ints]
    handshakes: npt.NDArray[np.uint8]
    """Per traced cycle and port: bit 0 valid, bit 1 ready."""
    spoilt_beats: int = 0
    """Wrong beats in the runs that a reset cut off."""
    pace: Pace = UNPACED
    simulated_cycles: int = 0
    """Of all processes together, until the last output beat of each."""
    seconds: float = 0.0
    """By the clock, while they ran."""
    jobs: int = 1
    """Processes that the run was spread over."""

    @property
    def is_exact(self) -> bool:
        """At least one value compared, every bit equal, laws kept, each beat in its cycle."""
        return self.compared > 0 and not (
            self.mismatches
            or self.handshake_violations
            or self.surplus_beats
            or self.spoilt_beats
            or self.pace.mistimed
        )

    @property
    def cycles(self) -> int:
        """Cycles until the last output beat."""
        return self.timing.cycles

    @property
    def rate(self) -> str:
        """How fast the simulation was, in words; empty where it was too short to tell."""
        if self.seconds <= 0:
            return ""
        by = "1 process" if self.jobs == 1 else f"{self.jobs} processes"
        pace = f"{self.simulated_cycles / self.seconds:,.0f} cycles a second"
        return f"{self.simulated_cycles:,} cycles in {self.seconds:.1f} s by {by}: {pace}"

    def require_exact(self) -> Verdict:
        """Itself; raises unless exact."""
        if not self.is_exact:
            raise HardwareError(f"simulation: {self}")
        return self

    def __str__(self) -> str:
        right = self.compared - self.mismatches
        text = f"{right} of {self.compared} output values bit-exact in {self.cycles} cycles"
        if self.first_mismatch:
            text += f"; first mismatch: {self.first_mismatch}"
        if self.handshake_violations or self.surplus_beats:
            text += (
                f"; {self.handshake_violations} handshake violations, "
                f"{self.surplus_beats} surplus beats"
            )
        if self.spoilt_beats:
            text += f"; {self.spoilt_beats} wrong beats after a reset in the middle of a tensor"
        if self.pace.mistimed:
            text += (
                f"; {self.pace.mistimed} of {self.pace.beats} beats out of the cycle that the "
                f"cycle model says, first: {self.pace.first_mistimed}"
            )
        return text


def compare_pace(simulated: Timing, predicted: Timing) -> Pace:
    """Every beat that the model told, at every port, with the cycle in which it passed."""
    beats = mistimed = 0
    first = ""
    for side in ("inputs", "outputs"):
        found: Mapping[str, Times] = getattr(simulated, side)
        for name, times in getattr(predicted, side).items():
            wanted = np.asarray(times, dtype=np.int64)
            here = np.asarray(found[name], dtype=np.int64)[: wanted.size]
            wrong = np.flatnonzero(here != wanted[: here.size])
            beats += here.size
            mistimed += wrong.size
            if wrong.size and not first:
                at = wrong[0]
                first = f"beat {at} of {name} in cycle {here[at]}, predicted {wanted[at]}"
    return Pace(beats, mistimed, first)


def compare(
    expected: Mapping[str, Ints],
    outputs: Mapping[str, Ints],
    streams: Mapping[str, Stream],
) -> tuple[int, int, str, int, dict[str, Ints]]:
    """Values compared, values wrong, the first wrong one, beats too many, and the outputs."""
    compared = mismatches = surplus = 0
    first = ""
    kept = {}
    for name, wanted in expected.items():
        flat = wanted.reshape(-1)
        found = outputs[name][: flat.size]
        surplus += (outputs[name].size - flat.size) // streams[name].lanes
        wrong = np.flatnonzero(found != flat)
        compared += flat.size
        mismatches += wrong.size
        kept[name] = found.reshape(wanted.shape)
        if wrong.size and not first:
            where = tuple(int(i) for i in np.unravel_index(wrong[0], wanted.shape))
            first = f"{name}{list(where)} is {found[wrong[0]]}, expected {flat[wrong[0]]}"
    return compared, mismatches, first, surplus, kept
