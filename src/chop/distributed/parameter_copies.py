"""Copies of parameters in other layouts: one for all micro-batches of a step, or freed meanwhile.

FSDP2 does both for the layers that it gathers (`chop.distributed.gathered_layers`). The copies here
are of the other parameters: those that a node fetches, that two layers share, or of which no device
has a term of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._pytree import tree_leaves

from chop.distributed.graph_parts import GraphPart

SENT = "sent"
"""Reader of a value in the next stage, for which it must stay."""


@dataclass
class StepCopy:
    """Copy of a parameter that all micro-batches of a step read.

    `adds_up`: the gradients of the micro-batches are added before they are converted, once.
    """

    adds_up: bool
    copy: Tensor | None = None
    gradient: Tensor | None = None

    def provide(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the copy, made by the first micro-batch."""
        if self.copy is None:
            self.copy = make()
        return self.copy.detach()

    def keeps(self, gradient: Tensor) -> bool:
        """Return True if the gradient is added up here, to be converted at the end of the step."""
        if self.adds_up:
            self.gradient = gradient if self.gradient is None else self.gradient + gradient
        return self.adds_up


@dataclass
class FreedCopy:
    """Copy of a parameter whose memory is freed after its readers, and filled again for backward.

    `waiting`: names of nodes that still read it in forward.
    """

    waiting: set[str]
    copy: Tensor | None = None
    make: Callable[[], Tensor] | None = None
    size: int = field(default=0)

    def provide(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the copy; a tensor of its own, because this one must not refer to its graph."""
        self.copy, self.make = make(), make
        self.size = self.copy.untyped_storage().size()
        return self.copy.detach()

    def keeps(self, gradient: Tensor) -> bool:
        """Free the copy, because backward has done with it; its gradient is not kept."""
        self._free()
        return False

    def read_by(self, node: fx.Node, result: object, part: GraphPart) -> None:
        """Note that `node` of `part` has read the copy."""
        assert self.copy is not None, f"the copy that {node.name} reads was never made"
        tensors = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        place = self.copy.untyped_storage()._cdata
        self.waiting.discard(node.name)
        if any(t.untyped_storage()._cdata == place for t in tensors):
            self.waiting |= {user.name for user in node.users if user.name in part.nodes}
            self.waiting |= {SENT} if node.name in part.sends else set()
        else:
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(self._restore)  # type: ignore[no-untyped-call]
        if not self.waiting:
            self._free()

    def _free(self) -> None:
        if self.copy is not None:
            self.copy.untyped_storage().resize_(0)

    def _restore(self, gradient: Tensor) -> None:
        """Fill the copy again, before the backward of its last reader."""
        assert self.copy is not None and self.make is not None
        storage = self.copy.untyped_storage()
        if storage.size() == 0:
            storage.resize_(self.size)
            with torch.no_grad(), _unsafe_preserve_version_counter(self.copy):
                self.copy.copy_(self.make())


class FreedCopies:
    """Copies of one forward that wait for their readers."""

    def __init__(self) -> None:
        self.copies: list[FreedCopy] = []

    def add(self, readers: Iterable[str]) -> FreedCopy:
        """Return a copy that these nodes read."""
        self.copies.append(FreedCopy(set(readers)))
        return self.copies[-1]

    def read_by(self, node: fx.Node, result: object, part: GraphPart) -> None:
        """Note that `node` has run with `result`."""
        for copy in self.copies:
            is_output = node.op == "output"  # what it returns must stay
            if node.name in copy.waiting and copy.copy is not None and not is_output:
                copy.read_by(node, result, part)
        self.copies = [copy for copy in self.copies if copy.waiting]
