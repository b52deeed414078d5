"""Which models other programs load, and whether they compute the same there.

python bench/export.py [--only NAME] [--skip-zoo] [--models FOLDER] [--data FILE]

For each model of the zoo, quantised to 8 bits (weights by channel) and to 4 (weights in groups of
32, or MX blocks where a target has only those): written, loaded by the target's own program, and
compared with the graph on the inputs of the capture and on others. The largest difference is given
relative to the largest output. Sizes are compared with the bits that formats claim; loading time
and peak memory with those of the float model, each in a process of its own. With --models, the
language model there is run by llama.cpp. Results go to bench/results/export.json, the table to
docs/export_table.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import record
from measuring.progress import Stopwatch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "export.json"
TABLE = ROOT / "docs" / "export_table.md"
sys.path.insert(0, str(ROOT / "tests"))

import zoo  # noqa: E402
from traced_zoo import tensors  # noqa: E402

import chop.passes as passes  # noqa: E402
from chop import MaseGraph  # noqa: E402
from chop.errors import ChopError  # noqa: E402
from chop.export import (  # noqa: E402
    from_gguf,
    from_onnx,
    from_qonnx,
    to_compressed_tensors,
    to_gguf,
    to_huggingface,
    to_onnx,
    to_qonnx,
)
from chop.nn.quantized.layer import QuantizedModule  # noqa: E402

WEIGHTS = {"data_in_width": "NA", "bias_width": "NA"}
BY_CHANNEL = {
    "name": "scale_integer",
    "weight_width": 8,
    "weight_granularity": "channel",
    "weight_axis": 0,
    **WEIGHTS,
}
FOUR = {"name": "mxint", "weight_width": 4, **WEIGHTS}
OPS = ("linear", "conv1d", "conv2d")
CLOSE = 2e-5
"""Of the largest output: what float32 sums in another order differ by."""


def quantised(name: str, config: dict[str, Any]) -> MaseGraph:
    """A model of the zoo with its layers in the format of `config`."""
    case = zoo.case(name)
    mg = MaseGraph(case.model.eval(), case.hf_input_names, case.inputs, **case.options)
    layers = {type(m) for m in case.model.modules()}
    is_whole = not layers & {torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d}
    ops = ("multihead_attention",) if is_whole and torch.nn.MultiheadAttention in layers else OPS
    return passes.quantize_transform_pass(mg, {op: {"config": config} for op in ops})[0]


def difference(ours: Any, theirs: list[np.ndarray]) -> float:
    """The largest difference over the largest magnitude, over all outputs."""
    mine = [t for t in tensors(ours) if t.is_floating_point()]
    given = [np.asarray(t) for t in theirs if np.asarray(t).dtype.kind == "f"]
    if len(mine) != len(given):
        raise ValueError(f"{len(given)} outputs, expected {len(mine)}")
    pairs = zip(mine, given, strict=True)
    return max(
        float((a.double() - torch.from_numpy(np.array(b)).double()).abs().max())
        / max(float(a.abs().max()), 1e-9)
        for a, b in pairs
    )


def inputs_of(name: str) -> list[dict[str, Any]]:
    """The inputs of the capture, and others where the model takes them."""
    case = zoo.case(name)
    return [case.inputs, case.other_inputs]


def onnx_runs(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written, loaded by onnxruntime, and compared."""
    import onnxruntime

    report = to_onnx(mg, folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    worst, sizes = 0.0, 0
    for inputs in inputs_of(name):
        kept = {i.name: inputs[i.name].numpy() for i in session.get_inputs()}
        if any(kept[i.name].ndim != len(i.shape) for i in session.get_inputs()):
            continue  # the number of dimensions is fixed in a file
        with torch.no_grad():
            try:
                ours = mg.model(**inputs)
            except ChopError:
                continue  # the graph is guarded at these sizes
        worst = max(worst, difference(ours, session.run(None, kept)))
        sizes += 1
    return {"bits": report.bits, **_judged(worst, report), "sizes": sizes}


def _judged(worst: float, report: Any) -> dict[str, Any]:
    told = bool(report.dropped or report.changed)
    return {"difference": worst, "equal": worst <= CLOSE, "told": told}


def qonnx_runs(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written, and executed by the package qonnx."""
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    to_qonnx(mg, folder / "model.onnx")
    onnx.IR_VERSION = 10  # the package runs nodes by onnxruntime, which reads no newer one
    wrapped = ModelWrapper(str(folder / "model.onnx")).transform(InferShapes())
    inputs = inputs_of(name)[0]
    kept = {i.name: inputs[i.name].numpy() for i in wrapped.graph.input}
    found = execute_onnx(wrapped, kept)
    with torch.no_grad():
        ours = mg.model(**inputs)
    worst = difference(ours, [found[o.name] for o in wrapped.graph.output])
    return {"difference": worst, "equal": worst <= CLOSE}


def onnx_back(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written, and read as a graph again."""
    to_onnx(mg, folder / "model.onnx")
    return _back(from_onnx(folder / "model.onnx"), mg, name)


def qonnx_back(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written as QONNX, and read as a graph again; its sizes are fixed."""
    to_qonnx(mg, folder / "model.onnx")
    return _back(from_qonnx(folder / "model.onnx"), mg, name)


def _back(back: MaseGraph, mg: MaseGraph, name: str) -> dict[str, Any]:
    worst, sizes = 0.0, 0
    for inputs in inputs_of(name):
        given = {k: v for k, v in inputs.items() if k in back.model.input_names}
        with torch.no_grad():
            try:
                ours, theirs = mg.model(**inputs), back.model(**given)
            except ChopError:
                continue  # guarded at these sizes
        worst = max(worst, difference(ours, [t.numpy() for t in tensors(theirs)]))
        sizes += 1
    if not sizes:
        raise ValueError("runs at no size")
    kinds = [m for m in back.model.modules() if isinstance(m, QuantizedModule)]
    return {"difference": worst, "equal": worst <= CLOSE, "sizes": sizes, "layers": len(kinds)}


def hf_runs(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written, and restored by `from_pretrained`."""
    import transformers

    report = to_huggingface(mg, folder)
    cls = getattr(transformers, type(mg.model).__name__)
    worst = _loaded(cls.from_pretrained(folder), mg, name)
    return {"bits": report.bits, **_judged(worst, report)}


def compressed_runs(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written, and loaded by transformers with compressed-tensors."""
    import transformers

    report = to_compressed_tensors(mg, folder, fallback="float")
    cls = getattr(transformers, type(mg.model).__name__)
    worst = _loaded(cls.from_pretrained(folder), mg, name)
    return {"bits": report.bits, **_judged(worst, report)}


def _loaded(model: Any, mg: MaseGraph, name: str) -> float:
    inputs = inputs_of(name)[0]
    with torch.no_grad():
        return difference(mg.model(**inputs), [t.numpy() for t in tensors(model.eval()(**inputs))])


def packed_runs(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written as a packed checkpoint, and read again."""
    mg.export(folder / "model", save_format="packed")
    back = MaseGraph.from_checkpoint(folder / "model")
    inputs = inputs_of(name)[0]
    with torch.no_grad():
        same = difference(mg.model(**inputs), [t.numpy() for t in tensors(back.model(**inputs))])
    return {"difference": same, "equal": same == 0.0}


def gguf_runs(mg: MaseGraph, name: str, folder: Path) -> dict[str, Any]:
    """Written, and run by llama.cpp; its activations are rounded to 8 bits."""
    import llama_cpp

    report = to_gguf(mg, folder / "model.gguf", "Q8_0", fallback="nearest")
    ids = inputs_of(name)[0]["input_ids"][0]
    told = llama_cpp.Llama(
        str(folder / "model.gguf"), n_ctx=64, logits_all=True, verbose=False, n_threads=1
    )
    told.eval(ids.tolist())
    theirs = torch.tensor(np.array(told.scores[: len(ids)]))
    back = from_gguf(folder / "model.gguf")
    with torch.no_grad():
        ours = back.model(torch.stack([ids, ids])).logits[0]
    worst = float((theirs - ours).abs().max() / ours.abs().max())
    return {"bits": report.bits, "difference": worst, "equal": worst <= 0.05}


Run = Callable[[MaseGraph, str, Path], dict[str, Any]]
TARGETS: dict[str, tuple[Run, dict[str, Any]]] = {
    "packed checkpoint": (packed_runs, FOUR),
    "onnx, 8 bits": (onnx_runs, BY_CHANNEL),
    "onnx, read back": (onnx_back, BY_CHANNEL),
    "qonnx, 8 bits": (qonnx_runs, BY_CHANNEL),
    "qonnx, read back": (qonnx_back, BY_CHANNEL),
    "hf, 4 bits": (hf_runs, FOUR),
    "compressed-tensors, 8 bits": (compressed_runs, BY_CHANNEL),
    "gguf": (gguf_runs, FOUR),
}
TRANSFORMERS_ONLY = ("hf, 4 bits", "compressed-tensors, 8 bits")
GGUF_FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")


def applies(target: str, name: str) -> bool:
    """Whether a target takes this model at all."""
    config = getattr(zoo.case(name).model, "config", None)
    if target in TRANSFORMERS_ONLY:
        return config is not None and hasattr(config, "model_type")
    if target.startswith("qonnx"):  # its tools are for models that become hardware
        return config is None
    return target != "gguf" or getattr(config, "model_type", None) in GGUF_FAMILIES


def row(name: str, targets: list[str]) -> dict[str, Any]:
    """One model on every target that takes it."""
    found: dict[str, Any] = {}
    for target in (t for t in targets if applies(t, name)):
        run, config = TARGETS[target]
        watch = Stopwatch()
        try:
            with tempfile.TemporaryDirectory() as folder:
                mg = quantised(name, config)
                found[target] = run(mg, name, Path(folder)) | {"written": True, "loads": True}
        except Exception as error:  # what is looked for
            words = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            found[target] = {"written": False, "loads": False, "equal": False, "why": words}
            if "-v" in sys.argv:
                traceback.print_exc()
        found[target]["seconds"] = round(watch.seconds, 1)
        print(f"{name:32} {target:28} {found[target]}", flush=True)
    return found


# -- size, time and memory -------------------------------------------------------------------

CHILD = """
import re, sys, json
*asked, bench = sys.argv[1:]
sys.path.append(bench)
import torch, transformers
import chop.export.huggingface
from measuring.checked import is_sound, once

def mib(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

folder, kind = asked
options = {}
if kind == "on load":
    four = {"name": "mxint", "weight_width": 4, "data_in_width": "NA", "bias_width": "NA"}
    settings = chop.export.huggingface.MaseConfig(four, modules_to_not_convert=["none"])
    options["quantization_config"] = settings
ids = torch.arange(64).reshape(1, 64)
torch.ones(64, 64) @ torch.ones(64, 64)
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = mib("VmRSS")
def load():
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)

def is_right(model):
    global loading
    loading = mib("VmHWM") - before
    with torch.inference_mode():
        return is_sound(model(ids).logits)

seconds = once("load", load, is_right).seconds
peaks = {"loading_peak_mib": loading, "peak_mib": mib("VmHWM") - before}
print(json.dumps({"seconds": seconds, **peaks}))
"""


def memory() -> dict[str, Any]:
    """A Llama of 0.2 G parameters as float32, in 4 bits, and compressed on load."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=2048,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.zeros(2, 8, dtype=torch.long)
    mg = MaseGraph(model, dummy_in={"input_ids": ids})
    with tempfile.TemporaryDirectory() as scratch:
        folders = {kind: Path(scratch, kind) for kind in ("float", "4 bits")}
        model.save_pretrained(folders["float"], max_shard_size="64MB")
        folders["on load"] = folders["float"]  # compressed as each weight is read
        packed, _ = passes.pack_weights_transform_pass(mg, {"format": "mxint4"})
        report = to_huggingface(packed, folders["4 bits"])
        found: dict[str, Any] = {"claimed_bits": 4.25, "bits": report.bits}
        for kind, folder in folders.items():
            size = sum(f.stat().st_size for f in folder.iterdir()) / 2**20
            program = [sys.executable, "-c", CHILD, str(folder), kind, str(ROOT / "bench")]
            done = subprocess.run(program, capture_output=True, text=True, check=True)
            found[kind] = {"file_mib": size, **json.loads(done.stdout.splitlines()[-1])}
    for key in ("file_mib", "peak_mib", "seconds"):
        found[f"{key} ratio"] = found["4 bits"][key] / found["float"][key]
    for key in ("loading_peak_mib", "peak_mib", "seconds"):
        found[f"{key} ratio on load"] = found["on load"][key] / found["float"][key]
    print(found, flush=True)
    return found


# -- perplexity ------------------------------------------------------------------------------


def perplexity(folder: Path, data: Path, windows: int) -> dict[str, Any]:
    """The language model in every type of GGUF: perplexity by llama.cpp and by the graph."""
    import llama_cpp
    import transformers

    ids = np.load(data)["ids"].astype(np.int64)[: windows * 512].reshape(windows, 512)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    example = {"input_ids": torch.from_numpy(ids[:2, :16].copy())}
    found = {}
    for kind in ("F16", "Q8_0", "Q4_0", "Q4_1", "MXFP4"):
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "model.gguf")
            report = to_gguf(MaseGraph(model, dummy_in=example), file, kind, tokenizer=folder)
            theirs = _llama_cpp_perplexity(llama_cpp, file, ids)
            ours = _our_perplexity(from_gguf(file), ids)
        found[kind] = {
            "bits": report.bits,
            "ours": ours,
            "llama.cpp": theirs,
            "relative": theirs / ours - 1,
        }
        print(kind, found[kind], flush=True)
    return found


def _llama_cpp_perplexity(llama_cpp: Any, file: Path, ids: np.ndarray) -> float:
    model = llama_cpp.Llama(str(file), n_ctx=512, n_batch=512, logits_all=True, verbose=False)
    total = 0.0
    for window in ids:
        model.reset()
        model.eval(window.tolist())
        logits = torch.from_numpy(np.array(model.scores[:511])).double().log_softmax(-1)
        total -= float(logits.gather(1, torch.from_numpy(window[1:, None].copy())).sum())
    return float(np.exp(total / (len(ids) * 511)))


def _our_perplexity(mg: MaseGraph, ids: np.ndarray) -> float:
    total = 0.0
    with torch.inference_mode():
        for pair in torch.from_numpy(ids).split(2):
            logits = mg.model(pair).logits[:, :-1].double().log_softmax(-1)
            total -= float(logits.gather(-1, pair[:, 1:, None]).sum())
    return float(np.exp(total / (len(ids) * 511)))


# -- the table -------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    """The page: model by target."""
    targets = list(TARGETS)
    lines = ["| model | " + " | ".join(targets) + " |", "|---" * (len(targets) + 1) + "|"]
    for name, found in results.items():
        cells = [_cell(found.get(target)) for target in targets]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if not found["written"]:
        return "refused" if found["why"].startswith("ExportError") else "no"
    if found["equal"]:
        return "equal"
    return f"{'told: ' * found.get('told', False)}differs {found['difference']:.1g}"


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="models of the zoo to run")
    parser.add_argument("--targets", action="append", help="targets to run")
    parser.add_argument("--skip-zoo", action="store_true")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--models", type=Path, help="the folder of a language model")
    parser.add_argument("--data", type=Path, help="its held-out tokens, ids in an .npz")
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("-v", action="store_true")
    args = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    models = known.get("models", {}).get("results", {})
    for name in [] if args.skip_zoo else args.only or list(zoo.ZOO):
        models[name] = models.get(name, {}) | row(name, args.targets or list(TARGETS))
        ordered = {n: models[n] for n in zoo.ZOO if n in models}
        record.save_section("export", "models", ordered)
        TABLE.write_text(HEAD + table(ordered))
    if not args.skip_memory:
        record.save_section("export", "memory", memory())
    if args.models and args.data:
        found = perplexity(args.models, args.data, args.windows)
        record.save_section("export", "perplexity", found)


HEAD = """# Models by target

Written by `bench/export.py`: each model of the tests' zoo, small and with random weights,
quantised, written, loaded by the target's own program and compared. *equal*: to the bit for packed
checkpoints, within 2e-5 of the largest output for programs that add up float32 in another order,
within 5 % for llama.cpp, which rounds activations to 8 bits. *told*: the report of the export lists
what the target does without. *read back*: by `from_onnx` or `from_qonnx`, as a graph in formats of
this package, at the sizes of the capture and at others where the model takes them. *refused*: the
exporter said that it cannot be written; *no*: it could not be quantised so, written, or run by the
target's own program. Empty: the target is not for this kind of model.

"""

if __name__ == "__main__":
    main()
