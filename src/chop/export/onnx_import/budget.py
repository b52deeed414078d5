"""Limits on the memory and work of the nodes of a file, in proportion to the size of the file.

Every operation of torch runs first on meta tensors, and raises if its result is too large. So a few
bytes of a file cannot ask for gigabytes or hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

SMALL_BYTES, BYTES_PER_BYTE = 1 << 27, 32
"""Bytes for any file, and for each byte of it: 4-bit weights become float32 and are transposed."""
SMALL_WORK, WORK_PER_BYTE = 1 << 34, 1 << 10
"""Operations for any file, and for each byte of it."""
INTEGER_COST = 8
"""Operations that a product of integers counts for: torch has no fast kernels."""


class Budget(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which operations of torch raise ValueError beyond the limits of a file of `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes = SMALL_BYTES + BYTES_PER_BYTE * size
        self.most_work = SMALL_WORK + WORK_PER_BYTE * size
        self.work = self.kept = 0

    def keep(self, *tensors: Tensor) -> None:
        """Add tensors that stay in memory."""
        self.kept += sum(t.numel() * t.itemsize for t in tensors)
        if self.kept > self.most_bytes:
            raise ValueError(
                f"the constants computed so far take {self.kept} bytes. Allowed for a file of this "
                f"size: {self.most_bytes}"
            )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, if its result is within the limits."""
        kwargs = kwargs or {}
        self._check(func, args, kwargs)
        return func(*args, **kwargs)

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        takes_device = any(a.name == "device" for a in func._schema.arguments)
        options = {**kwargs, "device": torch.device("meta")} if takes_device else dict(kwargs)
        try:
            result = func(*tree_map(_empty, args), **tree_map(_empty, options))
        except (RuntimeError, TypeError, ValueError, IndexError):
            return  # sizes depend on values, and are those of the operands; or torch rejects it
        results = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        needed = 0 if func.is_view else sum(t.numel() * t.itemsize for t in results)
        if needed > self.most_bytes:
            raise ValueError(
                f"{func.__name__.partition('.')[0]} would make {needed} bytes. Allowed for a file "
                f"of this size: {self.most_bytes}"
            )
        self.work += sum(t.numel() for t in results) + _products(func, args, kwargs, result)
        if self.work > self.most_work:
            raise ValueError(
                f"more than {self.most_work} operations. Allowed for a file of this size: fewer"
            )


def _empty(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _products(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """Return the number of multiplications and additions of products and convolutions."""
    packet = getattr(func, "_overloadpacket", None)
    if packet not in flop_registry:
        return 0
    count = int(flop_registry[packet](*args, **kwargs, out_val=result))
    first = next(t for t in tree_leaves(args) if isinstance(t, Tensor))
    return count if first.is_floating_point() else INTEGER_COST * count
