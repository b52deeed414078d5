"""Folders of safetensors, quantised with data and one decoder layer at a time."""

import json
import os
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from covering import first_and_slow
from safetensors.torch import load_file

import mase
from chop import MaseGraph
from chop.actions import stream_memory
from chop.actions.decoder_stream import DecoderStream
from chop.actions.post_training import METHODS, quantize_with_data
from chop.actions.stream_memory import DataSize, check_memory, predict
from chop.actions.streamed_quantization import (
    AVAILABLE,
    WEIGHT_ALONE,
    StreamRequest,
    plan_stream,
    quantize_stream,
)
from chop.cli.memory_limit import limit_bytes
from chop.errors import ChopError, ConfigError, ExportError
from chop.export import from_compressed_tensors, to_compressed_tensors
from chop.export.model_free import GIB
from chop.hub import local_folder
from chop.nn.quantizers.formats import spelled_settings
from chop.passes.ptq.observe import stored_sums
from chop.passes.ptq.solve import sliced_rounding

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FAST = {"rounds": 0, "order": "importance"}
CASES = {
    "gptq": ("llama", "mxint4", ("gptq",), {"gptq": FAST}),
    "experts": ("mixtral", "int4/32", ("gptq",), {"gptq": FAST}),
    "integers": ("llama", "int4/32", ("gptq",), {"gptq": FAST}),
    "defaults": ("llama", "mxint4", ("gptq",), {}),
    "nvfp4": ("llama", "nvfp4", ("gptq",), {"gptq": FAST}),
    "tied": ("qwen2", "mxint4", ("gptq",), {"gptq": FAST}),
    "norms of heads": ("qwen3", "mxint4", ("gptq",), {"gptq": FAST}),
    "shared expert": ("qwen2_moe", "mxint4", ("gptq",), {"gptq": FAST}),
    "small experts": ("qwen3_moe", "mxint4", ("gptq",), {"gptq": {**FAST, "rows": "equal"}}),
    "clip of experts": ("mixtral", "int4/32", ("clip",), {}),
    "awq with experts": ("mixtral", "int4/32", ("awq",), {}),
    "rounded": ("llama", "mxint4", ("gptq",), {"gptq": {**FAST, "target": "rounded"}}),
    "equal": ("llama", "mxint4", ("gptq",), {"gptq": {**FAST, "rows": "equal"}}),
    "clip": ("llama", "int4/32", ("clip",), {}),
    "smooth": ("llama", "int4/32", ("smooth",), {}),
    "awq": ("qwen2", "mxint4", ("awq",), {}),
    "learned": ("llama", "mxint4", ("learned_rounding",), {"learned_rounding": {"steps": 8}}),
    "two": ("llama", "mxint4", ("smooth", "gptq"), {"gptq": {**FAST, "rows": "equal"}}),
}
"""Family, format, methods and their options."""


def batches(rows=3, count=2, length=20, size=96):
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(0, size, (rows, length), generator=generator)}
        for _ in range(count)
    ]


EXPERTS = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
}


def model_of(family, **sizes):
    torch.manual_seed(0)
    tied = {"tie_word_embeddings": family == "qwen2"}
    more = SIZES | tied | EXPERTS.get(family, {}) | sizes
    if family in ("mixtral", "qwen2_moe"):
        more.pop("head_dim")
    config = transformers.AutoConfig.for_model(family, **more)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A function that returns the folder of a small model, in several shards."""
    places = {}

    def folder(family="llama"):
        if family not in places:
            places[family] = tmp_path_factory.mktemp("source") / family
            model_of(family).save_pretrained(places[family], max_shard_size="60KB")
        return places[family]

    return folder


def in_memory(model, text, methods, options, data, path):
    """The folder that a model in memory becomes with the same data and methods."""
    form, settings = spelled_settings(text, "format")
    weight = {f"weight_{key}": value for key, value in settings.items()}
    config = {"name": form.name, **weight, **WEIGHT_ALONE}
    graph = MaseGraph(model, dummy_in={"input_ids": data[0]["input_ids"][:2, :16]})
    rules = {"by": "regex_name", r"model\.layers\..*proj(\.\d+)?": {"config": config}}
    quantize_with_data(graph, rules, data, methods, options)
    to_compressed_tensors(graph, path, fallback="float")


def tensors_of(folder):
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def same_bytes(a, b):
    parts = [t.reshape(-1).contiguous().view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*parts)


def assert_same(folder, other):
    ours, theirs = tensors_of(folder), tensors_of(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not same_bytes(ours[name], theirs[name])] == []


@pytest.mark.parametrize("name", first_and_slow([*CASES], 2))
def test_the_result_is_that_of_the_model_in_memory(name, source, tmp_path):
    family, text, methods, options = CASES[name]
    data = batches()
    request = StreamRequest(source(family), text, methods, options)
    report = quantize_stream(plan_stream(request, data), tmp_path / "out")
    matrices = {"mixtral": 32, "qwen2_moe": 38, "qwen3_moe": 32}.get(family, 14)
    assert len(report.folder.quantised) == matrices and not report.layers_resumed
    assert {row["method"] for row in report.records} == set(methods)
    in_memory(model_of(family), text, methods, options, data, tmp_path / "memory")
    assert_same(tmp_path / "out", tmp_path / "memory")
    left = [f.name for f in (tmp_path / "out").iterdir() if f.name.startswith(".")]
    assert left == []


@pytest.mark.slow  # a trained model
@pytest.mark.parametrize("methods", [("clip",), ("awq",)])
def test_a_trained_model_gives_the_weights_of_the_model_in_memory(methods, tmp_path):
    folder = local_folder("llama-imdb", "model")
    if folder is None:
        pytest.skip("set MASE_MODELS to a folder that holds 'llama-imdb'")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    data = batches(size=model.config.vocab_size, length=48)
    quantize_stream(plan_stream(StreamRequest(folder, "mxint4", methods), data), tmp_path / "out")
    in_memory(model.eval(), "mxint4", methods, {}, data, tmp_path / "memory")
    ours, theirs = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "memory")
    coded = [name for name in theirs if ".layers." in name and "norm" not in name]
    assert len(coded) == 6 * 7 * 3
    assert [name for name in coded if not same_bytes(ours[name], theirs[name])] == []


def test_every_method_is_streamed_or_refused_by_name(source):
    for name in METHODS:
        request = StreamRequest(source(), "mxint4", (name,))
        if name in AVAILABLE:
            plan_stream(request, batches())
            continue
        words = f"'{name}' needs the whole model in memory: it .* Allowed .*: nearest, gptq, clip"
        with pytest.raises(ConfigError, match=words):
            plan_stream(request, batches())
    assert {m for _, _, methods, _ in CASES.values() for m in methods} == {*AVAILABLE} - {
        "nearest",
        "rotate",
    }


@pytest.mark.slow
def test_activations_on_disk_change_nothing(source, tmp_path):
    options = {"gptq": {**FAST, "rounds": 1}}
    for name, spill in (("memory", None), ("disk", tmp_path / "spill")):
        request = StreamRequest(source(), "mxint4", ("gptq",), options, spill=spill)
        quantize_stream(plan_stream(request, batches()), tmp_path / name)
    assert_same(tmp_path / "memory", tmp_path / "disk")
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["defaults", "rounded", "experts"])
def test_sums_in_files_change_nothing(name, source, tmp_path, monkeypatch):
    family, text, methods, options = CASES[name]
    request = StreamRequest(source(family), text, methods, options, spill=tmp_path / "spill")
    quantize_stream(plan_stream(request, batches()), tmp_path / "memory")
    monkeypatch.setattr(stored_sums, "SUMS_BYTES", 0)
    factors = Mock(wraps=sliced_rounding.stored_cholesky)
    monkeypatch.setattr(sliced_rounding, "stored_cholesky", factors)
    quantize_stream(plan_stream(request, batches()), tmp_path / "files")
    assert factors.called
    memory, files = (tensors_of(tmp_path / name) for name in ("memory", "files"))
    assert memory.keys() == files.keys()
    for key, value in memory.items():  # codes are equal; scales have the float32 sums' rounding
        tolerance = 1e-5 if value.dtype == torch.float32 else 0.0
        torch.testing.assert_close(files[key], value, rtol=tolerance, atol=0.0)
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.slow
def test_padding_reaches_the_layers(source, tmp_path):
    data = batches()
    for batch in data:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][0, :7] = 0
    plain = StreamRequest(source(), "mxint4", ("clip",))
    quantize_stream(plan_stream(plain, data), tmp_path / "masked")
    quantize_stream(plan_stream(plain, batches()), tmp_path / "unmasked")
    masked, unmasked = (tensors_of(tmp_path / name) for name in ("masked", "unmasked"))
    assert any(not same_bytes(masked[name], unmasked[name]) for name in masked)


@pytest.mark.slow
def test_the_folder_generates_and_is_read_by_transformers(source, tmp_path):
    request = StreamRequest(source(), "mxint4", ("smooth",))
    quantize_stream(plan_stream(request, batches()), tmp_path / "out")
    ids = batches()[0]["input_ids"]
    with torch.no_grad():
        ours = from_compressed_tensors(tmp_path / "out").model(ids).logits
    pytest.importorskip("compressed_tensors", reason="needs masegraph[export]")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        theirs = model(ids).logits.float()
    assert (theirs - ours).norm() < 0.03 * ours.norm()


def test_an_interrupted_run_goes_on_at_the_layer_it_was_in(source, tmp_path):
    request = StreamRequest(source(), "mxint4", ("gptq",), {"gptq": {**FAST, "rows": "equal"}})
    plan, seen = plan_stream(request, batches()), []

    def stop(step, number, count):
        seen.append((step, number))
        if (step, number) == ("layer", 2) and len(seen) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_stream(plan, tmp_path / "cut", progress=stop)
    assert not (tmp_path / "cut" / "config.json").exists()
    report = quantize_stream(plan, tmp_path / "cut", progress=stop)
    assert report.layers_resumed == 1 and seen == [("layer", 1), ("layer", 2), ("layer", 2)]
    quantize_stream(plan, tmp_path / "whole")
    assert_same(tmp_path / "cut", tmp_path / "whole")


def test_another_request_starts_again(source, tmp_path):
    def stop(step, number, count):
        if number == 2:
            raise KeyboardInterrupt

    for text in ("mxint4", "mxint8"):
        request = StreamRequest(source(), text, ("clip",))
        with pytest.raises(KeyboardInterrupt):
            quantize_stream(plan_stream(request, batches()), tmp_path / "out", progress=stop)
        assert len(list((tmp_path / "out").glob(".layers-*"))) == 1


KILLED = """
import sys, torch
from chop.actions.streamed_quantization import *
generator = torch.Generator().manual_seed(1)
data = [{"input_ids": torch.randint(0, 96, (3, 20), generator=generator)} for _ in range(2)]
options = {"gptq": {"rounds": 0, "order": "importance"}}
spill = Path(sys.argv[3]) if len(sys.argv) > 3 else None
request = StreamRequest(Path(sys.argv[1]), "mxint4", ("gptq",), options, spill=spill)
plan = plan_stream(request, data)
print("start", flush=True)
print(quantize_stream(plan, Path(sys.argv[2])).layers_resumed, flush=True)
"""


@pytest.mark.slow  # many processes that import torch
@pytest.mark.parametrize("spill", [False, True])
def test_a_run_killed_at_random_moments_gives_the_same_folder(spill, tmp_path):
    model_of("llama", num_hidden_layers=4).save_pretrained(tmp_path / "m", max_shard_size="60KB")
    words = [sys.executable, "-c", KILLED, str(tmp_path / "m")]
    more = [str(tmp_path / "spill")] if spill else []
    started = time.monotonic()
    subprocess.run([*words, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - started
    draw = torch.Generator().manual_seed(int(spill))
    for _ in range(6):
        wait = float(torch.rand((), generator=draw)) * whole * 0.6
        with subprocess.Popen(
            [*words, str(tmp_path / "cut"), *more], stdout=subprocess.PIPE, text=True
        ) as process:
            process.stdout.readline()
            try:
                process.communicate(timeout=wait)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
    else:
        subprocess.run([*words, str(tmp_path / "cut"), *more], check=True)
    assert_same(tmp_path / "cut", tmp_path / "whole")
    assert os.listdir(tmp_path / "cut") and not list((tmp_path / "cut").glob(".layers-*"))


def test_more_memory_is_predicted_for_more_data_and_wider_layers(source):
    def peak(data, **options):
        request = StreamRequest(source(), "mxint4", ("gptq",), {"gptq": options})
        return predict(plan_stream(request, data), 0).peak

    few, many = batches(), batches(count=200, length=60)
    assert peak(few) < peak(many)
    assert peak(few, target="rounded") < peak(few)
    assert DataSize.of(many) == DataSize(200 * 3 * 60, 3 * 60, 3)


def test_wide_layers_need_the_memory_of_their_weights_and_not_of_their_sums(source):
    def parts(columns, form="mxint4", **options):
        request = StreamRequest(source(), form, ("gptq",), {"gptq": options})
        return stream_memory._solver(request, 4096, columns)

    weights = 3 * 4 * 4096 * 14336
    assert weights < parts(14336) < weights + 0.7 * GIB
    assert parts(14336) == parts(14336, target="rounded") < parts(14336, "int4/tensor")
    assert parts(64) > 8 * 14 * 64**2  # in memory


def test_a_run_that_does_not_fit_is_refused_with_the_nearest_that_does(source, tmp_path):
    data = batches(rows=8, count=400, length=60)
    request = StreamRequest(source(), "mxint4", ("gptq",))
    plan = plan_stream(request, data)
    check_memory(plan, 0, predict(plan, 0).peak, 8)
    with pytest.raises(ConfigError, match=r"needs .* GiB \(process .*It fits in .* --spill FOLDER"):
        check_memory(plan, 0, predict(plan, 0).peak * 0.95, 8)
    words = r"max_memory: 0.00 GiB, .* No setting fits; the least is .* GiB, with --spill FOLDER"
    with pytest.raises(ConfigError, match=words):
        check_memory(plan, 0, 1000, 8)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8e9), ("8", 8 * GIB), (0.5, GIB / 2), ("500 MiB", 500 * 2**20), ("1.5kb", 1500)],
)
def test_memory_is_read_with_its_unit(text, size):
    assert limit_bytes(text) == size


@pytest.mark.parametrize("text", ["", "eight", "8TB", "-1", "0", "1e3", "nan"])
def test_what_is_no_amount_of_memory_is_refused(text):
    with pytest.raises(
        ConfigError, match=r"max_memory: '.*' is no amount of memory. Allowed: a nu"
    ):
        limit_bytes(text)


REFUSED = {
    "format": ({"bits": 4.5}, r"--bits looks at .* give --dataset"),
    "none": ({}, r"takes one format .*, or chooses widths: give --format, --bits or --budget\."),
    "width": ({"format": "mxint4", "evaluate": True}, r"--bits or --budget, without evaluate\."),
    "data": ({"bits": 4, "method": "gptq"}, r"--method gptq looks at .* give --dataset"),
    "method": (
        {"bits": 4, "method": "equalize", "dataset": "tiny_text"},
        r"'equalize' needs the whole model in memory: it foll.* Allowed with max_memory: near",
    ),
    "target": ({"bits": 4, "for_": "rtl"}, r"target rtl rounds activations, and max_memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_need_the_whole_model_are_refused(name, source, tmp_path):
    options, words = REFUSED[name]
    with pytest.raises(ChopError, match=words):
        mase.quantize(str(source()), max_memory="8GB", out=tmp_path / "out", **options)


def test_places_and_names_that_cannot_be_are_refused(source, tmp_path):
    with pytest.raises(ChopError, match=r"--max-memory reads .* 'nowhere' is no folder"):
        mase.quantize("nowhere", bits=4, max_memory=8, out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"spill is an option of --max-memory"):
        mase.quantize(str(source()), bits=4, spill=tmp_path, out=tmp_path / "out")
    model = model_of("llama")
    model.save_pretrained(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    changed = {**config, "intermediate_size": 128}
    (tmp_path / "m" / "config.json").write_text(json.dumps(changed))
    words = (
        r"'model.layers.0.mlp.gate_proj.weight' has shape \(96, 64\), and .* takes it with shape"
    )
    with pytest.raises(ExportError, match=words):
        DecoderStream(tmp_path / "m")


def test_the_command_predicts_and_measures_its_memory(source, tmp_path, capsys):
    text = tmp_path / "tokens"
    text.mkdir()
    for name in ("train", "test"):
        np.savez(text / f"{name}.npz", ids=np.arange(400) * 7 % 96)
    result = mase.quantize(
        str(source()),
        bits=4,
        method="gptq",
        dataset=str(text),
        max_token_len=16,
        calibration_rows=6,
        max_memory="8GB",
        options={"gptq": FAST},
        out=tmp_path / "out",
    )
    assert result["quantised"] == 14 and len(result["layers"]) == 14
    assert result["peak_bytes"] > 0 and 0 < result["predicted_peak_bytes"] < 8e9
    assert {row["layer"] for row in result["layers"]} == {"model.layers.0", "model.layers.1"}
    words = r"max_memory: 0.10 GiB, and the run needs .* GiB \(process"
    with pytest.raises(ConfigError, match=words):
        mase.quantize(
            str(source()),
            format="int4/32",
            method="gptq",
            dataset=str(text),
            max_token_len=16,
            max_memory="0.1GiB",
            out=tmp_path / "refused",
        )
    nearest = mase.quantize(str(source()), bits=4, max_memory=8, out=tmp_path / "nearest")
    assert nearest["quantised"] == 14 and nearest["format"] == str(result["format"])
