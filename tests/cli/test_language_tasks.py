"""Tasks of lm-eval: a graph has the figures of its model in lm-eval's own program."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from generating_models import made
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chop import MaseGraph
from chop.actions import language_tasks
from chop.errors import ConfigError, DataError, MissingDependencyError
from chop.passes import pack_weights_transform_pass, quantize_transform_pass

WORDS = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(93))]
TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "answers": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{written}}"
generation_kwargs: {max_gen_toks: 3, until: ["</s>"], do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


def make_tokenizer():
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture
def folder(tmp_path):
    """Tasks with rows of their own."""
    draw = torch.Generator().manual_seed(0)

    def text(count):
        return " ".join(f"w{i}" for i in torch.randint(0, 93, (count,), generator=draw).tolist())

    rows = [
        {"question": text(3 + n % 5), "choices": [f" {text(2)}", f" {text(1)}"], "answer": n % 2,
         "written": text(3)}
        for n in range(12)
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, body in TASKS.items():
        files = {"data_files": {"test": str(tmp_path / "rows.jsonl")}}
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {json.dumps(files)}\n"
        (tmp_path / f"{name}.yaml").write_text(f"{head}test_split: test\n{body}")
    return tmp_path


def reference(model, folder, tokenizer):
    """Return the figures of lm-eval's own program for the eager model."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4),
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        log_samples=False,
    )["results"]
    return {
        (task, key.partition(",")[0]): value
        for task, values in found.items()
        for key, value in values.items()
        if "," in key and "stderr" not in key
    }


def by_name(rows):
    return {(row["task"], row["metric"]): row["value"] for row in rows}


def test_a_graph_has_the_figures_of_its_model_and_a_packed_one_its_own(folder):
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'lm-eval<0.5'")
    tokenizer, model = make_tokenizer(), made("Llama").eval()
    right = reference(model, folder, tokenizer)
    graph = MaseGraph(model, cache=True)
    rows = language_tasks.measure_tasks(graph, tokenizer, list(TASKS), folder=folder, batch_size=4)
    assert by_name(rows) == pytest.approx(right, rel=1e-5)
    assert {row["rows"] for row in rows} == {12} and len(right) == 4
    quantize_transform_pass(graph, {"by": "type", "default": {"config": {"name": "mxint4"}}})
    rounded = language_tasks.measure_tasks(graph, tokenizer, ["rolling"], folder=folder)
    pack_weights_transform_pass(graph)
    packed = language_tasks.measure_tasks(graph, tokenizer, ["rolling"], folder=folder, rows=5)
    assert by_name(rounded) != pytest.approx(right, rel=1e-5) and packed[0]["rows"] == 5


def test_mistakes_are_named(folder, tmp_path):
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'lm-eval<0.5'")
    with pytest.raises(ConfigError, match=r"no task 'choice' of lm-eval.*Did you mean choices"):
        language_tasks.check_tasks(["choice"], folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no YAML file of a task"):
        language_tasks.check_tasks(["choices"], tmp_path / "empty")
    (folder / "rows.jsonl").unlink()
    graph = MaseGraph(made("Llama").eval(), cache=True)
    with pytest.raises(DataError, match="choices"):
        language_tasks.measure_tasks(graph, make_tokenizer(), ["choices"], folder=folder)


def test_without_lm_eval_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'lm-eval<0\.5'"):
        language_tasks.check_tasks(["arc_easy"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tasks arc_easy --dataset digits", "they have data of their own"),
        ("--shots 2", "are for tasks"),
        ("--tasks arc_easy --shots -1", "shots: -1. Allowed: 0 or more"),
    ],
)
def test_a_wrong_line_of_tasks_is_refused(mase, words, message):
    ran = mase(f"eval mlp {words}")
    assert ran.code == 2 and message in ran.err
