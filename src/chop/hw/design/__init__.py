"""Parts of a design: streams, components with their cycle models, stages and memories."""

from typing import TYPE_CHECKING

from chop.compat.old_names import lazy_names

if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__ = lazy_names(__name__)
