"""Folders for files that several tests share; removed when the program ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def new_folder(prefix: str = "mase-test.") -> Path:
    """Return a new empty folder."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
