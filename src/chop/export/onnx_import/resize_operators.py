"""Resizing of images, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chop.export.onnx_import.call import Call, check_made, operator

NAMES = {"linear": {3: "linear", 4: "bilinear", 5: "trilinear"}, "cubic": {4: "bicubic"}}
"""Mode of torch by the mode of ONNX and the number of dimensions."""
TORCH_CUBIC = -0.75
"""Coefficient of cubic interpolation in torch, the default of ONNX."""


@operator("Resize", "Upsample")
def _resize(call: Call) -> Any:
    """Resize by torch where it computes the same; sizes stay open then."""
    x = call.tensor(0)
    factors, sizes = _targets(call, x)
    check_made(math.prod(sizes or [s * f for s, f in zip(x.shape, factors, strict=True)]))
    mode = _torch_mode(call, x, factors, sizes)
    if mode is None:
        return _by_matrices(call, x, factors, sizes)
    settings: dict[str, Any] = {"mode": mode}
    if mode != "nearest":
        settings["align_corners"] = _way(call) == "align_corners"
    tail = (sizes[2:] if sizes else None, None if sizes else factors[2:])
    return F.interpolate(x, *tail, **settings)


def _is_new(call: Call) -> bool:
    return call.node.operator == "Resize" and call.version >= 11


def _way(call: Call) -> str:
    default = "half_pixel" if _is_new(call) else "asymmetric"
    return str(call.attribute("coordinate_transformation_mode", default))


def _rounding(call: Call) -> str:
    return str(call.attribute("nearest_mode", "round_prefer_floor" if _is_new(call) else "floor"))


def _targets(call: Call, x: Tensor) -> tuple[list[Any], list[Any]]:
    """Return the factor of each dimension, and the sizes if the node has them."""
    place = 2 if _is_new(call) else 1
    axes = [a % x.dim() for a in call.attribute("axes") or range(x.dim())]
    factors: list[Any] = [1.0] * x.dim()
    if call.given(3) and len(call.numbers(3)):
        targets = dict(zip(axes, call.numbers(3), strict=True))
        return _kept_ratio(call, x, targets)
    scales = call.numbers(place) if call.given(place) else call.attribute("scales", [])
    for axis, factor in zip(axes, scales, strict=True):
        factors[axis] = factor
    return factors, []


def _kept_ratio(call: Call, x: Tensor, targets: dict[int, Any]) -> tuple[list[Any], list[Any]]:
    """Return factors and sizes for target sizes, with one factor if the ratio is to stay."""
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        sizes = [targets.get(i, s) for i, s in enumerate(x.shape)]
        return [n / s for n, s in zip(sizes, x.shape, strict=True)], sizes
    ratios = [int(n) / int(x.shape[i]) for i, n in targets.items()]
    factor = min(ratios) if policy == "not_larger" else max(ratios)
    sizes = [
        math.floor(factor * int(s) + 0.5) if i in targets else s for i, s in enumerate(x.shape)
    ]
    return [factor if i in targets else 1.0 for i in range(x.dim())], sizes


def _torch_mode(call: Call, x: Tensor, factors: list[Any], sizes: list[Any]) -> str | None:
    """Return the mode of torch that computes the same, or None."""
    mode, way = call.attribute("mode", "nearest"), _way(call)
    is_plain = not call.attribute("antialias", 0) and not call.attribute("exclude_outside", 0)
    is_stretched = call.attribute("keep_aspect_ratio_policy", "stretch") == "stretch"
    axes = call.attribute("axes")
    is_inner = x.dim() > 2 and (axes is None or min(a % x.dim() for a in axes) >= 2)
    is_inner = is_inner and (bool(sizes) or all(f == 1 for f in factors[:2]))
    if not (is_plain and is_stretched and is_inner):
        return None
    if mode == "nearest":
        return "nearest" if way == "asymmetric" and _rounding(call) == "floor" else None
    is_whole = bool(sizes) or all(float(f).is_integer() for f in factors)
    is_known = way == "half_pixel" or (way == "align_corners" and is_whole)
    is_cubic = mode == "cubic" and call.attribute("cubic_coeff_a", TORCH_CUBIC) != TORCH_CUBIC
    return NAMES.get(mode, {}).get(x.dim()) if is_known and not is_cubic else None


def _by_matrices(call: Call, x: Tensor, factors: list[Any], sizes: list[Any]) -> Tensor:
    """Resize each dimension by a matrix, for the sizes of this input alone."""
    if _way(call) == "tf_crop_and_resize":
        raise ValueError("tf_crop_and_resize")
    for axis, factor in enumerate(factors):
        size = int(x.shape[axis])
        target = int(sizes[axis]) if sizes else math.floor(size * factor)
        if target == size and factor == 1:
            continue
        weights = torch.from_numpy(_matrix(call, size, target, float(factor))).to(x.dtype)
        x = torch.matmul(x.movedim(axis, -1), weights.t()).movedim(-1, axis)
    return x


def _matrix(call: Call, size: int, target: int, factor: float) -> np.ndarray:
    """Return the weight of each of `size` elements in each of `target` elements."""
    check_made(size * target)
    mode = call.attribute("mode", "nearest")
    coordinates = _coordinates(_way(call), size, target, factor)
    if mode == "nearest":
        places = NEAREST[_rounding(call)](coordinates).clip(0, size - 1).astype(int)
        return np.asarray(np.eye(size, dtype=np.float32)[places])
    squeeze = min(factor, 1.0) if call.attribute("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) / squeeze
    near = np.arange(math.floor(-reach), math.ceil(reach) + 1)
    places = np.floor(coordinates)[:, None].astype(int) + near
    distances = np.abs(coordinates[:, None] - places) * squeeze
    weights = _kernel(mode, distances, call.attribute("cubic_coeff_a", TORCH_CUBIC))
    if call.attribute("exclude_outside", 0):
        weights = np.where((places < 0) | (places >= size), 0.0, weights)
    weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((target, size))
    rows = np.broadcast_to(np.arange(target)[:, None], places.shape)
    np.add.at(matrix, (rows, places.clip(0, size - 1)), weights)
    return matrix.astype(np.float32)


def _kernel(mode: str, distances: np.ndarray, coefficient: float) -> np.ndarray:
    """Return the weight of elements at these distances."""
    if mode == "linear":
        return np.asarray(np.clip(1 - distances, 0, None))
    a, d = coefficient, distances
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0.0)))


NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}


def _coordinates(way: str, size: int, target: int, factor: float) -> np.ndarray:
    """Return the coordinate in the source of each element of the result."""
    x = np.arange(target, dtype=np.float64)
    length = size * factor
    if way == "align_corners":
        return x * (size - 1) / (length - 1) if length != 1 else np.zeros(target)
    if way == "asymmetric":
        return x / factor
    if way == "pytorch_half_pixel" and length <= 1:
        return np.zeros(target) - 0.5
    shift = 0.0
    if way == "half_pixel_symmetric":
        shift = size / 2 * (1 - target / length)
    elif way not in ("half_pixel", "pytorch_half_pixel"):
        raise ValueError(f"coordinate_transformation_mode {way:.40}")
    return shift + (x + 0.5) / factor - 0.5


@operator("DFT")
def _dft(call: Call) -> Any:
    """Return the Fourier transform of one dimension; the last holds real and imaginary parts."""
    x, is_inverse = call.tensor(0), bool(call.attribute("inverse", 0))
    axis = (
        call.number(2) if call.given(2) else call.attribute("axis", 1 if call.version < 20 else -2)
    )
    axis = axis % x.dim()
    length = int(call.number(1)) if call.given(1) else None
    is_half = bool(call.attribute("onesided", 0))
    check_made(x.numel() * max(length or 1, 1))
    values = x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    if is_inverse and is_half:
        return torch.fft.irfft(values, length, axis).unsqueeze(-1)
    result = (torch.fft.ifft if is_inverse else torch.fft.fft)(values, length, axis)
    if is_half:
        result = result.narrow(axis, 0, result.shape[axis] // 2 + 1)
    return torch.view_as_real(result)


@operator("STFT")
def _stft(call: Call) -> Any:
    """Return the Fourier transforms of frames of a signal."""
    x, step = call.tensor(0), int(call.number(1))
    window = call.optional(2)
    length = int(call.number(3)) if call.given(3) else 0
    length = length or int(window.shape[0] if window is not None else x.shape[1])
    if step < 1 or not 1 <= length <= x.shape[1]:
        raise ValueError(f"frames of {length} samples, each {step} after the other")
    values = x.squeeze(-1) if x.dim() == 3 and x.shape[-1] == 1 else x
    if values.dim() == 3:
        values = torch.view_as_complex(values.contiguous())
    frames = values.unfold(1, length, step)
    frames = frames if window is None else frames * window
    is_half = bool(call.attribute("onesided", 1)) and not frames.is_complex()
    return torch.view_as_real((torch.fft.rfft if is_half else torch.fft.fft)(frames))
