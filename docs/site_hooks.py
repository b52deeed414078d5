"""What mkdocs does beside its own work: an index of the pages that a search can read from disk."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

LONGEST = 2500
"""Characters of a section that are searched."""
HEADINGS = ("h1", "h2", "h3")
_PLACES: list[dict[str, str]] = []


class Sections(HTMLParser):
    """The text of a page by its headings: (anchor, title, words)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = [["", "", ""]]
        self.inside, self.skipped = "", 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A heading begins a section; links to it are left out."""
        given = dict(attrs)
        if tag in HEADINGS:
            self.inside = tag
            self.found.append([given.get("id") or "", "", ""])
        elif "headerlink" in (given.get("class") or ""):
            self.skipped += 1

    def handle_endtag(self, tag: str) -> None:
        """The end of a heading, or of a link that was left out."""
        if tag == self.inside:
            self.inside = ""
        elif tag == "a" and self.skipped:
            self.skipped -= 1

    def handle_data(self, data: str) -> None:
        """Words of the title or of the section."""
        if not self.skipped:
            self.found[-1][1 if self.inside else 2] += data


def places_of(url: str, page: str, content: str) -> list[dict[str, str]]:
    """What the search knows of a page: a record for each section with words or a title."""
    sections = Sections()
    sections.feed(content)
    told = []
    for anchor, title, words in sections.found:
        text = re.sub(r"\s+", " ", words).strip()[:LONGEST]
        if title or text:
            place = f"{url}#{anchor}" if anchor else url
            told.append({"url": place, "page": page, "title": title.strip() or page, "text": text})
    return told


def on_pre_build(config: Any) -> None:
    """Start a new index."""
    _PLACES.clear()


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Add a page to the index."""
    _PLACES.extend(places_of(page.url, page.title or "", html))
    return html


def on_post_build(config: Any) -> None:
    """Write the index as a script: a page from disk may load one, but fetch nothing."""
    target = Path(config["site_dir"]) / "search" / "index.js"
    target.parent.mkdir(exist_ok=True)
    text = json.dumps(_PLACES, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    target.write_text(f"window.searchIndex = {text};\n", encoding="utf-8")
