"""Checkpoints in the bits of their formats: small, exact, and readable from their page alone."""

import copy
import json

import numpy_reader
import pytest
import torch
from quantized_cases import SETTINGS, config_of
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import CheckpointError

EIGHT = [name for name in SETTINGS if name != "bypass"]
OTHERS = {
    "integer 3": {"name": "integer", "weight_width": 3, "weight_frac_width": 3},
    "channel 4": {"name": "scale_integer", "weight_width": 4, "weight_granularity": "channel"},
    "group 5": {
        "name": "scale_integer",
        "weight_width": 5,
        "weight_granularity": "group",
        "weight_group_size": 24,
    },
    "tiles": {"name": "block_fp", "weight_width": 6, "weight_block_size": [4, 8]},
    "along axis 0": {
        "name": "mxint",
        "weight_width": 7,
        "weight_block_size": 16,
        "weight_axis": 0,
    },
    "short exponents": {"name": "block_fp", "weight_width": 4, "weight_exponent_width": 5},
    "residual by channel": {
        "name": "binary_residual",
        "weight_levels": 3,
        "weight_axis": 0,
    },
    "mxfp4": {"name": "mxfp", "weight_element": "e2m1"},
    "mxfp6": {"name": "mxfp", "weight_element": "e3m2", "weight_block_size": 16},
    "mxfp6 e2m3": {"name": "mxfp", "weight_element": "e2m3"},
    **{f"mxint{n}": {"name": "mxint", "weight_width": n} for n in (2, 3, 5, 6)},
    "nvfp4 blocks of 16": {"name": "nvfp4"},
    "fp8 tiles of 128": {"name": "fp8_block"},
    "fp8 along axis 0": {"name": "fp8_block", "weight_block_size": 16, "weight_axis": 0},
}
"""Layouts that one config for each format does not reach."""
CONFIGS = {name: config_of(name) for name in EIGHT} | {
    name: {**config, "data_in_width": "NA", "bias_width": "NA"}
    if config["name"] in ("integer", "scale_integer", "mxint", "block_fp")
    else config
    for name, config in OTHERS.items()
}


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, dtype=dtype)
        self.fc = nn.Linear(64, 200, dtype=dtype)

    def forward(self, x):
        return self.fc(x), self.conv(x.reshape(x.shape[0], 2, -1))


def quantised(config, dtype=torch.float32):
    torch.manual_seed(1)
    x = torch.randn(3, 64).to(dtype)
    mg = MaseGraph(Net(dtype).eval(), dummy_in={"x": x})
    rules = {"linear": {"config": config}, "conv1d": {"config": config}}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    return mg, x


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def values(mg):
    """The packed parameters as their layers compute with them."""
    layers = [(n, m) for n, m in mg.model.named_modules() if hasattr(m, "stored_values")]
    return {f"{n}.{k}": s for n, m in layers for k, s in m.stored_values().items()}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_packed_model_comes_back_bit_for_bit_and_numpy_reads_it_from_the_page(name, tmp_path):
    mg, x = quantised(CONFIGS[name])
    mg.export(tmp_path / "m", save_format="packed")
    back = MaseGraph.from_checkpoint(tmp_path / "m")
    assert equal(back.model(x), mg.model(x))
    read, kept = numpy_reader.read(tmp_path / "m"), values(mg)
    assert {k for k in kept if k.endswith("weight")} <= read.keys()
    for key, stored in ((k, kept[k]) for k in read):
        got = torch.from_numpy(read[key])
        assert torch.equal(got, stored.values), key
        assert torch.equal(got.signbit(), stored.values.signbit()), key
    back.export(tmp_path / "again", save_format="packed")
    assert equal(MaseGraph.from_checkpoint(tmp_path / "again").model(x), mg.model(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_of_weights_come_back_too(dtype, tmp_path):
    mg, x = quantised(CONFIGS["channel 4"], dtype)
    mg.export(tmp_path / "m", save_format="packed")
    assert equal(MaseGraph.from_checkpoint(tmp_path / "m").model(x), mg.model(x))
    for key, stored in values(mg).items():
        got = torch.from_numpy(numpy_reader.read(tmp_path / "m")[key])
        assert torch.equal(got.to(dtype), stored.values)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_size_is_that_of_the_bits_claimed(name, tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(512, 384, bias=False)
    mg = MaseGraph(nn.Sequential(layer), dummy_in=torch.randn(1, 512))
    mg, _ = passes.quantize_transform_pass(mg, {"linear": {"config": CONFIGS[name]}})
    mg.dummy_in = None
    mg.export(tmp_path / "m", save_format="packed")
    (stored,) = values(mg).values()
    scales = 0 if stored.scale is None else stored.scale.values.nbytes
    tables = 384 * 8 * 4 if name == "residual by channel" else 0
    claimed = 512 * 384 * stored.format.bits / 8 + scales + tables
    header = 600  # of the file format, for one layer
    assert (tmp_path / "m.safetensors").stat().st_size <= 1.02 * claimed + header


def test_scales_that_a_layer_keeps_are_stored_once(tmp_path):
    mg, x = quantised({**CONFIGS["channel 4"], "weight_scale": "stored"})
    for layer in (mg.model.fc, mg.model.conv):
        largest = layer.weight.detach().abs().amax(tuple(range(1, layer.weight.dim())))
        layer.register_buffer("weight_scale", largest / 7)
    mg.export(tmp_path / "m", save_format="packed")
    told = json.loads((tmp_path / "m.json").read_text())
    assert told["packed"]["fc.weight"]["scale"]["tensor"] == "fc.weight_scale"
    assert "fc.weight:scales" not in told["tensors"]
    read, kept = numpy_reader.read(tmp_path / "m"), values(mg)
    assert torch.equal(torch.from_numpy(read["fc.weight"]), kept["fc.weight"].values)
    assert equal(MaseGraph.from_checkpoint(tmp_path / "m").model(x), mg.model(x))


def test_masks_take_one_bit_and_zeros_stay(tmp_path):
    mg, x = quantised(CONFIGS["integer 3"])
    mg, _ = passes.prune_transform_pass(mg, {"weight": {"sparsity": 0.5, "scope": "local"}})
    mg.export(tmp_path / "m", save_format="packed")
    told = json.loads((tmp_path / "m.json").read_text())
    assert told["packed"]["fc.weight_mask"]["bits"] == 1
    assert equal(MaseGraph.from_checkpoint(tmp_path / "m").model(x), mg.model(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


@pytest.mark.parametrize(
    "which, is_packed", [(("linear",), False), (("linear", "embedding"), True)]
)
def test_a_shared_weight_is_packed_only_where_all_read_the_same(which, is_packed, tmp_path):
    x = torch.arange(6).reshape(2, 3)
    mg = MaseGraph(Tied().eval(), dummy_in={"x": x})
    config = {"name": "mxint", "weight_width": 4, "data_in_width": "NA"}
    embedding = {"name": "mxint", "weight_width": 4}
    rules = {"linear": {"config": config}, "embedding": {"config": embedding}}
    mg, _ = passes.quantize_transform_pass(mg, {k: rules[k] for k in which})
    mg.export(tmp_path / "m", save_format="packed")
    assert bool(json.loads((tmp_path / "m.json").read_text())["packed"]) is is_packed
    assert torch.equal(MaseGraph.from_checkpoint(tmp_path / "m").model(x), mg.model(x))


def test_what_is_held_is_let_go_when_the_layer_trains_or_changes_its_format(tmp_path):
    mg, _ = quantised(CONFIGS["binary_residual"])
    mg.export(tmp_path / "m", save_format="packed")
    back = MaseGraph.from_checkpoint(tmp_path / "m")
    assert back.model.fc.held == ["weight", "bias"]
    copied = copy.deepcopy(back)
    copied.model.train().eval()
    assert copied.model.fc.held == []
    rules = {"linear": {"config": CONFIGS["integer 3"]}}
    passes.quantize_transform_pass(back, rules)
    assert back.model.fc.held == []
    assert mg.model.fc.held == []  # the model that was saved is as it was


def test_plain_checkpoints_are_as_before(tmp_path):
    mg, _ = quantised(CONFIGS["integer 3"])
    mg.export(tmp_path / "m")
    assert json.loads((tmp_path / "m.json").read_text())["version"] == 2


EDITS = {
    "bits": (9, r"packed.fc.weight.bits: expected 1 to 8, got 9"),
    "shape": ([200, 65], r"packed.fc.weight: codes: shape \[6400\], expected \[6500\]"),
    "dtype": ("int8", r"packed.fc.weight.dtype: 'int8' is not allowed. Allowed: float16, "),
    "table": ("fc.bias", r"packed.fc.weight.table: expected a table, got 'fc.bias'"),
    "scale": (
        {"kind": "none", "tensor": "fc.weight:scales"},
        r"packed.fc.weight.scale: expected the record of a scale",
    ),
}


@pytest.mark.parametrize("key", EDITS)
def test_a_record_that_does_not_fit_is_refused_with_its_place(key, tmp_path):
    from chop.ir.store.checkpoint import digest

    mg, _ = quantised(CONFIGS["short exponents"])
    mg.export(tmp_path / "m", save_format="packed")
    told = json.loads((tmp_path / "m.json").read_text())
    told["packed"]["fc.weight"][key], words = EDITS[key]
    told["sha256"] = digest(told)
    (tmp_path / "m.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match=words):
        MaseGraph.from_checkpoint(tmp_path / "m")


TILE_EDITS = {
    "tile": ([4], r"packed.fc.weight.scale.tile: expected rows and columns, got \[4\]"),
    "axis": (5, r"packed.fc.weight.scale.axis: expected -2 to 1, got 5"),
    "kind": ("levels", r"'fc.weight:scales' is torch.float32. Expected: torch.uint8"),
}


@pytest.mark.parametrize("key", TILE_EDITS)
def test_tiles_that_do_not_fit_are_refused_with_their_place(key, tmp_path):
    from chop.ir.store.checkpoint import digest

    mg, _ = quantised(CONFIGS["fp8 tiles of 128"])
    mg.export(tmp_path / "m", save_format="packed")
    told = json.loads((tmp_path / "m.json").read_text())
    told["packed"]["fc.weight"]["scale"][key], words = TILE_EDITS[key]
    told["sha256"] = digest(told)
    (tmp_path / "m.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match=words):
        MaseGraph.from_checkpoint(tmp_path / "m")


def test_a_file_cut_short_is_refused(tmp_path):
    mg, _ = quantised(CONFIGS["mxfp4"])
    mg.export(tmp_path / "m", save_format="packed")
    file = tmp_path / "m.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"m\.safetensors: damaged safetensors file"):
        MaseGraph.from_checkpoint(tmp_path / "m")
