"""Check results, then time them: the only clock of the benchmarks.

`compare` is for programs that take turns. Each is first compared with its reference on the tensors
that are timed. `once` is for a job too long to repeat: the result that was timed is checked.
A wrong, zero or non-finite result raises `WrongResultError`, so that no figure is printed or saved.

    times = compare({"clone": Timed(x.clone, x), "format": Timed(lambda: q(x), expected)})
    times["format"].median / times["clone"].median

To add a clock, add a function from calls to a timer, and its row in `CLOCKS`.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Program = Callable[[], Any]
Timer = Callable[[], float]
QUEUED = 16
"""Calls timed together by the clock `stream`: launches hide behind the call before."""
HOST_CALLS = 200
"""Calls timed together by the clock `host`."""


class WrongResultError(AssertionError):
    """A program whose result is not that of its reference: it is not timed."""


@dataclass(frozen=True)
class Timed:
    """A program, its reference, and the relative error it may have.

    `run`: a call, or several that do the same on other copies of the data. `expected`: the value of
    the reference, or a function that returns it. `computes`: what is compared, default `run`.
    """

    run: Program | Sequence[Program]
    expected: Any
    tolerance: float = 0.0
    computes: Program | None = None

    @property
    def calls(self) -> Sequence[Program]:
        """All calls of the program."""
        return [self.run] if callable(self.run) else self.run

    def check(self, name: str) -> float:
        """Return the largest error of all calls; raise `WrongResultError` if one is wrong."""
        expected = self.expected() if callable(self.expected) else self.expected
        checked = [self.computes] if self.computes else self.calls
        return max(check(name, call(), expected, self.tolerance) for call in checked)


@dataclass(frozen=True)
class Times:
    """Seconds of a checked program by round, and its error."""

    seconds: tuple[float, ...]
    error: float

    @property
    def median(self) -> float:
        """Median, in seconds."""
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        """Least, in seconds."""
        return min(self.seconds)

    def spread(self, calls: int = 1) -> dict[str, float]:
        """Return median, least and most, in microseconds per call."""
        figures = {"median": self.median, "min": self.low, "max": max(self.seconds)}
        return {f"{name}_us": value * 1e6 / calls for name, value in figures.items()}

    def ratios(self, base: Times) -> list[float]:
        """Return the ratio to `base` in each round."""
        return [own / other for own, other in zip(self.seconds, base.seconds, strict=True)]


class Once(NamedTuple):
    """Result of a checked job with its wall time and its processor time in seconds."""

    result: Any
    seconds: float
    processor_seconds: float


# -- checks ----------------------------------------------------------------------------------


def check(name: str, value: Any, expected: Any, tolerance: float = 0.0) -> float:
    """Return the error of `value`: norm of the difference over the norm of `expected`.

    Raise `WrongResultError` if it exceeds `tolerance`, if a part of `value` is not finite, or if it
    is zero or of another shape where `expected` is not. An `expected` of zeros proves nothing.
    """
    own, reference = dict(_leaves(value)), dict(_leaves(expected))
    if own.keys() != reference.keys() or not reference:
        raise WrongResultError(f"{name}: has {sorted(own)}, the reference has {sorted(reference)}")
    errors = [_difference(f"{name}{place}", own[place], reference[place]) for place in reference]
    norm = math.sqrt(sum(size for _, size in errors))
    if norm == 0.0:
        raise WrongResultError(
            f"{name}: the reference is zero everywhere, so the check proves nothing"
        )
    error = math.sqrt(sum(difference for difference, _ in errors)) / norm
    if error > tolerance:
        raise WrongResultError(f"{name}: differs by {error:.3g}, at most {tolerance:g} is allowed")
    return error


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Return the tensors, numbers and words in a nested value, by their place."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for key, each in enumerate(value):
            yield from _leaves(each, f"{place}[{key}]")
    elif value is not None:
        yield place, value


def _difference(name: str, value: Any, expected: Any) -> tuple[float, float]:
    """Return the squared norms of the difference and of `expected`."""
    if not isinstance(expected, Tensor | np.ndarray | np.number | float | int):
        if value != expected:
            raise WrongResultError(f"{name}: is {value!r}, the reference is {expected!r}")
        return 0.0, 1.0
    own, reference = _numbers(value), _numbers(expected)
    if own.shape != reference.shape:
        raise WrongResultError(f"{name}: shape {list(own.shape)}, not {list(reference.shape)}")
    for who, each in (("it", own), ("its reference", reference)):
        if not each.isfinite().all():
            raise WrongResultError(f"{name}: {who} is not finite")
    if reference.any() and not own.any():
        raise WrongResultError(f"{name}: is zero everywhere, its reference is not")
    return float((own - reference).square().sum()), float(reference.square().sum())


def _numbers(value: Any) -> Tensor:
    tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    return tensor.double()


# -- clocks ----------------------------------------------------------------------------------


def compare(
    programs: Mapping[str, Timed], *, rounds: int = 7, warm_up: int = 2, clock: str = "wall"
) -> dict[str, Times]:
    """Check every program, then time them in turn; return the seconds per call of each."""
    errors = {name: program.check(name) for name, program in programs.items()}
    timers = {name: CLOCKS[clock](program.calls) for name, program in programs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(-warm_up, rounds):
        for name in list(timers) if number % 2 == 0 else reversed(list(timers)):
            took = timers[name]()
            if number >= 0:
                seconds[name].append(took)
    return {name: Times(tuple(each), errors[name]) for name, each in seconds.items()}


def once(name: str, job: Program, correct: Callable[[Any], Any]) -> Once:
    """Run a long job; return its result and times if `correct(result)` is true."""
    _finish_gpu()
    started, processor = time.perf_counter(), time.process_time()
    result = job()
    _finish_gpu()
    took = Once(result, time.perf_counter() - started, time.process_time() - processor)
    if not correct(result):
        raise WrongResultError(f"{name}: the result is wrong")
    return took


def is_sound(value: Any) -> bool:
    """Return whether all numbers in `value` are finite and some are not zero."""
    numbers = [_numbers(each) for _, each in _leaves(value)]
    return all(bool(n.isfinite().all()) for n in numbers) and any(bool(n.any()) for n in numbers)


def in_new_process(statement: str, *, setup: str, correct: str) -> float:
    """Return the seconds of `statement` in a new interpreter after `setup`, if `correct` holds."""
    program = f"{setup}\nimport time\n_start = time.perf_counter()\n{statement}\n"
    program += f"_took = time.perf_counter() - _start\nassert {correct}\nprint(_took)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise WrongResultError(f"{statement}: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.split()[-1])


def _finish_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _by(read: Callable[[], float]) -> Callable[[Sequence[Program]], Timer]:
    """Return a clock that reads `read` around each call; results are freed afterwards."""

    def clock(calls: Sequence[Program]) -> Timer:
        def timer() -> float:
            total = 0.0
            for call in calls:
                _finish_gpu()
                start = read()
                kept = call()
                _finish_gpu()
                total += read() - start
                del kept
            return total / len(calls)

        return timer

    return clock


def _stream(calls: Sequence[Program]) -> Timer:
    """Return a timer by the GPU's clock, of `QUEUED` rounds of all calls in a row."""

    def all_calls() -> None:
        for _ in range(QUEUED):
            for call in calls:
                call()

    return lambda: _events(all_calls, torch.cuda.current_stream()) / (QUEUED * len(calls))


def _graph(calls: Sequence[Program]) -> Timer:
    """Return a timer of the calls as one CUDA graph: no launch gaps, no warm cache."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return lambda: _events(graph.replay, stream) / len(calls)


def _events(run: Program, stream: torch.cuda.Stream) -> float:
    """Return the seconds of `run` on the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        begin.record(stream)
        run()
        end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def _host(calls: Sequence[Program]) -> Timer:
    """Return a timer of what a call costs the host while the GPU is faster."""
    (call,) = calls

    def timer() -> float:
        for _ in range(HOST_CALLS // 4):
            call()
        _finish_gpu()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        took = time.perf_counter() - start
        _finish_gpu()
        return took / HOST_CALLS

    return timer


CLOCKS: dict[str, Callable[[Sequence[Program]], Timer]] = {
    "wall": _by(time.perf_counter),
    "processor": _by(time.process_time),
    "stream": _stream,
    "graph": _graph,
    "host": _host,
}
"""Clock -> function from the calls of a program to a timer, which returns seconds per call."""
