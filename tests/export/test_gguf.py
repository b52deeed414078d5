"""GGUF files: what the format's own reader makes of them, and what comes back."""

import json
import weakref

import numpy as np
import pytest
import torch
from export_models import (
    FAMILIES,
    GROUPS,
    IDS,
    INTEGER8,
    MXFP4,
    MXINT4,
    MXINT8,
    graph_of,
    logits,
)
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ChopError, ExportError
from chop.export import exported_weights, from_gguf, to_gguf
from chop.export.gguf_file import GGUFFile
from chop.export.gguf_types import TYPES

gguf = pytest.importorskip("gguf", reason="needs the package gguf: pip install 'masegraph[test]'")


@pytest.mark.parametrize("name", TYPES)
def test_gguf_reads_the_same_values_from_our_blocks_bit_for_bit(name):
    kind = TYPES[name]
    size = max(kind.block, 32)
    values = np.random.default_rng(0).normal(size=(500, size)).astype(np.float32)
    values[0], values[1, 1:], values[2] = 0, 0, values[2] * 1e-6
    data = kind.exact(values, None) if name == "F32" else kind.nearest(values)
    theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind.number))
    ours = kind.decode(data.reshape(-1, kind.nbytes)).reshape(values.shape)
    theirs = theirs.astype(np.float32) + np.float32(0)  # the package loses the sign of zeros
    assert np.array_equal(theirs.view(np.uint32), (ours + np.float32(0)).view(np.uint32))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "MXFP4"])
def test_rounding_is_at_least_as_close_as_that_of_the_package(name):
    values = np.random.default_rng(1).normal(size=(2000, 32)).astype(np.float32)
    kind, number = TYPES[name], gguf.GGMLQuantizationType(TYPES[name].number)
    theirs = gguf.quants.dequantize(gguf.quants.quantize(values, number), number)
    ours = kind.decode(kind.nearest(values))
    assert ((ours - values) ** 2).mean() <= 1.001 * ((theirs - values) ** 2).mean()


ALL = [(family, name) for family in FAMILIES for name in ("Q8_0", "Q4_1", "F16")]
FEW = [("llama", "Q8_0"), ("gpt2", "F16")]
SOME = [p if p in FEW else pytest.param(*p, marks=pytest.mark.slow) for p in ALL]


@pytest.mark.parametrize("family, name", SOME)
def test_a_float_model_comes_back_with_the_values_of_the_file(family, name, tmp_path):
    mg = graph_of(family)
    report = to_gguf(mg, tmp_path / "m.gguf", name)
    assert {r.written for r in report.records} == {name, "F32"}
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    back, ours = from_gguf(tmp_path / "m.gguf"), GGUFFile(tmp_path / "m.gguf")
    for tensor in reader.tensors:
        theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = ours.values(tensor.name)
        assert np.array_equal(theirs.reshape(values.shape), values)
    assert len(reader.tensors) == len(report.records)
    bound = {"Q8_0": 0.1, "Q4_1": 2.0, "F16": 0.01}[name]
    assert (logits(back) - logits(mg)).abs().max() < bound


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "config, kind",
    [(MXINT8, "Q8_0"), (MXINT4, "Q4_0"), (MXFP4, "MXFP4"), (INTEGER8, "Q8_0")],
)
def test_a_quantised_model_keeps_its_values_exactly(config, kind, tmp_path):
    mg = graph_of("qwen3", config)
    report = to_gguf(mg, tmp_path / "m.gguf", "F32")
    written = {r.written for r in report.records if r.format != "float"}
    assert written == {kind}
    assert report.changed == []
    assert torch.equal(logits(from_gguf(tmp_path / "m.gguf")), logits(mg))


def test_layers_of_gpt_2_keep_their_values_once_they_are_quantised(tmp_path):
    mg = graph_of("gpt2", MXINT4)  # from here on (outputs, inputs), before (inputs, outputs)
    to_gguf(mg, tmp_path / "m.gguf", "F32")
    assert torch.allclose(logits(from_gguf(tmp_path / "m.gguf")), logits(mg), atol=1e-5)


def test_a_packed_model_keeps_its_values_exactly(tmp_path):
    mg = graph_of("llama")
    mg, _ = passes.pack_weights_transform_pass(mg, {"format": "mxfp4"})  # with the kernels' types
    report = to_gguf(mg, tmp_path / "m.gguf", "F32")
    assert [r.written for r in report.records].count("MXFP4") == 16
    assert report.bits < 5
    assert torch.allclose(logits(from_gguf(tmp_path / "m.gguf")), logits(mg), atol=1e-4)


def test_a_packed_model_is_unpacked_one_tensor_at_a_time(tmp_path, monkeypatch):
    mg, _ = passes.pack_weights_transform_pass(graph_of("llama"), {"format": "mxfp4"})
    unpacked, weights, most = exported_weights._packed, [], 0

    def counted(layer):
        nonlocal most
        weights.append(weakref.ref(weight := unpacked(layer)))
        most = max(most, sum(each() is not None for each in weights))
        return weight

    monkeypatch.setattr(exported_weights, "_packed", counted)
    to_gguf(mg, tmp_path / "m.gguf", "F32")
    assert 1 <= most <= 3  # the table, the head, and the tensor before


@pytest.mark.parametrize(
    "name", ["Q4_0", *(pytest.param(n, marks=pytest.mark.slow) for n in ("Q8_0", "MXFP4"))]
)
def test_what_was_read_is_written_again_with_the_same_bytes(name, tmp_path):
    to_gguf(graph_of("llama"), tmp_path / "a.gguf", name)
    report = to_gguf(from_gguf(tmp_path / "a.gguf"), tmp_path / "b.gguf", name)
    assert report.changed == []
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_the_head_is_written_once_where_it_is_the_table(tmp_path):
    report = to_gguf(graph_of("qwen2"), tmp_path / "m.gguf")
    assert "output.weight" not in {r.name for r in report.records}
    assert {"blk.0.attn_q.bias", "token_embd.weight"} <= {r.name for r in report.records}


def test_a_format_without_a_type_is_refused_with_the_nearest(tmp_path):
    mg = graph_of("llama", GROUPS)
    words = r"lm_head.weight' is in int4/32.*no GGUF type holds exactly .* Nearest: Q4_0"
    with pytest.raises(ExportError, match=words):
        to_gguf(mg, tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []
    exact = to_gguf(mg, tmp_path / "m.gguf", "F32", fallback="float")
    assert exact.changed == []
    assert {r.note for r in exact.records} == {"", "dequantised"}
    assert torch.allclose(logits(from_gguf(tmp_path / "m.gguf")), logits(mg), atol=1e-5)
    again = to_gguf(mg, tmp_path / "m.gguf", "Q4_0", fallback="nearest")
    assert {r.note for r in again.changed} == {"", "rounded again"}
    assert "rounded again" in again.table()


def test_rounded_activations_are_refused_and_listed(tmp_path):
    mg = graph_of("llama", {**MXINT8, "data_in_width": 8})
    with pytest.raises(
        ExportError, match=r"to_gguf: module 'lm_head': data_in mxint8 and 14 more: the "
    ):
        to_gguf(mg, tmp_path / "m.gguf")
    report = to_gguf(mg, tmp_path / "m.gguf", fallback="float")
    assert len(report.dropped) == 15
    assert "not rounded in the target: module 'lm_head'" in str(report)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda mg, p: to_gguf(mg, p, "Q8"), r"unknown format 'Q8'. Did you mean 'Q8_0'"),
        (lambda mg, p: to_gguf(mg, p, fallback="x"), r"fallback is 'x'. Allowed: None, 'float'"),
        (lambda mg, p: to_gguf(3, p), r"to_gguf: mg: expected a MaseGraph, got 3"),
        (lambda mg, p: to_gguf(mg, p, tokenizer=p.parent), r"tokenizer.json: no such file"),
    ],
)
def test_wrong_calls_are_told(call, words, tmp_path):
    with pytest.raises(ExportError, match=words):
        call(graph_of("llama"), tmp_path / "m.gguf")


def test_other_architectures_and_adapters_are_refused(tmp_path):
    plain = MaseGraph(nn.Linear(4, 4), dummy_in=torch.ones(1, 4))
    with pytest.raises(ExportError, match=r"a model without .*Allowed: llama, qwen2, qwen3, gpt2"):
        to_gguf(plain, tmp_path / "m.gguf")
    mg, _ = passes.insert_lora_adapter_transform_pass(graph_of("llama"), {"rank": 2})
    with pytest.raises(ExportError, match=r"has an adapter .* fuse_lora_weights_transform_pass"):
        to_gguf(mg, tmp_path / "m.gguf")


def test_a_tokenizer_is_written_as_the_package_reads_it(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=40, special_tokens=["<end>"])
    made.train_from_iterator(["a film about a film"], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    to_gguf(graph_of("llama"), tmp_path / "m.gguf", tokenizer=tmp_path)
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    vocab = made.get_vocab()
    assert len(tokens) == 96 and all(tokens[i] == text for text, i in vocab.items())
    assert fields["tokenizer.ggml.eos_token_id"].contents() == vocab["<end>"]
    assert fields["tokenizer.ggml.token_type"].contents()[vocab["<end>"]] == 3


def test_damaged_files_are_refused_in_words_and_never_as_a_raw_error(tmp_path):
    to_gguf(graph_of("llama"), tmp_path / "m.gguf")
    good, bad = (tmp_path / "m.gguf").read_bytes(), tmp_path / "bad.gguf"
    head = GGUFFile(tmp_path / "m.gguf")._at
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        for place in rng.integers(0, head, 2):
            data[place] = rng.integers(256)
        bad.write_bytes(data)
        try:
            GGUFFile(bad)
        except ChopError as error:
            assert str(bad) in str(error)
            refused += 1
    assert refused > 30
    for cut in (3, 20, 100, head - 5, len(good) - 1):
        bad.write_bytes(good[:cut])
        with pytest.raises(ExportError, match=r"bad.gguf: (damaged GGUF file at byte \d+|not a)"):
            GGUFFile(bad)
    with pytest.raises(ExportError, match=r"absent.gguf: no such file"):
        from_gguf(tmp_path / "absent.gguf")


@pytest.mark.parametrize(
    "old, new, words",
    [
        (b"blk.1.ffn_up.weight", b"blk.7.ffn_up.weight", r"'blk.7.ffn_up.weight' has no place"),
        (b"blk.1.attn_norm.weight", b"blk.0.attn_norm.weight", r"two tensors have one name"),
        (b"llama.block_count", b"llama.block_couns", r"llama.block_count is None. Allowed: a pos"),
    ],
)
def test_a_file_that_is_not_the_model_it_says_is_refused(old, new, words, tmp_path):
    to_gguf(graph_of("llama"), tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data.replace(old, new))
    with pytest.raises(ExportError, match=words):
        from_gguf(tmp_path / "m.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "MXFP4"])
def test_llama_cpp_says_the_same(family, name, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs the package llama-cpp-python")
    to_gguf(graph_of(family), tmp_path / "m.gguf", name)
    told = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=64, logits_all=True, verbose=False)
    told.eval(IDS[0].tolist())
    theirs = torch.tensor(np.array(told.scores[: IDS.shape[1]]))
    ours = logits(from_gguf(tmp_path / "m.gguf"))[0]
    assert (theirs - ours).abs().max() < 0.1 * ours.std()  # it rounds activations to 8 bits
