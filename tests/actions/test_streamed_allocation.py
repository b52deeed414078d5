"""Widths chosen under a budget, with one decoder layer in memory at a time."""

import json

import numpy as np
import pytest
import torch
import transformers
from covering import first_and_slow
from safetensors import safe_open

import mase
from chop import MaseGraph
from chop.actions.stream_memory import predict
from chop.actions.streamed_allocation import StreamAllocation, StreamSensitivities
from chop.actions.streamed_quantization import StreamRequest, plan_stream, quantize_stream
from chop.errors import ConfigError
from chop.passes import sensitivity_analysis_pass
from chop.passes.graph.analysis.sensitivity import layers_with_weights
from chop.passes.ptq.observe import curvature
from chop.passes.rewrite.split_experts import split_experts

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FORMATS = ("mxint4", "mxint8")
FAST = {"gptq": {"rounds": 0, "order": "importance", "rows": "equal"}}


def model_of(family):
    torch.manual_seed(0)
    more = {"num_local_experts": 2} if family == "mixtral" else {}
    more |= {"tie_word_embeddings": True} if family == "qwen2" else {}
    config = transformers.AutoConfig.for_model(family, **SIZES, **more)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


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


def batches():
    draw = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 96, (3, 20), generator=draw)} for _ in range(2)]


def plan_of(folder, *methods, options=None, **budget):
    allocation = StreamAllocation(FORMATS, **budget)
    request = StreamRequest(
        folder, "mxint4", methods or ("nearest",), options or {}, allocation=allocation
    )
    return plan_stream(request, batches())


def measured(plan, folder):
    """The losses that a run measures."""
    load = plan.stream.load_layer
    if plan.stream.expert_paths(0):
        from chop.actions.streamed_quantization import _LayerRun

        load = _LayerRun(plan, folder, lambda *_: None)._whole_layer
    losses = StreamSensitivities(plan.stream, plan.modules, folder, load, plan.request.allocation)
    for number, batch in enumerate(plan.batches):
        losses.measure(number, batch, plan.stream.layer_inputs(batch), None)
    return losses.choices(len(plan.batches))


@pytest.mark.parametrize("family", first_and_slow(["llama", "mixtral"], 1))
def test_the_losses_are_those_of_the_whole_model(family, source, tmp_path, monkeypatch):
    monkeypatch.setattr(curvature, "AT_ONCE", 1000)  # several slices of each weight
    ours = measured(plan_of(source(family), bits=30), tmp_path).table
    graph = MaseGraph(model_of(family), dummy_in={"input_ids": batches()[0]["input_ids"]})
    split_experts(graph)
    configs = {
        text: {"name": "mxint", "weight_width": int(text[5:]), "data_in_width": "NA"}
        for text in FORMATS
    }
    names = {row["module"] for row in ours}
    layers = tuple(n.name for n in layers_with_weights(graph) if str(n.target) in names)
    args = {"data": batches(), "formats": configs, "layers": layers}
    theirs = {
        (row["module"], row["format"]): row
        for row in sensitivity_analysis_pass(graph, args)[1]["table"]
    }
    assert len(ours) == len(theirs) == 2 * len(names)
    for row in ours:
        other = theirs[row["module"], row["format"]]
        moves, expected = torch.tensor(row["moves"]), torch.tensor(other["moves"])
        assert torch.allclose(moves, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
        assert row["bits"] == other["bits"] and row["elements"] == other["elements"]


def widths_in(folder):
    """Bits of each packed weight in the files, by module."""
    columns = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                if name.endswith("weight_packed"):
                    shape = opened.get_tensor(name.replace("packed", "shape")).tolist()
                    packed = opened.get_tensor(name)
                    bits = packed.numel() * packed.element_size() * 8 / (shape[0] * shape[1])
                    columns[name.removesuffix(".weight_packed")] = bits
    return columns


@pytest.mark.parametrize("method", first_and_slow(["nearest", "gptq", "rotate"]))
def test_the_chosen_widths_are_in_the_files_and_within_the_budget(method, source, tmp_path):
    plan = plan_of(source(), method, options=FAST if method == "gptq" else {}, bits=12)
    report = quantize_stream(plan, tmp_path / "out")
    chosen = report.allocation["assignment"]
    assert set(chosen.values()) == set(FORMATS) and len(chosen) == 14
    assert 11.5 < report.allocation["bits"] <= 12
    stored = widths_in(tmp_path / "out")
    narrow = {name for name, bits in stored.items() if bits == 4}
    assert narrow == {name for name, form in chosen.items() if form == "mxint4"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"].values()
    assert {group["weights"]["num_bits"] for group in groups} == {4, 8}
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.slow
def test_a_loss_takes_the_fewest_bits(source, tmp_path):
    choices = measured(plan_of(source(), bits=30), tmp_path)
    low, high = (choices.within_bits(bits)[1] for bits in (11, 13))
    middle = (low["loss"] + high["loss"]) / 2
    report = quantize_stream(plan_of(source(), loss=middle), tmp_path / "out")
    assert report.allocation["loss"] <= middle
    assert low["bits"] < report.allocation["bits"] < high["bits"]


@pytest.mark.slow
def test_layers_that_a_server_joins_share_a_format(source, tmp_path):
    plan = plan_of(source(), bits=12, fusable="vllm")
    chosen = quantize_stream(plan, tmp_path / "out").allocation["assignment"]
    for layer in ("model.layers.0.", "model.layers.1."):
        joined = [{chosen[f"{layer}self_attn.{n}_proj"] for n in "qkv"}]
        joined.append({chosen[f"{layer}mlp.{n}_proj"] for n in ("gate", "up")})
        assert all(len(forms) == 1 for forms in joined)


def test_a_budget_below_the_narrowest_formats_is_refused_before_the_run(source):
    words = "the cheapest formats take 8.875, with 12,288 of 73,728 weights as floats"
    with pytest.raises(ConfigError, match=words):
        plan_of(source(), bits=4)
    plan_of(source("qwen2"), bits=9)
    words = "with 12,288 of 73,728 weights as floats"  # a rotated head is apart from the table
    with pytest.raises(ConfigError, match=words):
        plan_of(source("qwen2"), "rotate", bits=4)


def test_an_interrupted_measurement_goes_on_at_the_batch_it_was_in(source, tmp_path):
    plan, seen = plan_of(source(), bits=12), []

    def stop(step, number, count):
        seen.append((step, number))
        if number == 2 and len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_stream(plan, tmp_path / "cut", progress=stop)
    [file] = (tmp_path / "cut").glob(".layers-*/sensitivities-*.safetensors")
    before, after = file.stat().st_mtime_ns, set()
    cut = quantize_stream(
        plan, tmp_path / "cut", progress=lambda *_: after.add(file.stat().st_mtime_ns)
    )
    assert after == {before}
    whole = quantize_stream(plan, tmp_path / "whole")
    assert cut.allocation == whole.allocation


def test_the_memory_of_the_measurement_is_predicted(source):
    with_choice = predict(plan_of(source(), bits=12), 0)
    request = StreamRequest(source(), "mxint4", ("clip",))
    assert with_choice.gradients > predict(plan_stream(request, batches()), 0).gradients == 0


def test_the_command_rotates_and_chooses_widths(source, tmp_path, capsys):
    (tmp_path / "tokens").mkdir()
    for name in ("train", "test"):
        np.savez(tmp_path / "tokens" / f"{name}.npz", ids=np.arange(400) * 7 % 96)
    result = mase.quantize(
        str(source()),
        bits=12,
        method="rotate",
        dataset=str(tmp_path / "tokens"),
        max_token_len=16,
        calibration_rows=6,
        max_memory="8GB",
        out=tmp_path / "out",
    )
    assert result["quantised"] == 14 and len(result["layers"]) == 2
    assert set(result["allocation"]["assignment"].values()) == set(FORMATS)
    assert "bits per weight on average over all 73,728 weights" in capsys.readouterr().out
