"""Request of a quantisation one decoder layer at a time, and the methods that it may name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chop.actions.post_training import METHODS, check_options, methods_named
from chop.actions.streamed_allocation import StreamAllocation
from chop.actions.streamed_rotation import ROTATE
from chop.errors import ConfigError

AVAILABLE = ("nearest", "gptq", "clip", "smooth", "awq", "learned_rounding", ROTATE)
"""Methods that look at one decoder layer at a time."""
WHOLE_MODEL = {
    "equalize": "it follows channels through the whole model, and compares its outputs with and "
    "without the change",
    "correct_bias": "it adds biases, and a folder of transformers has no place for them",
    "fold_batch_norm": "it is for convolutions, and decoder layers have none",
}
"""Reason why each of the other methods needs the whole model, by its name."""
FLOAT, REFERENCE, NOW = "float", "reference", "now"
"""Streams of activations: of the model as it is stored, of the same model after the methods that
keep its function, and of the rounded model."""


@dataclass(frozen=True)
class StreamRequest:
    """Request of a user.

    `format`: spelling of the format of the weights. `methods`: names of `AVAILABLE`. `options`:
    arguments of their passes, by name. `ignore`, `include`: as for `plan_folder`. `spill`: folder
    for activations, which otherwise stay in memory while a layer is calibrated. `allocation`:
    formats to choose from for each matrix of the layers, in place of `format`.
    """

    source: Path
    format: str
    methods: tuple[str, ...] = ("nearest",)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    spill: Path | None = None
    allocation: StreamAllocation | None = None

    @property
    def before(self) -> list[str]:
        """Methods that change the float model layer by layer."""
        names = [name for name in self.methods if METHODS[name].when == "before"]
        return [name for name in names if name != ROTATE]

    @property
    def after(self) -> list[str]:
        """Methods that round the quantised model with data."""
        return [n for n in self.methods if METHODS[n].when == "after" and n != "nearest"]

    def behind_rotation(self, source: Path) -> StreamRequest:
        """Return the request for the rotated model in `source`."""
        methods = tuple(name for name in self.methods if name != ROTATE)
        options = {name: own for name, own in self.options.items() if name != ROTATE}
        return replace(self, source=source, methods=methods or ("nearest",), options=options)

    @property
    def weighs_rows(self) -> bool:
        """True if rows count by their effect on the loss."""
        return "gptq" in self.methods and self._gptq("rows", "by_loss") == "by_loss"

    @property
    def needs_reference(self) -> bool:
        """True if a method compares with the results of the float model."""
        is_float = "gptq" in self.methods and self._gptq("target", "float") == "float"
        return is_float or "learned_rounding" in self.methods

    def _gptq(self, name: str, default: str) -> Any:
        return self.options.get("gptq", {}).get(name, default)

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams of activations that the methods need."""
        needs_float = bool(self.before) or self.needs_reference
        is_apart = bool(self.before) and self.needs_reference
        return (FLOAT,) * needs_float + (REFERENCE,) * is_apart + (NOW,) * bool(self.after)

    @property
    def reference(self) -> str | None:
        """Stream of the float model that rounded layers are compared with, or None."""
        return next((n for n in (REFERENCE, FLOAT) if n in self.streams and self.after), None)


def check_methods(methods: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise for a method that needs the whole model, and for options of unknown methods."""
    check_options(options)
    for name in methods_named(methods):
        if name not in AVAILABLE:
            raise ConfigError(
                f"quantize.method: '{name}' needs the whole model in memory"
                f"{_because(WHOLE_MODEL.get(name))}. Allowed with max_memory: "
                f"{', '.join(AVAILABLE)}."
            )


def _because(reason: str | None) -> str:
    return "" if reason is None else f": {reason}"
