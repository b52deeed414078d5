"""The energy that a machine took while something ran, where the machine tells.

Processors count it themselves (RAPL, under /sys/class/powercap), NVIDIA's GPUs tell their power
through nvidia-smi. Where neither can be read nothing is estimated: the record says why. What is
counted is the whole of each processor and GPU, whatever else ran on it; memory, fans and other
machines of a cluster are not in it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:[0-9]*"
"""Domains of the counters; those with a second colon are parts of another."""
INTERVAL = 5.0
"""Seconds between readings: counters wrap around after minutes, and power changes."""
JOULES_PER_KWH = 3.6e6
ASK_GPU = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


@dataclass
class Counter:
    """Joules of a processor since the first reading, from a counter that wraps around."""

    folder: Path
    joules: float = 0.0
    last: int | None = None

    def read(self, now: float) -> None:
        """Add what was counted since the last reading."""
        value = int((self.folder / "energy_uj").read_text())
        if self.last is not None:
            step = value - self.last
            if step < 0:
                step += int((self.folder / "max_energy_range_uj").read_text())
            self.joules += step / 1e6
        self.last = value


@dataclass
class Gauge:
    """Joules of all GPUs since the first reading, from their power at each."""

    ask: Callable[[], float]
    joules: float = 0.0
    last: tuple[float, float] | None = None

    def read(self, now: float) -> None:
        """Add the mean of two readings over the time between them."""
        watts = self.ask()
        if self.last is not None:
            before, then = self.last
            self.joules += (watts + before) / 2 * (now - then)
        self.last = watts, now


@dataclass
class Energy:
    """What is being measured: `meters` by the name of what they tell of."""

    meters: dict[str, Counter | Gauge] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    """What tells nothing -> why."""
    seconds: float = 0.0

    def read(self) -> None:
        """One reading of every meter; one that fails tells nothing from then on."""
        for name, meter in list(self.meters.items()):
            try:
                meter.read(time.monotonic())
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                del self.meters[name]
                self.silent[name] = f"could not be read ({type(error).__name__})"

    def record(self, carbon_intensity: float) -> dict[str, Any]:
        """As plain data; `carbon_intensity` is in grams of CO2 for each kWh."""
        joules = {name: meter.joules for name, meter in self.meters.items()}
        total = sum(joules.values()) if joules else None
        grams = None if total is None else total / JOULES_PER_KWH * carbon_intensity
        return {
            "seconds": self.seconds,
            "joules": total,
            "parts": joules,
            "unknown": dict(self.silent),
            "carbon_intensity": carbon_intensity,
            "co2_grams": grams,
        }


@contextlib.contextmanager
def measure_energy(powercap: Path = POWERCAP) -> Iterator[Energy]:
    """Measure what the machine takes while the block runs; `.record(grams_per_kwh)` afterwards."""
    energy = find_meters(powercap)
    energy.read()
    done, start = threading.Event(), time.monotonic()

    def keep_reading() -> None:
        while not done.wait(INTERVAL):
            energy.read()

    thread = threading.Thread(target=keep_reading, daemon=True)
    if energy.meters:
        thread.start()
    try:
        yield energy
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
        energy.read()
        energy.seconds = time.monotonic() - start


def find_meters(powercap: Path = POWERCAP) -> Energy:
    """What this machine tells, and what it does not."""
    found = Energy()
    domains = [d for d in sorted(powercap.glob(PACKAGES)) if d.name.count(":") == 1]
    for domain in domains:
        name = f"processor {domain.name.partition(':')[2]}"
        try:
            int((domain / "energy_uj").read_text())
            found.meters[name] = Counter(domain)
        except (OSError, ValueError) as error:
            found.silent[name] = f"{domain}/energy_uj: {type(error).__name__}"
    if not domains:
        found.silent["processor"] = f"no RAPL counters in {powercap}"
    if shutil.which(ASK_GPU[0]) is None:
        found.silent["GPU"] = "no nvidia-smi"
    else:
        found.meters["GPU"] = Gauge(gpu_watts)
    return found


def gpu_watts() -> float:
    """The power of all GPUs together."""
    told = subprocess.run(ASK_GPU, capture_output=True, text=True, check=True, timeout=10).stdout
    return sum(float(line) for line in told.split())


def energy_in_words(record: Mapping[str, Any]) -> str:
    """A record as a line for people."""
    unknown = "; ".join(f"{name}: {why}" for name, why in record["unknown"].items())
    if record["joules"] is None:
        return f"energy: this machine does not tell ({unknown})"
    parts = " and ".join(record["parts"])
    rest = f"; not known: {unknown}" if unknown else ""
    return (
        f"energy: {record['joules'] / JOULES_PER_KWH:.4g} kWh of {parts} in "
        f"{record['seconds']:.0f} s, about {record['co2_grams']:.3g} g of CO2 at "
        f"{record['carbon_intensity']:g} g/kWh (--carbon-intensity){rest}"
    )
