"""Each command as a user runs it, on a tiny model."""

import json
import shutil

import pytest
import torch

from chop import MaseGraph
from chop.cli.commands import COMMANDS, hw
from chop.cli.failures import UsageError
from chop.cli.main import read_request
from chop.cli.run_results import other_runs
from chop.cli.train_and_measure import StepReport
from chop.errors import HardwareError
from chop.search.apply import choose_trial

DIGITS = "--dataset digits --train-rows 128 --test-rows 64"


def load(folder):
    return MaseGraph.from_checkpoint(folder / "graph")


def layer(folder):
    return load(folder).model.get_submodule("layers.1")


def test_trace_writes_graph_picture_table_and_config(mase, tmp_path):
    ran = mase("trace cnn --out t")
    assert ran.code == 0
    names = {path.name for path in (tmp_path / "t").iterdir()}
    assert names == {
        "config.toml",
        "graph.json",
        "graph.safetensors",
        "graph.svg",
        "logs",
        "nodes.csv",
        "result.json",
    }
    assert "results: t/" in ran.out and "module_related_func" in ran.out
    assert json.loads((tmp_path / "t" / "result.json").read_text())["class"] == "CNN"


def test_the_written_config_repeats_the_run(mase, tmp_path):
    mase("trace mlp --seed 5 --no-draw --out t")
    first = (tmp_path / "t" / "config.toml").read_text()
    assert mase("trace --config t/config.toml").code == 0
    assert (tmp_path / "t" / "config.toml").read_text() == first


def test_trace_of_a_hugging_face_model_takes_what_the_dataset_has(mase, tmp_path):
    assert mase("trace tiny_bert --dataset sequences --out t --no-draw").code == 0
    inputs = [n.name for n in load(tmp_path / "t").nodes if n.op == "placeholder"]
    assert inputs == ["input_ids", "attention_mask", "labels"]


def test_training_learns_and_eval_agrees(mase, trained):
    told = json.loads((trained / "result.json").read_text())["eval"]
    found = mase(f"eval {trained} --dataset digits --json").document["eval"]
    assert found == pytest.approx(told)
    assert found["accuracy"] > 0.8
    assert not (trained / "checkpoints").exists()


def test_an_interrupted_training_goes_on_and_ends_where_it_would_have(mase, tmp_path, monkeypatch):
    line = f"train mlp {DIGITS} --epochs 4 --save-steps 4 --quiet"
    whole = mase(f"{line} --out whole")
    _interrupt_after(monkeypatch, steps=9)
    assert mase(f"{line} --out parts").code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert (tmp_path / "parts" / "checkpoints").is_dir()
    resumed = mase(f"{line} --out parts")
    assert (whole.code, resumed.code) == (0, 0)
    one, other = (load(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_unfinished_run_neither_blocks_nor_leaks_into_another(mase, tmp_path, monkeypatch):
    line = f"train mlp {DIGITS} --epochs 4 --save-steps 4 --quiet"
    whole = mase(f"{line} --seed 7 --out whole --json").document["train"]
    _interrupt_after(monkeypatch, steps=5)
    assert mase(f"{line} --out run").code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert mase(f"{line} --seed 7 --out run --json").document["train"] == whole


def test_the_loss_of_a_resumed_training_is_that_of_the_whole(mase, tmp_path, monkeypatch):
    line = f"train mlp {DIGITS} --epochs 4 --save-steps 4 --quiet --json"
    whole = mase(f"{line} --out whole").document["train"]
    _interrupt_after(monkeypatch, steps=9)
    assert mase(f"{line} --out parts").code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert mase(f"{line} --out parts").document["train"] == whole


def test_a_finished_training_is_kept_until_its_results_are_in_their_place(
    mase, tmp_path, monkeypatch
):
    line = f"train mlp {DIGITS} --epochs 2 --save-steps 4 --out run"
    with monkeypatch.context() as patch:
        patch.setattr(
            "chop.cli.execute.write_whole", lambda *_: (_ for _ in ()).throw(OSError("full"))
        )
        assert mase(line).code == 1
    assert mase(line).err.count("goes on after step 8 of 8") == 1
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_training_that_diverges_is_a_failure(mase, tmp_path):
    ran = mase(f"train mlp {DIGITS} --epochs 4 --learning-rate 1e30 --quiet --out run")
    assert ran.code == 1
    assert "the loss is not finite" in ran.err and "learning_rate" in ran.err
    assert not (tmp_path / "run" / "graph.json").exists()


def _interrupt_after(monkeypatch, steps):
    """Ctrl-C in the middle of training."""

    def stop(self, args, state, control, **rest):
        if state.global_step >= steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(StepReport, "on_step_end", stop)


def test_quantize_by_flags_compares_before_and_after(mase, trained, tmp_path):
    line = f"quantize {trained} --width 8 --frac-width 5 --type linear,relu --out q --evaluate"
    found = mase(f"{line} {DIGITS} --json").document
    before, after = found["stages"]["before"], found["stages"]["after"]
    assert (before["weight_bits"], after["weight_bits"]) == (32, 8)
    assert after["bytes"] * 4 == before["bytes"]
    assert abs(before["accuracy"] - after["accuracy"]) < 0.05
    assert type(layer(tmp_path / "q")).__name__ == "LinearInteger"


def test_quantize_by_file(mase, trained, tmp_path):
    (tmp_path / "run.toml").write_text(
        f'[quantize]\nmodel = "{trained}"\n[quantize.rules]\nby = "name"\n'
        '[quantize.rules."layers.1".config]\nname = "mxint"\n'
    )
    found = mase("quantize --config run.toml --json").document
    assert found["quantized"] == {"layers_1": "LinearMXInt"}


@pytest.mark.parametrize(
    ("flags", "old"),
    [
        ("--format mxint4", "--format mxint --width 4"),
        ("--format fixed8.4", "--format integer --width 8 --frac-width 4"),
        ("--format mxint8/32", ""),
    ],
)
def test_quantize_takes_a_spelling(mase, tmp_path, flags, old):
    for place, line in {"new": flags, "old": old}.items():
        assert mase(f"quantize mlp {line} --out {place}").code == 0
    layers = [(tmp_path / place / "layers.csv").read_text() for place in ("new", "old")]
    assert layers[0] == layers[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "quantize mlp --format mxnt4",
            "quantize.format: Unknown format 'mxnt4'. Did you mean 'mxint4'?",
        ),
        (
            "search mlp --formats mxint4,fixd8.4",
            "search.formats: Unknown format 'fixd8.4'. Did you mean 'fixed8.4'?",
        ),
        ("export mlp --to gguf --format mxint4", "export.format: GGUF has no type for 'mxint4'."),
        (
            "generate mlp --prompt a --pack fixed8.4",
            "generate.pack: no packed format holds 'fixed8.4'.",
        ),
    ],
)
def test_a_wrong_spelling_ends_a_dry_run_too(mase, line, message):
    ran = mase(f"{line} --dry-run")
    assert ran.code != 0 and message in ran.err


@pytest.mark.parametrize(
    "line",
    [
        "quantize mlp --format mxint4/16",
        "search mlp --dataset digits --formats mxint4,fixed8.4,integer",
        "export tiny_llama --to gguf --format mxfp4",
    ],
)
def test_a_dry_run_takes_a_spelling(mase, line):
    assert mase(f"{line} --dry-run").code == 0


def test_a_width_that_the_format_contradicts_is_an_error(mase):
    ran = mase("quantize mlp --format mxint4 --width 8 --out q")
    assert "quantize.width: 8, and format 'mxint4' has 4. Give one of them." in ran.err


def test_quantize_fits_the_point_and_trains_on(mase, trained):
    line = f"quantize {trained} {DIGITS} --fit --width 4 --qat-epochs 2 --learning-rate 5e-3 --json"
    stages = mase(line).document["stages"]
    assert list(stages) == ["before", "after", "after QAT"]
    assert stages["after QAT"]["loss"] < stages["after"]["loss"]


def test_quantize_learns_its_scales(mase, trained, tmp_path):
    line = f"quantize {trained} {DIGITS} --format scale_integer --width 3 --observer mse"
    found = mase(f"{line} --qat-epochs 2 --learn-scales --out learned --json").document
    assert "layers.1.weight_scale" in found["learned"]
    stages = found["stages"]
    assert stages["after QAT"]["loss"] < stages["after"]["loss"]
    assert layer(tmp_path / "learned").weight_scale.requires_grad


def test_quantize_to_a_budget_of_bits_rounds_by_effect(mase, trained, tmp_path):
    line = f"quantize {trained} {DIGITS} --bits 4.5 --widths 2,3,4,5,6,8"
    line += " --calibration-rows 32 --evaluate --json"
    plain = mase(f"{line} --out plain").document
    found = mase(f"{line} --method gptq --out gptq").document
    assert found["allocation"] == plain["allocation"] and found["allocation"]["bits"] <= 4.5
    assert all(row["rounded"] >= row["plain"] for row in found["layers"])
    assert found["stages"]["after"]["accuracy"] > found["stages"]["before"]["accuracy"] - 0.1
    assert type(layer(tmp_path / "gptq")).__name__ == "LinearMXInt"
    assert mase("report gptq --out page").code == 0
    page = (tmp_path / "page" / "report.html").read_text()
    assert '"sensitivity":{"table":[{"layer":"layers.1","format":"mxint2"' in page
    (tmp_path / "gptq" / "sensitivity.json").write_text('{"table": []}')
    refused = mase("report gptq --out page")
    assert refused.code == 2 and "gptq/sensitivity.json.table: there is no layer" in refused.err


def test_quantize_to_a_size_and_to_a_loss(mase, trained):
    line = f"quantize {trained} {DIGITS} --calibration-rows 32 --json --widths 2,3,4,5,6,8"
    size = mase(f"{line} --budget 0.6KB --out size").document["allocation"]
    assert size["bits"] * size["weights"] / 8 <= 600
    found = mase(f"{line} --budget 1% --out loss").document["allocation"]
    assert found["loss"] <= 0.00996 and found["bits"] < 8.25


def test_quantize_calibrates_and_composes_methods(mase, trained, tmp_path):
    line = f"quantize {trained} {DIGITS} --format scale_integer --width 8 --calibration-rows 32"
    line += " --observer percentile --method smooth,gptq"
    line += " --set options.calibrate.operands=['data_in']"
    found = mase(f"{line} --evaluate --json --out calibrated").document
    stages = found["stages"]
    assert abs(stages["before"]["accuracy"] - stages["after"]["accuracy"]) < 0.05
    assert {row["operand"] for row in found["calibration"]} == {"data_in"}
    assert [site["readers"] for site in found["smooth"]] == [["layers.3"]]  # through the ReLU
    made = layer(tmp_path / "calibrated")
    assert isinstance(made.quantizers["data_in"].scale, float) and made.weight_scale.dim() == 0
    assert (tmp_path / "calibrated" / "calibration.csv").exists()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--bits 4.5", "give --dataset"),
        ("--width 8 --observer mse", "--observer looks at values of the dataset: give --dataset"),
        ("--width 8 --learn-scales {data}", "give --observer and --qat-epochs too"),
        ("--width 8 --observer msq", "quantize.observer: unknown observer 'msq'"),
        ("--width 8 --fit --observer mse {data}", "fit is observer min_max for fixed point"),
        ("--width 8 --set options.gtpq.damping=0.1 {data}", "options: unknown method 'gtpq'"),
        ("--budget 1%", "--budget looks at values of the dataset: give --dataset"),
        ("--budget 1% --bits 4", "budget chooses the widths: it excludes bits, width and rules"),
        ("--budget 1% --type linear", "all weights: it excludes fit and type"),
        ("--bandwidth 1GB/s", "bandwidth belongs to a decode time: give --budget, as 20ms"),
        ("--fusable vllm", "fusable joins layers whose widths are chosen: give --bits or --budget"),
        ("--budget 0.1KB {data}", "and the cheapest formats take 4.25. Allow more"),
        ("--bits 4.5 --width 8", "bits chooses the widths: it excludes width, fit and rules"),
        ("--bits 4.5 --format fp8 {data}", "chooses widths of mxint or block_fp, not of 'fp8'"),
        ("--bits 1 {data}", "and the cheapest formats take 4.25. Allow more"),
        ("--width 8 --method gptq", "give --dataset"),
        ("--width 8 --method gtpq", "gptq"),
        ("--bits 4 --calibration-rows 0 {data}", "calibration_rows must be at least 1, got 0"),
    ],
)
def test_a_budget_that_cannot_be_met_is_told(mase, trained, line, told):
    ran = mase(f"quantize {trained} {line.format(data=DIGITS)} --out wrong")
    assert ran.code == 2 and told in ran.err


def test_prune_masks_and_recovers(mase, trained, tmp_path):
    line = f"prune {trained} {DIGITS} --sparsity 0.75 --scope global --finetune-epochs 2 --out p"
    found = mase(f"{line} --learning-rate 5e-3 --json").document
    assert found["sparsity"] == pytest.approx(0.75, abs=0.01)
    stages = found["stages"]
    assert stages["after fine-tuning"]["loss"] < stages["after"]["loss"]
    assert stages["after fine-tuning"]["sparsity"] == pytest.approx(0.75, abs=0.01)


def test_prune_by_gradients_takes_them_from_the_dataset(mase, trained):
    found = mase(f"prune {trained} {DIGITS} --sparsity 0.5 --method taylor --json").document
    assert found["sparsity"] == pytest.approx(0.5, abs=0.01)


def test_prune_by_inputs_takes_them_from_the_dataset(mase, trained):
    line = f"prune {trained} {DIGITS} --granularity 2:4 --method sparsegpt --json"
    assert mase(line).document["sparsity"] == pytest.approx(0.5, abs=1e-3)


def test_prune_removes_channels(mase, trained, tmp_path):
    ran = mase(f"prune {trained} --sparsity 0.5 --granularity channel --out p")
    assert "channels 16 -> 8: layers.1" in ran.out
    assert layer(tmp_path / "p").weight.shape == (8, 64)


def test_lora_trains_adapters_alone_and_fuses_them(mase, trained, tmp_path):
    found = mase(f"lora {trained} {DIGITS} --rank 2 --epochs 2 --out l --json").document
    assert found["lora"]["trainable"] < found["lora"]["total"]
    assert (tmp_path / "l" / "adapter" / "adapter_config.json").is_file()
    assert found["eval"]["after"]["loss"] < found["eval"]["before"]["loss"]
    assert type(layer(tmp_path / "l")) is torch.nn.Linear


def test_training_follows_a_teacher(mase, trained, tmp_path):
    mase(f"prune {trained} --sparsity 0.8 --out p")
    line = f"train p {DIGITS} --epochs 10 --learning-rate 3e-3 --quiet --json"
    found = mase(f"{line} --teacher {trained} --follow layers.1 --out t").document["train"]
    assert found["divergence"]["after"] < 0.8 * found["divergence"]["before"]
    refused = {
        "--teacher tiny_llama": "Allowed: a teacher with the inputs of the model",
        f"--teacher {trained} --follow layers.9": "the model calls no module 'layers.9'",
        "--temperature 2": "temperature: it is an option of --teacher",
    }
    for words, message in refused.items():
        ran = mase(f"{line} {words} --out r")
        assert ran.code and message in ran.err


@pytest.mark.slow
def test_a_sweep_draws_measures_once_and_resumes(mase, trained, tmp_path):
    line = f"sweep integer_bits {trained} {DIGITS} --epochs 1 --out s --json"
    first = mase(f"{line} --values 2").document["records"]
    both = mase(f"{line} --values 2,4").document["records"]
    assert both[0] == first[0]  # its seconds too: not measured again
    assert [record["integer_bits"] for record in both] == [2, 4]
    assert {"integer_bits.png", "integer_bits.svg", "integer_bits.csv"} <= {
        path.name for path in (tmp_path / "s").iterdir()
    }
    longer = mase(f"{line} --epochs 2 --values 2").document["records"]
    assert longer[0]["seconds"] != first[0]["seconds"]  # another question: measured by itself
    assert mase(f"{line} --values 2").document["records"] == first


@pytest.mark.slow
def test_a_sweep_of_a_model_that_changed_measures_anew_and_says_what_it_reuses(
    mase, trained, tmp_path
):
    shutil.copytree(trained, tmp_path / "m")
    line = f"sweep integer_bits m {DIGITS} --epochs 0.5 --values 4 --out s"
    first = mase(f"{line} --json").document["records"]
    assert "1 of 1 points were measured before with this model" in mase(line).out
    shutil.rmtree(tmp_path / "m")
    assert mase(f"train mlp {DIGITS} --epochs 0.1 --out m --quiet").code == 0
    again = mase(f"{line} --json").document["records"]
    assert again[0]["before"] < first[0]["before"] - 0.1


def test_explain_finds_the_layer_that_was_rounded_coarsely(mase, trained, tmp_path):
    rules = "--set rules.by=name --set rules.layers_3.config.name=mxint"
    mase(f"quantize {trained} {rules} --set rules.layers_3.config.weight_width=2 --out q")
    found = mase(f"explain q {DIGITS} --against {trained} --rows 32 --out e --json").document
    (layer,) = found["explained"]["layers"]
    assert layer["layer"] == "layers.3" and layer["loss"] == found["explained"]["loss"]
    assert (tmp_path / "e" / "explain.svg").is_file() and (tmp_path / "e" / "kernels.csv").is_file()
    refused = mase(f"explain {trained} {DIGITS}")
    assert refused.code == 2 and "nothing in the graph is quantised" in refused.err


def test_explain_compares_with_the_float_model_of_the_run(mase, trained, tmp_path):
    assert mase(f"quantize {trained} --bits 4 --out q").code == 0
    line = f"explain q {DIGITS} --rows 32 --out e"
    found = mase(f"{line} --json").document
    assert found["against"] == str(trained) and found["explained"]["loss"] > 0
    given = mase(f"{line} --against {trained} --json").document
    assert given["explained"]["loss"] == found["explained"]["loss"]
    assert f"compared with {trained}" in mase(line).out
    for text, why in (("out/gone", "its float model 'out/gone' is not there"), (None, "no file")):
        config = tmp_path / "q" / "config.toml"
        if text is None:
            config.unlink()
        else:
            config.write_text(config.read_text().replace(str(trained), text))
        refused = mase(line)
        assert refused.code != 0 and "weights of 'q' are rounded, and" in refused.err, refused.out
        assert why in refused.err and "Give --against" in refused.err


def test_explain_compares_float_weights_with_their_own_layers(mase, trained):
    assert mase(f"quantize {trained} --bits 4 --keep-floats --out q").code == 0
    found = mase(f"explain q {DIGITS} --rows 32 --out e --json").document
    assert found["against"] == "the same layers without their formats"
    assert found["explained"]["loss"] > 0


@pytest.mark.slow
def test_one_storage_does_not_mix_two_searches(mase, trained, tmp_path):
    line = f"search {trained} {DIGITS} --formats integer,mxint --trials 2 --storage all.db"
    assert mase(f"{line} --out one").code == 0
    refused = mase(f"{line} --out two --metric f1 --costs average_bits")
    assert refused.code == 1 and "study 'search': it was started with" in refused.err
    refused = mase(f"{line} --out two --epochs 3")
    assert refused.code == 1
    assert "study 'search': it was started with epochs 1.0, not 3.0" in refused.err
    assert mase(f"{line} --out two --epochs 3 --name second").code == 0


def test_bench_times_models_on_the_same_rows(mase, trained, tmp_path):
    line = f"bench {trained} --against mlp --batch 4 --iterations 3 --out b --json"
    records = [r for r in mase(line).document["latency"] if r["device"] == "cpu"]
    assert [record["program"] for record in records] == [str(trained), "mlp"]
    assert records[0]["speedup"] == 1.0
    assert (tmp_path / "b" / "latency.svg").is_file()
    mase(f"bench {trained} --batch 1 --iterations 1 --no-draw --out plain")
    assert not (tmp_path / "plain" / "latency.svg").exists()


def test_compile_times_against_eager(mase, trained):
    found = mase(f"compile {trained} --backend eager --iterations 2 --json").document
    on_cpu = [record for record in found["latency"] if record["device"] == "cpu"]
    assert [record["program"] for record in on_cpu] == ["eager", "compiled"]
    assert found["breaks"] == []


def test_emit_writes_rtl_that_simulate_and_synth_find(mase, trained, tmp_path):
    mase(f"quantize {trained} --width 6 --frac-width 4 --type linear,relu --out q")
    found = mase("emit q --max-parallelism 8 --out e --json").document
    assert "hardware/rtl/top.sv" in found["files"]
    assert (tmp_path / "e" / "hardware" / "test" / "data_in_0.mem").is_file()
    assert found["cycles"] > 0


def test_a_design_for_a_target_is_asked_for_by_flags():
    config = read_request(COMMANDS["emit"], ["mlp", "--target-interval", "64"]).config
    assert config.design.target_interval == 64


@pytest.mark.sim
def test_simulate_proves_a_project_and_a_model_bit_exact(mase, trained, tmp_path):
    mase(f"quantize {trained} --width 6 --frac-width 4 --type linear,relu --out q")
    mase("emit q --dataset digits --test-rows 12 --out e")
    project = mase("simulate e --activity --json").document
    assert (project["is_exact"], project["tensors"]) == (True, 12)
    assert project["activity"]["tensors"] == 11  # the first one fills the design
    assert len(project["activity"]["stages"]) >= 3
    model = mase("simulate q --dataset digits --test-rows 12 --out s --json").document
    assert (model["compared"], model["mismatches"]) == (120, 0)
    assert (tmp_path / "s" / "hardware" / "report.md").is_file()


@pytest.mark.slow
@pytest.mark.sim
def test_a_wrong_bit_ends_with_code_1(mase, trained, tmp_path):
    mase(f"quantize {trained} --width 6 --frac-width 4 --type linear,relu --out q")
    mase("emit q --dataset digits --test-rows 4 --out e")
    memory = tmp_path / "e" / "hardware" / "test" / "data_out_0.mem"
    lines = memory.read_text().splitlines()
    lines[0] = "0" * len(lines[0])
    memory.write_text("\n".join(lines) + "\n")
    assert "data_out_0.mem: changed since it was emitted" in mase("simulate e").err
    ran = mase("simulate e --trust")
    assert ran.code == 1
    assert "first mismatch" in ran.err


@pytest.mark.slow
@pytest.mark.sim("pyosys")
def test_synth_counts_cells(mase, trained):
    mase(f"quantize {trained} --width 4 --frac-width 2 --type linear,relu --out q")
    area = mase("synth q --max-parallelism 1 --json").document["area"]
    assert area["family"] == "xc7" and area["lut"] > 0


def test_a_search_shows_its_front_and_applies_a_trial(mase, searched):
    found = json.loads((searched / "result.json").read_text())
    assert found["objectives"] == {"accuracy": "maximize", "model_bytes": "minimize"}
    assert found["finished"] == 3 and found["applied"]["number"] in range(3)
    names = {path.name for path in searched.iterdir()}
    assert {"study.json", "trials.csv", "graph.json", "pareto.svg", "best.png"} <= names
    measured = mase(f"eval {searched} {DIGITS} --json").document["eval"]["accuracy"]
    assert measured == found["applied"]["test"]["applied"]
    study = json.loads((searched / "study.json").read_text())
    assert study["applied"] == found["applied"]["number"]


@pytest.mark.slow
def test_a_search_goes_on_to_more_trials_and_keeps_another_question_apart(
    mase, search_line, searched, tmp_path
):
    shutil.copytree(searched, tmp_path / "s")
    line = f"{search_line} --out s --json"
    assert mase(f"{line} --trials 4").document["finished"] == 4
    assert mase(f"{line} --by type --trials 2").document["finished"] == 2
    assert mase(f"{line} --trials 4").document["finished"] == 4


@pytest.mark.slow
def test_a_search_by_file_over_pruning(mase, trained, tmp_path):
    (tmp_path / "run.toml").write_text(
        f'[search]\nmodel = "{trained}"\ndataset = "digits"\ntest_rows = 32\ntrials = 2\n'
        'sampler = "grid"\ncosts = ["parameters"]\n'
        "[search.space.compression.prune]\nsparsity = [0.0, 0.9]\n"
    )
    found = mase("search --config run.toml --json").document
    assert found["finished"] == 2


def test_the_best_of_several_objectives_is_the_cheapest_that_loses_little():
    trials = [
        {
            "number": i,
            "state": "complete",
            "values": {"a": v[0], "b": v[1]},
            "params": {},
            "attributes": {},
        }
        for i, v in enumerate([(0.95, 100.0), (0.945, 40.0), (0.80, 10.0)])
    ]
    study = {"name": "s", "objectives": {"a": "maximize", "b": "minimize"}, "trials": trials}
    chosen = [choose_trial(study, "best", tolerance)["number"] for tolerance in (0.0, 0.01, 0.5)]
    assert chosen == [0, 1, 2]
    assert [choose_trial(study, name, 0.0)["number"] for name in ("a", "b", "1")] == [0, 2, 1]


def test_a_report_is_one_page_about_all_that_was_done(mase, trained, searched, tmp_path):
    mase(f"quantize {trained} --width 6 --frac-width 4 --type linear,relu --out q")
    mase(f"sweep integer_bits {trained} {DIGITS} --values 4 --out w")
    line = (
        f"report q --before {trained} --studies {searched} --sweeps w --title Mine --out r --json"
    )
    found = mase(f"{line} {DIGITS}").document
    page = (tmp_path / "r" / "report.html").read_text()
    assert found["page"] == "r/report.html" and set(found["metrics"]) == {"before", "after"}
    assert "<title>Mine" in page and "integer bits" in page


def test_a_report_takes_accuracy_from_the_runs_and_reports_are_compared(mase, trained, tmp_path):
    made = mase(f"quantize {trained} {DIGITS} --width 6 --frac-width 4 --evaluate --out q --json")
    reached = made.document["stages"]["after"]["accuracy"]
    told = mase(f"report q --before {trained} --out r --json").document["stored_metrics"]
    assert told["accuracy"][-1] == reached
    assert mase(f"report {trained} --out s").code == 0
    found = mase("compare r s --json").document
    assert (tmp_path / found["page"]).is_file()
    accuracy = next(m for m in found["measures"] if m["name"] == "accuracy")
    assert accuracy["values"][0] == reached and len(found["reports"]) == 2
    with pytest.raises(UsageError, match=r"--runs .*: no result of `mase generate`"):
        other_runs([str(tmp_path / "q")])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("report", "report: give a model, and --before"),
        ("report mlp --studies nowhere", "nowhere: no such file."),
        ("report mlp --sweeps nowhere", "nowhere: no records of a sweep"),
        ("search mlp --formats integer --set space.values.x=[1]", "exclude 'space'"),
        ("search mlp --dataset digits --formats intger", "Unknown format 'intger'"),
        ("search mlp --dataset digits --formats integer --costs byts", "unknown cost 'byts'"),
        ("shard mlp --mesh-shape 0,2", "expected one to three axes of at least 1 device"),
    ],
)
def test_what_cannot_be_searched_or_shown_is_explained(mase, line, message):
    ran = mase(line)
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_shard_plans_within_the_mesh(mase, tmp_path):
    found = mase("shard tiny_bert --mesh-shape 2 --out h --json").document
    assert found["mesh"] == [2] and found["verification"] is None
    assert (tmp_path / "h" / "plan.json").is_file()


def test_a_model_that_does_not_take_its_example_input_is_told_with_both_shapes(mase, tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 4)), (torch.zeros(2, 7),)\n"
    )
    ran = mase("trace", f"{file}:make", "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert "Sequential does not run on inputs of shape [2, 7]" in ran.err
    assert "8x4" in ran.err and "--input-shape" in ran.err


def test_names_of_inputs_are_refused_for_a_model_whose_inputs_have_none(mase, tmp_path):
    ran = mase("trace", "mlp", "--inputs", "nope", "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert "MLP is not a Hugging Face model" in ran.err and "nope" in ran.err


@pytest.mark.slow
def test_a_search_for_hardware_emits_any_trial_of_its_front(mase, trained, tmp_path, monkeypatch):
    rows = "--dataset digits --train-rows 128 --test-rows 64 --space hardware --trials 4"
    few = '--set space.hardware.widths=[4,8] --set space.hardware.multipliers=["array"]'
    few += ' --set space.hardware.part="ecp5-25k"'
    found = mase(f"search {trained} {rows} {few} --out s --json").document
    assert list(found["objectives"]) == [
        "accuracy",
        "frames_per_second",
        "predicted_lut",
        "predicted_dsp",
    ]
    number = found["front"][-1]["number"]
    told = mase(f"emit s --trial {number} --out e --json").document
    assert told["cycles"] == found["front"][-1]["attributes"]["hardware"]["interval"]
    assert (tmp_path / "e/hardware/rtl/top.sv").is_file()
    assert "leave these options out" in mase(f"emit s --trial {number} --max-parallelism 2").err
    assert "has no study" in mase(f"emit {trained} --trial 1").err

    def tell_part(*_given, device, **_options):
        raise HardwareError(f"for {device}")

    monkeypatch.setattr(hw, "build_hardware", tell_part)
    assert "for ecp5-25k" in mase(f"hw s --trial {number} --out w").err
    assert "for ecp5-45k" in mase(f"hw s --trial {number} --device ecp5-45k --out w").err


PINNED = """
import torch

class OneSize(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)

    def forward(self, x):
        return torch.stack([self.linear(x[i].flatten()) for i in range(x.shape[0])])

def build():
    return OneSize(), torch.randn(8, 1, 8, 8)
"""


def test_a_model_for_one_number_of_rows_is_trained_at_it(mase, tmp_path):
    (tmp_path / "pinned.py").write_text(PINNED)
    rows = "--train-rows 16 --test-rows 16 --eval-batch-size 8 --batch-size 8"
    line = f"prune pinned.py:build --dataset digits {rows} --sparsity 0.3 --finetune-epochs 1"
    ran = mase(f"{line} --out p")
    assert ran.code == 0, ran.err
