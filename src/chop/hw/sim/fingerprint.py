"""A design as a short text that changes with every byte that would be emitted."""

from __future__ import annotations

import hashlib

from chop.hw.design.design import Design
from chop.hw.sim.emit import design_files

LENGTH = 16


def design_fingerprint(design: Design) -> str:
    """Return a digest of the RTL and memories, equal on every machine.

    >>> from chop.hw.library.components import Relu
    >>> from chop.hw.streams.builder import Builder
    >>> from chop.hw.arith.golden import Fixed
    >>> from chop.hw.design.stream import Stream
    >>> builder = Builder("top")
    >>> x = builder.input("data_in_0", Stream((4,), 2, Fixed(8, 4)))
    >>> builder.output("data_out_0", builder.add("relu", Relu(builder.stream(x), Fixed(8, 4)), x))
    >>> len(design_fingerprint(builder.build()))
    16
    """
    files = design_files(design)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\n{files[name]}\n".encode())
    return digest.hexdigest()[:LENGTH]
