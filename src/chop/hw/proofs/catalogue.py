"""Catalogue of proofs: those of `proof.toml` or `proof.py` in every component folder.

Sizes are small. The laws hold for every input, in every cycle, for every behaviour of the other
side of each stream.
"""

from __future__ import annotations

from chop.hw.design.claims import Edit, Proof, read_fault, read_proofs
from chop.hw.design.folders import facet_folders, load_facet


def all_proofs() -> tuple[Proof, ...]:
    """Return the proofs of all components, folders outside the package included."""
    listed = (proof for folder in facet_folders("proof.toml") for proof in read_proofs(folder))
    computed = (proof for module in load_facet("proof") for proof in module.PROOFS)
    return (*listed, *computed)


def proof_faults() -> dict[str, Edit]:
    """Return, by module, a fault that the first proof of the module refutes."""
    listed = (read_fault(folder) for folder in facet_folders("proof.toml"))
    computed = (module.FAULT for module in load_facet("proof"))
    return {fault.module: fault for fault in (*listed, *computed)}


PROOFS = all_proofs()
"""The proofs of the library."""
