"""Targets of a quantised model, with the weight formats that each of them runs.

To add a target, add a row to `TARGETS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from chop.errors import ConfigError
from chop.nn.quantizers import parse_format
from chop.nn.quantizers.formats import spelled_settings

SHIPPED_WIDTHS = (4, 8)
"""Widths that kernels and exports take."""
BY_CHANNEL = {4: "int4/channel", 8: "int8/channel"}
BOUNDED = {4: "mxint4/32:exponent_width=5", 8: "mxint8/32:exponent_width=5"}
"""Formats whose steps are float16 numbers: 2**-21 or more."""
WIDE = {16: "int16/channel"}
"""Format of layers that 8 bits cannot hold; `mase pack` has no kernel for it."""
TINY, BLOCK = 2.0**-15, 32
"""Largest magnitude of a block below which `BOUNDED` rounds more than a format without bounds."""


@dataclass(frozen=True)
class Target:
    """Formats of one target: `formats` by width.

    `kernels`: formats of the weights of convolutions, by width, if they differ. Groups are along
    the last dimension, which is the width of a kernel: they would have a scale for a few numbers.
    `rounds_inputs`: activations are rounded to 8 bits too. `embeddings`: it takes quantised tables.
    `bounded`: formats of weights with a block of tiny values, whose scale is none of the target's,
    by width. `wide`: formats for averages above 8 bits. `row_multiple`: its groups divide rows
    whose length is a multiple of this. `uneven`: formats of the other matrices, by width; without
    them these stay floats.
    """

    formats: Mapping[int, str] = field(default_factory=lambda: {4: "mxint4/32", 8: "mxint8/32"})
    rounds_inputs: bool = False
    embeddings: bool = True
    kernels: Mapping[int, str] = field(default_factory=dict)
    bounded: Mapping[int, str] = field(default_factory=dict)
    wide: Mapping[int, str] = field(default_factory=dict)
    row_multiple: int = 1
    uneven: Mapping[int, str] = field(default_factory=dict)

    def refusal(self, layer: nn.Module) -> str:
        """Return the reason why it takes no quantised weights of a layer; "" if it takes them."""
        if isinstance(layer, nn.Embedding) and not self.embeddings:
            return "takes no quantised tables"
        if self.uneven or not self._is_uneven(layer):
            return ""
        return f"takes rows of a multiple of {self.row_multiple}"

    def _is_uneven(self, layer: nn.Module) -> bool:
        rows = {p.shape[-1] for p in layer.parameters() if p.dim() > 1}
        return not is_convolution(layer) and any(row % self.row_multiple for row in rows)

    def format_of(self, layer: nn.Module, width: int) -> str:
        """Return the format of the weights of a layer in `width` bits."""
        chosen = self.formats
        if is_convolution(layer):
            chosen = self.kernels or chosen
        elif self._is_uneven(layer):
            chosen = self.uneven
        elif self.bounded and has_tiny_blocks(layer):
            chosen = self.bounded
        return chosen[width]

    def all_configs(self) -> dict[str, dict[str, Any]]:
        """Return the config of a layer for each format that `format_of` may return."""
        rows = (self.formats, self.kernels, self.bounded, self.uneven)
        return self._configs([form for row in rows for form in row.values()])

    def weight_configs(self, widths: Sequence[int] = SHIPPED_WIDTHS) -> dict[str, dict[str, Any]]:
        """Return the config of a layer for each width, by the spelling of its weight's format."""
        return self._configs([self.formats[width] for width in widths])

    def kernel_configs(self, widths: Sequence[int] = SHIPPED_WIDTHS) -> dict[str, dict[str, Any]]:
        """Return the same for formats that fit the weights of convolutions as well."""
        return self._configs([self.kernels.get(width, self.formats[width]) for width in widths])

    def configs_for_average(
        self, bits: float | None, *, has_kernels: bool
    ) -> dict[str, dict[str, Any]]:
        """Return the configs to choose from for `bits` on average; None if a loss is the limit.

        `has_kernels`: the model has convolutions.
        """
        configs = self.kernel_configs if has_kernels else self.weight_configs
        widest = max(self.formats)
        if bits is None or bits <= widest or not self.wide:
            return configs()
        return configs([widest]) | self._configs(list(self.wide.values()))

    def _configs(self, formats: Sequence[str]) -> dict[str, dict[str, Any]]:
        inputs = self.formats[max(self.formats)] if self.rounds_inputs else None
        return {form: layer_config(form, inputs) for form in formats}

    def width_of(self, format: str | None) -> int:
        """Return the width of one of its formats; the largest if there is none given."""
        spelled = None if format is None else str(parse_format(format))
        widths = [w for w, text in self.formats.items() if str(parse_format(text)) == spelled]
        return widths[0] if widths else max(self.formats)


TARGETS: dict[str, Target] = {
    "cpu": Target(kernels=BY_CHANNEL),
    "gpu": Target(kernels=BY_CHANNEL),
    "gguf": Target(kernels=BY_CHANNEL, bounded=BOUNDED, row_multiple=32),
    "vllm": Target(
        {4: "int4/32", 8: "int8/32"},
        embeddings=False,
        kernels=BY_CHANNEL,
        row_multiple=32,
        uneven=BY_CHANNEL,
    ),
    "onnx": Target(
        {4: "int4/32", 8: "int8/channel"},
        embeddings=False,
        kernels=BY_CHANNEL,
        wide=WIDE,
    ),
    "rtl": Target({4: "mxint4", 8: "mxint8"}, rounds_inputs=True, embeddings=False),
}
"""Name of `--for` -> target."""
DEFAULT_TARGET = "cpu"


def is_convolution(layer: nn.Module) -> bool:
    """Return True if the last dimension of the weight is the width of a kernel."""
    return hasattr(layer, "kernel_size")


def has_tiny_blocks(layer: nn.Module) -> bool:
    """Return True if a block of a weight has values, and all of them are tiny."""
    weights = [p.detach() for p in layer.parameters() if p.dim() > 1 and p.shape[-1] % BLOCK == 0]
    largest = [w.reshape(-1, BLOCK).abs().amax(1) for w in weights]
    return any(bool(((each > 0) & (each < TINY)).any()) for each in largest)


def layer_config(weight: str, inputs: str | None = None) -> dict[str, Any]:
    """Return the config of a layer with its weight in one format; inputs in another, or float."""
    form, settings = spelled_settings(weight, "quantize.format")
    config: dict[str, Any] = {"name": form.name}
    config |= {f"weight_{key}": value for key, value in settings.items()}
    bypass = {f"{role}_{_width_key(settings)}": "NA" for role in ("data_in", "bias")}
    if inputs is None:
        return {**config, **bypass}
    _, own = spelled_settings(inputs, "quantize.format")
    return {**config, **{f"{r}_{k}": v for r in ("data_in", "bias") for k, v in own.items()}}


def _width_key(settings: Mapping[str, Any]) -> str:
    return "element" if "element" in settings else "width"


def check_target(name: str, format: str | None) -> Target:
    """Return the target `name`; raise if it does not run `format`."""
    target = TARGETS[name]
    if format is None:
        return target
    runs = [str(parse_format(text)) for text in target.formats.values()]
    if str(parse_format(format)) not in runs:
        raise ConfigError(
            f"quantize.format: '{format}' does not run on target '{name}'. Allowed: "
            f"{', '.join(target.formats.values())}."
        )
    return target
