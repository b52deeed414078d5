"""Linear layers with 2:4 sparse weights: at most two of every four neighbours are not zero.

Such a weight is stored as two values and two indices per group of four, 9/16 of its bytes at 16
bits. GPUs multiply with it at up to twice the speed, in torch's semi-structured form. On other
devices the layer computes with the dense weight.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from chop.errors import ConfigError

GROUP, KEPT = 4, 2
ROWS, COLUMNS = 32, 64
"""Sizes of a weight are multiples of these, for both backends of torch."""
SPARSE_DTYPES = (torch.bfloat16, torch.float16)
"""Types with sparse products on GPUs; others use the dense weight."""


def two_of_four_fault(weight: Tensor) -> str | None:
    """Return why `weight` is not 2:4, with row and group; None if it is.

    >>> two_of_four_fault(torch.ones(32, 64))
    'row 0, group 0 (columns 0 to 3) has 4 values that are not zero; 2 are allowed'
    """
    rows, columns = weight.shape
    if rows % ROWS or columns % COLUMNS or not weight.numel():
        return (
            f"its weight is [{rows}, {columns}]; outputs must be a multiple of {ROWS} and inputs "
            f"of {COLUMNS}"
        )
    counts = (weight.detach() != 0).reshape(rows, -1, GROUP).sum(-1)
    if int(counts.max()) <= KEPT:
        return None
    row, group = (counts > KEPT).nonzero()[0].tolist()
    first = group * GROUP
    return (
        f"row {row}, group {group} (columns {first} to {first + GROUP - 1}) has "
        f"{int(counts[row, group])} values that are not zero; {KEPT} are allowed"
    )


def pack_two_of_four(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two values of each four as (rows, columns / 2), and their indices.

    An index has two bits and a byte two groups; the first value and group are in the low bits.
    """
    rows = weight.shape[0]
    groups = weight.detach().reshape(rows, -1, GROUP)
    order = (groups == 0).to(torch.uint8).argsort(dim=-1, stable=True)
    places = order[..., :KEPT].sort(dim=-1).values
    values = groups.gather(-1, places).reshape(rows, -1).contiguous()
    codes = (places[..., 0] | places[..., 1] << 2).to(torch.uint8)
    return values, codes[:, 0::2] | codes[:, 1::2] << 4


def unpack_two_of_four(values: Tensor, indices: Tensor) -> Tensor:
    """Return the dense weight."""
    rows = values.shape[0]
    codes = torch.stack((indices & 15, indices >> 4), dim=-1).reshape(rows, -1)
    places = torch.stack((codes & 3, codes >> 2), dim=-1).long()
    pairs = values.reshape(rows, -1, KEPT)
    groups = values.new_zeros(rows, pairs.shape[1], GROUP)
    return groups.scatter(-1, places, pairs).reshape(rows, -1)


def _has_cusparselt() -> bool:
    return bool(torch.backends.cusparselt.is_available())


def fastest_algorithm(packed: Tensor, x: Tensor) -> int:
    """Return the fastest cuSPARSELt algorithm for a packed weight and rows `x`."""
    places: Any = torch._C
    if hasattr(places, "_cusparselt"):  # from torch 2.7 on; the older way warns
        return int(places._cusparselt.mm_search(packed, x.t(), None, None, None, False)[0])
    return int(torch._cslt_sparse_mm_search(packed, x.t()))


def sparse_form(weight: Tensor) -> Tensor:
    """Return a 2:4 weight as torch's semi-structured tensor, of cuSPARSELt if available."""
    kind: Any = torch.sparse.SparseSemiStructuredTensorCUTLASS
    if _has_cusparselt():
        kind = torch.sparse.SparseSemiStructuredTensorCUSPARSELT
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*SparseSemiStructuredTensor is in prototype")
        sparse: Tensor = kind.from_dense(weight.contiguous())
    return sparse


class SemiStructuredLinear(nn.Module):
    """A linear layer on a 2:4 weight.

    `values` and `indices` are buffers and do not train; the bias stays a parameter, and gradients
    pass to the input. On a GPU with 16 bits the first call creates torch's form; it is not saved.

    >>> linear = nn.Linear(64, 32)
    >>> linear.weight = nn.Parameter(torch.tensor([1.0, 0.0, 0.0, 2.0]).repeat(32, 16))
    >>> layer = SemiStructuredLinear.from_linear(linear)
    >>> layer.values.shape, layer.indices.shape, layer(torch.ones(3, 64)).shape
    (torch.Size([32, 32]), torch.Size([32, 8]), torch.Size([3, 32]))
    """

    mase_leaf: ClassVar[bool] = True
    values: Tensor
    indices: Tensor
    bias: Tensor | None

    def __new__(cls, *args: Any, **kwargs: Any) -> SemiStructuredLinear:
        """Return an empty layer; copies and unpickled layers are created here too."""
        _keep_from_compiler()
        return super().__new__(cls)

    def __init__(self, values: Tensor, indices: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = values.shape[0], 2 * values.shape[1]
        self.register_buffer("values", values)
        self.register_buffer("indices", indices)
        self.register_parameter("bias", bias)
        self._sparse: Tensor | None = None

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> SemiStructuredLinear:
        """Return `linear` with its 2:4 weight packed."""
        fault = two_of_four_fault(linear.weight)
        if fault is not None:
            raise ConfigError(f"SemiStructuredLinear: {fault}.")
        bias: Any = linear.bias
        return cls(*pack_two_of_four(linear.weight), bias).train(linear.training)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weight."""
        return self.values.dtype

    def float_weight(self) -> Tensor:
        """Return the dense weight."""
        return unpack_two_of_four(self.values, self.indices)

    def forward(self, x: Tensor) -> Tensor:
        if not self._runs_sparse(x):
            return F.linear(x, self.float_weight(), self.bias)
        if self._sparse is None:
            self._make_sparse()
        bias = None if self.bias is None else self.bias.detach()
        return F.linear(x.detach(), self._sparse, bias)  # type: ignore[arg-type]

    def search(self, rows: int) -> int | None:
        """Search the fastest cuSPARSELt algorithm for `rows` rows, and use it from now on.

        Return it, or None if there is no choice (no GPU, 32 bits, CUTLASS). It is not saved.
        """
        if not self.values.is_cuda or self.dtype not in SPARSE_DTYPES or not _has_cusparselt():
            return None
        if self._sparse is None:
            self._make_sparse()
        x = self.values.new_empty(-(-rows // 8) * 8, self.in_features)
        sparse: Any = self._sparse
        algorithm = fastest_algorithm(sparse.packed, x)
        sparse.alg_id_cusparselt = algorithm
        return algorithm

    def _runs_sparse(self, x: Tensor) -> bool:
        """Return True if the sparse product accepts `x`; it has no gradients."""
        if not x.is_cuda or x.dtype != self.dtype or self.dtype not in SPARSE_DTYPES:
            return False
        trains = x.requires_grad or (self.bias is not None and self.bias.requires_grad)
        return not (torch.is_grad_enabled() and trains) and not isinstance(x, FakeTensor)

    def _make_sparse(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self._sparse = sparse_form(self.float_weight())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._sparse = None  # has another device or type
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._sparse = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sparse": None}

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, 2:4"


@functools.cache
def _keep_from_compiler() -> None:
    """Exclude `_make_sparse` from torch.compile; a decorator would import the compiler early."""
    layer: Any = SemiStructuredLinear
    disable: Any = torch.compiler.disable
    layer._make_sparse = disable(layer._make_sparse)
