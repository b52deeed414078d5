"""Timing of an external memory: presets, and a model in Python that the C++ driver repeats.

A burst returns its first beat `latency` cycles after its address or later, in order. A beat leaves
in a cycle that has enough bandwidth and no refresh, no write and no random stall.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from chop.errors import ConfigError
from chop.registry import suggest

BANDWIDTH_ONE = 1 << 16
"""Bandwidth of one beat per cycle."""


@dataclass(frozen=True)
class MemoryTiming:
    """A memory as the engine sees it, in cycles of the engine."""

    name: str = "ideal"
    latency: int = 4
    """Cycles from an address to the first beat."""
    bandwidth: int = BANDWIDTH_ONE
    """Beats per cycle, times 2**16; at most one beat."""
    refresh_interval: int = 0
    """Cycles between refreshes; 0 for none."""
    refresh_cycles: int = 0
    write_cycles: int = 1
    """Cycles without read data for each beat written, turn-around included."""
    write_latency: int = 8
    bursts: int = 16
    """Addresses that wait in the controller."""
    stalls: int = 0
    """Random stalls of all channels, in 1 / 2**24."""
    seed: int = 1

    def with_stalls(self, share: float, seed: int = 1) -> MemoryTiming:
        """Return this memory with random stalls in a share of the cycles of each channel."""
        if not 0 <= share < 1:
            raise ConfigError(f"decode: the share of stalls must lie in 0 … 1, got {share}.")
        return replace(self, stalls=int(share * 2**24), seed=seed)


@dataclass(frozen=True)
class MemoryPreset:
    """External memory with the round figures of its generation; a part's data sheet may differ.

    Bandwidth is the data rate times the width. The latency includes the controller.
    """

    bytes_per_second: float
    latency_ns: float
    refresh_interval_ns: float
    refresh_ns: float
    write_ns: float

    def timing(self, name: str, data_width: int, mhz: float) -> MemoryTiming:
        """Return the timing for beats of `data_width` bits at a clock of `mhz`."""
        per_cycle = self.bytes_per_second / (mhz * 1e6) / (data_width / 8)

        def cycles(nanoseconds: float) -> int:
            return max(1, round(nanoseconds * mhz / 1000))

        return MemoryTiming(
            name=name,
            latency=cycles(self.latency_ns),
            bandwidth=min(BANDWIDTH_ONE, int(per_cycle * BANDWIDTH_ONE)),
            refresh_interval=cycles(self.refresh_interval_ns),
            refresh_cycles=cycles(self.refresh_ns),
            write_cycles=cycles(self.write_ns),
            write_latency=cycles(self.latency_ns),
        )


PRESETS = {
    "ddr3-800": MemoryPreset(1.6e9, 200, 7800, 160, 60),
    "ddr4": MemoryPreset(19.2e9, 150, 7800, 350, 40),
    "hbm": MemoryPreset(14.4e9, 150, 3900, 260, 30),
}
"""Name -> memory: DDR3-800 of 16 bits, DDR4-2400 of 64 bits, one pseudo-channel of HBM2."""


def memory_timing(name: str, data_width: int, mhz: float) -> MemoryTiming:
    """Return the timing of a preset, or of a memory without limits (`ideal`)."""
    if name == "ideal":
        return MemoryTiming()
    if name not in PRESETS:
        raise ConfigError(f"decode: no memory '{name}'. {suggest(name, ('ideal', *PRESETS))}")
    return PRESETS[name].timing(name, data_width, mhz)


CHANNELS = 5
"""Read address, read data, write address, tokens, write data: each has its random numbers."""


class Draws:
    """Random numbers of one channel, as the driver draws them: one for each cycle."""

    def __init__(self, seed: int, threshold: int) -> None:
        self.state, self.threshold = seed & 0xFFFFFFFF, threshold

    def passes(self) -> bool:
        """Return whether the channel may move in this cycle."""
        if not self.threshold:
            return True
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
        return self.state >> 8 >= self.threshold


class MemoryModel:
    """Memory without its contents: one call of each method per cycle, in their order below."""

    def __init__(self, timing: MemoryTiming) -> None:
        self.timing = timing
        self.waiting: deque[list[int]] = deque()  # [first cycle, beats left]
        self.answers: deque[int] = deque()
        self.credit = self.blocked_until = self.read_beats = self.written_beats = 0
        self.draws = [Draws(timing.seed * 7919 + i, timing.stalls) for i in range(CHANNELS)]

    def begin(self, cycle: int) -> bool:
        """Decide which channels move if they are offered; return whether a token may leave."""
        timing = self.timing
        address, read, self.takes_address, token, self.takes_data = [
            draw.passes() for draw in self.draws
        ]
        self.credit = min(self.credit + timing.bandwidth, 2 * BANDWIDTH_ONE - 1)
        is_refreshing = (
            timing.refresh_interval > 0 and cycle % timing.refresh_interval < timing.refresh_cycles
        )
        is_ready = (
            bool(self.waiting) and cycle >= self.waiting[0][0] and self.credit >= BANDWIDTH_ONE
        )
        self.gives = is_ready and read and not is_refreshing and cycle >= self.blocked_until
        self.takes = address and len(self.waiting) < timing.bursts
        self.answered = bool(self.answers) and cycle >= self.answers[0]
        return token

    def end(self, cycle: int, length: int, wrote: bool) -> None:
        """End a cycle in which a burst of `length` beats (0: none) or a write was accepted."""
        if self.gives:
            self.read_beats += 1
            self.credit -= BANDWIDTH_ONE
            self.waiting[0][1] -= 1
            if not self.waiting[0][1]:
                self.waiting.popleft()
        if length:
            self.waiting.append([cycle + self.timing.latency, length])
        if self.answered:
            self.answers.popleft()
        if wrote:
            self.written_beats += 1
            self.blocked_until = max(self.blocked_until, cycle + 1) + self.timing.write_cycles
            self.answers.append(cycle + self.timing.write_latency)
