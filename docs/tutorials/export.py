"""From a trained model to llama.cpp and onnxruntime: quantise, write, load elsewhere, compare.

python docs/tutorials/export.py [--model MODELS/llama --data TOKENS.npz]
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
import transformers
from lesson import Setting, start, table
from torch import Tensor

import chop.passes as passes
from chop import MaseGraph
from chop.export import from_gguf, to_gguf, to_huggingface, to_onnx

FOUR_BITS = {"name": "mxint", "weight_width": 4, "data_in_width": "NA", "bias_width": "NA"}


def counting(count: int, length: int = 24) -> Tensor:
    """Rows that count up by a step of their own, modulo 96: something to learn in seconds."""
    generator = torch.Generator().manual_seed(count)
    first = torch.randint(0, 96, (count, 1), generator=generator)
    step = torch.randint(1, 6, (count, 1), generator=generator)
    return (first + step * torch.arange(length)) % 96


def trained() -> transformers.PreTrainedModel:
    """A small Llama that has learnt to count."""
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    rows = counting(2048)
    for step in range(150):
        batch = rows[step * 64 % 2048 :][:64]
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def given(setting: Setting) -> tuple[transformers.PreTrainedModel, Tensor]:
    """The model, and rows that it has not seen."""
    if not setting.is_full:
        return trained(), counting(64)
    model = transformers.AutoModelForCausalLM.from_pretrained(setting.model, dtype=torch.float32)
    ids = np.load(str(setting.data))["ids"].astype(np.int64)
    return model.eval(), torch.from_numpy(ids[: 8 * 512].reshape(8, 512))


def perplexity(logits: Tensor, rows: Tensor) -> float:
    likely = logits[:, :-1].double().log_softmax(-1).gather(-1, rows[:, 1:, None])
    return float((-likely.mean()).exp())


def of_graph(mg: MaseGraph, rows: Tensor) -> float:
    with torch.no_grad():
        return perplexity(mg.model(rows).logits, rows)


def quantised(mg: MaseGraph, rows: Tensor) -> MaseGraph:
    mg = copy.deepcopy(mg)
    mg, _ = passes.quantize_transform_pass(mg, {"linear": {"config": FOUR_BITS}})
    batches = [{"input_ids": part} for part in rows.split(16)]
    mg, _ = passes.gptq_transform_pass(mg, {"data": batches})
    return mg


def in_onnxruntime(file: Path, rows: Tensor) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file))
    (logits,) = session.run(["logits"], {"input_ids": rows.numpy()})
    return perplexity(torch.from_numpy(logits), rows)


def in_llama_cpp(file: Path, rows: Tensor) -> float:
    import llama_cpp

    model = llama_cpp.Llama(str(file), n_ctx=rows.shape[1], logits_all=True, verbose=False)
    said = []
    for row in rows:
        model.reset()
        model.eval(row.tolist())
        said.append(torch.from_numpy(np.array(model.scores[: len(row)])))
    return perplexity(torch.stack(said), rows)


def in_transformers(folder: Path, rows: Tensor) -> float:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return perplexity(model(rows).logits, rows)


def main(setting: Setting) -> None:
    """Quantise, write three files, and ask each program for the perplexity."""
    transformers.utils.logging.disable_progress_bar()
    model, rows = given(setting)
    whole = MaseGraph(model, dummy_in={"input_ids": rows[:2]})
    calibration = counting(128) if not setting.is_full else rows
    small = quantised(whole, calibration)
    found = [["float", of_graph(whole, rows)], ["4 bits", of_graph(small, rows)]]
    setting.show("quantised", table(found, ["weights", "perplexity"]))

    setting.out.mkdir(parents=True, exist_ok=True)
    report = to_gguf(small, setting.out / "model.gguf", "Q8_0")
    to_onnx(small, setting.out / "model.onnx")
    to_huggingface(small, setting.out / "model")
    kinds = sorted({(r.format, r.written, r.is_exact) for r in report.records})
    setting.show("gguf", table(kinds, ["format", "written as", "same values"]))

    back = from_gguf(setting.out / "model.gguf")
    rest = [
        ["GGUF, read back", of_graph(back, rows)],
        ["onnxruntime", in_onnxruntime(setting.out / "model.onnx", rows)],
        ["transformers", in_transformers(setting.out / "model", rows)],
    ]
    if setting.is_full:
        rest.append(["llama.cpp", in_llama_cpp(setting.out / "model.gguf", rows)])
    setting.show("elsewhere", table(rest, ["program", "perplexity"]))


if __name__ == "__main__":
    start(main, "export", __doc__)
