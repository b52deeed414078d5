"""Formal proofs of the library's components, for all inputs and all times."""

from chop.hw.design.claims import LAWS, Edit, Proof
from chop.hw.proofs.catalogue import PROOFS
from chop.hw.proofs.engine import Verdict, prove, prove_all
from chop.hw.proofs.trace import Trace

__all__ = ["LAWS", "PROOFS", "Edit", "Proof", "Trace", "Verdict", "prove", "prove_all"]
