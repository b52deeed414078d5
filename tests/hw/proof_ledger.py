"""Ledger of proofs: a fingerprint and a verdict for each fast proof, in `proof_ledger.txt`.

A proof whose fingerprint is in the ledger is not repeated by `make test`; one that changed is.
`make slow` repeats all of them and compares. `python tests/hw/proof_ledger.py` proves what is not
in the ledger yet and writes it.
"""

import sys
from pathlib import Path

from chop.hw.proofs import PROOFS, Proof
from chop.hw.proofs.catalogue import proof_faults
from chop.hw.proofs.prover import fingerprint, verdicts

LEDGER = Path(__file__).with_suffix(".txt")
COMMAND = "python tests/hw/proof_ledger.py"
FIRST = {p.module: p for p in reversed(PROOFS)}


def fast_proofs() -> dict[str, Proof]:
    """Return the proofs that take seconds by name; "with a fault": its verdict is a refutation."""
    sound: dict[str, Proof] = {}
    for proof in PROOFS:
        if not proof.is_slow:  # sizes that are long are not in the name
            number = 1 + sum(name.split(" (")[0] == str(proof) for name in sound)
            sound[f"{proof} ({number})" if number > 1 else str(proof)] = proof
    faulty = {
        f"{module} with a fault": FIRST[module].with_fault(fault)
        for module, fault in proof_faults().items()
        if not FIRST[module].is_slow
    }
    return {**sound, **faulty}


def verdict(proof: Proof) -> str:
    """Prove, and return "proved", or "refuted" as soon as one law is broken."""
    return "proved" if all(v.is_proved for v in verdicts(proof)) else "refuted"


def line(name: str, proof: Proof, answer: str) -> str:
    """Return a line of the ledger."""
    return f"{name}: {answer} {fingerprint(proof)}"


def read_ledger() -> set[str]:
    """Return the lines of the ledger."""
    return set(LEDGER.read_text().splitlines()) if LEDGER.exists() else set()


def main() -> None:
    """Prove what the ledger does not have, and write the ledger of today's proofs."""
    known, lines = read_ledger(), []
    for name, proof in fast_proofs().items():
        same = [line(name, proof, answer) for answer in ("proved", "refuted")]
        found = known & set(same)
        lines += found or [line(name, proof, verdict(proof))]
        sys.stdout.write(f"{'known' if found else 'new  '} {lines[-1]}\n")
    LEDGER.write_text("".join(f"{each}\n" for each in sorted(lines)))


if __name__ == "__main__":
    main()
