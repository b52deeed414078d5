"""Where the weights of layers lie: in memories of the design, or outside, which streams them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chop.errors import HardwareError
from chop.ir.design_spec import EXTERNAL as EXTERNAL
from chop.ir.design_spec import MEMORY
from chop.log import get_logger

logger = get_logger(__name__)

ALLOWED = "Allowed: linear, conv1d, conv2d"


@dataclass(frozen=True)
class Storage:
    """`default` for all layers that can, and by the name of a node what is said for it."""

    default: str = MEMORY
    by_node: Mapping[str, str] = field(default_factory=dict)

    def is_external(self, node: str) -> bool:
        """Whether the weights of a node come from outside."""
        return self.by_node.get(node, self.default) == EXTERNAL

    def check(self, nodes: Mapping[str, str], taken: Iterable[str]) -> None:
        """Raise where weights were to come from outside and no layer takes them.

        `nodes` has the op of each node; `taken` are the nodes whose weights do.
        """
        found = set(taken)
        for name in self.by_node:
            if self.is_external(name) and name not in found:
                raise HardwareError(
                    f"node '{name}' ({nodes[name]}): weights = '{EXTERNAL}', and it takes none "
                    f"from outside. {ALLOWED}."
                )
        if self.default == EXTERNAL and not found:
            raise HardwareError(
                f"weights = '{EXTERNAL}': no layer takes weights from outside. {ALLOWED}."
            )

    def tell_of_kept(self, names: Iterable[str]) -> None:
        """Warn of the nodes `names`, which have weights in MXINT and for which nothing was said."""
        kept = sorted(name for name in names if self.is_external(name))
        if kept:
            logger.warning(
                "weights = '%s': layers in MXINT take none from outside; those of %s stay in "
                "memories of the design",
                EXTERNAL,
                ", ".join(f"'{name}'" for name in kept),
            )
