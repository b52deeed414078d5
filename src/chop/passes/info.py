"""Results of a pass that display as tables in notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop import notebook


class PassInfo(dict[str, Any]):
    """Information that a pass returns with the graph: a dict with a rich display."""

    def _repr_html_(self) -> str:
        """Return plain facts first, then a table for each list of records."""
        facts = {key: value for key, value in self.items() if _is_plain(value)}
        tables = {key: rows for key, value in self.items() if (rows := records_of(value))}
        parts = [notebook.table([{"": k, "value": v} for k, v in facts.items()])] if facts else []
        for key, rows in tables.items():
            parts += [notebook.heading(str(key).replace("_", " ")), notebook.table(rows)]
        rest = [str(key) for key in self if key not in facts and key not in tables]
        notes = [notebook.note(f"and: {', '.join(rest)}")] if rest else []
        return notebook.shown(*parts, *notes)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def records_of(value: Any) -> list[dict[str, Any]]:
    """Return the rows of a list of records or of a mapping of numbers; no rows for others."""
    if isinstance(value, list | tuple):
        rows = [dict(row) for row in value if isinstance(row, Mapping)]
        return rows if rows and len(rows) == len(value) else []
    if isinstance(value, Mapping) and value:
        if all(_is_plain(v) for v in value.values()):
            return [{"": name, "value": v} for name, v in value.items()]
        if all(isinstance(v, Mapping) for v in value.values()):
            return [
                {"": name, **{str(key): cell for key, cell in row.items() if _is_plain(cell)}}
                for name, row in value.items()
            ]
    return []
