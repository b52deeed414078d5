"""Counters of the server in the text format of Prometheus.

To add a metric, add an attribute to `ServerMetrics` and its row to `HELP`.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator, Mapping

PREFIX = "mase_"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Upper bounds of histogram buckets."""
HELP = {
    "requests": "HTTP requests by path and status.",
    "answers": "Answers by the reason of their end.",
    "prompt_tokens": "Tokens of prompts that were read.",
    "generated_tokens": "Tokens that were generated.",
    "first_token_seconds": "Seconds from submission to the first token.",
    "answer_seconds": "Seconds from submission to the end of an answer.",
    "batch_size": "Sequences in a decoding step.",
}
"""Attribute of `ServerMetrics` -> its line of help."""


class Total:
    """Number that grows, one for each combination of labels."""

    kind = "counter"

    def __init__(self) -> None:
        self._values: dict[tuple[tuple[str, str], ...], float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float = 1, **labels: str) -> None:
        """Add `amount` to the number with these labels."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def value(self, **labels: str) -> float:
        """Return the number with these labels."""
        return self._values.get(tuple(sorted(labels.items())), 0)

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples."""
        with self._lock:
            values = dict(self._values) or {(): 0}
        for labels, value in values.items():
            yield f"{name}{_shown(dict(labels))} {value:g}"


class Spread:
    """Histogram of values, with upper bounds `bounds`."""

    kind = "histogram"

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[bisect.bisect_left(self.bounds, value)] += 1
            self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples: cumulative counts, the sum and the number of values."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{name}_bucket{{le="{edge}"}} {below}'
        yield f"{name}_sum {total:g}"
        yield f"{name}_count {below}"


class ServerMetrics:
    """Metrics of one engine and its server."""

    def __init__(self) -> None:
        self.requests, self.answers = Total(), Total()
        self.prompt_tokens, self.generated_tokens = Total(), Total()
        self.first_token_seconds, self.answer_seconds = Spread(SECONDS), Spread(SECONDS)
        self.batch_size = Spread(SIZES)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return all metrics; `gauges`: name -> (help, value now)."""
        lines = []
        for short, text in HELP.items():
            metric = getattr(self, short)
            name = f"{PREFIX}{short}{'_total' if metric.kind == 'counter' else ''}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {metric.kind}"]
            lines += metric.lines(name)
        for short, (text, value) in gauges.items():
            name = f"{PREFIX}{short}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _shown(labels: Mapping[str, str]) -> str:
    """Return labels in braces, with quotes and line breaks escaped."""
    if not labels:
        return ""
    pairs = []
    for key, value in labels.items():
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{key}="{escaped}"')
    return "{" + ",".join(pairs) + "}"
