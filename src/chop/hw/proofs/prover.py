"""Proofs of RTL for all inputs and all times: Yosys makes the AIG, ABC proves it.

A harness drives a module with free inputs and outputs the broken laws of each cycle.
Property-directed reachability (IC3) searches for a state in which a law is broken. If there is
none, it finds an invariant that holds at the start, is inductive and excludes all such states, and
checks it. Both tools come with the package `pyosys`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chop import toolchain
from chop.errors import HardwareError, MissingDependencyError
from chop.hw.design.claims import LAWS, Proof
from chop.hw.proofs.aiger import Aig
from chop.hw.proofs.counterexample import Trace
from chop.hw.proofs.question import question_files

SEEN = (
    "data_in_0_ready",
    "data_in_1_ready",
    "weight_ready",
    "data_out_0",
    "data_out_0_valid",
    "due",
)
"""Signals that a trace shows besides ports and registers, if the harness has them."""
_SCRIPT = (
    "prep -flatten",
    "memory_map",
    "async2sync",
    "formalff -clk2ff -ff2anyinit",
    "opt -fast",
    "dffunmap",
    "opt -fast",
    "techmap",
    "opt -fast",
    "setundef -undriven -anyseq",  # undefined signals are free
    "aigmap",
    "opt_clean",
    "write_aiger -I -zinit -no-startoffset -map question.aim question.aig",
)
_PDR = "pdr"
_CHILD = """
import json, sys
from pyosys import libyosys as ys
design = ys.Design()
for command in json.loads(sys.argv[1]):
    ys.run_pass("tee -q " + command if not command.startswith("read") else command, design)
"""


@dataclass(frozen=True)
class ProofVerdict:
    """Result of the proof of one law; `trace` is a counterexample."""

    proof: Proof
    law: str
    is_proved: bool
    depth: int
    """Frames until the invariant closed, or cycles of the counterexample."""
    clauses: int
    seconds: float
    trace: Trace | None = None

    def row(self) -> tuple[str, ...]:
        """Return a row of the table."""
        method = f"IC3, {self.clauses} clauses" if self.is_proved else "IC3"
        verdict = "proved" if self.is_proved else "REFUTED"
        return str(self.proof), self.law, method, str(self.depth), f"{self.seconds:.2f}", verdict


def prove(proof: Proof, limit: int = 120) -> list[ProofVerdict]:
    """Return the verdict on each law; raise an error if a tool fails or takes `limit` seconds."""
    return list(verdicts(proof, limit))


def verdicts(proof: Proof, limit: int = 120) -> Iterator[ProofVerdict]:
    """Yield the verdict on each law, in the order of the proof's laws, as soon as it is known."""
    abc = find_abc()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _pose(proof, folder)
        aig = Aig.read((folder / "question.aig").read_bytes())
        for law in proof.laws:
            yield _answer(proof, law, aig, folder, abc, limit)


def prove_all(
    proofs: Sequence[Proof], workers: int = 2, limit: int = 120
) -> Iterator[ProofVerdict]:
    """Yield the verdicts on `proofs` in their order; `workers` run at a time."""
    with ThreadPoolExecutor(workers) as pool:
        for answers in pool.map(lambda proof: prove(proof, limit), proofs):
            yield from answers


def fingerprint(proof: Proof) -> str:
    """Return a digest of all that decides the verdict on `proof`, equal on every machine.

    The versions of the tools are no part of it.
    """
    settings = [SEEN, _SCRIPT, _PDR, proof.module, proof.laws, question_files(proof)]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]


def find_abc() -> Path:
    """Return the path of ABC: that of the package `pyosys`, or one on the PATH."""
    toolchain.require_package("pyosys")
    spec = importlib.util.find_spec("pyosys")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    if (folder / "yosys-abc").is_file():
        return folder / "yosys-abc"
    if program := shutil.which("yosys-abc"):
        return Path(program)
    raise MissingDependencyError(
        f"'yosys-abc' is not beside {folder}. Install it: {toolchain.INSTALL['pyosys']}."
    )


def _pose(proof: Proof, folder: Path) -> None:
    """Write the files of `proof`, and from them an AIG."""
    files = question_files(proof)
    for name, text in files.items():
        (folder / name).write_text(text)
    sources = " ".join(name for name in files if name.endswith(".sv"))
    read = f"read_slang --top prove_{proof.module} {sources}"
    shown = " ".join(f"w:{name}" for name in SEEN)
    commands = [read, _SCRIPT[0], f"expose {shown}", *_SCRIPT[1:]]
    child = [sys.executable, "-c", _CHILD, json.dumps(commands)]
    done = subprocess.run(child, cwd=folder, capture_output=True, text=True)
    if done.returncode or not (folder / "question.aig").exists():
        message = (done.stdout + done.stderr).strip()
        raise HardwareError(f"{proof}: yosys failed ({done.returncode}): {message[-2000:]}")


def _answer(proof: Proof, law: str, aig: Aig, folder: Path, abc: Path, limit: int) -> ProofVerdict:
    names = (folder / "question.aim").read_text()
    place = re.search(rf"^output (\d+) {LAWS.index(law)} broken$", names, re.M)
    assert place is not None, f"{proof}: no output for {law}"
    output = int(place[1])
    start = time.monotonic()
    question, witness = folder / f"{law}.aig", folder / f"{law}.aiw"
    question.write_bytes(aig.only(output).write())
    reduced = folder / "reduced.aig"
    script = (
        f"read_aiger {question.name}; write_aiger {reduced.name}; {_PDR} -T {limit}; "
        f"write_cex -a {witness.name}"
    )
    done = subprocess.run([abc, "-q", script], cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - start
    if witness.exists():
        trace = Trace.of(aig, names, witness.read_text())
        return ProofVerdict(proof, law, False, len(trace.cycles), 0, seconds, trace)
    if Aig.read(reduced.read_bytes()).outputs == (0,):  # both sides are the same gates
        return ProofVerdict(proof, law, True, 0, 0, seconds)
    invariant = re.search(r"Invariant F\[(\d+)\] : (\d+) clauses", done.stdout)
    is_checked = invariant is None or "Verification of invariant" in done.stdout
    if "Property proved" not in done.stdout or not is_checked:
        message = (done.stdout + done.stderr).strip()[-500:]
        raise HardwareError(f"{proof}: {law} is neither proved nor refuted: {message}")
    depth, clauses = (int(invariant[1]), int(invariant[2])) if invariant else (0, 0)
    return ProofVerdict(proof, law, True, depth, clauses, seconds)
