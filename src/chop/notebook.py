"""HTML for notebooks: tables, plots and pages, self-contained and of bounded size.

Classes that a notebook shows call `view_of` for their HTML. Modules in higher layers register the
functions that create it under `@view`; `chop/__init__.py` lists those modules.

Text is escaped, colours are those of the notebook, and nothing is fetched. A note below a table
counts the rows that are not shown.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

MOST_ROWS = 200
"""Most rows of a table that are shown."""
LONGEST = 120
"""Most characters of a cell that are shown."""
STYLE = (
    "<style>.mase-nb{font:13px/1.45 system-ui,sans-serif;color:inherit}"
    ".mase-nb table{border-collapse:collapse;margin:6px 0}"
    ".mase-nb th,.mase-nb td{padding:2px 9px;text-align:left;border-bottom:1px solid "
    "color-mix(in srgb,currentColor 18%,transparent);background:none;white-space:nowrap}"
    ".mase-nb .n{text-align:right;font-variant-numeric:tabular-nums}"
    ".mase-nb .note{opacity:.7}.mase-nb .scroll{max-height:420px;overflow:auto}"
    ".mase-nb iframe{width:100%;border:1px solid color-mix(in srgb,currentColor 18%,transparent);"
    "border-radius:8px}.mase-nb svg{color:inherit;max-width:100%}</style>"
)

View = Callable[[Any], str]
V = TypeVar("V", bound=View)
VIEWS: dict[type, View] = {}
"""Class -> function that returns the HTML of an object."""
_LOADERS: list[Callable[[], object]] = []


def view(kind: type) -> Callable[[V], V]:
    """Register the decorated function as the view of objects of class `kind`."""

    def register(function: V) -> V:
        VIEWS[kind] = function
        return function

    return register


def load_views_by(loader: Callable[[], object]) -> None:
    """Call `loader`, which imports modules with views, when the first object is shown."""
    _LOADERS.append(loader)


def view_of(thing: Any) -> str | None:
    """Return the HTML of `thing`; None if its view needs a package that is not installed."""
    try:
        while _LOADERS:
            _LOADERS[-1]()
            _LOADERS.pop()
    except ImportError:
        return None
    return next(VIEWS[kind](thing) for kind in type(thing).__mro__ if kind in VIEWS)


def shown(*parts: str) -> str:
    """Join parts of HTML into the HTML of a cell."""
    return f'<div class="mase-nb">{STYLE}{"".join(parts)}</div>'


def text(value: Any) -> str:
    """Return a value as escaped text, shortened if it is long."""
    words = f"{value:.6g}" if isinstance(value, float) else str(value)
    return html.escape(words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…")


def heading(title: Any, *facts: Any) -> str:
    """Return a line with a title and facts."""
    words = " · ".join(text(fact) for fact in facts if fact not in (None, ""))
    return f'<p><strong>{text(title)}</strong> <span class="note">{words}</span></p>'


def note(words: Any) -> str:
    """Return a line of small text."""
    return f'<p class="note">{text(words)}</p>'


def table(rows: Sequence[Mapping[str, Any]], most: int = MOST_ROWS) -> str:
    """Return records as a table with a column for each key and at most `most` rows."""
    columns = list(dict.fromkeys(key for row in rows[:most] for key in row))
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(_cell(row.get(column, '')) for column in columns)}</tr>"
        for row in rows[:most]
    )
    more = note(f"{len(rows) - most} more rows are not shown.") if len(rows) > most else ""
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{whole}</div>{more}'


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = ' class="n"' if is_number else ""
    return f"<td{kind}>{text(value)}</td>"


def frame(page: str, height: int, label: str) -> str:
    """Return a page in a sandbox, whose scripts see nothing of the notebook."""
    return (
        f'<iframe sandbox="allow-scripts" height="{height}" title="{text(label)}" '
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )


def details(summary: str, body: str) -> str:
    """Return a folded section."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"


def scatter(
    points: Sequence[tuple[float, float, str, bool]], x: str, y: str, *, joined: bool = True
) -> str:
    """Plot points (x, y, words, is_marked); with `joined`, a line connects the marked ones."""
    if not points:
        return ""
    width, height, left, low = 460, 260, 64, 40
    spans = [_span([p[0] for p in points]), _span([p[1] for p in points])]

    def place(point: tuple[float, float, str, bool]) -> tuple[float, float]:
        across = (point[0] - spans[0][0]) / (spans[0][1] - spans[0][0])
        up = (point[1] - spans[1][0]) / (spans[1][1] - spans[1][0])
        return left + across * (width - left - 12), (height - low) - up * (height - low - 12)

    marked = sorted(p for p in points if p[3])
    route = " ".join("{:.1f},{:.1f}".format(*place(p)) for p in marked)
    line = f'<polyline points="{route}" fill="none" stroke="currentColor"/>' if joined else ""
    dots = "".join(_dot(*place(p), p) for p in points)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'fill="currentColor" font-size="11">{line}{dots}'
        f"{_axes(spans, (x, y), (width, height, left, low))}</svg>"
    )


def _span(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low or abs(high) or 1.0) * 0.05
    return low - room, high + room


def _dot(across: float, down: float, point: tuple[float, float, str, bool]) -> str:
    look = 'r="4"' if point[3] else 'r="3" opacity="0.35"'
    title = f"<title>{text(point[2])}</title>"
    return f'<circle cx="{across:.1f}" cy="{down:.1f}" {look}>{title}</circle>'


def _axes(
    spans: list[tuple[float, float]], names: tuple[str, str], sizes: tuple[int, int, int, int]
) -> str:
    width, height, left, low = sizes
    base = height - low
    path = (
        f'<path d="M{left} 8V{base}H{width - 8}" fill="none" stroke="currentColor" opacity="0.5"/>'
    )
    labels = [
        (left, base + 14, "start", f"{spans[0][0]:.4g}"),
        (width - 8, base + 14, "end", f"{spans[0][1]:.4g}"),
        (left - 5, base, "end", f"{spans[1][0]:.4g}"),
        (left - 5, 16, "end", f"{spans[1][1]:.4g}"),
        ((left + width) // 2, height - 8, "middle", names[0]),
    ]
    words = "".join(
        f'<text x="{a}" y="{b}" text-anchor="{c}">{text(d)}</text>' for a, b, c, d in labels
    )
    turned = f'<text transform="translate(12 {base // 2}) rotate(-90)" text-anchor="middle">'
    return f"{path}{words}{turned}{text(names[1])}</text>"
