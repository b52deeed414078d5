"""Files of other programs as models of commands, with what travels with them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import first_and_slow, slow_unless
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from chop import MaseGraph
from chop.cli.commands.generate import GenerateConfig
from chop.cli.commands.quantize import QuantizeConfig
from chop.cli.model_files import COMPRESSED, GGUF, ONNX, kind_of
from chop.cli.source import FILE, find_source
from chop.errors import ChopError
from chop.export import from_gguf, to_compressed_tensors, to_gguf, to_onnx
from chop.kernels.layers import QLinearPacked
from chop.passes import pack_weights_transform_pass

LETTERS = ["<|end|>", *"Ġabcdefghijklmnopqrstuvwxyz", "ab"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}ab{% endfor %}"
QUESTION = "abcd"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A language model with a byte-level tokenizer and a chat template."""
    place = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "bos_token_id": 0}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(LETTERS), **sizes, **heads, eos_token_id=0)
    LlamaForCausalLM(config).save_pretrained(place)
    vocab = {text: i for i, text in enumerate(LETTERS)}
    rules = Tokenizer(models.BPE(vocab, [("a", "b")]))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    words = PreTrainedTokenizerFast(
        tokenizer_object=rules, eos_token="<|end|>", chat_template=TEMPLATE
    )
    words.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def gguf(folder, tmp_path_factory):
    """The same model as a GGUF file in Q4_1, with its tokenizer."""
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    graph = MaseGraph(LlamaForCausalLM.from_pretrained(folder))
    to_gguf(graph, file, "Q4_1", tokenizer=folder)
    return file


def answer(graph: MaseGraph, folder) -> str:
    """Return the answer of the graph by the calls of transformers alone."""
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = words(f"{QUESTION}ab", return_tensors="pt").input_ids
    tokens = graph.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
    return words.decode(tokens, skip_special_tokens=True)


def test_three_words_talk_to_a_gguf_file(mase, folder, gguf) -> None:
    ran = mase(f"generate {gguf} {QUESTION} --max-new-tokens 4 --out g --json")
    assert ran.code == 0, ran.err
    expected = answer(from_gguf(gguf, cache=True, packed=True), folder)
    assert ran.document["text"] == expected
    ran = mase(f"generate {gguf} --prompt {QUESTION} --no-chat --max-new-tokens 4 --out g --json")
    assert ran.document["text"].startswith(QUESTION)


def test_a_format_without_effect_on_a_packed_file_is_mentioned(mase, gguf) -> None:
    ran = mase(f"export {gguf} --to gguf --format Q4_0 --out again")
    assert ran.code == 0 and "--format Q4_0 had no effect: every matrix has" in ran.err, ran.err
    assert "mase import --no-pack" in ran.err
    ran = mase(f"export {gguf} --to gguf --format Q4_1 --out same")
    assert ran.code == 0 and "had no effect" not in ran.err


def test_an_imported_file_stays_packed_and_keeps_its_tokenizer(mase, folder, gguf) -> None:
    ran = mase(f"import {gguf} --out in")
    assert ran.code == 0, ran.err
    assert "with its tokenizer" in ran.out
    graph = MaseGraph.from_checkpoint("in/graph")
    assert isinstance(graph.model.lm_head, QLinearPacked)
    told = mase(f"generate in {QUESTION} --max-new-tokens 4 --out g --json").document
    assert told["text"] == answer(graph, folder)
    assert mase(f"import {gguf} --no-pack --out floats").code == 0
    assert not isinstance(MaseGraph.from_checkpoint("floats/graph").model.lm_head, QLinearPacked)


CHANGES = {
    "quantize": "--format mxint4",
    "prune": "--sparsity 0.25",
    "lora": "--rank 2 --fuse",
}


@pytest.mark.parametrize("command", ["quantize", "prune"])
def test_what_a_command_saved_generates(mase, folder, command) -> None:
    ran = mase(f"{command} {folder} {CHANGES[command]} --out q")
    assert ran.code == 0, ran.err
    ran = mase(f"generate q {QUESTION} --max-new-tokens 4 --out g --json")
    assert ran.code == 0, ran.err
    assert ran.document["text"] == answer(MaseGraph.from_checkpoint("q/graph"), folder)


@pytest.fixture(scope="module")
def forms(folder, gguf, tmp_path_factory):
    """The same model in every form, each with its tokenizer."""
    place = tmp_path_factory.mktemp("forms")
    model = LlamaForCausalLM.from_pretrained(folder)
    for name, cache in (("with cache", True), ("without cache", False)):
        MaseGraph(model, cache=cache).export(place / name / "graph")
        PreTrainedTokenizerFast.from_pretrained(folder).save_pretrained(place / name / "tokenizer")
    packed = MaseGraph(model)
    pack_weights_transform_pass(packed, {"format": "mxint4"})
    packed.export(place / "packed" / "graph")
    (place / "text.txt").write_text("abcd efgh " * 200)
    names = ("with cache", "without cache", "packed")
    return {"folder": folder, "GGUF": gguf, **{name: place / name for name in names}}


USES = {
    "generate": [QUESTION, "--max-new-tokens", "2"],
    "chat": ["--max-new-tokens", "2"],
    "eval": ["--dataset", "{text}", "--max-token-len", "16", "--test-rows", "4"],
    "bench": ["--iterations", "1"],
}


FORMS_OF_TEXT = ["folder", "GGUF", "with cache", "without cache", "packed"]
IN_EVERY_FORM = [(command, form) for form in FORMS_OF_TEXT for command in USES]


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("command", "form"), slow_unless(IN_EVERY_FORM, lambda row: row in IN_EVERY_FORM[::3])
)
def test_every_command_takes_a_language_model_in_every_form(
    mase, forms, folder, monkeypatch, command, form
):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n"))
    text = forms["without cache"].parent / "text.txt"
    more = [word.format(text=text) for word in USES[command]]
    if form == "packed" and command != "bench":
        more += ["--tokenizer", folder]
    ran = mase(command, forms[form], *more)
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("target", first_and_slow(["gguf", "hf", "onnx"], 2))
def test_tokenizer_and_template_come_along_to_every_export(mase, gguf, target, tmp_path) -> None:
    if target == "onnx":
        pytest.importorskip("onnxscript", reason="needs masegraph[export]")
    line = f"export {gguf} --to {target} --out e" + " --fallback float" * (target == "onnx")
    ran = mase(line)
    assert ran.code == 0, ran.err
    if target == "gguf":
        assert mase("generate e/model.gguf ab --max-new-tokens 2 --out g").code == 0
    place = tmp_path / "e" / ("model" if target == "hf" else "tokenizer")
    words = PreTrainedTokenizerFast.from_pretrained(place)
    assert words.chat_template == TEMPLATE
    assert json.loads((place / "config.json").read_text())["model_type"] == "llama"


def test_a_preprocessor_travels_with_an_image_model(mase, tmp_path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    labels = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}
    config = ViTConfig(**sizes, intermediate_size=8, image_size=8, patch_size=4, **labels)
    ViTForImageClassification(config).save_pretrained("vit")
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    assert mase("quantize vit --format mxint8 --out q").code == 0
    assert json.loads((tmp_path / "q/tokenizer/preprocessor_config.json").read_text()) == settings
    assert mase("export q --to hf --out e").code == 0
    assert (tmp_path / "e/model/preprocessor_config.json").is_file()
    assert json.loads((tmp_path / "e/model/config.json").read_text())["id2label"]["1"] == "dog"


def test_every_file_is_known_by_its_content(folder, gguf, tmp_path) -> None:
    assert kind_of(gguf) == GGUF
    assert kind_of(folder) is None and kind_of(tmp_path / "absent") is None
    (tmp_path / "text").write_text("words")
    assert kind_of(tmp_path / "text") is None
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a")
    assert kind_of(tmp_path / "m.onnx") == ONNX
    graph = MaseGraph(LlamaForCausalLM.from_pretrained(folder))
    to_compressed_tensors(graph, tmp_path / "packed")
    (tmp_path / "packed" / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": "compressed-tensors"}})
    )
    assert kind_of(tmp_path / "packed") == COMPRESSED


def test_commands_that_change_weights_unpack_them(gguf) -> None:
    packed = find_source(GenerateConfig(model=str(gguf), prompt="a"))
    assert packed.kind == FILE and isinstance(packed.graph.model.lm_head, QLinearPacked)
    plain = find_source(QuantizeConfig(model=str(gguf)))
    assert isinstance(plain.graph.model.lm_head, torch.nn.Linear)


def saved_program(place: Path) -> torch.nn.Module:
    """Save a program of torch.export with an open batch; return its model."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    sizes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (torch.zeros(2, 8),), dynamic_shapes=sizes)
    torch.export.save(program, place)
    return model


def test_a_program_of_torch_export_is_read_only_if_it_is_trusted(mase, tmp_path) -> None:
    saved_program(tmp_path / "m.pt2")
    for line in ("trace m.pt2", "quantize m.pt2 --bits 8 --out q", "import m.pt2 --out i"):
        ran = mase(line)
        assert ran.code != 0 and "a program of torch.export" in ran.err
        assert "--trust-remote-code" in ran.err and "file.py:function" in ran.err


@pytest.mark.slow
def test_a_program_of_torch_export_is_the_model_of_a_command(mase, tmp_path) -> None:
    pytest.importorskip("onnxscript", reason="needs masegraph[export]")
    model, x = saved_program(tmp_path / "m.pt2"), torch.eye(8)
    ran = mase("quantize m.pt2 --trust-remote-code --format mxint8 --out q")
    assert ran.code == 0, ran.err
    ran = mase("import m.pt2 --trust-remote-code --out i --json")
    assert ran.code == 0 and ran.document["source"] == "torch.export"
    for place in ("q/graph", "i/graph"):
        graph = MaseGraph.from_checkpoint(place)
        assert (graph.model(x) - model(x)).abs().max() < 0.02


def test_a_damaged_program_is_refused_by_name(mase, tmp_path) -> None:
    saved_program(tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "less.pt2", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, b"{}" if name.endswith("model.json") else content)
    ran = mase("trace less.pt2 --trust-remote-code")
    assert ran.code != 0 and "less.pt2: torch.export.load of torch" in ran.err


class RunsCode:
    """An object whose pickle writes a file when it is read."""

    def __reduce__(self):
        return (Path("ran").write_text, ("code of the file",))


def test_archives_of_torch_are_refused_unread(mase, tmp_path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(tmp_path / "script.pt")
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "state.pt")
    torch.save(RunsCode(), tmp_path / "pickle.pt")
    kinds = {"script.pt": "a TorchScript program", "state.pt": "a file of torch.save"}
    for name, reason in {**kinds, "pickle.pt": "a file of torch.save"}.items():
        ran = mase(f"trace {name}")
        assert ran.code != 0 and reason in ran.err and "file.py:function" in ran.err
    assert not (tmp_path / "ran").exists()


def test_an_onnx_file_is_the_model_of_a_command(mase, tmp_path) -> None:
    pytest.importorskip("onnxscript", reason="needs masegraph[export]")
    graph = MaseGraph(torch.nn.Sequential(torch.nn.Linear(8, 4)), dummy_in=torch.zeros(2, 8))
    to_onnx(graph, tmp_path / "m.onnx")
    ran = mase("quantize m.onnx --format mxint8 --out q")
    assert ran.code == 0, ran.err
    back = MaseGraph.from_checkpoint("q/graph")
    x = torch.from_numpy(np.eye(8, dtype=np.float32))
    assert (back.model(x) - graph.model(x)).abs().max() < 0.02


def test_chat_without_a_template_is_refused(mase, folder, tmp_path) -> None:
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    words.chat_template = None
    words.save_pretrained(tmp_path / "plain")
    ran = mase(f"generate {folder} ab --chat --tokenizer plain --out g")
    assert ran.code != 0 and "--chat: the tokenizer has no chat template" in ran.err


OWN = """
import torch

def build():
    return torch.nn.Linear(8, 4), torch.zeros(2, 8)
"""


FORMS = ["folder", "gguf", "onnx", "program", "checkpoint", "function", "object"]


@pytest.mark.share(2)
@pytest.mark.parametrize("form", FORMS)
def test_one_function_loads_every_form(form, folder, gguf, tmp_path, monkeypatch) -> None:
    import mase

    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    linear = MaseGraph(torch.nn.Linear(8, 4), dummy_in=torch.zeros(2, 8))
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="needs masegraph[export]")
        to_onnx(linear, tmp_path / "m.onnx")
    if form == "program":
        pytest.importorskip("onnxscript", reason="needs masegraph[export]")
        saved_program(tmp_path / "m.pt2")
    linear.export(tmp_path / "saved")
    places = {
        "folder": folder,
        "gguf": gguf,
        "onnx": tmp_path / "m.onnx",
        "program": tmp_path / "m.pt2",
        "checkpoint": tmp_path / "saved",
        "function": f"{tmp_path / 'own.py'}:build",
        "object": linear,
    }
    graph = mase.load(places[form], trust_remote_code=form == "program")
    if form in ("folder", "gguf"):
        ids = torch.tensor([[1, 2, 3]])
        assert graph.generate(ids, max_new_tokens=2, do_sample=False).shape == (1, 5)
        assert mase.load_tokenizer(places[form]).chat_template == TEMPLATE
    else:
        assert graph.model(torch.zeros(2, 8)).shape == (2, 4)
        words = "comes without a tokenizer|a program of torch.export"
        with pytest.raises(ChopError, match=words):
            mase.load_tokenizer(places[form])
    assert isinstance(graph, MaseGraph)


def test_a_gguf_file_is_loaded_to_be_quantised_again(gguf) -> None:
    import mase

    assert isinstance(mase.load(gguf, packed=False).model.lm_head, torch.nn.Linear)
    assert isinstance(mase.load(gguf).model.lm_head, QLinearPacked)


@pytest.mark.slow
def test_an_exported_text_model_is_compared_on_text_with_the_tokenizer_of_the_other(
    mase, folder, tmp_path
) -> None:
    pytest.importorskip("onnxscript", reason="needs masegraph[export]")
    (tmp_path / "text.txt").write_text("abcd efgh " * 200)
    assert mase(f"export {folder} --to onnx --out e").code == 0
    line = f"trace e/model.onnx --against {folder} --dataset text.txt --test-rows 4"
    ran = mase(f"{line} --max-token-len 16 --out t --json")
    assert ran.code == 0, ran.err
    assert ran.document["against"]["largest_difference"] < 1e-4


def test_a_journey_of_a_gguf_file_reads_text_with_the_files_own_tokenizer(
    mase, gguf, tmp_path, monkeypatch
) -> None:
    (tmp_path / "text.txt").write_text("abcd efgh " * 200)
    monkeypatch.setattr("chop.cli.journey_run.run_steps", lambda *given: [])
    ran = mase(f"journey {gguf} --dataset text.txt --max-token-len 16 --out j")
    assert ran.code == 0, ran.err
