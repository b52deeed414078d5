"""Ledger of component groups that were simulated: a fingerprint for each, in its text file.

The fingerprint covers all that decides the verdicts: the RTL without and with faults, the inputs,
the expected values and cycles of the Python models, and the sources of the simulation. `make test`
simulates a group whose fingerprint is not in the ledger; `make slow` simulates every group.
`python tests/hw/component_ledger.py` simulates the groups that changed and writes the ledger.
"""

import hashlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import mutation_engine
import mutation_run
import numpy as np
from mutation_run import GROUPS, Bench, group_faults

from chop.hw import sim
from chop.hw.sim import component_check
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import lint
from chop.hw.timing.cycles import simulate_control

LEDGER = Path(__file__).with_suffix(".txt")
COMMAND = "python tests/hw/component_ledger.py"
SAMPLE = 12
"""Faults of a group that every run of the tests turns on; the slow tests try all of `CAMPAIGN`."""
ALWAYS = "movers"
"""A group that every run simulates."""


def make_bench(name: str, directory: Path) -> Bench:
    """Return the group `name` with a sample of its faults."""
    return Bench(GROUPS[name], group_faults(GROUPS[name], SAMPLE), directory)


def line(name: str, bench: Bench) -> str:
    """Return the line of the ledger of a group."""
    return f"{name} {fingerprint(bench)}"


def fingerprint(bench: Bench) -> str:
    """Return a digest of all that decides the verdicts on a group."""
    digest = hashlib.sha256()
    for part in (*_sources(), *_files(bench), *_numbers(bench)):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _sources() -> Iterator[bytes]:
    """Yield the text of the program that simulates and compares."""
    suffixes = (".py", ".cpp", ".h", ".sv")
    own = [Path(module.__file__) for module in (mutation_engine, mutation_run)]
    folder = Path(sim.__file__).parent
    yield from (
        path.read_bytes() for path in (*own, *sorted(folder.iterdir())) if path.suffix in suffixes
    )


def _files(bench: Bench) -> Iterator[bytes]:
    """Yield the files of the design, without and with its faults."""
    yield from bench.sound
    yield from (path.read_bytes() for path in sorted(bench.directory.glob("rtl/*.sv")))


def _numbers(bench: Bench) -> Iterator[bytes]:
    """Yield inputs, expected values and the expected cycle of every beat."""
    check = bench.check
    yield from _arrays(check.inputs)
    yield from _arrays(check.expected)
    for case in check.ends:
        yield from _arrays({name: codes for name, _, codes in (*case.inputs, *case.outputs)})
    for stalls in component_check.PROFILES:
        yield repr(stalls).encode()
        yield from _arrays(simulate_control(check.design, check.tensors, stalls).outputs)


def _arrays(arrays: Mapping[str, object]) -> Iterator[bytes]:
    for name, values in arrays.items():
        array = np.asarray(values).astype("<i8")
        yield f"{name} {array.shape}".encode() + array.tobytes()


def read_ledger() -> set[str]:
    """Return the lines of the ledger."""
    return set(LEDGER.read_text().splitlines()) if LEDGER.exists() else set()


def simulate_group(bench: Bench) -> list[str]:
    """Simulate a group and return the faults that nothing notices; raise if it is not exact."""
    for verdict in bench.verdicts(None):
        verdict.require_exact()
    return [str(fault) for fault in bench.survivors()]


def lint_group(name: str, directory: Path) -> str:
    """Return the complaints of the linter on the components of a group."""
    return lint(emit(component_check.bench_design(GROUPS[name].cases()), directory))


def main() -> None:
    """Simulate the groups that the ledger does not have, and write the ledger."""
    known, lines = read_ledger(), []
    for name in GROUPS:
        with tempfile.TemporaryDirectory() as scratch:
            bench = make_bench(name, Path(scratch) / "bench")
            lines.append(line(name, bench))
            if lines[-1] not in known:
                problems = [lint_group(name, Path(scratch) / "lint"), *simulate_group(bench)]
                assert not any(problems), problems
        sys.stdout.write(f"{'known' if lines[-1] in known else 'new  '} {lines[-1]}\n")
        sys.stdout.flush()
    LEDGER.write_text("".join(f"{each}\n" for each in sorted(lines)))


if __name__ == "__main__":
    main()
