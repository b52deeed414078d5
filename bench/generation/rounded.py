"""The time of one token where packed layers round what they read to MXINT8: by a launch of its own,
or with the norm before it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import decode

FORMATS = ("mxint8", "mxint4")


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The records of `decode` for these programs."""
    endings = ("+fused", "+inputs+fused", "+inputs+norms")
    names = [decode.BASE, *(name + ending for name in FORMATS for ending in endings)]
    asked.formats = ",".join(names)
    return decode.measure(asked)
