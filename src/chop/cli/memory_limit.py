"""Amounts of memory, as a user writes them."""

from __future__ import annotations

import re

from chop.errors import ConfigError

UNITS = {"": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
"""Unit -> bytes; a number alone is GiB."""
AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmg]i?b)?", re.IGNORECASE)


def limit_bytes(text: str | float | None) -> float | None:
    """Return the bytes of a limit such as 8GB, 500MiB or 8 (GiB); None if there is none.

    >>> limit_bytes("8GB"), limit_bytes(1), limit_bytes("1.5 KiB")
    (8000000000.0, 1073741824.0, 1536.0)
    """
    if text is None:
        return None
    match = AMOUNT.fullmatch(str(text).strip())
    if match is None or float(match[1]) == 0:
        raise ConfigError(
            f"max_memory: '{text}' is no amount of memory. Allowed: a number above 0, in GiB or "
            "with the unit KB, MB, GB, KiB, MiB or GiB, as 8GB."
        )
    return float(match[1]) * UNITS[(match[2] or "").lower()]
