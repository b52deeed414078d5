"""Catalogue of proofs: those of `proof.py` in every component folder.

Sizes are small. The laws hold for every input, in every cycle, whatever the other side of each
stream does.
"""

from __future__ import annotations

from chop.hw.design.claims import Edit, Proof
from chop.hw.design.folders import load_facet
from chop.hw.proofs import products


def all_proofs() -> tuple[Proof, ...]:
    """Return the proofs of all components, folders outside the package included."""
    return (*(p for module in load_facet("proof") for p in module.PROOFS), *products.PROOFS)


def proof_faults() -> dict[str, Edit]:
    """Return, by module, a fault that the first proof of the module refutes."""
    faults = (*(module.FAULT for module in load_facet("proof")), *products.FAULTS)
    return {fault.module: fault for fault in faults}


PROOFS = all_proofs()
"""The proofs of the library."""
