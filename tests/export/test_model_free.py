"""Folders of safetensors, quantised one tensor at a time and without their model."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import transformers
from covering import first_and_slow
from export_models import FAMILIES, GROUPS, IDS, MXFP4, MXINT4, MXINT8, graph_of
from safetensors.torch import load_file, save_file

import chop.passes as passes
import mase
from chop.errors import ConfigError, ExportError
from chop.export import from_compressed_tensors, to_compressed_tensors
from chop.export.model_free import AT_ONCE, GIB, plan_folder, quantize_folder
from chop.export.safetensors_shards import read_header, shard_writer
from chop.nn.quantizers import parse_format

ALONE = {"data_in_name": "NA", "bias_name": "NA"}
FORMS = {
    "nvfp4": {"name": "nvfp4", **ALONE},
    "mxfp4": MXFP4,
    "mxfp6_e2m3": {**MXFP4, "weight_element": "e2m3"},
    "mxfp8": {**MXFP4, "weight_element": "e4m3"},
    "mxint4": MXINT4,
    "mxint3": {**MXINT4, "weight_width": 3},
    "mxint8": MXINT8,
    "int4/32": GROUPS,
    "int8/channel": {**MXINT8, "name": "scale_integer", "weight_granularity": "channel"},
    "int8": {**MXINT8, "name": "scale_integer"},
    "fp8_e4m3": {"name": "fp8", **ALONE},
    "fp8_block/16x32": {"name": "fp8_block", "weight_block_size": [16, 32], **ALONE},
}
"""Spellings that a folder is quantised to, and the config of the same layers in memory."""


def folder_of(path, size="60KB", dtype=torch.float32, family="llama"):
    """A folder of several shards; the same weights as `graph_of`."""
    model = graph_of(family).original or graph_of(family).model
    names = {n: p for n, p in model.state_dict().items() if "rotary" not in n}
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    whole = transformers.AutoModelForCausalLM.from_config(config)
    whole.load_state_dict(names, strict=False)
    whole.to(dtype).save_pretrained(path, max_shard_size=size)
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("source") / "llama")


def quantised(source, out, text="mxint4", **options):
    return quantize_folder(plan_folder(source, parse_format(text), **options), out)


def tensors_of(folder):
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def same_bytes(a, b):
    parts = [t.reshape(-1).contiguous().view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*parts)


def section(folder):
    """The section of a config.json, with its layers in alphabetical order."""
    read = json.loads((folder / "config.json").read_text())["quantization_config"]
    for group in read["config_groups"].values():
        group["targets"] = sorted(group["targets"])
    return read


@pytest.mark.share(2)
@pytest.mark.parametrize("text", first_and_slow([*FORMS], 2))
def test_shards_are_what_the_model_in_memory_writes(text, source, tmp_path):
    report = quantised(source, tmp_path / "free", text)
    assert len(report.written) > 2 and len(report.quantised) == 14
    mg = graph_of("llama")
    rules = {"by": "regex_name", r"model\.layers\..*": {"config": FORMS[text]}}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    to_compressed_tensors(mg, tmp_path / "memory", fallback="float")
    ours, theirs = tensors_of(tmp_path / "free"), tensors_of(tmp_path / "memory")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert same_bytes(ours[name], theirs[name]), name
    free, memory = (section(tmp_path / name) for name in ("free", "memory"))
    assert free == {**memory, "ignore": free["ignore"]}
    with torch.no_grad():
        read = from_compressed_tensors(tmp_path / "free").model(IDS).logits
        expected = from_compressed_tensors(tmp_path / "memory").model(IDS).logits
    assert torch.equal(read, expected)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "text", first_and_slow(["nvfp4", "int4/32", "mxfp4", "mxint4", "fp8_block/16x32"], 2)
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_transformers_loads_the_folder(text, dtype, tmp_path):
    pytest.importorskip("compressed_tensors", reason="needs masegraph[export]")
    source = folder_of(tmp_path / "source", dtype=dtype)
    quantised(source, tmp_path / "free", text)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "free")
    with torch.no_grad():
        theirs = model(IDS).logits.float()
        ours = from_compressed_tensors(tmp_path / "free").model(IDS).logits
    assert (theirs - ours).norm() < 0.03 * ours.norm()
    assert (tmp_path / "free" / "tokenizer.json").read_text() == "{}"


def test_slices_are_rounded_as_the_whole(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(300, 64, generator=generator) * torch.linspace(0.01, 9, 300)[:, None]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text('{"model_type": "unknown to all"}')
    save_file({"layer.weight": weight}, tmp_path / "one" / "model.safetensors")
    for text in FORMS:
        quantised(tmp_path / "one", tmp_path / f"whole{text.replace('/', '_')}", text)
    monkeypatch.setattr("chop.export.model_free.AT_ONCE", 64 * 40)
    for text in FORMS:
        name = text.replace("/", "_")
        quantised(tmp_path / "one", tmp_path / f"slices{name}", text)
        whole, slices = (tensors_of(tmp_path / f"{kind}{name}") for kind in ("whole", "slices"))
        assert whole.keys() == slices.keys()
        assert all(same_bytes(whole[key], slices[key]) for key in whole), text


def test_an_interrupted_run_goes_on_with_the_shards_that_are_missing(source, tmp_path):
    quantised(source, tmp_path / "whole", "nvfp4")
    plan, out = plan_folder(source, parse_format("nvfp4")), tmp_path / "cut"
    seen = []

    def stop(name, number, count):
        seen.append(name)
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_folder(plan, out, progress=stop)
    assert not (out / "config.json").exists()
    assert sorted(f.name for f in out.iterdir()) == seen[:2]  # whole files alone
    times = {name: (out / name).stat().st_mtime_ns for name in seen[:2]}
    report = quantize_folder(plan, out)
    assert report.resumed == seen[:2] and len(report.written) == len(plan.shards) - 2
    assert times == {name: (out / name).stat().st_mtime_ns for name in seen[:2]}
    files = sorted(f.name for f in (tmp_path / "whole").iterdir())
    assert files == sorted(f.name for f in out.iterdir())
    assert all((out / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in files)


def test_another_request_or_source_writes_finished_shards_again(source, tmp_path):
    quantised(source, tmp_path / "out", "nvfp4")
    assert quantised(source, tmp_path / "out", "nvfp4").written == []
    assert quantised(source, tmp_path / "out", "mxfp4").resumed == []
    changed = quantised(source, tmp_path / "out", "mxfp4", ignore=(r".*layers\.0\..*",))
    assert changed.written != [] and len(changed.quantised) == 7
    first = sorted(source.glob("*.safetensors"))[0]
    os.utime(first)
    again = quantised(source, tmp_path / "out", "mxfp4", ignore=(r".*layers\.0\..*",))
    assert again.written == [first.name]


KILLED = """
import sys
from pathlib import Path
from chop.export.model_free import plan_folder, quantize_folder
from chop.nn.quantizers import parse_format
plan = plan_folder(Path(sys.argv[1]), parse_format("nvfp4"))
print("start", flush=True)
quantize_folder(plan, Path(sys.argv[2]))
"""


@pytest.mark.slow  # several processes that import torch
def test_a_run_killed_at_any_time_leaves_whole_shards_and_is_resumed(tmp_path):
    (tmp_path / "big").mkdir()
    names = [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]
    places = {}
    for number, name in enumerate(names):
        key = f"layers.{number}.fc.weight"
        save_file({key: torch.randn(2048, 1024)}, tmp_path / "big" / name)
        places[key] = name
    index = json.dumps({"weight_map": places})
    (tmp_path / "big" / "model.safetensors.index.json").write_text(index)
    (tmp_path / "big" / "config.json").write_text("{}")
    quantised(tmp_path / "big", tmp_path / "whole", "nvfp4")
    for attempt in range(6):
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "big"), str(tmp_path / "out")]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(0.15 * attempt)
            process.send_signal(signal.SIGKILL)
        for file in (tmp_path / "out").glob("*.safetensors"):
            read_header(file)  # raises for half a file
            assert file.read_bytes() == (tmp_path / "whole" / file.name).read_bytes()
    quantised(tmp_path / "big", tmp_path / "out", "nvfp4")
    files = sorted(f.name for f in (tmp_path / "out").iterdir())
    assert files == sorted(f.name for f in (tmp_path / "whole").iterdir())


def test_the_command_shows_names_and_memory_and_bounds_it(source, tmp_path, capsys):
    result = mase.quantize(str(source), model_free=True, format="nvfp4", out=tmp_path / "out")
    assert result["copied"] == {
        "model.embed_tokens": "ignored by default",
        "lm_head": "ignored by default",
    }
    assert result["peak_bytes"] > 0 and result["predicted_peak_bytes"] > 0
    assert set(result["shards_written"]) == {f.name for f in source.glob("*.safetensors")}
    with pytest.raises(ConfigError, match=r"max_memory: 0.01 GiB, and the run needs .* GiB: the p"):
        mase.quantize(
            str(source), model_free=True, format="nvfp4", out=tmp_path / "x", max_memory=0.01
        )
    assert not list((tmp_path / "x").glob("*.safetensors"))


def test_include_brings_back_what_is_left_by_default(source, tmp_path):
    report = quantised(source, tmp_path / "out", "nvfp4", include=("lm_head",))
    assert "lm_head" in report.quantised and "model.embed_tokens" in report.copied


def test_a_row_that_a_group_does_not_divide_is_left_and_named(tmp_path):
    save_folder(tmp_path / "odd", {"a.weight": torch.ones(4, 64), "b.weight": torch.ones(4, 50)})
    report = quantised(tmp_path / "odd", tmp_path / "out", "nvfp4")
    assert report.copied == {"b": "50 columns are no multiple of 16"}


def save_folder(path, tensors, **config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")


def test_all_kinds_of_tensors_are_copied_bit_for_bit(tmp_path):
    tensors = {
        "fc.weight": torch.randn(4, 64),
        "fc.bias": torch.randn(3, dtype=torch.bfloat16),
        "odd": torch.arange(7, dtype=torch.uint8),
        "count": torch.tensor(5),
        "mask": torch.tensor([True, False, True]),
        "experts.weight": torch.randn(2, 3, 5, dtype=torch.float16),
        "none": torch.zeros(0, 4),
        "wide": torch.randn(3, dtype=torch.float64),
        "small": torch.randn(3, 3).to(torch.float8_e4m3fn),
    }
    save_folder(tmp_path / "kinds", tensors)
    quantised(tmp_path / "kinds", tmp_path / "out", "mxfp4")
    read = tensors_of(tmp_path / "out")
    assert all(same_bytes(read[n], t) for n, t in tensors.items() if n != "fc.weight")


ONE = {"fc.weight": torch.ones(4, 64)}
REFUSALS = {
    "type": (ONE, {"model_type": "gpt2"}, {}, r"stores matrices as \(inputs, outputs\)"),
    "done": (ONE, {"quantization_config": {}}, {}, r"is quantised already"),
    "form": (ONE, {}, {"text": "fixed16.4"}, r"format 'fixed16.4': .* has no layout for it. Allow"),
    "e3m2": (
        ONE,
        {},
        {"text": "mxfp6"},
        r"format 'mxfp6': .* has no layout for it. Allowed: nvfp4",
    ),
    "name": (ONE, {}, {"ignore": ("fcc",)}, r"ignore: no module matches 'fcc'. .*: 'fc'"),
    "nan": (
        {"fc.weight": torch.full((4, 64), torch.nan)},
        {},
        {},
        r"'fc.weight': has .* NaN or inf",
    ),
    "left": (ONE, {}, {"ignore": ("fc",)}, r"no matrix is left to quantise"),
    "regex": (ONE, {}, {"include": ("(",)}, r"include: '\(' is no regular expression"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_requests_that_cannot_be_met_are_refused_in_words(name, tmp_path):
    tensors, config, options, words = REFUSALS[name]
    save_folder(tmp_path / "m", tensors, **config)
    with pytest.raises((ExportError, ConfigError), match=words):
        quantised(tmp_path / "m", tmp_path / "out", **options)


def test_places_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(
        ExportError, match=r"gone: no such folder. A model .* Allowed: a folder with config"
    ):
        plan_folder(tmp_path / "gone", parse_format("nvfp4"))
    save_folder(tmp_path / "m", ONE)
    with pytest.raises(ExportError, match=r"m: is the source. Give another folder"):
        quantised(tmp_path / "m", tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"12345678901")
    with pytest.raises(ExportError, match=r"damaged safetensors file"):
        quantised(tmp_path / "m", tmp_path / "out")
    (tmp_path / "m" / "config.json").write_text("[]")
    with pytest.raises(ExportError, match=r"config.json: expected a mapping"):
        quantised(tmp_path / "m", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_free": True}, r"give --format alone\."),
        ({"model_free": True, "format": "nvfp4", "bits": 4}, r"give --format alone, without bits"),
        ({"ignore": ("x",)}, r"ignore and include are options of --model-free and --max-memory"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, words, source, tmp_path):
    with pytest.raises(ConfigError, match=words):
        mase.quantize(str(source), out=tmp_path / "out", **options)


def test_a_file_of_the_writer_is_that_of_the_package(tmp_path):
    tensors = {"b": torch.randn(3), "a": torch.arange(5, dtype=torch.uint8), "c": torch.tensor(1)}
    with shard_writer(tmp_path / "m.safetensors") as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        assert not (tmp_path / "m.safetensors").exists()
        writer.finish({"format": "pt"})
    read = load_file(tmp_path / "m.safetensors")
    assert all(same_bytes(read[n], t) for n, t in tensors.items())
    assert [f.name for f in tmp_path.iterdir()] == ["m.safetensors"]


def test_memory_is_predicted_by_the_largest_tensor():
    from pathlib import Path

    from chop.export.model_free import ModelFreePlan, ShardPlan, TensorChoice
    from chop.export.safetensors_shards import StoredTensor

    wide = StoredTensor("model.layers.0.mlp.up_proj.weight", (28672, 8192), torch.bfloat16)
    table = StoredTensor("model.embed_tokens.weight", (128256, 8192), torch.bfloat16)
    choices = (TensorChoice(wide), TensorChoice(table, "ignored by default"))
    plan = ModelFreePlan(Path(), {}, (ShardPlan(Path(), choices),), parse_format("nvfp4"))
    resident = GIB // 2
    assert plan.predicted_peak(resident) <= wide.nbytes + table.nbytes + GIB
    assert plan.predicted_peak(resident) >= resident + table.nbytes
    assert wide.nbytes > AT_ONCE
