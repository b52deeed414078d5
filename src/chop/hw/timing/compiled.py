"""The cycle model compiled: the same network as `chop.hw.timing.network`, run by `cycles.cpp`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chop import native
from chop.hw.design.cycle_model import Queue
from chop.hw.design.process import Process
from chop.hw.timing.network import ReferenceRun, RunOutcome, TwinNetwork, TwinNode
from chop.hw.timing.stalls import Stalls

Array = npt.NDArray[Any]
SOURCE = Path(__file__).with_name("cycles.cpp")
MOST_PORTS = 32
"""Inputs and outputs of a node are bits of a word."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the built model, or None if it cannot be built."""
    built = native.load(SOURCE)
    if built is not None:
        built.mase_cycles.argtypes = [ctypes.c_void_p] * 6
        built.mase_cycles.restype = None
    return built


def can_run(network: TwinNetwork) -> bool:
    """Return whether `run` accepts this network on this machine."""
    is_narrow = all(max(len(n.inputs), len(n.outputs)) < MOST_PORTS for n in network.nodes)
    return network.is_declared and is_narrow and library() is not None


def run_network(
    network: TwinNetwork,
    stalls: Stalls,
    beats: tuple[list[int], list[int]],
    patience: int,
    limit: int | None = None,
) -> RunOutcome:
    """Run a network, compiled if possible, and store the high-water mark of each queue.

    `beats`: of each source and each sink; the run ends when all have passed.
    """
    if can_run(network):
        outcome = run(network, stalls, beats, patience, limit)
    else:
        outcome = ReferenceRun(network, stalls, *beats).run(patience, limit)
    for node, mark in zip(network.nodes, outcome.high_water, strict=True):
        if isinstance(node.twin, Queue):
            node.twin.high_water = mark
    return outcome


def run(
    network: TwinNetwork,
    stalls: Stalls,
    beats: tuple[list[int], list[int]],
    patience: int,
    limit: int | None,
) -> RunOutcome:
    """Run a network compiled, with the same result as `ReferenceRun.run`."""
    built = library()
    assert built is not None, "called only where the library is built"
    ports = [*network.sources, *network.sinks]
    counts = [*beats[0], *beats[1]]
    sizes = [len(part) for part in (network.nodes, network.names, network.gates)]
    sizes += [len(network.sources), len(network.sinks)]
    chances = (stalls.seed, stalls.burst, *stalls.thresholds())
    ends = (patience, -1 if limit is None else limit)
    head = np.array([*sizes, *chances, *ends], dtype=np.int64)
    layout = np.array(_layout(network, ports, counts), dtype=np.int64)
    tables = [_process(node).table for node in network.nodes]
    quiet = [_process(node).quiet for node in network.nodes]
    times = [np.empty(max(count, 1), dtype=np.uint32) for count in counts]
    size = 2 + len(network.nodes) + len(ports) + len(network.names) + sum(_state_sizes(network))
    facts = np.zeros(size, dtype=np.int64)
    built.mase_cycles(
        head.ctypes.data, layout.ctypes.data, _pointers(tables), _pointers(quiet),
        _pointers(times), facts.ctypes.data,
    )  # fmt: skip
    return _outcome(network, facts, times, len(network.sources))


def _layout(network: TwinNetwork, ports: Sequence[int], counts: Sequence[int]) -> list[int]:
    layout: list[int] = []
    for node in network.nodes:
        process = _process(node)
        layout += [len(node.inputs), len(node.outputs), process.latency, process.depth]
        layout += [len(process.table), process.first, process.slides]
        layout += [*node.inputs, *node.outputs, *process.slots]
        layout += [process.grain(i) for i in range(len(node.inputs))]
    for gate in network.gates:
        layout += gate
    for edge, count in zip(ports, counts, strict=True):
        layout += (edge, count)
    return layout


def _process(node: TwinNode) -> Process:
    assert node.process is not None, "every twin of a compiled network is a process"
    return node.process


def _pointers(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))


def _outcome(network: TwinNetwork, facts: Array, times: list[Array], sources: int) -> RunOutcome:
    sizes = (len(network.nodes), len(times), len(network.names))
    marks, counts, blocked, rest = np.split(facts[2:], np.cumsum(sizes))
    states = np.split(rest, np.cumsum(_state_sizes(network))[:-1])
    passed = [t[: int(count)] for t, count in zip(times, counts, strict=True)]
    return RunOutcome(
        list(passed[:sources]),
        list(passed[sources:]),
        bool(facts[0]),
        int(facts[1]),
        np.flatnonzero(blocked).tolist(),
        marks.tolist(),
        [tuple(state.tolist()) for state in states[: len(network.nodes)]],
    )


def _state_sizes(network: TwinNetwork) -> list[int]:
    return [1 + len(node.inputs) + len(node.outputs) for node in network.nodes]
