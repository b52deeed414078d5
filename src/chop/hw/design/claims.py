"""Claims about a component: what is proved of it, and faults that a proof must refute.

`proof.py` of a component folder has `PROOFS`, a tuple of `Proof`, and `FAULT`, an `Edit` of the RTL
that the first of them refutes. `laws.svh` beside it has the laws: see
`chop.hw.proofs.harness_maker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chop.errors import HardwareError

LAWS = ("order", "stable", "progress")
"""Names of the bits of `broken`, from bit 0 on."""
VALUE = ("order",)
"""Laws of a module that is no stream: its value."""
Sizes = Mapping[str, int | str]


@dataclass(frozen=True)
class Edit:
    """A replaced text of a module: a variant that only large sizes have, or a fault."""

    module: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return `text` with the edit; raise an error unless `old` is there exactly once."""
        if text.count(self.old) != 1:
            raise HardwareError(
                f"{self.module}: {self.old!r} is there {text.count(self.old)} times, expected once."
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Proof:
    """A module with chosen sizes, and the laws to prove of it."""

    module: str
    parameters: Sizes = field(default_factory=dict)
    """Sizes that tell this proof from others of the module."""
    laws: tuple[str, ...] = LAWS
    files: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Words of memories, by file name."""
    edits: tuple[Edit, ...] = ()
    is_slow: bool = False
    sizes: Sizes = field(default_factory=dict)
    """Further parameters, which all proofs of the module share."""
    text: Path | None = None
    """File of the laws; None: a whole harness in `chop.hw.proofs`."""

    def __str__(self) -> str:
        shown = [f"{k}={v}" for k, v in self.parameters.items() if len(str(v)) < 8]
        return " ".join([self.module, *shown])

    def with_fault(self, fault: Edit) -> Proof:
        """Return the same proof of a module that has a fault."""
        return replace(self, edits=(*self.edits, fault))


@dataclass(frozen=True)
class Prover:
    """Maker of the proofs of one module: those of `sizes`, with the laws beside `file`."""

    file: str
    """`__file__` of the `proof.py` that makes them; its folder has the module's name."""
    sizes: Sizes = field(default_factory=dict)
    laws: tuple[str, ...] = LAWS

    def __call__(
        self,
        parameters: Sizes | None = None,
        *,
        files: Mapping[str, Sequence[int]] | None = None,
        edits: tuple[Edit, ...] = (),
        is_slow: bool = False,
    ) -> Proof:
        """Return the proof for `parameters`, which replace those of `sizes`."""
        folder = Path(self.file).parent
        chosen, text = parameters or {}, folder / "laws.svh"
        return Proof(folder.name, chosen, self.laws, files or {}, edits, is_slow, self.sizes, text)


def packed(words: Sequence[int], width: int) -> str:
    """Return a table as a constant of SystemVerilog, the first word in the low bits.

    >>> packed((1, 2), 4)
    "8'd33"
    """
    value = sum(word << k * width for k, word in enumerate(words))
    return f"{width * len(words)}'d{value}"
