"""Integer Llama: its packed weights and the fixed-point formats of its vectors.

Vectors between the steps of a token have 16 bits and a static number of fractional bits, chosen
on calibration tokens. The residual stream may be wider. Matrices multiply MXINT8 vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from chop.errors import ConfigError
from chop.hw.decode.block_codes import WIDTH, BlockMatrix, fixed_matrix, matrix_blocks
from chop.hw.decode.llama_weights import (
    LayerWeights,
    LlamaShape,
    LlamaWeights,
    float_logits,
    rotations,
)
from chop.hw.decode.residual_norm import guard_bits
from chop.nn.quantizers.arithmetic.function import Lines, fit_lines
from chop.nn.quantizers.integer import Integer
from chop.registry import suggest

HEADROOM = 1
"""Bits above the largest magnitude of the calibration tokens.

The residual stream has none: its small elements need the bit more. (With one, the perplexity of
llama-imdb rose by 2.6 % in an emulation in floating point.)
"""
RESIDUAL_WIDTHS = range(16, 25)
"""Bits of an element of the residual stream."""
RESIDUAL_STEPS = 64
"""Least steps of the residual stream in the typical size of its elements, after each layer."""
FRAC_WIDTHS = range(25)
"""Fractional bits of a vector."""
LEAST_SCORE_FRAC = 5
"""From 5 fractional bits on, the exponential of a score is the product of two tables."""
ROTATION_FRAC = 14
"""Fractional bits of sine and cosine: 1 is a code of 16 bits."""
WEIGHT_WIDTHS = (4, 8)
CACHE_WIDTHS = (4, 8)
WEIGHT_FORMATS = {"mxint": matrix_blocks, "integer": fixed_matrix}
"""Format of weights -> function that returns a matrix in it."""
MATRICES = ("key", "value", "query", "output", "gate", "up", "down")


@dataclass(frozen=True)
class DecodeOptions:
    """Number formats and sizes that the user chooses."""

    weight_width: int = 4
    block: int = 32
    max_length: int = 512
    residual_width: int | None = None
    """Bits of the residual stream; None: 16, or more if the calibration tokens need it."""
    cache_width: int = 8
    """Bits of the MXINT mantissas of keys and values."""
    weight_format: str = "mxint"
    """Format of weights: `mxint`, or `integer` for fixed point with one scale for a matrix."""

    def __post_init__(self) -> None:
        if self.residual_width is not None and self.residual_width not in RESIDUAL_WIDTHS:
            raise ConfigError(
                f"decode: residual_width must lie in {RESIDUAL_WIDTHS[0]} … {RESIDUAL_WIDTHS[-1]}, "
                f"got {self.residual_width}."
            )
        if self.weight_width not in WEIGHT_WIDTHS:
            raise ConfigError(
                f"decode: weight_width must be one of {WEIGHT_WIDTHS}, got {self.weight_width}."
            )
        if self.cache_width not in CACHE_WIDTHS:
            raise ConfigError(
                f"decode: cache_width must be one of {CACHE_WIDTHS}, got {self.cache_width}."
            )
        if self.weight_format not in WEIGHT_FORMATS:
            raise ConfigError(
                f"decode: no weight format '{self.weight_format}'. "
                f"{suggest(self.weight_format, WEIGHT_FORMATS)}"
            )
        if self.block < 2 or self.block & (self.block - 1):
            raise ConfigError(f"decode: block must be a power of two, got {self.block}.")
        if not 1 <= self.max_length <= 1 << 14:
            raise ConfigError(
                f"decode: max_length must lie in 1 … {1 << 14}, got {self.max_length}."
            )

    @property
    def lane_width(self) -> int:
        """Bits of a number that each lane of the multipliers takes from a beat."""
        return min(self.weight_width, self.cache_width)


@dataclass(frozen=True)
class NormCodes:
    """Weights of an RMS norm as 16-bit codes."""

    codes: Tensor
    frac_width: int


@dataclass(frozen=True)
class LayerCodes:
    """One decoder layer in integers; `fracs` has the fractional bits of its vectors."""

    norm_1: NormCodes
    norm_2: NormCodes
    matrices: dict[str, BlockMatrix]
    fracs: dict[str, int]


@dataclass(frozen=True)
class DecodeModel:
    """A Llama in integers; `fracs` has the fractional bits that all layers share."""

    shape: LlamaShape
    options: DecodeOptions
    embedding: Tensor
    rotations: Tensor
    """Cosine and sine codes, (positions, pairs, 2)."""
    layers: tuple[LayerCodes, ...]
    norm: NormCodes
    head: BlockMatrix
    fracs: dict[str, int]
    residual_width: int
    silu: Lines = field(repr=False)

    @property
    def hidden_format(self) -> Integer:
        """Format of the residual stream."""
        return Integer(self.residual_width, self.fracs["hidden"])

    @property
    def embedding_width(self) -> int:
        """Bits of a code of the embedding in memory."""
        return WIDTH if self.residual_width == WIDTH else 2 * WIDTH

    @property
    def guard(self) -> int:
        """Guard bits of the norms."""
        return guard_bits(self.hidden_format, self.shape.hidden, self.shape.eps)

    @property
    def score_format(self) -> Integer:
        """Format of attention scores."""
        return Integer(WIDTH, self.fracs["scores"])


def quantize_llama(
    weights: LlamaWeights, calibration: Tensor, options: DecodeOptions | None = None
) -> DecodeModel:
    """Return the integer Llama of float weights.

    `calibration` has rows of tokens. Larger vectors than theirs may saturate: use enough of them.
    """
    options = options or DecodeOptions()
    check_sizes(weights.shape, options)
    largest, typical = _observe(weights, calibration)
    residual_width = options.residual_width or _residual_width(largest["hidden"], typical)
    fracs = _shared_fracs(largest, residual_width)
    head = _matrix(weights.head, options)
    fracs["x"] = _frac(largest["x"])
    fracs["logits"] = min(_frac(largest["logits"]), fracs["x"] + head.frac_width)
    layers = tuple(
        _layer_codes(layer, {n: largest[f"{i}.{n}"] for n in _LAYER_VECTORS}, fracs, options)
        for i, layer in enumerate(weights.layers)
    )
    number = Integer(WIDTH, fracs["gate"])
    model = DecodeModel(
        shape=weights.shape,
        options=options,
        embedding=_codes(weights.embedding, fracs["hidden"], residual_width),
        rotations=_codes(rotations(weights, options.max_length), ROTATION_FRAC),
        layers=layers,
        norm=_norm_codes(weights.norm),
        head=head,
        fracs=fracs,
        residual_width=residual_width,
        silu=fit_lines(functional.silu, number, number),
    )
    _ = model.guard  # raises if the norm's sums are too wide
    return model


_LAYER_VECTORS = ("x_1", "query", "key", "value", "attended", "x_2", "up", "middle")
_SHARED = ("hidden", "scores", "gate")


def check_sizes(shape: LlamaShape, options: DecodeOptions) -> None:
    """Raise if blocks or heads do not divide the sizes of a model."""
    sizes = {n: getattr(shape, n) for n in ("hidden", "intermediate", "head_dim")}
    for name, size in sizes.items():
        if size % options.block:
            raise ConfigError(
                f"decode: {name} = {size} is not a multiple of the block of {options.block}."
            )
    if shape.heads % shape.kv_heads:
        raise ConfigError(f"decode: {shape.heads} heads in {shape.kv_heads} groups.")


def _observe(weights: LlamaWeights, calibration: Tensor) -> tuple[dict[str, float], float]:
    """Return the largest magnitude of each vector, and the typical size of the residual stream.

    The typical size is the median over tokens of the median element, where it is smallest.
    """
    if calibration.ndim not in (1, 2) or not calibration.numel():
        raise ConfigError(
            "decode: calibration tokens must be one row or several, got shape "
            f"{tuple(calibration.shape)}."
        )
    largest: dict[str, float] = {}
    sizes: list[float] = []

    def observe(name: str, x: Tensor) -> None:
        shared = name.rpartition(".")[2]
        if shared == "hidden":
            sizes.append(float(x.abs().median()))
        for key in {name, shared}:
            largest[key] = max(largest.get(key, 0.0), float(x.abs().max()))

    for row in calibration.reshape(-1, calibration.shape[-1]):
        float_logits(weights, row, observe)
    return largest, min(sizes)


def _frac(largest: float, headroom: int = HEADROOM, width: int = WIDTH) -> int:
    """Return the most fractional bits of codes of `width` bits of numbers up to `largest`."""
    exponent = int(torch.frexp(torch.tensor(largest, dtype=torch.float64))[1]) if largest else 0
    bits = width - 1 - headroom - exponent
    return min(max(bits, FRAC_WIDTHS[0]), FRAC_WIDTHS[-1])


def _residual_width(largest: float, typical: float) -> int:
    """Return the fewest bits with which the typical element has `RESIDUAL_STEPS` steps."""
    for width in RESIDUAL_WIDTHS:
        if typical * 2.0 ** _frac(largest, 0, width) >= RESIDUAL_STEPS:
            return width
    return RESIDUAL_WIDTHS[-1]


def _shared_fracs(largest: dict[str, float], residual_width: int) -> dict[str, int]:
    fracs = {name: _frac(largest[name]) for name in _SHARED}
    fracs["hidden"] = _frac(largest["hidden"], 0, residual_width)
    fracs["scores"] = max(fracs["scores"], LEAST_SCORE_FRAC)
    return fracs


def _layer_codes(
    layer: LayerWeights, largest: dict[str, float], shared: dict[str, int], options: DecodeOptions
) -> LayerCodes:
    matrices = {name: _matrix(getattr(layer, name), options) for name in MATRICES}
    fracs = {name: _frac(value) for name, value in largest.items()}
    for name, source in (("key", "x_1"), ("value", "x_1"), ("query", "x_1"), ("up", "x_2")):
        fracs[name] = min(fracs[name], fracs[source] + matrices[name].frac_width)
    fracs["middle"] = min(fracs["middle"], shared["gate"] + fracs["up"])
    return LayerCodes(_norm_codes(layer.norm_1), _norm_codes(layer.norm_2), matrices, fracs)


def _matrix(weight: Tensor, options: DecodeOptions) -> BlockMatrix:
    return WEIGHT_FORMATS[options.weight_format](weight, options.weight_width, options.block)


def _codes(values: Tensor, frac_width: int, width: int = WIDTH) -> Tensor:
    high = (1 << (width - 1)) - 1
    return (values * 2.0**frac_width).round().clamp(~high, high).to(torch.int64)


def _norm_codes(weight: Tensor) -> NormCodes:
    frac_width = _frac(float(weight.abs().max()), headroom=0)
    return NormCodes(_codes(weight, frac_width), frac_width)


def weight_bits(model: DecodeModel) -> int:
    """Return the bits of all packed matrices, exponents of 8 bits included if they are stored."""
    matrices = [m for layer in model.layers for m in layer.matrices.values()] + [model.head]
    return sum(
        m.blocks.mantissas.numel() * m.width + (0 if m.is_fixed else m.blocks.exponents.numel() * 8)
        for m in matrices
    )
