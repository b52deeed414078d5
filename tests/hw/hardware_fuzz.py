"""Random models to RTL: PyTorch = exact reference = RTL for every timing, or a refusal.

python tests/hw/hardware_fuzz.py 17          # what became of seed 17, in words
"""

import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from branching_models import branching_case
from random_models import Case, random_case
from rtl_batch import Job, Run, run_batch

from chop.errors import HardwareError
from chop.hw.lower import Lowered, lower
from chop.hw.lower.verify import verify
from chop.hw.reference.exact import Exact, coded
from chop.hw.reference.exact_model import run_exact
from chop.hw.timing.liveness import waiting_stages

TENSORS = 8
BATCH = 50
"""Designs of one program."""


@dataclass(frozen=True)
class Finding:
    """Outcome of a seed, `equal`, `refused`, `wrong` or `deadlock`, and the reason."""

    seed: int
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Prepared:
    """A design that the verdict let pass, with inputs and what the model gives for them."""

    seed: int
    lowered: Lowered
    job: Job
    expected: dict[str, Exact]


def any_case(seed: int) -> Case:
    """Return a model of layers in a row, or for every other seed one whose paths join again."""
    return branching_case(seed // 2) if seed % 2 else random_case(seed)


def fuzz(
    seeds: Iterable[int],
    folder: Path,
    batch: int = BATCH,
    make: Callable[[int], Case] = any_case,
) -> list[Finding]:
    """Run the case that `make` draws from each seed; simulators are built under `folder`."""
    found: list[Finding] = []
    waiting: list[Prepared] = []
    for seed in seeds:
        prepared = prepare(seed, make)
        if isinstance(prepared, Finding):
            found.append(prepared)
        else:
            waiting.append(prepared)
        if len(waiting) == batch:
            found += simulate(waiting, folder)
            waiting = []
    return sorted(found + simulate(waiting, folder), key=lambda finding: finding.seed)


def prepare(seed: int, make: Callable[[int], Case] = any_case) -> Prepared | Finding:
    """Lower and verify the model of a seed, as building hardware does."""
    try:
        case = make(seed)
        lowered = lower(case.graph, case.parallelism, share_layers=case.share_layers)
        verify(case.graph, lowered)
        if stuck := waiting_stages(lowered.design):
            return Finding(seed, "deadlock", f"no proof: beats wait behind {', '.join(stuck)}")
        return _prepared(seed, case, lowered)
    except HardwareError as error:
        told = str(error)
        return Finding(seed, "refused" if is_refusal(told) else "wrong", short(told))
    except Exception as error:  # whatever it is, it is no refusal
        place = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        return Finding(seed, "wrong", f"crash: {told}")


COMPARISONS = (
    "the design differs from",
    "PyTorch in double precision gives",
    "the input ports make",
)
"""Words of errors about references that disagree: a fault of ours, not a refusal."""


def is_refusal(told: str) -> bool:
    """Whether an error names the node, and says what is allowed or what to set instead."""
    if any(words in told for words in COMPARISONS):
        return False
    says_what_to_do = re.search(r"Allowed|Quantise|Hardware needs|Supported|Give the result", told)
    return re.match(r"node '\w+'", told) is not None and says_what_to_do is not None


def short(told: str) -> str:
    """A refusal without its names and numbers, to count by."""
    told = re.sub(r"node '\w+'(: | \()", r"node\1", told)
    told = re.sub(r"values; the first.*|Nearest.*|Allowed.*|Hardware needs.*", "", told)
    return re.sub(r"-?\d+(\.\d+)?|'\w+'", "N", told).strip()[:120]


def _prepared(seed: int, case: Case, lowered: Lowered) -> Prepared:
    rng = np.random.default_rng(seed)
    codes, numbers = {}, []
    for number, node in enumerate(n for n in case.graph.fx_graph.nodes if n.op == "placeholder"):
        name = f"data_in_{number}"
        shape = node.meta["mase"].common.results["data_out_0"]["shape"][1:]
        if name not in lowered.inputs:
            numbers.append(Exact(np.zeros((TENSORS, *shape), dtype=np.int64)))
            continue
        stream, value = lowered.design.inputs[name], lowered.inputs[name]
        low, high = stream.format.low, stream.format.high
        sent = rng.integers(low, high, (TENSORS, stream.elements), endpoint=True)
        sent[0], sent[1] = low, high
        codes[name] = sent.reshape(TENSORS, *stream.shape)
        numbers.append(_in_torch_order(value, sent, stream.format))
    exact = run_exact(case.graph, numbers)
    output = next(n for n in case.graph.fx_graph.nodes if n.op == "output")
    results = output.args[0] if isinstance(output.args[0], tuple | list) else [output.args[0]]
    expected = {p: exact[n] for p, n in zip(lowered.outputs, results, strict=True)}
    streams = lowered.design.output_streams()
    beats = {p: TENSORS * s.beats for p, s in streams.items()}
    return Prepared(seed, lowered, Job(lowered.design, codes, beats, seed), expected)


def _in_torch_order(value, codes, form) -> Exact:
    flat = np.asarray(codes).reshape(-1, len(value.order))
    placed = np.empty_like(flat)
    placed[:, value.order] = flat
    return coded(placed.reshape(-1, *value.shape), form.frac_width)


def simulate(prepared: list[Prepared], folder: Path) -> list[Finding]:
    """Run the designs in one simulator, each with every timing of `rtl_batch.timings`."""
    if not prepared:
        return []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        try:
            runs = run_batch([p.job for p in prepared], Path(place))
        except RuntimeError as error:
            if len(prepared) == 1:
                return [Finding(prepared[0].seed, "wrong", f"simulator: {error}")]
            return [f for p in prepared for f in simulate([p], folder)]  # which of them is it?
    return [_judge(p, both) for p, both in zip(prepared, runs, strict=True)]


def _judge(prepared: Prepared, runs: list[Run]) -> Finding:
    seed = prepared.seed
    for run in runs:
        if run.violations or run.surplus:
            told = f"violations {run.violations}, surplus {run.surplus}"
            return Finding(seed, "wrong", f"RTL {run.name}: {told}")
        if not run.is_done:
            return Finding(seed, "deadlock", f"RTL {run.name}: no beat moves any more")
        for port, expected in prepared.expected.items():
            if count := _differing(prepared, port, run.outputs[port], expected):
                return Finding(seed, "wrong", f"RTL {run.name}: {count} values of {port} differ")
    return Finding(seed, "equal")


def _differing(prepared: Prepared, port: str, codes, expected: Exact) -> int:
    """Return how many values of a port differ from those expected of its first tensors."""
    form = prepared.lowered.design.output_streams()[port].format
    given = _in_torch_order(prepared.lowered.outputs[port], codes, form)
    wanted = replace(expected, codes=expected.codes[: given.shape[0]])
    return int(given.differs(wanted).sum())


def counts(findings: Iterable[Finding]) -> dict:
    """Count models, designs built and equal, refusals by reason, wrong results and deadlocks."""
    findings = list(findings)
    outcomes = Counter(f.outcome for f in findings)
    refused = Counter(f.reason for f in findings if f.outcome == "refused")
    return {
        "models": len(findings),
        "built": outcomes["equal"] + sum(f.reason.startswith("RTL") for f in findings),
        "equal": outcomes["equal"],
        "refused": outcomes["refused"],
        "refused_by_reason": dict(refused.most_common()),
        "wrong": outcomes["wrong"],
        "wrong_seeds": {str(f.seed): f.reason for f in findings if f.outcome == "wrong"},
        "deadlocks": outcomes["deadlock"],
        "deadlock_seeds": {str(f.seed): f.reason for f in findings if f.outcome == "deadlock"},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        any_case(int(argument)).graph.fx_graph.print_tabular()
        with tempfile.TemporaryDirectory() as scratch:
            sys.stdout.write(f"{fuzz([int(argument)], Path(scratch))[0]}\n")
