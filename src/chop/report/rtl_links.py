"""Links from a page to the RTL of a design's stages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote


def with_links(told: Mapping[str, Any], hardware: Path, page_folder: Path) -> dict[str, Any]:
    """The `report.json` of a design in the folder `hardware`, for a page in `page_folder`.

    Each stage whose file is there gets a `link`, relative to the page; one that the file brings
    along could lead anywhere, and is left out.
    """
    stages = [_linked(stage, hardware, page_folder) for stage in told.get("stages", ())]
    return {**told, "stages": stages}


def _linked(stage: Mapping[str, Any], hardware: Path, page_folder: Path) -> dict[str, Any]:
    file = stage.get("file")
    found = {name: value for name, value in stage.items() if name != "link"}
    if not isinstance(file, str) or not (hardware / file).is_file():
        return found
    way = os.path.relpath((hardware / file).resolve(), page_folder.resolve())
    return {**found, "link": quote(Path(way).as_posix())}
