"""Encoding of a graph's modules as JSON, and decoding: an allowed class with plain attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.errors import CheckpointError
from chop.files import shown
from chop.ir.reclass import recipe_of
from chop.ir.store import vocabulary
from chop.ir.store.codec import ATTRIBUTES, Decoder, encode
from chop.ir.store.layer_shapes import check_scales, check_shapes
from chop.ir.store.tensors import TensorFinder
from chop.ir.store.type_hints import fits, hints_of, text_of

_KEYS = {"class", "parametrized", "attributes", "parameters", "buffers", "children"}
_CALLABLE = {"activation", "distance_function"}
"""Attributes of torch's layers that are functions; a graph must be allowed to call them."""
_DEEPEST = 24
"""Most levels of children in a file."""


def encode_module(module: nn.Module, where: str) -> dict[str, Any]:
    """Return the record of `module` without its tensors."""
    if module._forward_hooks or module._forward_pre_hooks:
        raise CheckpointError(
            f"module '{where}': forward hooks cannot be saved. Remove them first."
        )
    parametrized = parametrize.is_parametrized(module)
    cls = type(module).__bases__[0] if parametrized else type(module)
    state = vars(module) if parametrized else module.__getstate__()
    own = {id(t): n for n, t in [*module._parameters.items(), *module._buffers.items()]}
    internal = vars(nn.Module())
    attributes = {
        k: encode(v, f"module '{where}', attribute '{k}'", own)
        for k, v in dict(state).items()
        if k not in internal
    }
    return {
        "class": _encode_class(cls),
        "parametrized": list(module.parametrizations) if parametrized else [],  # type: ignore[arg-type]
        "attributes": attributes,
        "parameters": {k: grad_of(p) for k, p in module._parameters.items()},
        "buffers": {
            k: None if b is None else k not in module._non_persistent_buffers_set
            for k, b in module._buffers.items()
        },
        "children": {k: encode_module(m, f"{where}.{k}") for k, m in module.named_children()},
    }


def grad_of(parameter: nn.Parameter | None) -> bool | None:
    """Return whether a parameter trains, None if there is none."""
    return None if parameter is None else parameter.requires_grad


def _encode_class(cls: type) -> Any:
    recipe = recipe_of(cls)
    if recipe is None:
        return f"{cls.__module__}.{cls.__qualname__}"
    maker, parts = recipe
    return {
        "made_by": vocabulary.function_name(maker),
        "of": [_encode_class(part) for part in parts],
    }


def decode_module(
    record: Any, path: str, find: TensorFinder, decode: Decoder, depth: int = 0
) -> nn.Module:
    """Return the module at `path` from its record."""
    where = f"modules.{path}"
    _check_record(record, where, depth)
    cls = _decode_class(record["class"], f"{where}.class", decode)
    module: nn.Module = cls.__new__(cls)
    nn.Module.__init__(module)
    _add_tensors(module, record, path, find)
    for name, child in record["children"].items():
        _check_part(name, f"{where}.children")
        module._modules[name] = decode_module(child, f"{path}.{name}", find, decode, depth + 1)
    own = {**module._parameters, **module._buffers}
    attributes = {
        name: _decode_attribute(value, name, cls, f"{where}.attributes", decode, own)
        for name, value in record["attributes"].items()
    }
    _set_state(module, attributes, where)
    check_shapes(module, where)
    check_scales(module, where)
    _parametrize(module, record["parametrized"], f"{where}.parametrized")
    return module


def _check_record(record: Any, where: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise CheckpointError(f"{where}: children deeper than {_DEEPEST} levels.")
    if not isinstance(record, dict) or record.keys() != _KEYS:
        raise CheckpointError(f"{where}: expected the keys {', '.join(sorted(_KEYS))}.")
    for key in ("attributes", "parameters", "buffers", "children"):
        if not isinstance(record[key], dict):
            raise CheckpointError(f"{where}.{key}: expected a mapping, got {shown(record[key])}.")


def _check_part(name: Any, where: str) -> None:
    if not vocabulary.is_path_part(name):
        raise CheckpointError(f"{where}: {shown(name)} cannot be the name of a part of a module.")


def _add_tensors(module: nn.Module, record: Any, path: str, find: TensorFinder) -> None:
    for name, grad in record["parameters"].items():
        where = f"modules.{path}.parameters"
        _check_part(name, where)
        parameter = None if grad is None else find.parameter(f"{path}.{name}", grad, where)
        module._parameters[name] = parameter
    for name, persistent in record["buffers"].items():
        where = f"modules.{path}.buffers"
        _check_part(name, where)
        if name in module._parameters or persistent not in (None, True, False):
            raise CheckpointError(f"{where}.{name}: {shown(persistent)}. Allowed: true, false.")
        buffer = None if persistent is None else find.buffer(f"{path}.{name}", where)
        module.register_buffer(name, None)
        module._buffers[name] = buffer
        if persistent is False:
            module._non_persistent_buffers_set.add(name)


def _decode_attribute(
    value: Any, name: str, cls: type, where: str, decode: Decoder, own: Mapping[str, Any]
) -> Any:
    place = f"{where}.{name}"
    is_own_class = cls in decode.classes.values()
    if not vocabulary.is_attribute(name, cls):
        raise CheckpointError(
            f"{where}: {shown(name)} cannot be set: it is no identifier, or a member of "
            f"{cls.__name__}."
        )
    if isinstance(value, dict) and value.keys() == {"$function"}:
        if name not in _CALLABLE and not is_own_class:
            raise CheckpointError(f"{place}: a function is not data of {cls.__name__}.")
        return decode.function(value["$function"], place)
    attribute = decode(value, place, ATTRIBUTES, own)
    hint = hints_of(cls).get(name, Any)
    items = attribute if isinstance(attribute, list) else [attribute]
    has_tensor = any(isinstance(item, Tensor) for item in items)
    if not is_own_class and not has_tensor and not fits(attribute, hint):
        raise CheckpointError(f"{place}: expected {text_of(hint)}, got {shown(attribute)}.")
    return attribute


def _set_state(module: nn.Module, attributes: Mapping[str, Any], where: str) -> None:
    try:
        module.__setstate__({**vars(module), **attributes})
        state = dict(module.__getstate__())  # layers with lists of their weights recreate them
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        kind = type(module).__name__
        raise CheckpointError(f"{where}.attributes: not those of a {kind} ({error!r}).") from error
    for name, value in attributes.items():
        if name not in state or not _is_same(state[name], value):
            kind = type(module).__name__
            raise CheckpointError(f"{where}.attributes.{name}: {kind} has another value there.")


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other


def _parametrize(module: nn.Module, names: Any, where: str) -> None:
    if not isinstance(names, list):
        raise CheckpointError(f"{where}: expected a list of names, got {shown(names)}.")
    lists = module._modules.get("parametrizations")
    if not names and lists is None:
        return
    if not isinstance(lists, nn.ModuleDict) or list(lists) != names:
        raise CheckpointError(f"{where}: the module has no such parametrizations.")
    for name in names:
        if not vocabulary.is_attribute(name, type(module)) or not isinstance(
            lists[name], parametrize.ParametrizationList
        ):
            raise CheckpointError(f"{where}: {shown(name)} cannot be parametrised.")
    parametrize._inject_new_class(module)  # torch has no public function for this
    for name in names:
        parametrize._inject_property(module, name)


def _decode_class(record: Any, where: str, decode: Decoder, depth: int = 0) -> type[nn.Module]:
    if isinstance(record, str):
        return _named_class(record, where, decode)
    if not isinstance(record, dict) or record.keys() != {"made_by", "of"} or depth > 2:
        raise CheckpointError(f"{where}: expected the name of a class, got {shown(record)}.")
    maker, parts = record["made_by"], record["of"]
    if not isinstance(maker, str) or maker not in vocabulary.RECIPES or not isinstance(parts, list):
        raise CheckpointError(
            f"{where}.made_by: {shown(maker)} makes no class of a list of classes. Allowed: "
            f"{', '.join(vocabulary.RECIPES)}."
        )
    places = enumerate(parts)
    classes = [_decode_class(part, f"{where}.of[{i}]", decode, depth + 1) for i, part in places]
    cls = vocabulary.make_class(maker, classes)
    if cls is None:
        names = ", ".join(each.__name__ for each in classes)
        raise CheckpointError(f"{where}.of: '{maker}' makes no class of ({names}).")
    return cls


def _named_class(name: str, where: str, decode: Decoder) -> type[nn.Module]:
    cls = decode.classes.get(name) or vocabulary.find_layer(name)
    if cls is None:
        raise CheckpointError(
            f"{where}: class {shown(name)} is not one of torch or MASE that a file may name. If "
            "you trust it, hand it in: MaseGraph.from_checkpoint(path, classes=[…])."
        )
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise CheckpointError(f"{where}: '{name}' is not a Module.")
    return cls
