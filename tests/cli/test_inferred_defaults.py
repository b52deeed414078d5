"""What a command line leaves open, the model and the data tell."""

import json

import pytest
import torch
import transformers

from chop import MaseGraph
from chop.cli.commands.eval_ import EvalConfig
from chop.cli.console import Console
from chop.cli.inferred_defaults import with_inferred_defaults
from chop.cli.model_facts import model_facts, task_to_load
from chop.cli.shared_options import ModelOptions
from chop.cli.source import find_source
from chop.errors import ConfigError
from chop.models import tiny_bert, tiny_vit
from chop.models.tasks import ENDINGS, TASKS, possible_tasks, task_of_class

TEXT = "the cat sat on the mat and the dog lay in the sun\n" * 80


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    """A small GPT-2 with a tokenizer of letters, in a folder as from the hub."""
    folder = tmp_path_factory.mktemp("hub") / "gpt2"
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends)).save_pretrained(folder)
    letters_tokenizer().save_pretrained(folder)
    return folder


def letters_tokenizer():
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    names = ["<s>", "<unk>", *sorted(set(TEXT))]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")


@pytest.fixture
def text(tmp_path):
    (tmp_path / "tale.txt").write_text(TEXT)
    return tmp_path / "tale.txt"


def known(model, **options):
    config = EvalConfig(model=str(model), **options)
    return with_inferred_defaults(config, Console(is_quiet=True))


def test_every_ending_names_a_task_and_every_task_a_class():
    assert set(ENDINGS.values()) <= set(TASKS)
    assert all(hasattr(transformers, name) for name in TASKS.values())
    assert task_of_class("BertForMaskedLM") is None, "pre-trained only: for what comes next"


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [("vit", ["image-classification"]), ("gpt2", ["sequence-classification", "causal-lm"])],
)
def test_a_model_without_a_head_can_be_trained_for(kind, tasks):
    assert possible_tasks(kind) == tasks


def test_the_config_of_a_folder_says_what_its_model_is_for(gpt2, tmp_path):
    tiny_vit().save_pretrained(tmp_path / "vit")
    tiny_bert().save_pretrained(tmp_path / "bert")
    tasks = [task_to_load(ModelOptions(model=str(tmp_path / n))) for n in ("vit", "bert")]
    assert tasks == ["image-classification", "sequence-classification"]
    assert task_to_load(ModelOptions(model=str(gpt2))) == "causal-lm"
    assert task_to_load(ModelOptions(model=str(gpt2), task="base")) == "base"


def test_the_metric_and_the_sizes_follow(gpt2):
    language = known(gpt2)
    assert (language.metric, language.eval_batch_size) == ("perplexity", 8)
    assert language.max_token_len == 32, "as many as it has positions"
    plain = known("mlp")
    assert (plain.metric, plain.eval_batch_size, plain.max_token_len) == ("accuracy", 64, 512)
    assert known("tiny_llama").metric == "perplexity"
    assert known(gpt2, metric="token_agreement").metric == "token_agreement"


def test_a_checkpoint_is_seen_without_its_weights(tmp_path):
    MaseGraph(tiny_bert(), hf_input_names=["input_ids"]).export(tmp_path / "graph")
    (tmp_path / "graph.safetensors").unlink()
    seen = model_facts(ModelOptions(model=str(tmp_path)))
    assert (seen.task, seen.labels, seen.positions) == ("sequence-classification", 2, 64)
    (tmp_path / "graph.json").write_text('{\n "format": "mase-graph",\n "class_name": 3}')
    assert model_facts(ModelOptions(model=str(tmp_path))).task is None


def test_a_new_head_gets_the_labels_of_the_data(tmp_path):
    assert known("tiny_bert", dataset="digits").model_options == {"num_labels": 10}
    assert known("tiny_vit", dataset="digits").model_options == {}, "ten by itself"
    transformers.BertModel(tiny_bert().config).save_pretrained(tmp_path / "base")
    assert known(tmp_path / "base", dataset="digits").model_options == {"num_labels": 10}


def test_a_trained_head_is_not_made_anew_behind_ones_back(tmp_path):
    tiny_bert(num_labels=3).save_pretrained(tmp_path / "bert")
    with pytest.raises(ConfigError, match=r"has 10 classes, and the model .* tells 3 apart"):
        known(tmp_path / "bert", dataset="digits")
    assert known(tmp_path / "bert", dataset="sequences").model_options == {}


def test_a_task_that_a_model_is_not_for_is_told_in_a_line(mase, tmp_path):
    tiny_vit().save_pretrained(tmp_path / "vit")
    ran = mase("trace vit --task sequence-classification")
    assert ran.code == 2
    assert "is a ViT model, and there are none for sequence-classification" in ran.err
    assert "Allowed: image-classification, base." in ran.err


def test_quantize_takes_a_language_model_as_it_is_and_says_what_it_left(mase, gpt2, tmp_path):
    ran = mase(f"quantize {gpt2} --out q")
    assert ran.code == 0, ran.err
    assert "is for causal-lm (it is a GPT2LMHeadModel)" in ran.err
    assert "no format given: mxint8 for embedding, linear" in ran.err
    assert "left as floats: layer_norm (3 of them, 96 numbers" in ran.out
    found = json.loads((tmp_path / "q" / "result.json").read_text())
    assert set(found["quantized"].values()) == {"EmbeddingMXInt", "LinearMXInt"}
    assert [row["op"] for row in found["left_in_float"]] == ["layer_norm"]


@pytest.mark.slow
def test_a_checkpoint_remembers_its_tokenizer(mase, gpt2, text, tmp_path):
    assert mase(f"quantize {gpt2} --type linear --out q").code == 0
    assert mase("prune q --sparsity 0.5 --out p").code == 0, "and hands it on"
    ran = mase(f"eval p --dataset {text.name} --json")
    assert ran.code == 0, ran.err
    found = ran.document["eval"]
    assert found["perplexity"] == pytest.approx(torch.tensor(found["loss"]).exp().item())


def test_running_text_is_measured_as_transformers_does(mase, gpt2, text):
    found = mase(f"eval {gpt2} --dataset {text.name} --json").document
    ids = letters_tokenizer()(TEXT)["input_ids"]
    rows = torch.tensor(ids[: len(ids) // 32 * 32]).view(-1, 32)
    test = rows[-round(0.1 * len(rows)) :]
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2)
    with torch.no_grad():
        loss = float(model(input_ids=test, labels=test).loss)
    assert found["rows"] == len(test)
    assert found["eval"]["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_language_model_learns_from_a_file_of_bytes(mase, text):
    line = f"train tiny_llama --dataset {text.name} --max-token-len 32 --learning-rate 1e-2 --json"
    found = mase(f"{line} --set model_options.num_hidden_layers=1 --epochs 2").document
    assert found["eval"]["perplexity"] < 20, "of 256 before"


@pytest.mark.slow
def test_a_search_has_a_space_of_its_own(mase, trained):
    line = f"search {trained} --dataset digits --train-rows 64 --test-rows 64 --trials 2 --json"
    ran = mase(line)
    assert ran.code == 0, ran.err
    assert "space: formats mxint for linear by name" in ran.err
    assert set(ran.document["objectives"]) == {"accuracy", "average_bits"}


def test_a_model_without_weights_says_what_to_name(mase, tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\ndef build(): return torch.nn.ReLU(), torch.zeros(2, 4)\n"
    )
    ran = mase("quantize own.py:build")
    assert ran.code == 2
    assert "ReLU has no layer with weights to quantise" in ran.err


def test_a_model_in_narrow_floats_is_measured_in_wide_ones_on_a_cpu(gpt2, text, tmp_path):
    narrow = transformers.GPT2LMHeadModel.from_pretrained(gpt2).to(torch.bfloat16)
    narrow.save_pretrained(tmp_path / "narrow")
    options = {"model": str(tmp_path / "narrow")}
    types = [
        find_source(EvalConfig(**options, **more)).model.dtype
        for more in ({"dataset": str(text)}, {}, {"model_options": {"dtype": "bfloat16"}})
    ]
    wide = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    assert types == [wide, torch.bfloat16, torch.bfloat16]


@pytest.mark.slow
def test_a_search_ends_trainings_by_the_metric_and_the_costs_together(mase, trained):
    line = f"search {trained} --dataset digits --train-rows 64 --test-rows 64 --trials 8 --json"
    more = "--mode compress->train --epochs 3 --pruner hypervolume --sampler random"
    ran = mase(f"{line} {more} --learning-rate 1e-2")
    assert ran.code == 0, ran.err
    assert ran.document["finished"] == 8
    assert ran.document["energy"]["carbon_intensity"] == 473.0
    assert "--pruner stops trainings" in mase(f"{line} --trials 1 --pruner median").err
