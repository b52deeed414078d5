"""Checkpoints and adapters with forged shapes, dtypes, sizes and names; their checksums fit."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import forgeries
import mutations
import torch
from file_kinds import FAITHFUL, OTHER, WRONG_SHAPES, Forged, Kind
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chop import MaseGraph
from chop.errors import CheckpointError
from chop.files import read_json
from chop.ir.store.checkpoint import digest
from chop.ir.store.tensors import facts_of

Tensors = dict[str, Tensor]
Edit = Callable[[dict[str, Any], Tensors], Any]
DTYPES = (torch.float32, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
SIZES = (0, 1, 2, 3, 5, 95, 2**31, 2**47)


def rewrite(find: Callable[[], Path], folder: Path, edit: Edit) -> dict[str, Any]:
    """Write the checkpoint that `find` returns into `folder`, changed, with fitting checksums."""
    source = find()
    told = json.loads(source.with_suffix(".json").read_text())
    with safe_open(source.with_suffix(".safetensors"), framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(source.with_suffix(".safetensors"))
    strides = {n: f["stride"] for n, f in told["tensors"].items() if "stride" in f}
    edit(told, tensors)
    told["tensors"] = facts_of(tensors)
    for name, stride in strides.items():
        if name in tensors and len(stride) == tensors[name].dim():
            told["tensors"][name]["stride"] = stride
    told["sha256"] = digest(told)
    save_file(tensors, folder / "model.safetensors", metadata)
    (folder / "model.json").write_text(json.dumps(told))
    return told


def _packed() -> Path:
    return mutations.packed()[0]


def load(folder: Path) -> MaseGraph:
    """Load the checkpoint of a folder."""
    return MaseGraph.from_checkpoint(folder / "model")


# -- forged by hand --------------------------------------------------------------------------------


def _replace(name: str, tensor: Tensor) -> Edit:
    return lambda told, tensors: tensors.update({name: tensor})


def _rename(old: str, new: str) -> Edit:
    return lambda told, tensors: tensors.update({new: tensors.pop(old)})


def _put(key: str, value: Any) -> Edit:
    return lambda told, tensors: told.update({key: value})


def _view(shape: list[int], stride: list[int]) -> Edit:
    def edit(told: dict[str, Any], tensors: Tensors) -> None:
        del tensors["fc.bias"]
        told["views"]["fc.bias"] = {
            "of": "fc.weight",
            "offset": 0,
            "shape": shape,
            "stride": stride,
        }

    return edit


def _power(levels: int) -> Any:
    tree: Any = ["size", ["x"], 0]
    for _ in range(levels):
        tree = ["**", tree, 64]
    return {"guards": [[["==", tree, 1], "x"]], "captured": [[["x"], [2, 1, 4, 4]]]}


def _config(fields: Mapping[str, Any]) -> Edit:
    return _put("config", {"model_type": "bert", "fields": dict(fields)})


def _nan_scale(told: dict[str, Any], tensors: Tensors) -> None:
    record = told["packed"]["1.weight"]
    tensors[record["scale"]["tensor"]][0] = float("nan")


EDITS: list[tuple[str, Edit, str]] = [
    ("bias of 5 for 4", _replace("fc.bias", torch.zeros(5)), "'bias' has shape .5."),
    ("weight of 4 x 6", _replace("fc.weight", torch.zeros(4, 6)), "'weight' has shape .4, 6."),
    ("weight of 8 x 4", _replace("fc.weight", torch.zeros(8, 4)), "'weight' has shape .8, 4."),
    ("kernel of 5", _replace("conv.bias", torch.zeros(2, 1)), "'bias' has shape .2, 1."),
    ("norm of 3", _replace("norm.running_mean", torch.zeros(3)), "'running_mean' has shape .3."),
    (
        "recurrent of 4",
        _replace("lstm.weight_hh_l0", torch.zeros(12, 4)),
        "'weight_hh_l0' has shape .12, 4.",
    ),
    (
        "norm of integers",
        _replace("norm.running_mean", torch.zeros(2, dtype=torch.int64)),
        "'running_mean' is torch.int64; expected a float",
    ),
    ("view of 2^47", _view([2**47], [0]), "views.fc.bias: shape .140737488355328. repeats"),
    ("view of 2^23 x 2^23", _view([2**23, 2**23], [0, 0]), "repeats the elements"),
    ("input ../../x", _rename("dummy_in/x", "dummy_in/../../x"), "has no such input. Inputs: x"),
    ("input self", _rename("dummy_in/x", "dummy_in/self"), "has no such input. Inputs: x"),
    ("input y", _rename("dummy_in/x", "dummy_in/y"), "has no such input. Inputs: x"),
    ("power of a power", _put("guards", _power(4)), "it multiplies or adds more than 4096 numbers"),
    ("power of powers", _put("guards", _power(40)), "it multiplies or adds more than 4096 numbers"),
    ("labels", _config({"num_labels": 30_000_000}), "fields.num_labels: 30000000. Allowed"),
    ("layers", _config({"num_hidden_layers": 10**9}), "num_hidden_layers: 1000000000. Allowed"),
    ("dtype of a config", _config({"dtype": "load"}), "'load' is not a dtype of torch"),
    ("kernel", _config({"attn_implementation": "a/b"}), "is a kernel of the hub"),
]
MANY = 200_000
KEYS = ",".join(f'"k{i}":0' for i in range(MANY))
TEXTS = {
    "many keys, one twice": ("{" + KEYS + ',"k7":1}', "the key 'k7' is there twice"),
    "many lists": ("[" + "[],[[]]," * MANY + "1]", "expected a mapping"),
}


def _read_mapping(folder: Path) -> Any:
    content = read_json(folder / "model.json", CheckpointError)
    if not isinstance(content, dict):
        raise CheckpointError("expected a mapping")
    return content


def forged_files() -> list[Forged]:
    """Return the files forged by hand."""
    rows = [
        Forged(
            f"sizes: {name}", functools.partial(rewrite, forgeries.valid, edit=edit), load, words
        )
        for name, edit, words in EDITS
    ]
    packed = functools.partial(rewrite, _packed, edit=_nan_scale)
    rows.append(Forged("sizes: NaN scale", packed, load, "a scale is infinite or NaN"))
    for name, (text, words) in TEXTS.items():

        def write(folder: Path, text: str = text) -> None:
            (folder / "model.json").write_text(text)

        rows.append(Forged(f"sizes: {name}", write, _read_mapping, words))
    return rows


# -- forged at random ------------------------------------------------------------------------------

FRESH: dict[type, Callable[[Any], nn.Module]] = {
    nn.Linear: lambda m: nn.Linear(m.in_features, m.out_features),
    nn.Conv2d: lambda m: nn.Conv2d(m.in_channels, m.out_channels, m.kernel_size, groups=m.groups),
    nn.BatchNorm2d: lambda m: nn.BatchNorm2d(m.num_features),
    nn.LSTM: lambda m: nn.LSTM(m.input_size, m.hidden_size, m.num_layers),
}
"""A layer of torch with the sizes of another: what its tensors must be like."""


def fits(model: nn.Module) -> bool:
    """Return whether the tensors of layers have the shapes that torch gives such layers."""
    for module in model.modules():
        make = next((FRESH[c] for c in type(module).__mro__ if c in FRESH), None)
        if make is None:
            continue
        with torch.device("meta"):
            wanted = make(module).state_dict()
        own = {**module._parameters, **module._buffers}
        for name, like in wanted.items():
            tensor = own.get(name)
            if tensor is not None and tensor.shape != like.shape:
                return False
    return True


def _other_shape(tensor: Tensor, rng: random.Random) -> Tensor:
    shape = list(tensor.shape)
    kind = rng.randrange(4)
    if kind == 0 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(SIZES[:6])
    elif kind == 1:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice((1, 2)))
    elif kind == 2:
        rng.shuffle(shape)
    elif shape:
        shape.pop()
    return torch.zeros(shape, dtype=tensor.dtype)


def _random_edit(rng: random.Random) -> Edit:
    def edit(told: dict[str, Any], tensors: Tensors) -> None:
        name = rng.choice(sorted(tensors))
        kind = rng.randrange(6)
        if kind <= 1:
            tensors[name] = _other_shape(tensors[name], rng)
        elif kind == 2:
            tensors[name] = tensors[name].to(rng.choice(DTYPES))
        elif kind == 3:
            tensors[rng.choice([*mutations.NASTY[12:20], "dummy_in/self"])] = tensors.pop(name)
        elif kind == 4:
            shape = [rng.choice(SIZES) for _ in range(rng.randrange(3))]
            strides = [rng.choice((0, 1, 2)) for _ in shape]
            place = {"of": name, "offset": rng.choice(SIZES), "shape": shape, "stride": strides}
            told["views"][rng.choice(sorted(tensors))] = place
        else:
            mutations.forged(told["modules"], rng)

    return edit


def checkpoint_sizes(folder: Path, rng: random.Random) -> str:
    """Forge shapes, dtypes and names of tensors, or the sizes of layers."""
    rewrite(forgeries.valid, folder, _random_edit(rng))
    return FAITHFUL if fits(load(folder).model) else WRONG_SHAPES


def packed_sizes(folder: Path, rng: random.Random) -> str:
    """Forge the parts of packed tensors: shapes, dtypes, scales."""

    def edit(told: dict[str, Any], tensors: Tensors) -> None:
        name = rng.choice(sorted(tensors))
        if rng.random() < 0.5 and tensors[name].is_floating_point() and tensors[name].numel():
            tensors[name].view(-1)[0] = rng.choice((float("nan"), float("inf"), 1e30))
        elif rng.random() < 0.5:
            tensors[name] = _other_shape(tensors[name], rng)
        else:
            record = told["packed"][rng.choice(sorted(told["packed"]))]
            owner = rng.choice([record, record["scale"] or record])
            owner[rng.choice(sorted(owner))] = rng.choice([*SIZES, [2**40], [1, 2**40], None])

    rewrite(_packed, folder, edit)
    graph = load(folder)
    if not fits(graph.model):
        return WRONG_SHAPES
    scales = [t for n, t in graph.model.state_dict().items() if n.endswith("scale")]
    return FAITHFUL if all(bool(t.isfinite().all()) for t in scales) else OTHER


def adapter_sizes(folder: Path, rng: random.Random) -> str:
    """Forge shapes, dtypes and names of the tensors of an adapter of PEFT."""
    config, weights = mutations.peft_adapter()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    file = folder / "adapter_model.safetensors"
    file.write_bytes(weights)
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    if rng.random() < 0.6:
        tensors[name] = _other_shape(tensors[name], rng)
    elif rng.random() < 0.5:
        tensors[name] = tensors[name].to(rng.choice(DTYPES))
    else:
        tensors[name.replace(rng.choice("AB01"), rng.choice(("A", "x", "..", "self")))] = (
            tensors.pop(name)
        )
    save_file(tensors, file, {"format": "pt"})
    found = mutations.load_adapter(folder)
    good = all(len(row[3]) == row[1] and len(row[4][0]) == row[1] for row in found.values())
    return FAITHFUL if good else WRONG_SHAPES


KINDS = {
    "checkpoint, sizes forged": Kind(checkpoint_sizes, 0.1),
    "packed checkpoint, sizes forged": Kind(packed_sizes, 0.06),
    "adapter, sizes forged": Kind(adapter_sizes, 0.04),
}
