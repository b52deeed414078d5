"""Constants of a machine for the cost model, measured on the machine itself.

Arithmetic is the best of several matrix products, memory the best of several copies. A link is
measured by all-gathers of two sizes in a ring of processes. The cost model says that n processes
take (n − 1) (α + S / n β) seconds for S bytes, so two sizes determine the latency α and the
bandwidth 1 / β. Sizes between them check the fit.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

from chop.distributed.cost import collective_seconds
from chop.distributed.mesh import Axis, Mesh
from chop.errors import ConfigError

VERSION = 1
"""Version of the file."""
MOST_PROCESSES = 8
"""Processes that stand for a longer axis."""
LINK_BYTES = (4_096, 65_536, 1_048_576, 8_388_608)
"""Whole sizes of the gathered tensors; the first and the last determine the link."""
ROUNDS = 7
"""Measurements of which the least counts."""
MATRIX = 768
"""Rows and columns of the matrices that are multiplied."""
COPY_BYTES = 64_000_000
"""Bytes of the tensor that is copied, more than a cache holds."""


@dataclass(frozen=True)
class MachineConstants:
    """Constants of `Mesh` for one machine; one link per axis.

    `fit_error`: largest relative difference of the model from what was measured on a link.
    """

    shape: tuple[int, ...]
    flops: float
    memory_bandwidth: float
    bandwidth: tuple[float, ...]
    latency: tuple[float, ...]
    fit_error: float = 0.0
    device: str = "cpu"
    processes: tuple[int, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return plain data with a version."""
        return {"version": VERSION, **asdict(self)}

    def settings(self, axes: int) -> dict[str, Any]:
        """Return the settings of a mesh of `axes` axes."""
        if len(self.bandwidth) not in (1, axes):
            raise ConfigError(
                f"machine: the file has {len(self.bandwidth)} links (mesh {list(self.shape)}), and "
                f"the mesh has {axes} axes. Measure again with --calibrate."
            )
        names = ("flops", "memory_bandwidth", "bandwidth", "latency")
        return {name: getattr(self, name) for name in names}


def load_machine(file: Path) -> MachineConstants:
    """Return the constants in a file that `mase shard --calibrate` wrote."""
    try:
        data: dict[str, Any] = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"machine: {file} cannot be read: {error}.") from error
    version = data.pop("version", None)
    if version != VERSION:
        raise ConfigError(f"machine: version {version!r} of {file} is unknown. Known: {VERSION}.")
    names = [field.name for field in fields(MachineConstants)]
    missing = [name for name in names[:5] if name not in data]
    unknown = [name for name in data if name not in names]
    if missing or unknown:
        raise ConfigError(
            f"machine: {file} has unknown keys {unknown} and lacks {missing}. Known: "
            f"{', '.join(names)}."
        )
    lists = {n: tuple(v) for n, v in data.items() if isinstance(v, list)}
    constants = MachineConstants(**{**data, **lists})
    Mesh(
        constants.shape, **constants.settings(len(constants.shape))
    )  # refuses what is out of range
    return constants


def measure_machine(shape: Sequence[int], *, device: str = "cpu") -> MachineConstants:
    """Return the constants of this machine for a mesh of `shape`.

    Every axis is measured alone, with one local process per device and at most `MOST_PROCESSES`:
    gloo on the CPU, NCCL on GPUs ("cuda", one GPU per process). An axis of one device has the
    default link. The calling program must be importable: guard it with `if __name__ ==
    "__main__"`.
    """
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"machine: device '{device}' is unknown. Known: cpu, cuda.")
    counts = [min(n, MOST_PROCESSES) for n in shape]
    if device == "cuda" and max(counts) > torch.cuda.device_count():
        raise ConfigError(
            f"machine: an axis of {max(counts)} devices needs as many GPUs, and this machine has "
            f"{torch.cuda.device_count()}."
        )
    times = {n: _ring_times(n, device) for n in sorted(set(counts)) if n > 1}
    usual = Mesh((1,)).axis(0)
    links = {n: fitted_link(n, measured) for n, measured in times.items()}
    each = [links.get(n, usual) for n in counts]
    return MachineConstants(
        tuple(shape),
        _flops(device),
        _memory_bandwidth(device),
        tuple(link.bandwidth for link in each),
        tuple(link.latency for link in each),
        max((_fit_error(links[n], times[n]) for n in links), default=0.0),
        device,
        tuple(counts),
    )


def fitted_link(devices: int, times: Mapping[int, float]) -> Axis:
    """Return the link that takes these seconds for all-gathers of these whole sizes.

    >>> fitted_link(2, {1000: 2e-6, 1_001_000: 502e-6}).bandwidth
    1000000000.0
    """
    small, large = min(times), max(times)
    steps, share = devices - 1, (devices - 1) / devices
    per_byte = max((times[large] - times[small]) / ((large - small) * share), 1e-15)
    latency = max(times[small] - small * share * per_byte, 0.0) / steps
    return Axis(devices, round(1 / per_byte, 3), latency)


def _fit_error(link: Axis, times: Mapping[int, float]) -> float:
    """Return the largest relative difference of the model from what was measured."""
    pairs = [(collective_seconds("all_gather", size, link), t) for size, t in times.items()]
    return max(abs(model - measured) / measured for model, measured in pairs)


def _least_seconds(call: Callable[[], Any], device: str, rounds: int = ROUNDS) -> float:
    """Return the least time of a call after one that is not timed."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def _flops(device: str) -> float:
    """Return the operations per second of a matrix product on one thread or one GPU."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size = 8 * MATRIX if device == "cuda" else MATRIX
    a = torch.ones(size, size, device=device, dtype=dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in every process of a plan that runs on this machine
    try:
        seconds = _least_seconds(lambda: a @ a, device)
    finally:
        torch.set_num_threads(threads)
    return 2 * size**3 / seconds


def _memory_bandwidth(device: str) -> float:
    """Return the bytes per second that a copy reads and writes."""
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _least_seconds(lambda: target.copy_(source), device)


def _ring_times(count: int, device: str) -> dict[int, float]:
    """Return the seconds of an all-gather over `count` processes by whole size."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_measure_ring, (folder, count, device), nprocs=count)  # type: ignore[no-untyped-call]
        files = [Path(folder) / f"{rank}.json" for rank in range(count)]
        each = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    # a collective ends where its last process ends
    return {size: max(times[str(size)] for times in each) for size in LINK_BYTES}


def _measure_ring(rank: int, folder: str, count: int, device: str) -> None:
    """Measure all-gathers in one process and save the times to the folder."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=count,
    )
    try:
        times = {size: _gather_seconds(size, count, device) for size in LINK_BYTES}
        Path(folder, f"{rank}.json").write_text(json.dumps(times), encoding="utf-8")
    finally:
        distributed.destroy_process_group()


def _gather_seconds(size: int, count: int, device: str) -> float:
    part = torch.zeros(size // 4 // count, device=device)
    whole = torch.zeros(part.numel() * count, device=device)
    distributed.barrier()
    return _least_seconds(lambda: distributed.all_gather_into_tensor(whole, part), device)
