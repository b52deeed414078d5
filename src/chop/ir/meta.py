"""Typed metadata that still answers the documented subscripts.

`node.meta["mase"]["common"]["args"]["data_in_0"]["shape"]` and
`node.meta["mase"].common.args["data_in_0"].shape` are the same value. A misspelt key is an error.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, KeysView, MutableMapping
from typing import Any, ClassVar

import torch
from torch import fx

from chop.errors import GraphError
from chop.ir.number_formats import format_by_hand, type_and_precision
from chop.nn.quantizers.base import Quantizer
from chop.registry import suggest

NO_KEY: dict[str, bool] = {"is_key": False}
"""Of a field that is an attribute alone."""


class MetadataKeyError(GraphError, KeyError):
    """A metadata key that does not exist, or has no value yet."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0])


class Record(MutableMapping, dict):  # type: ignore[misc,metaclass]
    """A dataclass whose fields are also keys; a field is a key once it has a value.

    `KEYS` maps a key to a field of another name, for keys that Python reserves (`from`). Programs
    ask `isinstance(record, dict)`; the fields are the only store all the same, and everything a
    dict can do is done on them.
    """

    KEYS: ClassVar[dict[str, str]] = {}

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        made = super().__new__(cls)
        dict.__setitem__(made, "", None)  # type: ignore[index]  # json writes "{}" for an empty store
        return made

    @classmethod
    def known_keys(cls) -> list[str]:
        """Every key this record may have."""
        by_field = {field: key for key, field in cls.KEYS.items()}
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        names = [f.name for f in fields if f.metadata.get("is_key", True)]
        return [by_field.get(name, name) for name in names]

    def _field(self, key: str) -> str:
        if key not in self.known_keys():
            kind = type(self).__name__
            raise MetadataKeyError(f"{kind}: no key '{key}'. {suggest(key, self.known_keys())}")
        return self.KEYS.get(key, key)

    def __getitem__(self, key: str) -> Any:
        value = getattr(self, self._field(key))
        if value is None and key not in self.nullable():
            kind = type(self).__name__
            raise MetadataKeyError(f"{kind}: '{key}' has no value yet. Has: {', '.join(self)}.")
        return value

    @classmethod
    def nullable(cls) -> tuple[str, ...]:
        """Keys for which None is a value and not an absence."""
        return ()

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, self._field(key), value)

    def __delitem__(self, key: str) -> None:
        """Take the value away; a key that never has none is an error."""
        if self[key] is None or isinstance(self[key], Record):
            raise MetadataKeyError(f"{type(self).__name__}: '{key}' cannot be removed.")
        setattr(self, self._field(key), None)

    def clear(self) -> None:
        """Take every value away."""
        for key in [key for key in self if getattr(self, self._field(key)) is not None]:
            del self[key]

    def copy(self) -> Any:
        """A record with the same values."""
        return copy.copy(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Record):
            return type(other) is type(self) and vars(other) == vars(self)
        return dict(self) == other if isinstance(other, dict) else NotImplemented

    def __ne__(self, other: object) -> bool:  # a dict has its own, on a store that is empty here
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Any) -> dict[str, Any]:
        return dict(self) | dict(other)

    def __ror__(self, other: Any) -> dict[str, Any]:
        return dict(other) | dict(self)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self))

    def __reduce__(self) -> Any:
        return type(self), (), dict(vars(self))  # a dict's own way would store every value twice

    def __contains__(self, key: object) -> bool:
        return any(key == each for each in self)

    def __iter__(self) -> Iterator[str]:
        for key in self.known_keys():
            if getattr(self, self.KEYS.get(key, key)) is not None or key in self.nullable():
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)  # list(self) would ask for the length first

    def keys(self) -> KeysView[str]:
        """The keys that have a value."""
        return dict.fromkeys(self).keys()

    def items(self) -> list[tuple[str, Any]]:
        """Pairs of key and value, in the order of the fields."""
        return [(key, self[key]) for key in self]

    def values(self) -> list[Any]:
        """The values, in the order of the fields."""
        return [self[key] for key in self]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default` where it has none."""
        return self[key] if self.__contains__(key) else default

    def update(self, other: Any) -> None:
        """Set every key of `other`."""
        for key, value in dict(other).items():
            self[key] = value


@dataclasses.dataclass(eq=False)
class ValueMeta(Record):
    """One operand, result or configuration argument of a node.

    `type` and `precision` speak of the number format: ("float", [32]), ("fixed", [8, 3]). `format`
    is the whole of it, None for a tensor as torch stores it; `is_applied` says that the node brings
    the value to it, and is false of a format that is only told of a value on its way. `set_format`
    writes all four; `type` and `precision` set by hand mean a format that is applied.
    `value` is the tensor itself where the user asked to keep it, or the configuration value.
    """

    KEYS: ClassVar[dict[str, str]] = {"from": "source"}

    shape: list[int] | None = None
    torch_dtype: torch.dtype | None = None
    type: Any = None
    precision: list[Any] | None = None
    value: Any = None
    source: fx.Node | None = None
    device: Any = None
    stride: list[int] | None = None
    # behind `type` and `precision`: these are by hand only where nothing else is said
    format: Quantizer | None = dataclasses.field(default=None, metadata=NO_KEY)
    is_applied: bool = dataclasses.field(default=False, metadata=NO_KEY)

    def __setattr__(self, name: str, value: Any) -> None:
        is_said_again = name in ("type", "precision") and self.__dict__.get(name) == value
        super().__setattr__(name, value)
        # saying again what holds leaves the format its rounding and overflow
        if name in ("type", "precision") and not (is_said_again and self.__dict__.get("format")):
            self.format = format_by_hand(
                getattr(self, "type", None), getattr(self, "precision", None)
            )
            self.is_applied = self.format is not None

    def set_format(self, quantizer: Quantizer, *, is_applied: bool) -> None:
        """Say that the value is in a format, and whether the node brings it there."""
        assert self.torch_dtype is not None, "only tensors have number formats"
        kind, precision = type_and_precision(quantizer, self.torch_dtype)
        is_float = kind == "float"
        told = {"type": kind, "precision": precision, "format": None if is_float else quantizer}
        self.__dict__.update(told, is_applied=is_applied and not is_float)

    @classmethod
    def nullable(cls) -> tuple[str, ...]:
        return ("value",)

    @property
    def is_tensor(self) -> bool:
        """Whether this describes a tensor and not a configuration argument."""
        return self.torch_dtype is not None


@dataclasses.dataclass(eq=False)
class CommonMeta(Record):
    """What every back end reads: the operator, its operands and its results."""

    mase_type: str | None = None
    mase_op: str | None = None
    args: dict[str, ValueMeta] | None = None
    results: dict[str, ValueMeta] | None = None
    quant: Any = None


@dataclasses.dataclass(eq=False)
class SoftwareMeta(Record):
    """Statistics, sparsity and sharding: facts of the model run as software.

    `args` and `results` map an operand's name to a dict of facts about it (`stat` …).
    """

    args: dict[str, dict[str, Any]] | None = None
    results: dict[str, dict[str, Any]] | None = None
    cost: Any = None
    sparsity: Any = None
    masks: Any = None
    sharding: Any = None


@dataclasses.dataclass(eq=False)
class HardwareMeta(Record):
    """How a node is realised in hardware."""

    is_implicit: bool | None = None
    toolchain: str | None = None
    module: str | None = None
    device_id: int | None = None
    interface: dict[str, Any] | None = None
    dependence_files: list[str] | None = None
    verilog_param: dict[str, Any] | None = None
    max_parallelism: Any = None
    parallelism: Any = None
    cost: Any = None


@dataclasses.dataclass(eq=False)
class MaseMetadata(Record):
    """The tree under `node.meta["mase"]`: common, software and hardware."""

    common: CommonMeta = dataclasses.field(default_factory=CommonMeta)
    software: SoftwareMeta = dataclasses.field(default_factory=SoftwareMeta)
    hardware: HardwareMeta = dataclasses.field(default_factory=HardwareMeta)

    @property
    def parameters(self) -> MaseMetadata:
        """This tree; programs that say `meta.parameters["common"]` mean the same."""
        return self


def mase_meta(node: fx.Node) -> MaseMetadata:
    """The metadata of `node`; an error that names the pass to run where there is none."""
    found = node.meta.get("mase")
    if not isinstance(found, MaseMetadata):
        raise GraphError(
            f"node '{node.name}': no MASE metadata. Run init_metadata_analysis_pass first."
        )
    return found
