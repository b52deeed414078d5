"""Random models to RTL: PyTorch = exact reference = RTL, or a refusal with a reason.

python tests/hw/hardware_fuzz.py 17          # what became of seed 17, in words
"""

import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from random_models import Case, random_case
from rtl_batch import Job, Run, run_batch

from chop.errors import HardwareError
from chop.hw.exact import Exact, coded
from chop.hw.exact_model import run_exact
from chop.hw.lower import Lowered, lower
from chop.hw.verify import verify

TENSORS = 8
BATCH = 50
"""Designs of one program."""


@dataclass(frozen=True)
class Finding:
    """What became of a seed: `equal`, `refused` or `wrong`, and why."""

    seed: int
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Prepared:
    """A design that the verdict let pass, with inputs and what the model gives for them."""

    case: Case
    lowered: Lowered
    job: Job
    expected: dict[str, Exact]


def fuzz(
    seeds: Iterable[int],
    folder: Path,
    batch: int = BATCH,
    make: Callable[[int], Case] = random_case,
) -> list[Finding]:
    """Every case that `make` gives of a seed to its end; simulators are built under `folder`."""
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


def prepare(seed: int, make: Callable[[int], Case] = random_case) -> Prepared | Finding:
    """Lower and verify the model of a seed, as building hardware does."""
    try:
        case = make(seed)
        lowered = lower(case.graph, case.parallelism)
        verify(case.graph, lowered)
        return _prepared(case, lowered)
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


def _prepared(case: Case, lowered: Lowered) -> Prepared:
    rng = np.random.default_rng(case.seed)
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
    return Prepared(case, lowered, Job(lowered.design, codes, beats, case.seed), expected)


def _in_torch_order(value, codes, form) -> Exact:
    flat = np.asarray(codes).reshape(TENSORS, -1)
    placed = np.empty_like(flat)
    placed[:, value.order] = flat
    return coded(placed.reshape(TENSORS, *value.shape), form.frac_width)


def simulate(prepared: list[Prepared], folder: Path) -> list[Finding]:
    """The designs in one simulator, each under stalls with a reset in between and at full rate."""
    if not prepared:
        return []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        try:
            runs = run_batch([p.job for p in prepared], Path(place))
        except RuntimeError as error:
            if len(prepared) == 1:
                return [Finding(prepared[0].case.seed, "wrong", f"simulator: {error}")]
            return [f for p in prepared for f in simulate([p], folder)]  # which of them is it?
    return [_judge(p, both) for p, both in zip(prepared, runs, strict=True)]


def _judge(prepared: Prepared, runs: list[Run]) -> Finding:
    seed = prepared.case.seed
    for how, run in zip(("under stalls, after a reset", "at full rate"), runs, strict=True):
        if not run.is_done or run.violations or run.surplus:
            told = f"done {run.is_done}, violations {run.violations}, surplus {run.surplus}"
            return Finding(seed, "wrong", f"RTL {how}: {told}")
        for port, expected in prepared.expected.items():
            form = prepared.lowered.design.output_streams()[port].format
            given = _in_torch_order(prepared.lowered.outputs[port], run.outputs[port], form)
            if given.differs(expected).any():
                count = int(given.differs(expected).sum())
                return Finding(seed, "wrong", f"RTL {how}: {count} values of {port} differ")
    return Finding(seed, "equal")


def counts(findings: Iterable[Finding]) -> dict:
    """Numbers of models, designs built and equal, refusals by reason, and what is wrong."""
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
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        random_case(int(argument)).graph.fx_graph.print_tabular()
        with tempfile.TemporaryDirectory() as scratch:
            sys.stdout.write(f"{fuzz([int(argument)], Path(scratch))[0]}\n")
