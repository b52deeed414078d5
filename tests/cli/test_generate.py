"""`mase generate`, and the metrics of text, as a user runs them."""

from __future__ import annotations

import operator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from generating_models import made
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chop import MaseGraph
from chop.cli.cache_recapture import captured_with_cache
from chop.cli.failures import SourceError
from chop.cli.text_generation import read_format
from chop.kernels.row_codecs import codec_of
from chop.passes import quantize_transform_pass

WORDS = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(93))]
PROMPT = ("--prompt", "w5 w9 w30 w2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with its tokenizer, as transformers saves them."""
    place = tmp_path_factory.mktemp("llama")
    made("Llama").save_pretrained(place)
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>").save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Running text as tokens."""
    place = tmp_path_factory.mktemp("text")
    draw = np.random.default_rng(0)
    for name in ("train", "test"):
        np.savez(place / f"{name}.npz", ids=draw.integers(3, 90, 200).astype(np.uint16))
    return place


def words_of(folder: Path, **options) -> str:
    model = made("Llama")
    given = torch.tensor([[WORDS.index(w) for w in PROMPT[1].split()]])
    ids = model.generate(input_ids=given, max_new_tokens=6, do_sample=False, **options)[0]
    return " ".join(WORDS[i] for i in ids)


def test_the_text_is_the_models_and_rate_and_memory_are_told(mase, folder) -> None:
    ran = mase(f"generate {folder} --max-new-tokens 6 --out g", *PROMPT)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(words_of(folder))
    assert "tokens/s" in ran.out and "weights 0.1 MiB, cache" in ran.out
    line = f"generate {folder} --max-new-tokens 6 --cache mxint8 --cache-layers 0=float --out g"
    told = mase(line, "--json", *PROMPT).document
    assert told["new_tokens"] == 6 and told["text"].startswith(PROMPT[1])
    assert 0 < told["cache_bytes"] < 9 * 2 * 2 * 2 * 8 * 4 and told["tokens_per_s"] > 0


@pytest.mark.parametrize("drafts", ["lookup", "itself"])
def test_speculation_gives_the_text_and_counts_what_was_accepted(mase, folder, drafts) -> None:
    source = folder if drafts == "itself" else drafts
    line = f"generate {folder} --max-new-tokens 6 --speculate {source} --draft-tokens 2 --out g"
    told = mase(line, "--json", *PROMPT).document
    assert told["text"] == words_of(folder) and told["new_tokens"] == 6
    assert told["steps"] >= 1 and told["accepted"] <= told["drafted"]
    assert drafts == "lookup" or told["accepted"] == told["drafted"] > 0
    ran = mase(line, *PROMPT)
    assert ran.out.startswith(words_of(folder)) and "drafted tokens accepted" in ran.out


def test_drafts_of_another_vocabulary_are_refused(mase, folder, tmp_path) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=1, num_key_value_heads=1)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "small")
    ran = mase(f"generate {folder} --speculate {tmp_path / 'small'} --out g", *PROMPT)
    assert ran.code != 0
    assert "a vocabulary of 50 tokens, and the model has 96" in ran.err


@pytest.mark.parametrize("option", ["--sample", "--beams 2", "--compile", "--cache mxint8"])
def test_speculation_is_greedy_on_a_cache_of_floats(mase, folder, option) -> None:
    ran = mase(f"generate {folder} --speculate lookup {option} --out g", *PROMPT)
    assert ran.code != 0 and "it excludes sample, beams, compile and cache" in ran.err


NO_LANGUAGE = {
    "BertModel": "saved as BertModel, without the weights cls",
    "BertForSequenceClassification": "it is a BertForSequenceClassification, for sequence-class",
    "LlamaForSequenceClassification": "it is a LlamaForSequenceClassification, for sequence-class",
}


@pytest.mark.parametrize("kind", NO_LANGUAGE)
@pytest.mark.parametrize("dry", ["", "--dry-run"])
def test_a_model_that_is_no_language_model_is_refused(mase, folder, tmp_path, kind, dry) -> None:
    family = kind.partition("For")[0].removesuffix("Model")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(WORDS), intermediate_size=16, pad_token_id=0, **sizes
    )
    getattr(transformers, kind)(config).save_pretrained(tmp_path / "other")
    ran = mase(f"generate other --tokenizer {folder} --out g {dry}", *PROMPT)
    assert ran.code == 2
    assert "model 'other' is no language model: " in ran.err and NO_LANGUAGE[kind] in ran.err


def test_a_decoder_saved_without_its_head_generates_where_the_head_is_tied(
    mase, folder, tmp_path
) -> None:
    config = made("Llama").config
    config.tie_word_embeddings = True
    transformers.LlamaModel(config).save_pretrained(tmp_path / "bare")
    ran = mase(f"generate bare --tokenizer {folder} --max-new-tokens 2 --out g", *PROMPT)
    assert ran.code == 0, ran.err


@pytest.mark.slow
def test_beams_and_drawing_are_transformers_own(mase, folder) -> None:
    line = f"generate {folder} --max-new-tokens 6 --out g --json"
    assert mase(f"{line} --beams 3", *PROMPT).document["text"] == words_of(folder, num_beams=3)
    drawn = [mase(f"{line} --sample --seed {s}", *PROMPT).document["text"] for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_checkpoint_with_a_cache_generates(mase, folder, tmp_path) -> None:
    MaseGraph(made("Llama"), cache=True).export(tmp_path / "with")
    line = f"generate with --tokenizer {folder} --max-new-tokens 6 --out g --json"
    assert mase(line, *PROMPT).document["text"] == words_of(folder)
    MaseGraph(made("Llama"), ["input_ids"]).export(tmp_path / "without")
    ran = mase(line.replace("with ", "without ", 1), *PROMPT)
    assert "'without' was captured without its cache: it is captured again" in ran.err
    assert ran.document["text"] == words_of(folder)


def test_a_quantised_folder_generates_as_any_other(mase, folder) -> None:
    assert mase(f"quantize {folder} --model-free --format mxint8/16 --out q8").code == 0
    ran = mase("generate q8 --max-new-tokens 6 --out g --json", *PROMPT)
    assert ran.code == 0, ran.err
    assert "cache" not in ran.err and ran.document["new_tokens"] == 6


def test_quantised_layers_stay_in_a_second_capture() -> None:
    widths = {"weight_width": 6, "data_in_width": 8, "bias_width": 8}
    config = {"linear": {"config": {"name": "mxint", **widths}}}
    graphs = [MaseGraph(made("Llama"), cache=cache) for cache in (False, True)]
    for graph in graphs:
        quantize_transform_pass(graph, {"by": "type", **config})
    again = captured_with_cache(graphs[0], "model")
    ids = torch.tensor([[5, 9, 30, 2]])
    logits = [graph.model(input_ids=ids).logits for graph in (again, *graphs)]
    assert torch.equal(logits[0], logits[2])
    assert torch.allclose(logits[0], logits[1], atol=1e-4)
    assert again.generate(ids, max_new_tokens=6).tolist() == (
        graphs[1].generate(ids, max_new_tokens=6).tolist()
    )


def test_a_graph_that_passes_changed_is_not_captured_again() -> None:
    graph = MaseGraph(made("Llama"))
    node = next(n for n in graph.nodes if n.op == "call_function" and n.target is operator.mul)
    node.target = operator.add
    graph.recompile()
    with pytest.raises(SourceError, match="its graph was changed, as in 'call_function add'"):
        captured_with_cache(graph, "model")
    other = MaseGraph(torch.nn.Linear(3, 3), dummy_in=torch.zeros(1, 3))
    with pytest.raises(SourceError, match="Linear is no model of transformers"):
        captured_with_cache(other, "model")


WRONG = {
    "": "no prompt given",
    "--prompt w5 --top-k 3": "give --sample too",
    "--prompt w5 --cache mxnt8": "generate.cache: Unknown format 'mxnt8'. Did you mean 'mxint8'?",
    "--prompt w5 --pack mxnt8": "generate.pack: Unknown format 'mxnt8'. Did you mean 'mxint8'?",
    "--prompt w5 --pack fixed8.4": "generate.pack: no packed format holds 'fixed8.4'.",
    "--prompt w5 --cache-layers zero=mxint8": "expected LAYER=FORMAT, got 'zero=mxint8'",
    "--prompt w5 --cache-layers 9=mxint8": "no layer 9",
    "--prompt w5 --device tpu": "not on this machine",
    "--prompt w5 --compile --cache mxint8": "excludes cache",
    "--prompt w5 --temperature 0 --sample": "generate.temperature: must be above 0",
}


@pytest.mark.parametrize(("more", "told"), WRONG.items())
def test_wrong_lines_say_what_is_wrong(mase, folder, more: str, told: str) -> None:
    ran = mase(f"generate {folder} {more} --out g")
    assert ran.code != 0 and told in ran.err, ran.err


def test_models_that_do_not_generate_and_missing_tokenizers_are_named(mase, tmp_path) -> None:
    assert "does not generate" in mase("generate mlp --prompt a --input-shape 1,64").err
    MaseGraph(made("Llama"), cache=True).export(tmp_path / "alone")
    assert "comes without a tokenizer: give --tokenizer" in mase("generate alone --prompt a").err


def test_formats_are_read_with_their_settings() -> None:
    assert read_format("mxint4") == "mxint4"
    assert read_format("fixed8.4") == "fixed8.4"
    assert codec_of(read_format("integer:width=8:frac_width=4")) == codec_of("fixed8.4")
    assert codec_of(read_format("mxint8:group_size=16")) == codec_of("mxint8/16")


def test_perplexity_of_running_text_is_that_of_the_model(mase, folder, text) -> None:
    line = f"eval {folder} --metric perplexity --dataset {text} --max-token-len 20 --out e --json"
    told = mase(line).document
    ids = torch.from_numpy(np.load(text / "test.npz")["ids"].astype(np.int64)).view(10, 20)
    with torch.no_grad():
        loss = float(made("Llama")(input_ids=ids, labels=ids).loss)
    assert told["rows"] == 10
    assert told["eval"]["loss"] == pytest.approx(loss, rel=1e-5)
    assert told["eval"]["perplexity"] == pytest.approx(np.exp(loss), rel=1e-4)


@pytest.mark.slow
def test_a_quantised_model_is_compared_token_by_token(mase, folder, text) -> None:
    data = f"--dataset {text} --max-token-len 20"
    quantise = f"quantize {folder} --task causal-lm --format mxint --width 8 {data} --out q"
    assert mase(f"{quantise} --metric perplexity --evaluate").code == 0
    line = f"eval q --metric token_agreement {data} --out e --json"
    told = mase(f"{line} --against {folder}").document["eval"]
    assert 0.5 < told["token_agreement"] <= 1.0
    assert mase(f"{line} --against q").document["eval"]["token_agreement"] == 1.0
    assert "give --against" in mase(line).err


@pytest.mark.slow
def test_a_search_minimises_perplexity(mase, folder, text) -> None:
    data = f"--dataset {text} --max-token-len 20 --metric perplexity --task causal-lm"
    ran = mase(f"search {folder} {data} --formats mxint --trials 2 --apply best --out s --json")
    assert ran.code == 0, ran.err
    assert ran.document["applied"]["test"]["uncompressed"] > 1


def strided_perplexity(
    model: torch.nn.Module, ids: torch.Tensor, length: int, stride: int
) -> float:
    """The usual protocol, token by token: at most `length - stride` tokens of context and its own.

    A window ends every `stride` tokens; a token is predicted from its window alone.
    """
    losses = []
    for at in range(1, len(ids)):
        end = (at // stride + 1) * stride
        context = ids[max(0, end - length) : at]
        if len(context):
            scores = model(input_ids=context[None]).logits[0, -1].double()
            losses.append(float(-scores.log_softmax(-1)[ids[at]]))
    return float(np.exp(np.mean(losses)))


@pytest.mark.share(3)
@pytest.mark.parametrize(("length", "stride"), [(16, 4), (16, 8), (10, 4), (8, 8), (200, 1)])
def test_windows_that_overlap_count_every_token_once(mase, folder, text, length, stride) -> None:
    with torch.no_grad():
        model = made("Llama").eval()
        ids = torch.from_numpy(np.load(text / "test.npz")["ids"].astype(np.int64))
        right = strided_perplexity(model, ids[: len(ids) // stride * stride], length, stride)
    line = f"eval {folder} --dataset {text} --max-token-len {length} --stride {stride} --all-rows"
    told = mase(f"{line} --json --out e").document
    assert told["eval"]["perplexity"] == pytest.approx(right, rel=1e-5)
    assert told["rows"] == len(ids) // stride


@pytest.mark.parametrize(
    ("words", "message"),
    [("--stride 9 --max-token-len 8", "stride: 9. Allowed: 1 to"), ("--stride 0", "stride: 0")],
)
def test_a_stride_beyond_the_window_is_refused(mase, folder, text, words, message) -> None:
    ran = mase(f"eval {folder} --dataset {text} {words}")
    assert ran.code == 2 and message in ran.err
