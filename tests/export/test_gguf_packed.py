"""GGUF files whose matrices stay packed, and their tokenizers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from export_models import graph_of, logits
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from chop import MaseGraph
from chop.errors import ChopError, ConfigError, ExportError
from chop.export import from_gguf, to_gguf, to_huggingface, tokenizer_from_gguf
from chop.export.gguf_file import GGUFFile, GGUFTensor, write_gguf
from chop.export.gguf_tokenizer import PRE_TOKENIZERS
from chop.export.gguf_types import TYPES
from chop.kernels import PackedTensor, pack, unpack
from chop.kernels.layers import QEmbeddingPacked, QLinearPacked
from chop.kernels.ops import packed_embedding, packed_linear

PACKED = ("Q8_0", "Q4_0", "Q4_1", "MXFP4")


def written(tmp_path, name, family="llama"):
    to_gguf(graph_of(family), tmp_path / "a.gguf", name)
    return tmp_path / "a.gguf"


@pytest.mark.share(2)
@pytest.mark.parametrize("name", PACKED)
def test_matrices_stay_packed_with_the_values_of_the_file(name, tmp_path):
    path = written(tmp_path, name)
    graph, file = from_gguf(path, packed=True), GGUFFile(path)
    layers = {type(m) for m in graph.model.modules()}
    assert {QLinearPacked, QEmbeddingPacked} <= layers and torch.nn.Linear not in layers
    table = unpack(graph.model.model.embed_tokens.weight).numpy()
    assert np.array_equal(table, file.values("token_embd.weight"))
    floats = from_gguf(path)
    assert torch.allclose(logits(graph), logits(floats), atol=1e-4)
    matrices = sum(d.nbytes for k, _, d in file.tensors.values() if k.name == name)
    codes = {b.data_ptr(): b.nbytes for n, b in graph.model.named_buffers() if "rotary" not in n}
    assert sum(codes.values()) <= 1.25 * matrices  # scales of 4 bytes in place of 2


@pytest.mark.share(3)
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gpt2"])
def test_other_families_and_tied_heads_are_packed_too(family, tmp_path):
    path = written(tmp_path, "Q4_1", family)
    packed, floats = from_gguf(path, packed=True), from_gguf(path)
    assert torch.allclose(logits(packed), logits(floats), atol=1e-4)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", PACKED)
def test_a_packed_model_is_written_again_with_the_same_bytes(name, tmp_path):
    path = written(tmp_path, name)
    report = to_gguf(from_gguf(path, packed=True), tmp_path / "b.gguf", name)
    assert report.changed == []
    assert path.read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0"])
def test_packed_layers_go_through_checkpoints_and_folders(name, tmp_path):
    graph = from_gguf(written(tmp_path, name), cache=True, packed=True)
    before = logits(graph)
    graph.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(logits(again), before)
    ids = torch.tensor([[1, 2, 3]])
    assert again.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, 6)
    report = to_huggingface(graph, tmp_path / "folder")
    assert {r.written for r in report.records if "proj" in r.name} == {"QLinearPacked"}
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, graph.model(input_ids=ids).logits, atol=1e-4)


def test_scales_that_are_no_numbers_are_refused(tmp_path):
    path = written(tmp_path, "Q4_1")
    file = GGUFFile(path)
    _, _, data = file.tensors["blk.0.attn_q.weight"]
    at = path.read_bytes().index(data.tobytes())
    with path.open("r+b") as opened:
        opened.seek(at)
        opened.write(b"\x00\x7e")  # NaN in float16
    with pytest.raises(ExportError, match="of Q4_1 has scales that are NaN or infinite"):
        from_gguf(path, packed=True)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("elements", [1, 64 * 5])
def test_rows_read_in_parts_are_those_of_the_whole(name, elements, tmp_path, monkeypatch):
    path = written(tmp_path, name)
    whole = from_gguf(path, packed=True).model.state_dict()
    monkeypatch.setattr("chop.export.gguf_packed.ELEMENTS_AT_ONCE", elements)
    parts = from_gguf(path, packed=True).model.state_dict()
    assert whole.keys() == parts.keys()
    assert all(torch.equal(parts[key], value) for key, value in whole.items())


def resident_bytes(path):
    """Return the bytes of a mapped file that are in the memory of this process."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs the maps of Linux")
def test_a_tensor_that_was_read_leaves_no_pages_in_memory(tmp_path):
    path, rows = tmp_path / "large.gguf", 4096
    values = np.arange(rows * 64, dtype=np.float32)
    tensors = [
        GGUFTensor(f"t{i}", (rows, 64), TYPES["F32"], lambda: values.view(np.uint8))
        for i in range(4)
    ]
    write_gguf(path, {"general.architecture": "llama"}, tensors)
    file = GGUFFile(path)
    most = 0
    for name in file:
        assert np.array_equal(file.values(name).reshape(-1), values)
        most = max(most, resident_bytes(path))
    assert values.nbytes <= most < 2 * values.nbytes  # one tensor at a time
    assert resident_bytes(path) < values.nbytes / 8
    assert np.array_equal(file.values("t0").reshape(-1), values)  # pages are read again


@pytest.mark.parametrize("columns", [64, 50])
def test_offsets_are_added_to_the_values_of_their_groups(columns):
    torch.manual_seed(0)
    plain = pack(torch.randn(6, columns), "int4", 32)
    offsets = torch.randn(6, 2)
    shifted = PackedTensor(plain.codes, plain.scales, "int4", 32, columns, offsets)
    values = unpack(plain) + offsets.repeat_interleave(32, 1)[:, :columns]
    assert torch.equal(unpack(shifted), values)
    x = torch.randn(3, columns)
    assert torch.allclose(packed_linear(x, shifted), x @ values.t(), atol=1e-4)
    assert torch.equal(packed_embedding(torch.tensor([5, 0]), shifted), values[[5, 0]])
    assert shifted.nbytes == plain.nbytes + offsets.nbytes
    layer = QLinearPacked(shifted, None)
    delta = torch.full((6, columns), 0.5)
    assert (layer.with_added(delta).float_weight() - values - 0.5).abs().max() < 0.6
    with pytest.raises(ConfigError, match=r"offsets must be floating-point of shape \(6, 2\)"):
        PackedTensor(plain.codes, plain.scales, "int4", 32, columns, offsets[:, :1])


def tokenizer(pre):
    """A byte-level tokenizer with a few merges, special tokens and a template."""
    steps = [*PRE_TOKENIZERS[pre]]
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    is_split = any(step["type"] == "Split" for step in steps)
    alphabet = sorted(set("Ġabcdefghijklmnopqrstuvwxyz0123456789!,'ĊHW"))
    vocab = {text: i for i, text in enumerate(["<|end|>", *alphabet, "he", "ll", "hell", "12"])}
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "<|end|>", "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, {**as_bytes, "use_regex": not is_split}],
        },
        "decoder": {**as_bytes, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l", "he ll", "1 2"]},
    }
    rules = Tokenizer.from_str(json.dumps(content))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=rules, eos_token="<|end|>", chat_template=template
    )


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("as_folder", [False, True])
def test_the_tokenizer_comes_back_with_its_chat_template(pre, as_folder, tmp_path):
    own = tokenizer(pre)
    own.save_pretrained(tmp_path / "own")
    to_gguf(
        graph_of("llama"), tmp_path / "a.gguf", tokenizer=tmp_path / "own" if as_folder else own
    )
    back = tokenizer_from_gguf(tmp_path / "a.gguf")
    for text in ("hello hell 1212, it's 12\n\n he<|end|>", "  abc 7!"):
        assert back(text)["input_ids"] == own(text)["input_ids"]
        assert back.decode(back(text)["input_ids"]) == own.decode(own(text)["input_ids"])
    assert back.chat_template == own.chat_template and back.eos_token == "<|end|>"


WRONG = {
    "tokenizer.ggml.model": ("llama", "a tokenizer of model 'llama' .* Allowed: model 'gpt2'"),
    "tokenizer.ggml.pre": ("jais", "pre 'jais'. Allowed: model 'gpt2' with gpt-2, smollm"),
    "tokenizer.ggml.tokens": (7, "tokens is 7. Allowed: a list of texts"),
    "tokenizer.ggml.token_type": ([1], "does not have one number for each token"),
    "tokenizer.ggml.merges": (["one two three"], "makes no tokenizer"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_tokenizer_that_cannot_be_read_is_refused(key, tmp_path):
    value, words = WRONG[key]
    to_gguf(graph_of("llama"), tmp_path / "a.gguf", tokenizer=tokenizer("gpt-2"))
    file = GGUFFile(tmp_path / "a.gguf")
    metadata = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in file.metadata.items()}
    data = np.zeros(4, np.float32)
    tensors = [GGUFTensor("x", (4,), TYPES["F32"], lambda: data)]
    write_gguf(tmp_path / "b.gguf", {**metadata, key: value}, tensors)
    with pytest.raises(ChopError, match=words):
        tokenizer_from_gguf(tmp_path / "b.gguf")
