"""Formal proofs of the library's components, for all inputs and all times."""

from typing import TYPE_CHECKING

from chop.compat.old_names import lazy_names
from chop.hw.design.claims import LAWS, Edit, Proof
from chop.hw.proofs.catalogue import PROOFS
from chop.hw.proofs.counterexample import Trace
from chop.hw.proofs.prover import ProofVerdict, prove, prove_all

__all__ = ["LAWS", "PROOFS", "Edit", "Proof", "ProofVerdict", "Trace", "prove", "prove_all"]

if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__ = lazy_names(__name__)
