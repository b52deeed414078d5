"""Place of the weights of layers: memories of the design, or outside, which streams them in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from chop.errors import HardwareError
from chop.ir.design_spec import EXTERNAL as EXTERNAL
from chop.ir.design_spec import MEMORY
from chop.log import get_logger

logger = get_logger(__name__)

ALLOWED = "Allowed: linear, conv1d, conv2d"


@dataclass(frozen=True)
class Storage:
    """`default` for all layers that allow it, and places by node."""

    default: str = MEMORY
    by_node: Mapping[str, str] = field(default_factory=dict)

    def is_external(self, node: str) -> bool:
        """Return whether the weights of a node come from outside."""
        return self.by_node.get(node, self.default) == EXTERNAL

    def check(self, nodes: Mapping[str, str], external: Collection[str]) -> None:
        """Raise if weights should come from outside and no layer takes them.

        `nodes` has the op of each node; `external` are the nodes whose weights come from outside.
        """
        for name in self.by_node:
            if self.is_external(name) and name not in external:
                raise HardwareError(
                    f"node '{name}' ({nodes[name]}): weights = '{EXTERNAL}', and it takes none "
                    f"from outside. {ALLOWED}."
                )
        if self.default == EXTERNAL and not external:
            raise HardwareError(
                f"weights = '{EXTERNAL}': no layer takes weights from outside. {ALLOWED}."
            )

    def warn_of_mxint(self, names: Iterable[str]) -> None:
        """Warn of layers in MXINT, whose weights always stay inside."""
        inside = sorted(name for name in names if self.is_external(name))
        if inside:
            logger.warning(
                "weights = '%s': layers in MXINT take none from outside; those of %s stay in "
                "memories of the design",
                EXTERNAL,
                ", ".join(f"'{name}'" for name in inside),
            )
