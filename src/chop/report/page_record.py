"""What a part of the report's page is made of."""

from __future__ import annotations

from typing import Any

PageRecord = dict[str, Any]
"""Plain data that goes into the page as JSON, for its scripts to draw."""
