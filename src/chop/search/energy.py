"""Energy that the machine used while a block of code ran.

Processors count energy themselves (RAPL, under /sys/class/powercap), NVIDIA GPUs report their power
through nvidia-smi. If neither can be read nothing is estimated: the record has the reason. The
energy is that of whole processors and GPUs, other programs included, without memory and fans.
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
"""Folders of the counters; those with a second colon are parts of another domain."""
INTERVAL = 5.0
"""Seconds between readings; counters wrap around after minutes, and power changes."""
JOULES_PER_KWH = 3.6e6
ASK_GPU = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


@dataclass
class Counter:
    """Joules of a processor since the first reading, from a counter that wraps around."""

    folder: Path
    joules: float = 0.0
    last: int | None = None

    def read(self, now: float) -> None:
        """Add the energy since the last reading."""
        value = int((self.folder / "energy_uj").read_text())
        if self.last is not None:
            step = value - self.last
            if step < 0:
                step += int((self.folder / "max_energy_range_uj").read_text())
            self.joules += step / 1e6
        self.last = value


@dataclass
class Gauge:
    """Joules of all GPUs since the first reading, from their power at each reading."""

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
    """Measurement: `meters` by the name of their device."""

    meters: dict[str, Counter | Gauge] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    """Device without a meter -> reason."""
    seconds: float = 0.0

    def read(self) -> None:
        """Read every meter; drop those that fail."""
        for name, meter in list(self.meters.items()):
            try:
                meter.read(time.monotonic())
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                del self.meters[name]
                self.silent[name] = f"could not be read ({type(error).__name__})"

    def record(self, carbon_intensity: float) -> dict[str, Any]:
        """Return plain data; `carbon_intensity` is in grams of CO2 per kWh."""
        joules = {name: meter.joules for name, meter in self.meters.items()}
        total = sum(joules.values()) if joules else None
        return {
            "seconds": self.seconds,
            "joules": total,
            "parts": joules,
            "unknown": dict(self.silent),
            "carbon_intensity": carbon_intensity,
            "co2_grams": None if total is None else total / JOULES_PER_KWH * carbon_intensity,
        }


@contextlib.contextmanager
def measure_energy(powercap: Path = POWERCAP) -> Iterator[Energy]:
    """Measure the energy of the machine while the block runs; then call `.record(…)`."""
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
    """Return the meters of this machine, and the reasons for those that are missing."""
    energy = Energy()
    domains = [d for d in sorted(powercap.glob(PACKAGES)) if d.name.count(":") == 1]
    for domain in domains:
        name = f"processor {domain.name.partition(':')[2]}"
        try:
            int((domain / "energy_uj").read_text())
            energy.meters[name] = Counter(domain)
        except (OSError, ValueError) as error:
            energy.silent[name] = f"{domain}/energy_uj: {type(error).__name__}"
    if not domains:
        energy.silent["processor"] = f"no RAPL counters in {powercap}"
    if shutil.which(ASK_GPU[0]) is None:
        energy.silent["GPU"] = "no nvidia-smi"
    else:
        energy.meters["GPU"] = Gauge(gpu_watts)
    return energy


def gpu_watts() -> float:
    """Return the power of all GPUs together."""
    text = subprocess.run(ASK_GPU, capture_output=True, text=True, check=True, timeout=10).stdout
    return sum(float(line) for line in text.split())


def energy_in_words(record: Mapping[str, Any]) -> str:
    """Return a record as one line of text."""
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
