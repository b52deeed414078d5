"""Where the weights of layers lie: in memories of the design, or outside, which streams them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chop.errors import HardwareError
from chop.log import get_logger
from chop.registry import suggest

logger = get_logger(__name__)

MEMORY, EXTERNAL = "memory", "external"
PLACES = (MEMORY, EXTERNAL)
ALLOWED = "Allowed: linear, conv1d, conv2d"


@dataclass(frozen=True)
class Storage:
    """`default` for all layers that can, and by the name of a node what is said for it."""

    default: str = MEMORY
    by_node: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, told: str | Mapping[str, str]) -> Storage:
        """What a config says: a place, or places by node, of which 'default' is for the others."""
        places = {"default": told} if isinstance(told, str) else dict(told)
        for name, place in places.items():
            if place not in PLACES:
                raise HardwareError(f"weights: '{name}' is '{place}'. {suggest(place, PLACES)}")
        return cls(places.pop("default", MEMORY), places)

    def is_external(self, node: str) -> bool:
        """Whether the weights of a node come from outside."""
        return self.by_node.get(node, self.default) == EXTERNAL

    def check(self, nodes: Mapping[str, str], taken: Iterable[str]) -> None:
        """Raise where weights were to come from outside and no layer takes them.

        `nodes` has the op of each node; `taken` are the nodes whose weights do.
        """
        found = set(taken)
        for name in self.by_node:
            if name not in nodes:
                raise HardwareError(f"weights: no node '{name}'. {suggest(name, nodes)}")
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
