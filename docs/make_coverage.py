"""Tries every model type of transformers, small, and writes docs/coverage.md.

    python docs/make_coverage.py [--workers N] [--limit SECONDS] [--fresh] [--page] [TYPE …]

Each type runs in a process of its own with a time limit, so that a crash costs one row. Rows are
kept in out/coverage and not made again, so a run that was stopped goes on; types that are named,
and all with --fresh, are tried anew. The counts go to bench/results/right.json, "transformers".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import re
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.append(str(ROOT / "bench"))

import tiny_models  # noqa: E402
import zoo  # noqa: E402
from measuring.record import save_section  # noqa: E402
from tiny_models import Tiny  # noqa: E402
from traced_zoo import close, tensors, training_step  # noqa: E402

from chop import MaseGraph  # noqa: E402
from chop.errors import SizeError  # noqa: E402
from chop.log import get_logger  # noqa: E402

ROWS = ROOT / "out" / "coverage"
PAGE = ROOT / "docs" / "coverage.md"
GOOD = ("yes", "guarded")
ONE_FORK = threading.Lock()
"""Packages such as filelock refuse a fork while another thread forks."""


def same(ours: Any, theirs: Any) -> bool:
    """Bit-equal outputs; a model that gives nan is to give it in the same place."""
    if hasattr(theirs, "keys") and hasattr(ours, "keys"):  # a graph keeps no past keys
        theirs = {k: theirs[k] for k in ours.keys()}  # noqa: SIM118
    a, b = tensors(ours), tensors(theirs)
    pairs = zip(a, b, strict=False)
    equal = all(
        x.shape == y.shape
        and torch.equal(
            torch.nan_to_num(x) if x.is_floating_point() else x,
            torch.nan_to_num(y) if y.is_floating_point() else y,
        )
        for x, y in pairs
    )
    return bool(a) and len(a) == len(b) and equal


def _is_close(ours: Any, theirs: Any) -> bool:
    """Equal but for rounding: sums in another order."""
    if hasattr(theirs, "keys") and hasattr(ours, "keys"):
        theirs = {k: theirs[k] for k in ours.keys()}  # noqa: SIM118
    pairs = list(zip(tensors(ours), tensors(theirs), strict=False))
    return bool(pairs) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), 1e-4, 1e-5, equal_nan=True)
        for x, y in pairs
    )


def is_equal(case: Tiny, graph: MaseGraph) -> str:
    """Bit-equal to the eager model at the captured sizes."""
    return _compared(case, graph, case.inputs)


def at_other_sizes(case: Tiny, graph: MaseGraph) -> str:
    """Equal or refused at other sizes; `guarded` where any is refused."""
    found = {_compared(case, graph, inputs) for inputs in case.others}
    for answer in ("no", "close", "guarded", "yes"):
        if answer in found:
            return answer
    return "n/a"


def _compared(case: Tiny, graph: MaseGraph, inputs: dict[str, Any]) -> str:
    with torch.no_grad():
        torch.manual_seed(0)
        theirs = case.model(**inputs)
        torch.manual_seed(0)
        try:
            ours = graph.model(**inputs)
        except SizeError:
            return "guarded"
        if same(ours, theirs):
            return "yes"
        return "close" if _is_close(ours, theirs) else "no"


def trains(case: Tiny, graph: MaseGraph) -> str:
    """One training step gives the same outputs and gradients."""
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    buffers = {k: v.clone() for k, v in case.model.named_buffers()}
    case.model.train()
    graph.model.train()
    try:
        theirs, gradients = training_step(case.model, case.inputs, parameters)
        for key, buffer in case.model.named_buffers():
            buffer.copy_(buffers[key])
        ours, our_gradients = training_step(graph.model, case.inputs, parameters)
    finally:
        case.model.eval()
        graph.model.eval()
        for key, buffer in case.model.named_buffers():
            buffer.copy_(buffers[key])
    return "yes" if same(ours, theirs[: len(ours)]) and close(gradients, our_gradients) else "no"


def comes_back(case: Tiny, graph: MaseGraph) -> str:
    """The graph is the same after a round trip through a checkpoint."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        graph.export(Path(folder) / "graph")
        leaves = {type(m) for m in graph.model.modules()}  # trusted: they are transformers'
        own = [c for c in leaves if c.__module__.startswith("transformers.")]
        loaded = MaseGraph.from_checkpoint(Path(folder) / "graph", classes=own)
        torch.manual_seed(0)
        theirs = graph.model(**case.inputs)
        torch.manual_seed(0)
        return "yes" if same(loaded.model(**case.inputs), theirs) else "no"


COLUMNS: dict[str, Callable[[Tiny, MaseGraph], str]] = {
    "equal": is_equal,
    "other sizes": at_other_sizes,
    "trains": trains,
    "checkpoint": comes_back,
}
"""What is tried of each captured model; each gives `yes`, `no`, `guarded`, or raises."""


def row(kind: str) -> dict[str, Any]:
    """Everything about one type; `built` False where no small config of it builds and runs."""
    start = time.monotonic()
    case = tiny_models.build(kind)
    if case is None:
        return {"type": kind, "built": False}
    found: dict[str, Any] = {"type": kind, "built": True, "class": type(case.model).__name__}
    told: list[str] = []
    try:
        with _listening(told):
            graph = MaseGraph(case.model, list(case.inputs), case.inputs)
    except Exception as error:  # the table says which type fails and why
        return {**found, "captured": "no", "why": {"captured": _short(error)}}
    found |= {"captured": "yes", "sizes": graph.open_sizes(), "why": {}}
    found["told"] = any("gives other values than the model" in text for text in told)
    for name, check in COLUMNS.items():
        try:
            found[name] = check(case, graph)
        except Exception as error:  # as above
            found[name] = "no"
            found["why"][name] = _short(error)
    return {**found, "seconds": round(time.monotonic() - start, 1)}


@contextlib.contextmanager
def _listening(told: list[str]) -> Iterator[None]:
    """What the package warns of meanwhile."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    get_logger().addHandler(handler)
    try:
        yield
    finally:
        get_logger().removeHandler(handler)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _save_row(kind: str) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    _file(kind).write_text(json.dumps(row(kind), indent=1))


def _file(kind: str) -> Path:
    return ROWS / f"{kind}.json"


def tried(kind: str, limit: float) -> dict[str, Any]:
    """The row of `kind`, made in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=_save_row, args=(kind,))
    with ONE_FORK:
        process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
    if not _file(kind).exists():
        why = f"ended with {process.exitcode}; the limit is {limit:.0f} s"
        failed = {"type": kind, "built": True, "captured": "no", "why": {"captured": why}}
        _file(kind).write_text(json.dumps(failed))
    found: dict[str, Any] = json.loads(_file(kind).read_text())
    answers = [f"{k} {found[k]}" for k in ("captured", *COLUMNS) if k in found]
    print(kind, "|", ", ".join(answers) or "does not build small", flush=True)
    return found


def _differs(found: dict[str, Any]) -> bool:
    """Whether the graph gives other values, where it gives any and raises no error."""
    return found.get("equal") == "no" and "equal" not in found["why"]


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many types hold what."""
    built = [r for r in rows if r["built"]]
    other = Counter(r.get("other sizes") for r in built)
    return {
        "tried": len(rows),
        "built": len(built),
        "captured": sum(r["captured"] == "yes" for r in built),
        "equal": sum(r.get("equal") == "yes" for r in built),
        "equal_up_to_rounding": sum(r.get("equal") == "close" for r in built),
        "different_and_told": sum(_differs(r) and r["told"] for r in built),
        "different_and_not_told": sum(_differs(r) and not r["told"] for r in built),
        "equal_at_other_sizes": other["yes"],
        "guarded_at_other_sizes": other["guarded"],
        "rounding_at_other_sizes": other["close"],
        "wrong_at_other_sizes": sum(r.get("other sizes") == "no" and not r["told"] for r in built),
        "trains": sum(r.get("trains") == "yes" for r in built),
        "round_trip": sum(r.get("checkpoint") == "yes" for r in built),
    }


INTRODUCTION = """# Models that can be captured

Written by `make coverage`: the base models of transformers {version}, {tried} of {known} types
tried so far; of {built} a small random configuration builds and runs here. *Equal* means bit-equal
to the eager model; a few differ by rounding. Where the code of a model goes another way while it is
traced, as PaliGemma's does without an image, capture says so. *Other sizes* are other batch sizes
and lengths at which the model itself runs; *guarded* means that the graph refuses one of them with
a `SizeError`, because the model's code goes another way there. *Trains* means that one training
step from the same random state gives the same outputs bit for bit and the same gradients.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """The Markdown page: counts, then what does not hold, then all types."""
    found, built = counts(rows), [r for r in rows if r["built"]]
    failures = [(r, c) for r in built for c in ("captured", *COLUMNS) if r.get(c) == "no"]
    lines = [
        INTRODUCTION.format(
            version=transformers.__version__, known=len(tiny_models.types()), **found
        ),
        "| | types |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {number} |" for name, number in found.items()),
        "\n## What does not hold\n",
        "| type | what | why |",
        "|---|---|---|",
        *(f"| {r['type']} | {c} | {_cell(r['why'].get(c, 'differs'))} |" for r, c in failures),
        "\n## Guarded at another size\n",
        ", ".join(r["type"] for r in built if r.get("other sizes") == "guarded") + ".",
        "\n## Captured\n",
        ", ".join(r["type"] for r in built if r["captured"] == "yes") + ".",
        f"\nBesides, the {len(zoo.ZOO)} models of `tests/zoo.py` are captured with labels, masks "
        "and both attention kernels in the tests, and are equal in every way.",
    ]
    return "\n".join(lines) + "\n" + _kept()


def _kept() -> str:
    """The section that docs/make_generating.py wrote, as it is."""
    text = PAGE.read_text() if PAGE.exists() else ""
    _, mark, section = text.partition("<!-- generating:")
    return f"\n{mark}{section}" if mark else ""


def _cell(text: str) -> str:
    inside = re.sub(r"\S*site-packages/", "", text)  # not where this machine has it
    return inside.replace("|", "\\|").replace("\n", " ")[:160]


def save_counts(rows: list[dict[str, Any]]) -> None:
    """Save the counts under "transformers" of bench/results/right.json."""
    save_section("right", "transformers", counts(rows))


def try_waiting(kinds: list[str], workers: int, limit: float) -> None:
    """Make the rows that are not there."""
    torch.set_num_threads(1)
    row("bert")  # what it imports and prepares, no process has to
    waiting = [k for k in kinds if not _file(k).exists()]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda kind: tried(kind, limit), waiting))


def main() -> int:
    """Try what is not known yet and write the page; 1 where a type is silently wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--page", action="store_true", help="write down what is known, no more")
    options = parser.parse_args()
    ROWS.mkdir(parents=True, exist_ok=True)
    for kind in tiny_models.types() if options.fresh else options.types:
        _file(kind).unlink(missing_ok=True)
    if not options.page:
        try_waiting(options.types or tiny_models.types(), options.workers, options.limit)
    rows = [json.loads(_file(k).read_text()) for k in tiny_models.types() if _file(k).exists()]
    PAGE.write_text(page(rows))
    save_counts(rows)
    found = counts(rows)
    return int(found["wrong_at_other_sizes"] + found["different_and_not_told"] > 0)


if __name__ == "__main__":
    sys.exit(main())
