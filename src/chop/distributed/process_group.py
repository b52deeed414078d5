"""The processes of one run: who they are, how they meet, and which of them is lost.

torchrun, `accelerate launch` and `mase` itself start processes with the variables RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. `mase` names a file in `MEETING` instead of an address: its processes
are all on this machine, and use the loopback device only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from chop.errors import ChopError, ConfigError, LostProcessError
from chop.log import get_logger

logger = get_logger(__name__)

RANK, WORLD_SIZE, LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"
MEETING = "MASE_MEETING"
"""Variable with the path of a file in which the processes of one machine find each other."""
TIMEOUT = timedelta(minutes=30)
"""Longest wait of a process for the others, as by default in torch."""
ANSWER_S = 3.0
"""Seconds that a process has to answer after another one is lost."""


@dataclass(frozen=True)
class ProcessRank:
    """Place of this process among `count` processes."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> ProcessRank | None:
        """Return the place that the variables name; None if nobody started several processes."""
        values = os.environ if environment is None else environment
        if RANK not in values or WORLD_SIZE not in values:
            return None
        numbers = [values[RANK], values[WORLD_SIZE], values.get(LOCAL_RANK, "0")]
        if not all(number.isdigit() for number in numbers):
            raise ConfigError(
                f"{RANK}, {WORLD_SIZE} and {LOCAL_RANK} are {', '.join(numbers)}. "
                "Allowed: whole numbers, as torchrun sets them."
            )
        return cls(*map(int, numbers))


def device_type(place: ProcessRank) -> str:
    """Return cuda if every process of this machine can have a GPU of its own, otherwise cpu."""
    count = int(os.environ.get("LOCAL_WORLD_SIZE", place.count))
    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= count else "cpu"


@contextlib.contextmanager
def process_group(place: ProcessRank) -> Iterator[str]:
    """Join the other processes; yield the device type. nccl connects GPUs, gloo connects CPUs.

    If another process is lost meanwhile, raise a LostProcessError that names it.
    """
    kind = device_type(place)
    if kind == "cuda":
        torch.cuda.set_device(place.local_rank)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // place.count))
    meeting: dict[str, Any] = {}
    if MEETING in os.environ:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        meeting = {"init_method": f"file://{os.environ[MEETING]}"}
    elif place.count == 1 and "MASTER_ADDR" not in os.environ:
        meeting = {"store": distributed.HashStore()}  # type: ignore[attr-defined]
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",  # checkpoints meet on the CPU
        rank=place.rank,
        world_size=place.count,
        timeout=TIMEOUT,
        **meeting,
    )
    store: Any = distributed.distributed_c10d._get_default_store()
    try:
        yield kind
        distributed.destroy_process_group()
    except (ChopError, KeyboardInterrupt):  # its own error: the others notice
        with contextlib.suppress(RuntimeError):
            distributed.destroy_process_group()
        raise
    except RuntimeError as error:  # of a collective, if a process is lost
        lost = _lost_ranks(store, place)
        if not lost:
            raise
        ranks = ", ".join(map(str, lost))
        raise LostProcessError(
            f"rank {place.rank} of {place.count}: rank {ranks} ended or does not answer "
            f"({str(error).splitlines()[0]:.120}). Run the same command again to resume from the "
            "last checkpoint."
        ) from error


def _lost_ranks(store: Any, place: ProcessRank) -> list[int]:
    """Return the ranks that do not answer: every process that notices a loss leaves its name."""
    try:
        store.set(f"here/{place.rank}", "1")
        ends = time.monotonic() + ANSWER_S
        missing = [rank for rank in range(place.count) if rank != place.rank]
        while missing and time.monotonic() < ends:
            missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
            time.sleep(0.05)
    except RuntimeError:  # the store was in the process of rank 0
        return [0]
    return missing
