"""The steps of `mase journey`: each is one command with its settings.

To add a step for every model, extend `_checks`; to add a compressed model, extend `_variants`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.targets import SHIPPED_WIDTHS
from chop.cli.commands.journey import JourneyConfig
from chop.cli.commands.quantize import NEAREST
from chop.cli.shared_options import DataOptions, ModelOptions

FLOAT, PRUNED = "float", "pruned"
PACK = "pack_weights_transform_pass"
EXPORTED = {
    "onnx": "model.onnx",
    "qonnx": "model.onnx",
    "gguf": "model.gguf",
    "compressed-tensors": "model",
    "hf": "model",
}
"""Export target -> file or folder that `mase export` writes."""
UNROUNDED = "F32"
"""GGUF type of float weights, so that the file has the values of the model."""
TIMED_CALLS = (20,)
"""Calls of the model whose median is its latency."""
CHECKPOINT_OPTIONS = ("seed", "plugins", "classes")
"""Options of the model that also apply to its checkpoints."""


@dataclass(frozen=True)
class JourneyStep:
    """One command, run on one `variant` of the model.

    `settings`: arguments of the command by name. `needs`: keys of steps whose files it reads.
    `figures`: function that returns the figures of the table from the result of the command.
    `is_scratch`: the files of the step are deleted at the end. `shows_memory`: the table has the
    memory that the step added to the process.
    """

    variant: str
    title: str
    command: str
    settings: Mapping[str, Any]
    needs: tuple[str, ...]
    figures: Callable[[Mapping[str, Any]], dict[str, Any]]
    is_scratch: bool = False
    shows_memory: bool = False

    @property
    def key(self) -> str:
        """Name of the step in the record."""
        return f"{self.variant}: {self.title}"


# -- figures from the results of commands --------------------------------------------------------


def compared(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the difference of the outputs of two models."""
    facts = result["against"]
    if facts["is_equal"]:
        return {"outputs": "equal"}
    figures = {"SQNR (dB)": facts["sqnr_db"], "agreement": facts["agreement"]}
    measured = {name: value for name, value in figures.items() if value is not None}
    return measured | {"largest difference": facts["largest_difference"]}


def sized(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of a model that was quantised or pruned."""
    last = list(result["stages"].values())[-1]
    return {"bytes": last["bytes"], "bits per weight": last["weight_bits"]}


def evaluated(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metric on the test rows."""
    name, value = next(iter(result["eval"].items()))
    return {name: value}


def timed(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the latency in milliseconds."""
    return {"latency (ms)": result["models"][0]["latency"] * 1e3}


def explained(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer that loses most, and the loss of the model with and without it."""
    info = result["explained"]
    figures = {"loss (nats)": info["loss"]}
    if not info["layers"]:
        return {**figures, "worst layer": "none"}
    worst = max(info["layers"], key=lambda row: row["loss"])
    return {**figures, "worst layer": worst["layer"], "without it (nats)": worst["without"]}


def simulated(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict of a simulation."""
    bits = "equal" if result["is_exact"] else "different"
    return {"bits": bits, **{k: result[k] for k in ("cycles",) if k in result}}


# -- steps ---------------------------------------------------------------------------------------


def steps_of(config: JourneyConfig, out: Path) -> list[JourneyStep]:
    """Return the steps of a journey in order; their files go below `out`."""
    return [step for plan in _plans(config, out) for step in plan.steps()]


def _plans(config: JourneyConfig, out: Path) -> Iterator[_Plan]:
    for variant in [FLOAT, *_variants(config)]:
        yield _Plan(config, out, variant)


def _variants(config: JourneyConfig) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return, for each compressed model, the command that makes it and its settings."""
    variants = _formats(config) | _bits(config)
    if config.prune is not None:
        training = {"finetune_epochs": config.finetune_epochs} | _rate(config)
        variants[PRUNED] = ("prune", {"sparsity": config.prune, **training})
    if config.rtl:
        variants["fixed point"] = ("quantize", {"width": 8, "fit": True})
    return variants


def _formats(config: JourneyConfig) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the models with weights and inputs in one format."""
    rows = {"calibration_rows": config.calibration_rows} if config.dataset else {}
    return {
        f"{form} {method}": ("quantize", {"format": form, "method": (method,), **rows})
        for form in config.formats or ()
        for method in config.methods
    }


def _bits(config: JourneyConfig) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the models with a number of bits per weight; `nearest` has no data to look at."""
    rows = {"calibration_rows": config.calibration_rows}
    target = {} if config.for_ is None else {"for_": config.for_}
    variants: dict[str, tuple[str, dict[str, Any]]] = {}
    for bits in config.bits:
        for method in config.methods:
            is_average = bits not in SHIPPED_WIDTHS
            if method == NEAREST and is_average:  # an average is chosen by data
                continue
            settings = {"bits": bits, "method": (method,), **target}
            settings |= {} if method == NEAREST else rows
            variants[f"{bits:g} bits {method}"] = ("quantize", settings)
    return variants


def _rate(config: JourneyConfig) -> dict[str, Any]:
    return {} if config.learning_rate is None else {"learning_rate": config.learning_rate}


def _given(config: JourneyConfig, owner: type, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the options of `owner` that differ from their defaults."""
    default = owner()
    names = [field.name for field in dataclasses.fields(owner) if field.name not in leave_out]
    values = {name: getattr(config, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


@dataclass(frozen=True)
class _Plan:
    """The steps of one variant."""

    config: JourneyConfig
    out: Path
    variant: str

    def place(self, title: str, variant: str | None = None) -> Path:
        """Return the output folder of a step."""
        words = (variant or self.variant, title)
        return self.out.joinpath(*(re.sub(r"[^\w.]+", "-", word) for word in words))

    def key(self, title: str, variant: str | None = None) -> str:
        """Return the key of a step."""
        return f"{variant or self.variant}: {title}"

    @property
    def data(self) -> dict[str, Any]:
        """Data options, for commands that read the dataset."""
        return _given(self.config, DataOptions) if self.config.dataset is not None else {}

    @property
    def original(self) -> dict[str, Any]:
        """Model options of the user's model."""
        return _given(self.config, ModelOptions)

    def on(self, title: str) -> dict[str, Any]:
        """Return the model options for the files of another step of this variant."""
        options = {k: v for k, v in self.original.items() if k in CHECKPOINT_OPTIONS}
        return {"model": str(self.place(title)), **options}

    def step(
        self,
        title: str,
        command: str,
        settings: Mapping[str, Any],
        figures: Callable[[Mapping[str, Any]], dict[str, Any]],
        needs: tuple[str, ...] = (),
        *,
        is_scratch: bool = False,
    ) -> JourneyStep:
        """Return a step of this variant, with its output folder."""
        whole = {**settings, "out": str(self.place(title))}
        flags = {"is_scratch": is_scratch, "shows_memory": command == "bench"}
        return JourneyStep(self.variant, title, command, whole, needs, figures, **flags)

    def steps(self) -> Iterator[JourneyStep]:
        """Yield the steps of the variant."""
        yield from self._float_model() if self.variant == FLOAT else self._compressed_model()
        yield from self._checks()
        for target in self.config.exports:
            yield from self._export(target)

    def _float_model(self) -> Iterator[JourneyStep]:
        start = self.original
        needs: tuple[str, ...] = ()
        if self.config.epochs:
            training = {**self.data, "epochs": self.config.epochs, **_rate(self.config)}
            yield self.step("train", "train", {**start, **training}, evaluated)
            start, needs = self.on("train"), (self.key("train"),)
        against = {"against": self.config.model if not needs else start["model"]}
        settings = {**start, **self.data, **against, "draw": False}
        yield self.step("model", "trace", settings, _captured, needs)

    def _compressed_model(self) -> Iterator[JourneyStep]:
        command, settings = _variants(self.config)[self.variant]
        start = {**self.on("model"), "model": str(self.place("model", FLOAT))}
        needs = (self.key("model", FLOAT),)
        is_blind = "bits" in settings and settings["method"] == (NEAREST,)
        data = {} if is_blind else self.data
        yield self.step("model", command, {**start, **data, **settings}, sized, needs)
        if self.config.explain and command == "quantize":
            rows = {"against": start["model"], "rows": self.config.calibration_rows}
            options = {**self.on("model"), **self.data, **rows}
            yield self.step("explain", "explain", options, explained, (self.key("model"),))

    def _checks(self) -> Iterator[JourneyStep]:
        on, needs = self.on("model"), (self.key("model"),)
        if self.config.dataset is not None:
            yield self.step("evaluate", "eval", {**on, **self.data}, evaluated, needs)
        first = self.place("model", FLOAT)
        if self.variant != FLOAT:
            yield self._compare("compare with float", "model", first, needs)
        copy = (self.key("save again"),)
        yield self.step(
            "save again", "trace", {**on, "draw": False}, _nodes, needs, is_scratch=True
        )
        yield self._compare("save and load", "save again", self.place("model"), copy)
        yield self.step("pack", "pass", {"name": PACK, **on}, _packed, needs)
        packed = (self.key("pack"),)
        yield self._compare("compare packed", "pack", self.place("model"), packed)
        calls = {"iterations": TIMED_CALLS, "draw": False}
        yield self.step("latency", "bench", {**on, **calls}, timed, needs)
        yield self.step("latency packed", "bench", {**self.on("pack"), **calls}, timed, packed)
        if self.config.rtl:
            yield self.step("simulate RTL", "simulate", {**on, **self.data}, simulated, needs)

    def _compare(
        self, title: str, model: str, against: Path, needs: tuple[str, ...]
    ) -> JourneyStep:
        settings = {**self.on(model), **self.data, "against": str(against), "draw": False}
        return self.step(title, "trace", settings, compared, needs, is_scratch=True)

    def _export(self, target: str) -> Iterator[JourneyStep]:
        title, read = f"export {target}", f"read {target}"
        settings = {**self.on("model"), "to": target}
        if target == "gguf" and self.variant in (FLOAT, PRUNED):
            settings["format"] = UNROUNDED  # by default the export rounds floats to Q8_0
        yield self.step(title, "export", settings, _exported, (self.key("model"),))
        file, needs = self.place(title) / EXPORTED[target], (self.key(title),)
        if target == "hf":  # a folder of transformers is a model for every command
            settings = {"model": str(file), **self.data, "draw": False}
            yield self.step(read, "trace", settings, _nodes, needs, is_scratch=True)
        else:
            settings = {"file": str(file), "source": target}
            yield self.step(read, "import", settings, _nodes, needs, is_scratch=True)
        needs = (self.key(read),)
        yield self._compare(f"compare {target}", read, self.place("model"), needs)


def _captured(result: Mapping[str, Any]) -> dict[str, Any]:
    return {**compared(result), "parameters": result["parameters"]}


def _nodes(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodes": result["nodes"]}


def _packed(result: Mapping[str, Any]) -> dict[str, Any]:
    info = result["info"]
    is_packed = any(row["packed"] != "kept" for row in info["modules"])
    return {"bytes": info["after"], **({} if is_packed else {"nothing packed": info["not_packed"]})}


def _exported(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"bytes": result["bytes"]}
