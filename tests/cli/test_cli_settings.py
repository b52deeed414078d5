"""Default < file < --set < flag, and back to TOML."""

import pytest

from chop.cli.commands import COMMANDS
from chop.cli.commands.quantize import QuantizeConfig
from chop.cli.commands.trace import TraceConfig
from chop.cli.main import read_request
from chop.cli.settings import identity, merge, read_assignment, resolve, to_toml
from chop.errors import ConfigError

WORDS = {
    "quantize": "mlp --width 8 --frac-width 4",
    "prune": "mlp --sparsity 0.5 --target-modules layers.1,layers.3 --activation-sparsity 0.25",
    "lora": "mlp --rank 4 --dataset digits",
    "train": "mlp --dataset digits --learning-rate 3e-3 --set training.weight_decay=0.01",
    "sweep": "sparsity mlp --values 0.5,0.9",
    "pass": "report_graph_analysis_pass mlp --set args.file_name=graph.txt",
    "list": "formats",
    "compare": "out/a out/b --title Both",
    "generate": "gpt2 --prompt Once --sample --top-k 5",
    "search": "mlp --formats integer,mxint --set training.weight_decay=0.1",
    "shard": "mlp --mesh-shape 2,2 --verify",
    "emit": "mlp --max-parallelism 8 --set design.parallelism.fc1=[4,2]",
}
"""What a command needs, or is worth trying with; the rest gets a model."""


def write(tmp_path, text):
    file = tmp_path / "run.toml"
    file.write_text(text)
    return file


def test_a_flag_beats_set_beats_the_file_beats_the_default(tmp_path):
    file = write(tmp_path, "[trace]\nmodel = 'cnn'\nseed = 3\ndraw = false\nmax_token_len = 9\n")
    found = resolve(TraceConfig, "trace", file, ["seed=4", "max_token_len=8"], {"seed": 5})
    assert (found.model, found.seed, found.max_token_len, found.draw) == ("cnn", 5, 8, False)
    assert found.eval_batch_size == TraceConfig().eval_batch_size


def test_tables_merge_key_by_key(tmp_path):
    rules = (
        "[quantize.rules.linear.config]\nname = 'integer'\nweight_width = 8\ndata_in_width = 8\n"
    )
    assignments = ["rules.linear.config.weight_width=4"]
    found = resolve(QuantizeConfig, "quantize", write(tmp_path, rules), assignments)
    config = found.rules["linear"]["config"]
    assert config == {"name": "integer", "weight_width": 4, "data_in_width": 8}


def test_merging_changes_neither_side():
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1", {"a": {"b": 1}}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a=integer", {"a": "integer"}),
        ('a="NA"', {"a": None}),
        ('a."layers.1".b=true', {"a": {"layers.1": {"b": True}}}),
        ("a=x=y", {"a": "x=y"}),
    ],
)
def test_an_assignment_is_a_key_path_and_a_toml_value_or_text(text, value):
    assert read_assignment(text) == value


@pytest.mark.parametrize("text", ["a", "=1"])
def test_an_assignment_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match=f"--set {text}: expected KEY.PATH=VALUE"):
        read_assignment(text)


def test_a_file_without_the_commands_table_is_refused(tmp_path):
    file = write(tmp_path, "[train]\nmodel = 'mlp'\n")
    with pytest.raises(
        ConfigError, match=r"no table \[trace\] for this command\..* Found: \[train\]"
    ):
        resolve(TraceConfig, "trace", file)


def test_an_unknown_key_in_a_file_is_refused_with_the_nearest(tmp_path):
    file = write(tmp_path, "[trace]\nmodle = 'mlp'\n")
    with pytest.raises(ConfigError, match=r"trace: unknown key 'modle'\. Did you mean 'model'"):
        resolve(TraceConfig, "trace", file)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_resolved_configuration_reads_back_as_itself(name, tmp_path):
    command = COMMANDS[name]
    words = WORDS.get(name, "mlp" if hasattr(command.config, "model") else "").split()
    first = read_request(command, words).config
    file = write(tmp_path, to_toml(name, first))
    assert read_request(command, ["--config", str(file)]).config == first


def test_the_identity_of_a_run_leaves_out_where_its_files_go():
    one, other = TraceConfig(model="mlp"), TraceConfig(model="mlp", out="elsewhere")
    assert identity(one) == identity(other)
    assert identity(one) != identity(TraceConfig(model="cnn"))


LAYER = "name = 'integer'\ndata_in_width = 8\ndata_in_frac_width = 4\nweight_width = 8\n"
LAYER += "weight_frac_width = 4\nbias_width = 8\nbias_frac_width = 4\n"
HEAD = "model = 'toy'\ndataset = 'toy_tiny'\nmax_epochs = 3\n"
UNDERSTOOD = {
    "own": ("quantize", f"[quantize.rules.linear.config]\n{LAYER}"),
    "passes": (
        "quantize",
        f"{HEAD}[passes.quantize]\nby = 'type'\n[passes.quantize.linear.config]\n{LAYER}",
    ),
    "rules": ("quantize", f"by = 'type'\n[default.config]\nname = 'NA'\n[linear.config]\n{LAYER}"),
    "rules beside their names": ("quantize", f"{HEAD}[linear]\n{LAYER}"),
    "oldest": ("quantize", f"[module_classes_to_modify.linear]\n{LAYER}"),
    "prune": (
        "prune",
        "[passes.prune.weight]\nsparsity = 0.5\nscope = 'local'\nmethod = 'l1-norm'\n",
    ),
}
"""Kinds of TOML that a command understands."""
NOT_UNDERSTOOD = {
    "search of the old system": (
        "search",
        "[search.search_space]\nname = 'graph/quantize'\n[search.strategy]\nname = 'optuna'\n",
        "[search.search_space] describes a search of DeepWok/mase, which is not read. Understood: ",
    ),
    "strategy alone": ("search", "[search.strategy]\nname = 'optuna'\n", "[search.strategy] descr"),
    "a pass that is no command": (
        "quantize",
        "[passes.profile_statistics]\nby = 'type'\n",
        "Understood: [quantize], as `mase quantize --dry-run` prints it; [passes.quantize]; ",
    ),
    "training": ("quantize", HEAD, "Found: none."),
    "transform": ("quantize", "[transform]\nstyle = 'graph'\n", "Found: [transform]."),
    "statistics beside rules": (
        "quantize",
        f"[linear]\n{LAYER}[eval]\nrows = 3\n",
        "Found: [linear], [eval].",
    ),
    "quantise settings for another command": (
        "train",
        f"[passes.quantize.linear.config]\n{LAYER}",
        "Understood: [train], as `mase train --dry-run` prints it. Found: [passes.quantize].",
    ),
    "prune settings for a search": (
        "search",
        "[passes.prune.weight]\nsparsity = 0.5\n",
        "Understood: [search], as `mase search --dry-run` prints it. Found: [passes.prune].",
    ),
}
"""Kinds of TOML that are refused -> words of the message."""


@pytest.mark.parametrize("kind", UNDERSTOOD)
def test_a_file_of_a_kind_that_is_understood_passes_a_dry_run(mase, tmp_path, kind):
    command, text = UNDERSTOOD[kind]
    (tmp_path / "old.toml").write_text(text)
    ran = mase(f"{command} mlp --config old.toml --dry-run")
    assert ran.code == 0, ran.err
    assert ("l1-norm" if command == "prune" else "integer") in ran.out


@pytest.mark.parametrize("kind", NOT_UNDERSTOOD)
@pytest.mark.parametrize("dry", ["", "--dry-run"])
def test_a_file_of_another_kind_is_refused_with_what_is_understood(mase, tmp_path, kind, dry):
    command, text, message = NOT_UNDERSTOOD[kind]
    (tmp_path / "old.toml").write_text(text)
    ran = mase(f"{command} mlp --config old.toml {dry}")
    assert ran.code == 2
    assert message in ran.err
