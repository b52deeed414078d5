"""Result of a simulation, compared with the golden integers and with the cycle model."""

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
    """Beats that were compared with the cycle model, and those that came in another cycle."""

    beats: int
    mistimed: int
    first_mistimed: str


UNPACED = Pace(0, 0, "")
"""Result without a prediction."""


@dataclass(frozen=True)
class Verdict:
    """Result of a simulation: outputs and cycles compared, and the first difference."""

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
    """Cycles of all processes together, until the last output beat of each."""
    seconds: float = 0.0
    """Wall-clock time of the run."""
    jobs: int = 1
    """Processes that the run was spread over."""

    @property
    def is_exact(self) -> bool:
        """True if at least one value was compared and everything was right."""
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
        """Speed of the simulation, in words; empty for a short one."""
        if self.seconds <= 0:
            return ""
        by = "1 process" if self.jobs == 1 else f"{self.jobs} processes"
        pace = f"{self.simulated_cycles / self.seconds:,.0f} cycles a second"
        return f"{self.simulated_cycles:,} cycles in {self.seconds:.1f} s by {by}: {pace}"

    def require_exact(self) -> Verdict:
        """Return the verdict; raise unless it is exact."""
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
    """Compare every beat that the model predicted, at every port, with its cycle."""
    beats = mistimed = 0
    first = ""
    for side in ("inputs", "outputs"):
        actual: Mapping[str, Times] = getattr(simulated, side)
        for name, times in getattr(predicted, side).items():
            predicted_times = np.asarray(times, dtype=np.int64)
            here = np.asarray(actual[name], dtype=np.int64)[: predicted_times.size]
            wrong = np.flatnonzero(here != predicted_times[: here.size])
            beats += here.size
            mistimed += wrong.size
            if wrong.size and not first:
                at = wrong[0]
                first = f"beat {at} of {name} in cycle {here[at]}, predicted {predicted_times[at]}"
    return Pace(beats, mistimed, first)


def compare(
    expected: Mapping[str, Ints],
    outputs: Mapping[str, Ints],
    streams: Mapping[str, Stream],
) -> tuple[int, int, str, int, dict[str, Ints]]:
    """Return values compared, values wrong, the first wrong one, surplus beats, and the outputs."""
    compared = mismatches = surplus = 0
    first = ""
    values = {}
    for name, codes in expected.items():
        flat = codes.reshape(-1)
        actual = outputs[name][: flat.size]
        surplus += (outputs[name].size - flat.size) // streams[name].lanes
        wrong = np.flatnonzero(actual != flat)
        compared += flat.size
        mismatches += wrong.size
        values[name] = actual.reshape(codes.shape)
        if wrong.size and not first:
            where = tuple(int(i) for i in np.unravel_index(wrong[0], codes.shape))
            first = f"{name}{list(where)} is {actual[wrong[0]]}, expected {flat[wrong[0]]}"
    return compared, mismatches, first, surplus, values
