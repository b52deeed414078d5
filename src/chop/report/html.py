"""`report.html`: a self-contained page about a model.

Scripts in `assets/` draw the page in the browser from the records of `chop.report.page_records`.
A content security policy allows the script and the style sheet of the file by their hashes, and
no requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from chop.arguments import NEW_FILE, an, takes
from chop.files import write_whole
from chop.report.page_parts import with_links
from chop.report.page_records import Report, build_records, report_records

__all__ = ["Report", "report_page", "report_records", "write_report"]

SCRIPTS = (
    *("dom.js", "format.js", "theme.js", "tooltip.js", "colour.js", "table.js", "axes.js"),
    *("chart.js", "bars.js", "selection.js", "viewport.js", "drawing.js", "minimap.js"),
    *("inspector.js", "graph.js", "cards.js", "layers.js", "pareto.js", "studies.js"),
    *("sweeps.js", "sensitivity.js", "hardware.js", "routing.js", "plan.js", "runs.js"),
    *("comparison.js", "provenance.js", "main.js"),
)
"""JavaScript modules of the page, each after those it imports."""
IMPORTED = r'const \1 = modules["\2"];'
"""Replacement of an import in the script of the page."""
STYLES = ("tokens.css", "page.css", "graph.css", "chart.css")


@takes(path=NEW_FILE, report=an(Report))
def write_report(path: str | Path, report: Report) -> Path:
    """Write the report, whole or not at all, and return its path.

    Stages of a design from `build_hardware` are linked to their RTL.
    """
    page, build = Path(path), report.hardware
    if build is not None and not isinstance(build, Mapping):
        design = with_links(build_records(build), build.directory, page.parent)
        report = replace(report, hardware=design)
    return write_whole(page, report_page(report_records(report)))


def report_page(records: dict[str, Any]) -> str:
    """Return the HTML page of `records`."""
    script = "const modules = {};\n" + "".join(_module(name, _asset(name)) for name in SCRIPTS)
    style = "".join(_asset(name) for name in STYLES)
    parts = {
        "title": html.escape(str(records.get("title", ""))),
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'",
        "style": style,
        "script": script,
        "data": _embedded(records),
    }
    template = _asset("template.html")
    count = len(_fill(template, parts).encode())
    size = f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
    return _fill(template, {**parts, "size": size})


def _fill(template: str, parts: dict[str, str]) -> str:
    """Replace each {{name}} of `template` once; the replacements are not searched."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts.get(match[1], match[0]), template)


def _embedded(records: dict[str, Any]) -> str:
    """Return JSON that no text in it can end: the page's parser looks only for `<`."""
    text = json.dumps(records, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _module(name: str, text: str) -> str:
    """Return a JavaScript module as a function that returns its exports."""
    exported = re.findall(r"^export (?:const|function|class) (\w+)", text, flags=re.MULTILINE)
    text = re.sub(r'^import (\{.*\}) from "\./(.*)";$', IMPORTED, text, flags=re.MULTILINE)
    text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
    return f'modules["{name}"] = (() => {{\n{text}return {{ {", ".join(exported)} }};\n}})();\n'


def _asset(name: str) -> str:
    return (resources.files("chop.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
