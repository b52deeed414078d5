"""Typed metadata of nodes, with fields that are also keys.

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
from chop.nn.quantizers.quantizer import Quantizer
from chop.registry import suggest

NO_KEY: dict[str, bool] = {"is_key": False}
"""Metadata of a field that is not a key."""


class MetadataKeyError(GraphError, KeyError):
    """Metadata key that does not exist, or has no value yet."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0])


class KeyedRecord(MutableMapping, dict):  # type: ignore[misc,metaclass]
    """Dataclass whose fields are also keys; a field is a key once it has a value.

    `KEYS` maps a key to a field of another name, for keys that Python reserves (`from`). A record
    is a dict for `isinstance`, but all methods of a dict work on the fields.
    """

    KEYS: ClassVar[dict[str, str]] = {}

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        record = super().__new__(cls)
        dict.__setitem__(record, "", None)  # type: ignore[index]  # json writes "{}" for an empty dict
        return record

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return every key that this record may have."""
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
        """Return the keys for which None is a value."""
        return ()

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, self._field(key), value)

    def __delitem__(self, key: str) -> None:
        """Remove the value; raise for a key that always has one."""
        if self[key] is None or isinstance(self[key], KeyedRecord):
            raise MetadataKeyError(f"{type(self).__name__}: '{key}' cannot be removed.")
        setattr(self, self._field(key), None)

    def clear(self) -> None:
        """Remove every value."""
        for key in [key for key in self if getattr(self, self._field(key)) is not None]:
            del self[key]

    def copy(self) -> Any:
        """Return a record with the same values."""
        return copy.copy(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, KeyedRecord):
            return type(other) is type(self) and vars(other) == vars(self)
        return dict(self) == other if isinstance(other, dict) else NotImplemented

    def __ne__(self, other: object) -> bool:  # that of dict would compare the empty dict
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
        return type(self), (), dict(vars(self))  # that of dict would store every value twice

    def __contains__(self, key: object) -> bool:
        return any(key == each for each in self)

    def __iter__(self) -> Iterator[str]:
        for key in self.known_keys():
            if getattr(self, self.KEYS.get(key, key)) is not None or key in self.nullable():
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)  # list(self) would call this method

    def keys(self) -> KeysView[str]:
        """Return the keys that have a value."""
        return dict.fromkeys(self).keys()

    def items(self) -> list[tuple[str, Any]]:
        """Return pairs of key and value, in the order of the fields."""
        return [(key, self[key]) for key in self]

    def values(self) -> list[Any]:
        """Return the values, in the order of the fields."""
        return [self[key] for key in self]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if it has none."""
        return self[key] if self.__contains__(key) else default

    def update(self, other: Any) -> None:
        """Set every key of `other`."""
        for key, value in dict(other).items():
            self[key] = value


class FormatKey:
    """Key `type` or `precision`, which is derived from the number format or set by hand."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, value: Any, owner: type) -> Any:
        return None if value is None else value.format_keys()[self.name]

    def __set__(self, value: Any, new: Any) -> None:
        value.set_format_key(self.name, new)


@dataclasses.dataclass(eq=False)
class ValueMeta(KeyedRecord):
    """Operand, result or configuration argument of a node.

    `format` is the number format, None for a tensor as torch stores it. `is_applied` means that the
    node quantises the value to this format; otherwise the value was quantised before.
    `type` and `precision` are derived from the format, as ("fixed", [8, 3]), or else from the
    dtype, as ("float", [32]). Setting them by hand sets a format that is applied; values that
    name no format (yet) are stored. `value` is the configuration value, or the tensor if kept.
    """

    KEYS: ClassVar[dict[str, str]] = {"from": "source"}
    _by_hand: ClassVar[dict[str, Any] | None] = None

    shape: list[int] | None = None
    torch_dtype: torch.dtype | None = None
    type: Any = FormatKey()
    precision: list[Any] | None = FormatKey()  # type: ignore[assignment]
    value: Any = None
    source: fx.Node | None = None
    device: Any = None
    stride: list[int] | None = None
    format: Quantizer | None = dataclasses.field(default=None, metadata=NO_KEY)
    is_applied: bool = dataclasses.field(default=False, metadata=NO_KEY)

    def __post_init__(self) -> None:
        if self.format is None:
            self._set_by_hand(self.format_keys())
        else:
            self._clear_by_hand()

    def format_keys(self) -> dict[str, Any]:
        """Return `type` and `precision`: set by hand, or else of the format or the dtype."""
        if self._by_hand is not None:
            return self._by_hand
        if self.__dict__.get("format") is not None:
            kind, precision = type_and_precision(self.format)  # type: ignore[arg-type]
            return {"type": kind, "precision": precision}
        return self._dtype_keys()

    def _dtype_keys(self) -> dict[str, Any]:
        dtype = self.torch_dtype
        pair = stored_format(dtype) if isinstance(dtype, torch.dtype) else (None, None)
        return dict(zip(("type", "precision"), pair, strict=True))

    def set_format_key(self, key: str, new: Any) -> None:
        """Set `type` or `precision` by hand."""
        keys = self.format_keys()
        if keys[key] == new:
            return  # keep the rounding and overflow of the format
        if "is_applied" in self.__dict__:
            self._set_by_hand({**keys, key: new})
        elif new is not None:  # inside __init__, before the format is set
            self.__dict__["_by_hand"] = {**keys, key: new}

    def _set_by_hand(self, keys: dict[str, Any]) -> None:
        """Set the format that `keys` name; store the keys if they name none."""
        self._clear_by_hand()
        self.format = format_by_hand(**keys)
        self.is_applied = self.format is not None
        if self.format is None and keys != self._dtype_keys():
            self.__dict__["_by_hand"] = keys

    def _clear_by_hand(self) -> None:
        self.__dict__.pop("_by_hand", None)

    def set_format(self, quantizer: Quantizer, *, is_applied: bool) -> None:
        """Set the format of the value, and whether the node quantises to it."""
        assert self.torch_dtype is not None, "only tensors have number formats"
        is_float = quantizer.is_bypass
        self._clear_by_hand()
        self.format, self.is_applied = None if is_float else quantizer, is_applied and not is_float

    def follow(self, other: ValueMeta, *, is_applied: bool) -> None:
        """Copy the format of `other`."""
        self._clear_by_hand()
        self.format, self.is_applied = other.format, is_applied and other.format is not None
        if other._by_hand is not None:
            self.__dict__["_by_hand"] = other._by_hand

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle; earlier versions stored `type` and `precision` themselves."""
        renamed = {"_by_hand" if k == "_said" else k: v for k, v in state.items()}
        keys = {key: renamed.pop(key) for key in ("type", "precision") if key in renamed}
        self.__dict__.update(renamed)
        if keys and self.format is None:
            self._set_by_hand(self.format_keys() | keys)

    @classmethod
    def nullable(cls) -> tuple[str, ...]:
        return ("value",)

    @property
    def is_tensor(self) -> bool:
        """True for a tensor, False for a configuration argument."""
        return self.torch_dtype is not None


@dataclasses.dataclass(eq=False)
class CommonMeta(KeyedRecord):
    """Facts for every back end: the operator, its operands and its results.

    `quant` is informative: formats are in `args` and `results`, settings in the layer or call.
    """

    mase_type: str | None = None
    mase_op: str | None = None
    args: dict[str, ValueMeta] | None = None
    results: dict[str, ValueMeta] | None = None
    quant: Any = None


@dataclasses.dataclass(eq=False)
class SoftwareMeta(KeyedRecord):
    """Facts for software: statistics, sparsity and sharding.

    `args` and `results` map an operand's name to a dict of facts about it (`stat` …).
    `calibration` maps an operand (`data_in`, `weight` …) to its measured range and the settings
    of its format.
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
    """Tree under `node.meta["mase"]`: common, software and hardware."""

    common: CommonMeta = dataclasses.field(default_factory=CommonMeta)
    software: SoftwareMeta = dataclasses.field(default_factory=SoftwareMeta)
    hardware: HardwareMeta = dataclasses.field(default_factory=HardwareMeta)

    @property
    def parameters(self) -> MaseMetadata:
        """Tree itself, for programs that write `meta.parameters["common"]`."""
        return self


def mase_meta(node: fx.Node) -> MaseMetadata:
    """Return the metadata of `node`; raise an error that names the pass to run if it has none."""
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata):
        raise GraphError(
            f"node '{node.name}': no MASE metadata. Run init_metadata_analysis_pass first."
        )
    return meta
