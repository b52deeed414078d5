"""Base class of number formats: frozen dataclasses that map tensors to representable values."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.config import check_fields
from chop.errors import ConfigError, RegistryError
from chop.nn.quantizers.gpu_formats import KernelSettings, quantize_with_gradient
from chop.nn.quantizers.kernels import Kernel, can_call, can_mask, can_run, can_train, mask
from chop.nn.quantizers.rounding import Rounding, make_noise
from chop.nn.quantizers.spelling import IN_FILE_NAMES, Stem, own_stem, resolve, spell
from chop.registry import Registry

if TYPE_CHECKING:
    from chop.nn.quantizers.blocks import BlockQuantizer
    from chop.nn.quantizers.integer import Integer
    from chop.nn.quantizers.packing import PackedFormat
    from chop.nn.quantizers.scale_integer import ScaleInteger

Bound = float | Tensor
EVERYWHERE = (-math.inf, math.inf)
MOST_CODE_BITS = 8  # a code is at most a byte
Wire = Literal["fixed", "mxint"]
StraightThrough = Literal["masked", "identity"]

FORMATS: Registry[type[Quantizer]] = Registry("format")
"""Number formats by name; a subclass of `Quantizer` with a name is registered."""


@dataclass(frozen=True)
class Quantizer:
    """A number format. Fields are the config keys without their operand prefix.

    A format defines `represent` (the values, in PyTorch) and `bits`; the rest is common:

    - `quantize(x)` returns the values and is the reference;
    - calling the format returns the same values with a straight-through gradient;
    - `ste` selects where the gradient passes: "masked" in the format's range, or "identity".

    A class with a `name` is registered in `FORMATS`, with its `aliases`: configs, searches and the
    command line then accept it, and every layer and function exists in it (`LinearInteger`: the
    layer's name and `class_suffix`).
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    class_suffix: ClassVar[str]
    search_settings: ClassVar[Mapping[str, Any]] = {}
    """KernelSettings that a search tries by default; a list holds the choices."""
    legacy: ClassVar[tuple[str, ...]] = ()
    """KernelSettings of older configs that `modern` translates or drops."""

    maps_elements: ClassVar[bool] = False
    """True if each value depends on its own element only."""
    is_bypass: ClassVar[bool] = False
    """True for the format that changes nothing."""
    wire: ClassVar[Wire | None] = None
    """Hardware stream of its values; None for a format without hardware."""
    packed_forms: ClassVar[tuple[Any, ...]] = ()
    """Byte layouts of the kernels, as `PackedFormat` rows."""
    stem: ClassVar[Stem | None] = None
    """Spelling of the name and main settings (`mxint4`); without one, the `name`."""
    group_grammar: ClassVar[str] = ""
    """Grammar of the group after the stem, for documentation: `[/<block_size>]`."""

    ste: StraightThrough = field(default="masked", kw_only=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            _check_class(cls)
            FORMATS.register(cls.name, cls, vars(cls).get("aliases", ()))

    def __post_init__(self) -> None:
        check_fields(self)

    # Properties that back ends read; each class overrides its own.

    @property
    def scaled(self) -> ScaleInteger | None:
        """Itself if it is integers times real scales, else None."""
        return None

    @property
    def blocks(self) -> BlockQuantizer | None:
        """Itself if the elements of a block share an exponent, else None."""
        return None

    @property
    def fixed_point(self) -> Integer | None:
        """Itself if it is fixed point, else None."""
        return None

    @property
    def has_range(self) -> bool:
        """True if values depend on the scale or the shared exponent of a group."""
        return self.scaled is not None or self.blocks is not None

    @property
    def is_stored(self) -> bool:
        """True if the layer stores the scales."""
        return False

    @property
    def is_random(self) -> bool:
        """True if results differ from call to call."""
        return False

    @property
    def group_columns(self) -> int | None:
        """Neighbours along the last dimension that share a scale or an exponent, else None."""
        return None

    def part_unit(self, rank: int, dim: int) -> int | None:
        """Return the unit of parts along `dim` that are rounded alone as in the whole tensor.

        A part must start and end at multiples of the unit. None if the dimension must be whole.
        `rank` is the number of dimensions of the tensor, and `dim` counts from the front.
        """
        return 1 if self.maps_elements and not self.is_random else None

    @property
    def packed_layout(self) -> PackedFormat | None:
        """Layout in bytes that holds its values, one of `packed_forms`, else None."""
        size = self.group_columns
        rows = self.packed_forms if size is not None else ()
        return next((row for row in rows if row.quantizer(size or 0) == self), None)

    @property
    def gguf_type(self) -> str | None:
        """Type of a GGUF file that has the same integers or floats and groups, else None."""
        return None

    @property
    def compressed_type(self) -> str | None:
        """Format of compressed-tensors that has the same floats and blocks, else None."""
        return None

    @property
    def onnx_type(self) -> str | None:
        """Element type of an ONNX tensor that holds its codes, else None."""
        return None

    @property
    def float_dtype(self) -> torch.dtype | None:
        """Floating-point type of torch with the same codes, else None."""
        return None

    @property
    def code_bits(self) -> int:
        """Bits of the code of an element."""
        return math.ceil(self.bits)

    def code_values(self) -> Tensor | None:
        """Return the value of every code before its scale, for codes of at most 8 bits.

        None if the format declares no codes: they then count the values in order.
        """
        return self.values_by_code() if self.code_bits <= MOST_CODE_BITS else None

    def values_by_code(self) -> Tensor | None:
        """Return the value of every code before its scale, None if there are no such codes."""
        return None

    def integer_step(self) -> float | None:
        """Return the step that all values are multiples of, before the scale, else None."""
        return None

    def __str__(self) -> str:
        return self.spelling

    @property
    def spelling(self) -> str:
        """Text that `parse_format` reads back as this format: `mxint4`, `fixed8.4`."""
        return spell(self)

    @property
    def file_spelling(self) -> str:
        """Spelling for a file name: "@" for "/" and "~" for ":"; `parse_format` reads it too."""
        return self.spelling.translate(IN_FILE_NAMES)

    @property
    def group_text(self) -> str:
        """Part of the spelling after "/": the elements that share an exponent or a scale."""
        return ""

    @classmethod
    def read_group(cls, text: str) -> dict[str, Any]:
        """Return the settings that `text` after "/" spells."""
        raise ConfigError(f"format '{cls.name}' has no groups: leave out '/{text}'.")

    @classmethod
    def modern(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings without `legacy` ones, and 0 and 1 of switches as booleans."""
        switches = {field.name for field in dataclasses.fields(cls) if field.type == "bool"}
        return {
            key: bool(value) if key in switches and value in (0, 1) else value
            for key, value in settings.items()
            if key not in cls.legacy
        }

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """Return the values of a float32 or float64 tensor that is not empty: the definition."""
        raise NotImplementedError

    def quantize(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the representable values of `x`, same shape and dtype.

        `noise`, uniform in [0, 1) and shaped as `x`, replaces the random numbers of stochastic
        rounding. Half-precision tensors are computed in float32 and rounded to their type.
        """
        if not x.is_floating_point():
            raise ConfigError(f"{self.name}: expected a floating-point tensor, got {x.dtype}.")
        if x.numel() == 0:
            return x.clone()
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        return self.represent(wide, noise).to(x.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Return `quantize(x)`, by native code if possible, with a straight-through gradient."""
        if not isinstance(x, Tensor):
            raise ConfigError(f"{self.name}: expected a tensor, got {type(x).__name__}.")
        if not (x.requires_grad and torch.is_grad_enabled()):
            return self._values(x)[0]
        settings = self.gpu_training if can_train(x) else None
        if settings is None:
            return _StraightThrough.apply(x, self)
        return quantize_with_gradient(x.contiguous(), settings)

    @functools.cached_property
    def gpu_training(self) -> KernelSettings | None:
        """Native code with a gradient on a GPU; the range must not depend on the tensor."""
        kernel, has_own_rule = self._kernel, type(self).clip_range is not Quantizer.clip_range
        if kernel is None or has_own_rule or self.is_stored:
            return None
        bounds = None if self.ste == "identity" or self.range == EVERYWHERE else self.range
        return kernel.training_settings(bounds) if not kernel.block or bounds is None else None

    def _values(self, x: Tensor) -> tuple[Tensor, bool]:
        """Return the values, and True if all of `x` is known to be in the range."""
        if torch.compiler.is_compiling():
            kernel = self.kernel() if can_call(x) else None
            return (kernel.call(x) if kernel and kernel.block else self.quantize(x)), False
        kernel = self._kernel if can_run(x) else None
        return kernel.run(x) if kernel is not None else (self.quantize(x), False)

    def kernel(self) -> Kernel | None:
        """Return the native code for these settings, None if there is none."""
        return None

    @functools.cached_property
    def _kernel(self) -> Kernel | None:
        return self.kernel()

    @property
    def bits(self) -> float:
        """Average bits to store one element, shared exponents included."""
        raise NotImplementedError

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest value, between which a masked gradient passes, else infinite."""
        return EVERYWHERE

    def value_set(self) -> Tensor | None:
        """Return all finite values in order, for formats of at most 8 bits that ignore `x`."""
        return None

    def clip_range(self, x: Tensor) -> tuple[Bound, Bound] | None:
        """Return the bounds (broadcast with `x`) of the gradient; None: it passes everywhere."""
        return None if self.ste == "identity" or self.range == EVERYWHERE else self.range

    def surrogate(self, x: Tensor) -> Tensor:
        """Return the continuous function whose slope is the gradient of this format."""
        clip = self.clip_range(x)
        return x if clip is None else x.clamp(clip[0], clip[1])  # type: ignore[arg-type]


@dataclass(frozen=True)
class RoundingQuantizer(Quantizer):
    """A format with a choice of rounding; `seed` fixes the random numbers of "stochastic"."""

    rounding: Rounding = field(default="nearest_even", kw_only=True)
    seed: int | None = field(default=None, kw_only=True)

    @property
    def is_random(self) -> bool:
        """True if results differ from call to call."""
        return self.rounding == "stochastic"

    def rounded_kernel(
        self, name: str, parameters: tuple[float, ...], block: int = 0
    ) -> Kernel | None:
        """Return the native code `name` with this rounding; random rounding has none."""
        if self.rounding == "stochastic":
            return None
        return Kernel(name, self.rounding, parameters, block)

    def noise_for(self, x: Tensor, noise: Tensor | None) -> Tensor | None:
        """Return the random numbers of "stochastic" rounding, else None."""
        if self.rounding != "stochastic":
            return None
        return make_noise(x, self.seed) if noise is None else noise.to(x.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, quantizer: Quantizer) -> Tensor:
        ctx.quantizer = quantizer
        y, is_inside = quantizer._values(x)
        if not is_inside and quantizer.clip_range(x) is not None:
            ctx.save_for_backward(x)
        # torch 2.11's compiler loses the gradient of a result that shares memory with a value on
        # the way to it, as a cast to the same type or a view does.
        return y.clone() if torch.compiler.is_compiling() else y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if not ctx.saved_tensors:
            return gradients[0], None
        (x,) = ctx.saved_tensors
        (low, high), gradient = ctx.quantizer.clip_range(x), gradients[0]
        trains = torch.is_grad_enabled() or gradient.requires_grad
        is_plain = isinstance(low, float) and not trains and not torch.compiler.is_compiling()
        if is_plain and can_mask(gradient, x):
            return mask(gradient, x, float(low), float(high)), None
        return torch.where((x >= low) & (x <= high), gradient, 0.0), None


def _check_class(cls: type[Quantizer]) -> None:
    """Raise if a name of the new format, or of its layers, is missing or in use."""
    suffix = vars(cls).get("class_suffix")
    if not isinstance(suffix, str) or not suffix.isidentifier():
        raise RegistryError(
            f"format '{cls.name}': class_suffix is {suffix!r}. Give {cls.__name__} one that ends "
            f"the names of its layers, as in class_suffix = 'Integer' for LinearInteger."
        )
    stem = own_stem(cls)
    for text in (*vars(cls).get("aliases", ()), cls.name, *([stem.example] if stem else [])):
        other = resolve(FORMATS, text) if text not in FORMATS else None
        if other is not None:
            raise RegistryError(
                f"format '{cls.name}': '{text}' is a spelling of format '{other[0].name}'."
            )
    for form in FORMATS.values():
        if form.class_suffix == suffix and form.name != cls.name:
            raise RegistryError(
                f"format '{cls.name}': class_suffix '{suffix}' is that of format '{form.name}'."
            )


def check(condition: bool, message: str) -> None:
    """Raise a `ConfigError` with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def check_between(name: str, value: int, low: int, high: int) -> None:
    """Raise if a setting is outside its range."""
    check(low <= value <= high, f"{name} must be from {low} to {high}, got {value}.")
