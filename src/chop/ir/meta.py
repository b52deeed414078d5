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
from chop.ir.design_spec import DesignSpec
from chop.ir.number_formats import format_by_hand, stored_format, type_and_precision
from chop.nn.quantizers.base import Quantizer
from chop.registry import suggest

NO_KEY: dict[str, bool] = {"is_key": False}
"""Of a field that is an attribute alone."""


class MetadataKeyError(GraphError, KeyError):
    """A metadata key that does not exist, or has no value yet."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0])


class KeyedRecord(MutableMapping, dict):  # type: ignore[misc,metaclass]
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
        if self[key] is None or isinstance(self[key], KeyedRecord):
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
        if isinstance(other, KeyedRecord):
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


class Told:
    """A key that tells of the number format: read from it, and set by hand through `say`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, value: Any, owner: type) -> Any:
        return None if value is None else value.told()[self.name]

    def __set__(self, value: Any, said: Any) -> None:
        value.say(self.name, said)


@dataclasses.dataclass(eq=False)
class ValueMeta(KeyedRecord):
    """One operand, result or configuration argument of a node.

    `format` is the number format, None for a tensor as torch stores it; `is_applied` says that the
    node brings the value to it, and is false of a format that is only told of a value on its way.
    `type` and `precision` tell of it and are kept nowhere: ("fixed", [8, 3]), or ("float", [32])
    by the dtype. Set by hand they mean a format that is applied; words that name none (yet) stay.
    `value` is the tensor itself where the user asked to keep it, or the configuration value.
    """

    KEYS: ClassVar[dict[str, str]] = {"from": "source"}
    _said: ClassVar[dict[str, Any] | None] = None

    shape: list[int] | None = None
    torch_dtype: torch.dtype | None = None
    type: Any = Told()
    precision: list[Any] | None = Told()  # type: ignore[assignment]
    value: Any = None
    source: fx.Node | None = None
    device: Any = None
    stride: list[int] | None = None
    format: Quantizer | None = dataclasses.field(default=None, metadata=NO_KEY)
    is_applied: bool = dataclasses.field(default=False, metadata=NO_KEY)

    def __post_init__(self) -> None:
        if self.format is None:
            self._settle(self.told())
        else:
            self._forget()

    def told(self) -> dict[str, Any]:
        """`type` and `precision`: as said by hand, else of the format, else of the dtype."""
        if self._said is not None:
            return self._said
        if self.__dict__.get("format") is not None:
            kind, precision = type_and_precision(self.format)  # type: ignore[arg-type]
            return {"type": kind, "precision": precision}
        return self._stored()

    def _stored(self) -> dict[str, Any]:
        dtype = self.torch_dtype
        known = stored_format(dtype) if isinstance(dtype, torch.dtype) else (None, None)
        return dict(zip(("type", "precision"), known, strict=True))

    def say(self, key: str, said: Any) -> None:
        """Set `type` or `precision` by hand."""
        told = self.told()
        if told[key] == said:
            return  # what holds keeps its rounding and overflow
        if "is_applied" in self.__dict__:
            self._settle({**told, key: said})
        elif said is not None:  # on the way in, the format is still to come
            self.__dict__["_said"] = {**told, key: said}

    def _settle(self, told: dict[str, Any]) -> None:
        """Keep the format that was said, and the words where they name none."""
        self._forget()
        self.format = format_by_hand(**told)
        self.is_applied = self.format is not None
        if self.format is None and told != self._stored():
            self.__dict__["_said"] = told

    def _forget(self) -> None:
        self.__dict__.pop("_said", None)

    def set_format(self, quantizer: Quantizer, *, is_applied: bool) -> None:
        """Say that the value is in a format, and whether the node brings it there."""
        assert self.torch_dtype is not None, "only tensors have number formats"
        is_float = quantizer.is_bypass
        self._forget()
        self.format, self.is_applied = None if is_float else quantizer, is_applied and not is_float

    def follow(self, other: ValueMeta, *, is_applied: bool) -> None:
        """Be in the format of `other`."""
        self._forget()
        self.format, self.is_applied = other.format, is_applied and other.format is not None
        if other._said is not None:
            self.__dict__["_said"] = other._said

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled; records once kept `type` and `precision` themselves."""
        said = {key: state[key] for key in ("type", "precision") if key in state}
        self.__dict__.update({k: v for k, v in state.items() if k not in said})
        if said and self.format is None:
            self._settle(self.told() | said)

    @classmethod
    def nullable(cls) -> tuple[str, ...]:
        return ("value",)

    @property
    def is_tensor(self) -> bool:
        """Whether this describes a tensor and not a configuration argument."""
        return self.torch_dtype is not None


@dataclasses.dataclass(eq=False)
class CommonMeta(KeyedRecord):
    """What every back end reads: the operator, its operands and its results.

    `quant` is for the user: formats are in `args` and `results`, settings in the layer or call.
    """

    mase_type: str | None = None
    mase_op: str | None = None
    args: dict[str, ValueMeta] | None = None
    results: dict[str, ValueMeta] | None = None
    quant: Any = None


@dataclasses.dataclass(eq=False)
class SoftwareMeta(KeyedRecord):
    """Statistics, sparsity and sharding: facts of the model run as software.

    `args` and `results` map an operand's name to a dict of facts about it (`stat` …).
    `calibration` maps an operand (`data_in`, `weight` …) to the range seen of it and the settings
    chosen for its format.
    """

    args: dict[str, dict[str, Any]] | None = None
    results: dict[str, dict[str, Any]] | None = None
    cost: Any = None
    sparsity: Any = None
    masks: Any = None
    sharding: Any = None
    calibration: dict[str, dict[str, Any]] | None = None


@dataclasses.dataclass(eq=False)
class HardwareMeta(KeyedRecord):
    """Hardware of a node.

    `design` has the settings of the whole design; it is on the output node alone.
    """

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
    design: DesignSpec | None = None


@dataclasses.dataclass(eq=False)
class MaseMetadata(KeyedRecord):
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
