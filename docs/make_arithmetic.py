"""Measure integer arithmetic against the real functions; write the table of hardware_numbers.md.

python docs/make_arithmetic.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic import function, integer_softmax, norm

PAGE = Path(__file__).resolve().parent / "hardware_numbers.md"
MARKS = ("<!-- errors: written by docs/make_arithmetic.py -->", "<!-- end of errors -->")
ROWS = 2000
BYTE, PART, FINE = Integer(8, 4), Integer(8, 7), Integer(16, 11)
SOFTMAX = [
    (BYTE, PART, 16),
    (BYTE, PART, 128),
    (BYTE, PART, 197),
    (Integer(12, 8), Integer(12, 11), 64),
    (Integer(16, 10), Integer(16, 15), 64),
]
NORMS = [(BYTE, BYTE, 16), (BYTE, BYTE, 128), (BYTE, FINE, 128), (Integer(16, 10), FINE, 768)]
FUNCTIONS = [
    ("GELU", F.gelu, BYTE, BYTE),
    ("GELU", F.gelu, Integer(14, 10), Integer(14, 10)),
    ("GELU", F.gelu, Integer(16, 12), Integer(16, 12)),
    ("SiLU", F.silu, Integer(16, 12), Integer(16, 12)),
    ("tanh", torch.tanh, Integer(16, 12), Integer(16, 15)),
    ("sigmoid", torch.sigmoid, Integer(16, 12), Integer(16, 15)),
    ("exp", torch.exp, Integer(16, 12), Integer(16, 8)),
]


def rows_of(number: Integer, size: int) -> Tensor:
    """Random rows of three spreads, rows of equal elements, one hot, and both ends."""
    rng = np.random.default_rng(0)
    low, high = -(2 ** (number.width - 1)), 2 ** (number.width - 1) - 1
    spreads = (2.0 ** (number.frac_width - 1), 2.0**number.frac_width, 2.0 ** (number.width - 2))
    made = [rng.normal(0, spread, (ROWS, size)).round().clip(low, high) for spread in spreads]
    hot = np.full((1, size), low)
    hot[0, 0] = high
    ends = np.where(np.arange(size) % 2, low, high)[None]
    tail = np.full((1, size), high - int(11.78 * 2**number.frac_width)).clip(low)
    tail[0, 0] = high
    codes = np.concatenate([*made, hot, ends, tail, np.zeros((1, size))])
    return torch.from_numpy(codes) * 2.0**-number.frac_width


def places(y: Tensor, wanted: Tensor, out: Integer) -> float:
    """The largest distance in last places of `out`, of numbers inside its range."""
    return float(((y - wanted.clamp(*out.range)).abs() * 2.0**out.frac_width).max())


def table() -> str:
    """The table in Markdown."""
    names = ("op", "operand", "result", "rows of", "tables", "largest error", "bound")
    head = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    return "\n".join([*head, *_softmax_lines(), *_norm_lines(), *_function_lines()])


def _softmax_lines() -> Iterator[str]:
    for number, out, size in SOFTMAX:
        x = rows_of(number, size)
        found = places(integer_softmax.softmax(x, -1, number, out), F.softmax(x, -1), out)
        bound = integer_softmax.error_bound(number, out, size)
        count = len(integer_softmax.exponential_tables(number)) + 1
        yield _line("softmax", number, out, size, f"{count} × 256", found, bound)


def _norm_lines() -> Iterator[str]:
    for name in ("layer_norm", "rms_norm"):
        for number, out, size in NORMS:
            x = rows_of(number, size)
            formats = {"data_in": number, "data_out": out}
            affine = (None, None) if name == "layer_norm" else (None,)
            given: Any = ([size], *affine, 1e-5)
            wanted = getattr(F, name)(x, *given)
            found = places(getattr(norm, name)(x, *given, formats), wanted, out)
            yield _line(name, number, out, size, "256", found, norm.error_bound(out, size))


def _function_lines() -> Iterator[str]:
    for name, evaluate, number, out in FUNCTIONS:
        x = function.all_numbers(number)
        found = places(function.function_by_table(x, evaluate, number, out, name), evaluate(x), out)
        is_whole = number.width <= function.WHOLE_TABLE
        lines = None if is_whole else function.fit_lines(evaluate, number, out)
        entries = 2**number.width if lines is None else len(lines.bases)
        bound = 0.5 + (0.0 if lines is None else lines.error)
        yield _line(name, number, out, "all codes", str(entries), found, bound)


def _line(name: str, number: Integer, out: Integer, *rest: Any) -> str:
    size, entries, found, bound = rest
    texts = [f"Q{n.width}.{n.frac_width}" for n in (number, out)]
    return f"| {name} | {texts[0]} | {texts[1]} | {size} | {entries} | {found:.2f} | {bound:.2f} |"


def page_with(text: str, lines: str) -> str:
    """The page with `lines` between the marks."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{lines}\n{MARKS[1]}{after}"


def main() -> None:
    """Write the table."""
    PAGE.write_text(page_with(PAGE.read_text(), table()))


if __name__ == "__main__":
    main()
