"""Layer and root-mean-square normalisation of rows of N codes in integers.

    S = sum(x), or 0 for rms_norm               c = N * x - S
    Q = N * sum(x * x) - S * S                  N times the sum of the squared distances
    U = Q * 2**G + eps * N**2 * 2**(2f + G)     f: fractional bits of x; the second is a constant
    (r, k) = 1 / sqrt(U)                        `tables.inverse_root`, once per row
    z = c * r * 2**(G/2 - 2 - k), floored       c / sqrt(U), with 16 fractional bits
    y = z * weight + bias, exact, rounded to `data_out`

`sum(c * c)` is N * Q, so this is (x - mean) / sqrt(variance + eps), in one pass. G makes the
rounding of the constant harmless for short rows. A row whose U is 0 becomes the bias. The error in
last places of a result with g fractional bits (`error_bound`) is 0.5 from rounding, and
2**g * |weight| * (|z| * 2**-15.6 + 2**-16).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.arithmetic.fixed_codes import (
    LARGEST_WIDTH,
    MOST_BITS,
    check_width,
    decode,
    encode,
)
from chop.nn.quantizers.arithmetic.tables import ROOT_ERROR, inverse_root
from chop.nn.quantizers.integer import Integer

Z_FRAC = 16
"""Fractional bits of a normalised element."""
DEFAULT_RMS_EPS = 2.0**-23
"""Default eps of RMSNorm: that of float32, for every dtype."""
_MOST_U = 1 << 62
_PRODUCT_BITS = 42
"""Bits of z * weight: z is below sqrt(N), and N is below 2**14 because of `_MOST_U`."""


def guard_bits(size: int) -> int:
    """Return G: even, and Q * 2**G is 0 or at least 2**16."""
    bits = max(16 - (max(size - 1, 1).bit_length() - 1), 0)
    return bits + bits % 2


def eps_code(eps: float, size: int, frac_width: int) -> int:
    """Return eps * N**2 * 2**(2f + G), rounded."""
    scale = Fraction(2) ** (2 * frac_width + guard_bits(size))
    return round(Fraction(eps) * size * size * scale)


def largest_u(number: Integer, size: int, eps: float, is_centred: bool) -> int:
    """Return an upper bound of U."""
    reach = 1 << (number.width - (1 if number.is_signed or is_centred else 0))
    most = size * size * reach * reach << guard_bits(size)
    return most + eps_code(eps, size, number.frac_width)


def normalise_codes(codes: Tensor, number: Integer, eps: float, is_centred: bool) -> Tensor:
    """Normalise rows (the last dimension); the result has 16 fractional bits.

    >>> normalise_codes(torch.tensor([[-16, 16, 16, -16]]), Integer(8, 4), 0.0, True).tolist()
    [[-65536, 65535, 65535, -65536]]
    """
    size = codes.shape[-1]
    guard = guard_bits(size)
    total = codes.sum(-1, keepdim=True) if is_centred else torch.zeros_like(codes[..., :1])
    q = size * (codes * codes).sum(-1, keepdim=True) - total * total
    r, k = inverse_root((q << guard) + eps_code(eps, size, number.frac_width))
    shift = (k - guard // 2).clamp(min=0) + 2  # below 2 only where all of c is 0
    return ((size * codes - total) * r) >> shift


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    formats: dict[str, Integer],
) -> Tensor:
    """Normalise layers of `x` in integers; `formats` has data_in, weight, bias and data_out.

    >>> formats = dict.fromkeys(("data_in", "weight", "bias", "data_out"), Integer(8, 4))
    >>> layer_norm(torch.tensor([[1.0, 2.0, 4.0, 5.0]]), [4], None, None, 1e-5, formats).tolist()
    [[-1.25, -0.625, 0.625, 1.25]]
    """
    return _norm(x, normalized_shape, (weight, bias), eps, formats, is_centred=True)


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    formats: dict[str, Integer],
) -> Tensor:
    """Return the root-mean-square normalisation of `x` in integers, as `layer_norm`."""
    own = DEFAULT_RMS_EPS if eps is None else eps
    return _norm(x, normalized_shape, (weight, None), own, formats, is_centred=False)


def _norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    affine: tuple[Tensor | None, Tensor | None],
    eps: float,
    formats: dict[str, Integer],
    *,
    is_centred: bool,
) -> Tensor:
    dims = len(normalized_shape)
    rows = x.reshape(*x.shape[: x.ndim - dims], -1)
    data_in = formats["data_in"]
    check_settings(data_in, rows.shape[-1], eps, is_centred)
    if x.numel() == 0:
        return x.clone()
    z = normalise_codes(encode(rows, data_in), data_in, eps, is_centred)
    exact, frac_width = _affine(z, affine, formats)
    y = decode(exact, frac_width, formats["data_out"], x.dtype)
    y = torch.where(rows.isnan().any(-1, keepdim=True), torch.nan, y)
    return y.reshape(x.shape)


def _affine(
    z: Tensor, affine: tuple[Tensor | None, Tensor | None], formats: dict[str, Integer]
) -> tuple[Tensor, int]:
    """Return z * weight + bias and its fractional bits."""
    (weight, bias), frac_width = affine, Z_FRAC
    exact = z
    if weight is not None:
        check_width(formats["weight"], "weight")
        exact = exact * encode(weight.reshape(-1), formats["weight"])
        frac_width += formats["weight"].frac_width
    if bias is None:
        return exact, frac_width
    check_width(formats["bias"], "bias")
    frac = max(frac_width, formats["bias"].frac_width)
    codes = encode(bias.reshape(-1), formats["bias"])
    bias_shift = frac - formats["bias"].frac_width
    widest = max(_PRODUCT_BITS + frac - frac_width, LARGEST_WIDTH + bias_shift)
    if widest > MOST_BITS:
        raise ConfigError(
            f"norm: weight_frac_width = {formats['weight'].frac_width} and bias_frac_width = "
            f"{formats['bias'].frac_width} need {widest} bits for an exact sum. "
            f"Allowed: {MOST_BITS}."
        )
    exact = (exact << (frac - frac_width)) + (codes << bias_shift)
    return exact, frac


def check_settings(data_in: Integer, size: int, eps: float, is_centred: bool) -> None:
    """Raise if an operand or the sum of a row is too wide."""
    check_width(data_in, "data_in")
    if largest_u(data_in, size, eps, is_centred) >= _MOST_U:
        raise ConfigError(
            f"norm: rows of {size} elements of {data_in.width} bits with eps = {eps} need sums of "
            f"more than 62 bits. Allowed: fewer elements, a smaller data_in_width or eps."
        )


def error_bound(
    data_out: Integer, size: int, largest_weight: float = 1.0, largest_z: float | None = None
) -> float:
    """Return the largest error of a result, in its last place.

    `largest_z`, the largest normalised element, is below sqrt(N) in a row of N elements.
    """
    z = size**0.5 if largest_z is None else largest_z
    rounding = 0.5 if data_out.rounding.startswith("nearest") else 1.0
    wrong = z * (ROOT_ERROR + 2.0**-18) + 2.0**-Z_FRAC
    return float(rounding + 2.0**data_out.frac_width * largest_weight * wrong)
