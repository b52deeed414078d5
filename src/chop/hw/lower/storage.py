"""Place of the weights of layers: memories of the design, or outside, which streams them in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from chop.errors import HardwareError
from chop.ir.design_spec import EXTERNAL as EXTERNAL
from chop.ir.design_spec import MEMORY as MEMORY
from chop.ir.design_spec import RELOAD as RELOAD
from chop.log import get_logger

logger = get_logger(__name__)

ALLOWED = "Allowed: linear, conv1d, conv2d"
ALLOWED_RELOAD = "weights in a memory, as multiplier 'array' and 'packed' have"


@dataclass(frozen=True)
class Storage:
    """`default` for all layers that allow it, and places by node."""

    default: str = MEMORY
    by_node: Mapping[str, str] = field(default_factory=dict)

    def place(self, node: str) -> str:
        """Return the place of the weights of a node."""
        return self.by_node.get(node, self.default)

    def is_external(self, node: str) -> bool:
        """Return whether the weights of a node come from outside."""
        return self.place(node) == EXTERNAL

    def is_reloaded(self, node: str) -> bool:
        """Return whether the weights of a node can be written at run time."""
        return self.place(node) == RELOAD

    def check_reload(self, nodes: Mapping[str, object], stages: Collection[str]) -> None:
        """Raise if weights should be written at run time and no memory takes them.

        `nodes`: the nodes with this place; `stages`: those that have such a memory.
        """
        for name in self.by_node:
            if name in nodes and name not in stages:
                raise HardwareError(
                    f"node '{name}': weights = '{RELOAD}', and no memory of the design is its own. "
                    f"Allowed: {ALLOWED_RELOAD}; for layers that share a block, the first of them."
                )
        if self.default == RELOAD and not stages:
            raise HardwareError(
                f"weights = '{RELOAD}': no layer has weights in a memory. Allowed: "
                f"{ALLOWED_RELOAD}."
            )

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
