"""Differentiable networks of lookup tables: thermometer code, learned tables, class sums.

A table reads `n` bits (1 to 6) and returns one bit, so a trained table is the content of one LUT of
an FPGA. The definitions follow "Differentiable Weightless Neural Networks" (Bacellar et al., 2024):
learned connections by a soft-max in the backward pass alone, and the extended finite difference as
the gradient of a table by its address.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.ir.ops import OPS, Op

MOST_INPUTS = 6
"""Most inputs of a table: those of a LUT of the larger FPGAs."""
MOST_WIDTH = 16
"""Most bits of an input of the thermometer code."""


class Thermometer(nn.Module):
    """Thermometer code: for each input, one bit per threshold that the input reaches.

    `thresholds` has the shape (features, levels), or (levels,) for the same ones everywhere.
    Inputs (…, features) become bits (…, features * levels), 0.0 or 1.0; the bits of an input are
    together. Hardware reads inputs that are whole numbers of `width` bits without a sign.

    >>> Thermometer(torch.tensor([64.0, 128.0]), features=2)(torch.tensor([100.0, 200.0])).tolist()
    [1.0, 0.0, 1.0, 1.0]
    """

    mase_leaf: ClassVar[bool] = True
    op: ClassVar[Op] = OPS["thermometer"]

    thresholds: Tensor

    def __init__(self, thresholds: Tensor, *, features: int | None = None, width: int = 8) -> None:
        super().__init__()
        table = torch.as_tensor(thresholds, dtype=torch.float32)
        if table.ndim == 1 and features is not None:
            table = table.expand(features, -1)
        if table.ndim != 2 or 0 in table.shape or (features or len(table)) != len(table):
            raise ConfigError(
                f"Thermometer: thresholds of shape {list(table.shape)} with features={features}. "
                f"Allowed: (features, levels), or (levels,) with features."
            )
        if not 1 <= width <= MOST_WIDTH:
            raise ConfigError(f"Thermometer: width must be 1 to {MOST_WIDTH}, got {width}.")
        if not table.isfinite().all():
            raise ConfigError("Thermometer: thresholds must be finite numbers.")
        self.width = width
        self.register_buffer("thresholds", table.clone())  # the caller's may be a view

    @property
    def features(self) -> int:
        """Inputs of a row."""
        return len(self.thresholds)

    @property
    def out_features(self) -> int:
        """Bits of a row."""
        return self.thresholds.numel()

    def forward(self, x: Tensor) -> Tensor:
        _check_last("Thermometer", x, self.features)
        return (x.unsqueeze(-1) >= self.thresholds).to(x.dtype).flatten(-2)

    def extra_repr(self) -> str:
        levels = self.thresholds.shape[1]
        return f"features={self.features}, levels={levels}, width={self.width}"


def quantile_thresholds(rows: Tensor, levels: int, step: int = 1) -> Tensor:
    """Return thresholds that share the non-zero values of each column of `rows` equally.

    They are multiples of `step` from `step` on: a power of two there drops low bits of the
    comparison. Columns without such values get the quantiles of all columns.
    """
    shares = torch.arange(1, levels + 1, dtype=torch.float64) / (levels + 1)
    everywhere = torch.quantile(_spread(rows[rows > 0].double()), shares)
    columns = [
        torch.quantile(_spread(column[column > 0].double()), shares) if column.any() else everywhere
        for column in rows.T
    ]
    return (torch.stack(columns) / step).round().clamp(min=1).mul(step).float()


def _spread(values: Tensor, most: int = 1 << 20) -> Tensor:
    """Return at most `most` of `values`, evenly spaced: `torch.quantile` has a limit."""
    return values[:: max(1, -(-len(values) // most))]


class LookupTables(nn.Module):
    """Layer of `out_features` tables with `n` inputs each, which learns contents and connections.

    Bits (…, in_features) become bits (…, out_features), as 0.0 and 1.0. A table returns 1 where its
    value in `tables` is positive. `logits` has a score for each connection; the best one counts
    in the forward pass and their soft-max in the backward pass. After `freeze`, the connections are
    constant and `logits` is None. With `learn_connections=False` they are random and constant.
    """

    mase_leaf: ClassVar[bool] = True
    op: ClassVar[Op] = OPS["lookup_tables"]

    connections: Tensor
    logits: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n: int = 6,
        *,
        learn_connections: bool = True,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        _check_sizes(in_features, out_features, n, temperature)
        self.in_features, self.out_features, self.n = in_features, out_features, n
        self.temperature = temperature
        self.tables = nn.Parameter(torch.empty(out_features, 1 << n).uniform_(-1, 1))
        self.register_buffer("connections", _random_connections(in_features, out_features, n))
        self.logits = None
        if learn_connections:
            self.logits = nn.Parameter(torch.randn(out_features * n, in_features))
            self.update_connections()

    @torch.no_grad()
    def update_connections(self) -> None:
        """Set `connections` to the best connection of each table input."""
        if self.logits is not None:
            best = self.logits.argmax(1).to(torch.int32)
            self.connections.copy_(best.view(self.out_features, self.n))

    def freeze(self) -> LookupTables:
        """Make the present connections constant; return the layer."""
        self.update_connections()
        self.logits = None
        return self

    @torch.no_grad()
    def clip(self) -> None:
        """Bring the values of the tables to -1 … 1: call it after each step of the optimiser."""
        self.tables.clamp_(-1, 1)

    def contents(self) -> Tensor:
        """Return the bits of the tables: (out_features, 2**n), by address."""
        return self.tables.detach() > 0

    def forward(self, x: Tensor) -> Tensor:
        _check_last("LookupTables", x, self.in_features)
        if self.logits is not None and self.training:
            self.update_connections()
            bits = _connect(x, self.logits / self.temperature, self.connections)
        else:
            bits = x[..., self.connections.long()]
        return _look_up(bits, self.tables)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a state with or without `logits`: the state decides whether connections learn."""
        stored = state_dict.get(f"{prefix}logits")
        if stored is None and f"{prefix}connections" in state_dict:
            self.logits = None
        elif stored is not None and self.logits is None:
            self.logits = nn.Parameter(torch.empty_like(stored, device=self.tables.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        learns = self.logits is not None
        return f"{self.in_features}, {self.out_features}, n={self.n}, learn_connections={learns}"


def _check_sizes(in_features: int, out_features: int, n: int, temperature: float) -> None:
    if not 1 <= n <= MOST_INPUTS:
        raise ConfigError(f"LookupTables: n must be 1 to {MOST_INPUTS} inputs per table, got {n}.")
    if in_features < n:
        raise ConfigError(
            f"LookupTables: in_features={in_features} are not enough for tables of n={n} inputs. "
            f"Allowed: {n} or more, or a smaller n."
        )
    if out_features < 1:
        raise ConfigError(f"LookupTables: out_features must be 1 or more, got {out_features}.")
    if not temperature > 0 or not math.isfinite(temperature):
        raise ConfigError(f"LookupTables: temperature must be above 0, got {temperature}.")


def _random_connections(in_features: int, out_features: int, n: int) -> Tensor:
    """Return connections that use each input about equally often."""
    count = out_features * n
    rounds = [torch.randperm(in_features) for _ in range(-(-count // in_features))]
    return torch.cat(rounds)[:count].view(out_features, n).to(torch.int32)


def _check_last(layer: str, x: Tensor, features: int) -> None:
    if x.ndim < 1 or x.shape[-1] != features:
        raise ConfigError(f"{layer}: rows of {list(x.shape)[-1:]} values, not of {features}.")


class ClassSum(nn.Module):
    """Popcount of each class: bits (…, features) become sums (…, classes), divided by `scale`.

    The bits of a class are consecutive. Hardware has the plain count, so it needs `scale` 1: a
    scale belongs to the training, where it is the temperature of the soft-max.

    >>> ClassSum(2)(torch.tensor([1.0, 1.0, 0.0, 1.0])).tolist()
    [2.0, 1.0]
    """

    mase_leaf: ClassVar[bool] = True
    op: ClassVar[Op] = OPS["class_sum"]

    def __init__(self, classes: int, scale: float = 1.0) -> None:
        super().__init__()
        if classes < 1:
            raise ConfigError(f"ClassSum: classes must be 1 or more, got {classes}.")
        if not scale > 0 or not math.isfinite(scale):
            raise ConfigError(f"ClassSum: scale must be above 0, got {scale}.")
        self.classes, self.scale = classes, scale

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 1 or x.shape[-1] % self.classes or not x.shape[-1]:
            raise ConfigError(
                f"ClassSum: {list(x.shape)[-1:]} bits do not divide into {self.classes} classes."
            )
        counts: Tensor = x.reshape(*x.shape[:-1], self.classes, -1).sum(-1)
        return counts / self.scale

    def extra_repr(self) -> str:
        return f"classes={self.classes}, scale={self.scale}"


class _Connect(torch.autograd.Function):
    """Bits of the best connections; gradients as if the soft-max of the scores were used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scores: Tensor, connections: Tensor) -> Tensor:
        ctx.save_for_backward(x, scores)
        return x[..., connections.long()]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, scores = ctx.saved_tensors
        rows = gradients[0].reshape(-1, len(scores))
        shares = scores.softmax(1)
        to_x = (rows @ shares).view_as(x) if ctx.needs_input_grad[0] else None
        product = rows.T @ x.reshape(-1, x.shape[-1])
        to_scores = shares * (product - (shares * product).sum(1, keepdim=True))
        return to_x, to_scores, None


_connect: Callable[[Tensor, Tensor, Tensor], Tensor] = _Connect.apply


class _LookUp(torch.autograd.Function):
    """Output bit of each table, for input bits (…, tables, n)."""

    @staticmethod
    def forward(ctx: Any, bits: Tensor, tables: Tensor) -> Tensor:
        address = _addresses(bits)
        ctx.save_for_backward(address, tables)
        return _at(tables, address).gt(0).to(bits.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        address, tables = ctx.saved_tensors
        gradient = gradients[0]
        to_tables = torch.zeros_like(tables)
        count, size = tables.shape
        places = address + torch.arange(count, device=address.device) * size
        to_tables.view(-1).index_add_(0, places.flatten(), gradient.flatten().to(tables.dtype))
        slopes = finite_differences(tables)
        chosen = slopes[torch.arange(count, device=address.device), address]
        return chosen.to(gradient.dtype) * gradient.unsqueeze(-1), to_tables


_look_up: Callable[[Tensor, Tensor], Tensor] = _LookUp.apply


def _addresses(bits: Tensor) -> Tensor:
    """Return the number that the bits of each table spell, the first bit lowest."""
    places = 1 << torch.arange(bits.shape[-1], device=bits.device)
    return ((bits > 0.5) * places).sum(-1)


def _at(tables: Tensor, address: Tensor) -> Tensor:
    return tables[torch.arange(len(tables), device=tables.device), address]


def finite_differences(tables: Tensor) -> Tensor:
    """Return the extended finite difference (tables, address, input) of each table by each input.

    It is the sum over all addresses `k` of `±table[k] / (h + 1)`: plus where the input is 1 in `k`,
    and `h` is the Hamming distance of `k` and the address in the other inputs.
    """
    weights = _difference_weights(tables.shape[1]).to(tables)
    return torch.einsum("tk,ajk->taj", tables, weights)


@lru_cache(maxsize=MOST_INPUTS)
def _difference_weights(size: int) -> Tensor:
    """Return the factor (address, input, k) of each value in the extended finite difference."""
    bits = _bits_of(size)
    differs = bits[:, None, :] != bits[None, :, :]
    distance = differs.sum(-1, keepdim=True) - differs.long()
    signs = 2.0 * bits[None] - 1.0
    return (signs / (distance + 1)).transpose(1, 2).contiguous()


def _bits_of(size: int) -> Tensor:
    """Return the bits of the addresses below `size`, lowest first."""
    places = torch.arange(size.bit_length() - 1)
    return (torch.arange(size)[:, None] >> places & 1).double()


def freeze_tables(model: nn.Module) -> nn.Module:
    """Freeze the connections of all layers of tables in `model`; return it."""
    for layer in model.modules():
        if isinstance(layer, LookupTables):
            layer.freeze()
    return model


def clip_tables(model: nn.Module) -> None:
    """Bring all tables of `model` to -1 … 1: call it after each step of the optimiser."""
    for layer in model.modules():
        if isinstance(layer, LookupTables):
            layer.clip()


def table_network(
    thresholds: Tensor, tables: Sequence[int], classes: int, *, n: int = 6, scale: float = 1.0
) -> nn.Sequential:
    """Return a thermometer code, layers of `tables` tables each, and the sums of `classes`."""
    encoder = Thermometer(thresholds)
    sizes = [encoder.out_features, *tables]
    layers = [LookupTables(i, o, n) for i, o in pairwise(sizes)]
    return nn.Sequential(encoder, *layers, ClassSum(classes, scale))
