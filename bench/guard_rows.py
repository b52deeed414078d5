"""Rows of `make guard`: what is timed on the old and on the new code, by public names only.

    python bench/guard_rows.py NAME DEVICE

runs one row as a worker of `guard.py`. It prints a line with a digest of the row's result, then
measures once for each line that it reads. To add a row, write a function under `@row`: it prepares
the data, and returns what to time and the value that this computes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

import torch
from measuring.checked import CLOCKS, WrongResultError, is_sound
from torch import Tensor, nn

SIZE = 2048
"""Rows and columns of the tensor that the formats round."""
FORMATS = ("integer", "minifloat_ieee", "log", "fp8", "mxint", "block_fp", "mxfp")
SETTINGS: dict[str, dict[str, Any]] = {
    "integer": {"width": 8, "frac_width": 4},
    "minifloat_ieee": {"width": 8, "exponent_width": 4},
    "log": {"width": 8},
    "block_fp": {"width": 8},
}
INTEGER = {
    f"{role}_{key}": value
    for role in ("data_in", "weight", "bias")
    for key, value in (("width", 8), ("frac_width", 5))
}
LINEAR = {"by": "type", "linear": {"config": {"name": "integer", **INTEGER}}}
SHORTEST, MOST_CALLS = 0.02, 200
"""Least seconds of a measurement, and the most calls in it."""
TOKENS = 8
TRIALS = 12


@dataclass(frozen=True)
class Job:
    """What a row times. `value`: its result, None if there is none to compare.

    `amount`: function that runs the job and returns a number, instead of the time of `run`.
    """

    run: Callable[[], Any] | None
    value: Any
    amount: Callable[[], float] | None = None

    def measure(self) -> Callable[[], float]:
        """Return a function that measures the job: seconds per call, or its amount.

        A short job runs several times in a measurement, so that the clock does not count.
        """
        if self.amount is not None:
            return self.amount
        assert self.run is not None, "a job runs something or returns an amount"
        least = min(CLOCKS["wall"]([self.run])() for _ in range(2))
        calls = min(max(round(SHORTEST / max(least, 1e-6)), 1), MOST_CALLS)
        return CLOCKS["wall"]([self.run] * calls)


@dataclass(frozen=True)
class Row:
    """A job, its devices, its unit, and the programs that it needs."""

    make: Callable[[str], Job]
    devices: tuple[str, ...]
    unit: str = "s"
    needs: tuple[str, ...] = ()


ROWS: dict[str, Row] = {}
BOTH, CPU = ("cpu", "cuda"), ("cpu",)


def row(name: str, devices: tuple[str, ...] = CPU, **more: Any) -> Callable[..., Any]:
    """Register a function from the device to a job."""

    def add(make: Callable[[str], Job]) -> Callable[[str], Job]:
        ROWS[name] = Row(make, devices, **more)
        return make

    return add


# -- models ----------------------------------------------------------------------------------


def bert(device: str = "cpu", **sizes: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a BERT classifier with random weights and its inputs."""
    import transformers

    torch.manual_seed(0)
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**plain, **sizes))
    ids = torch.randint(0, 1000, (2, 32))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return model.eval().to(device), {name: x.to(device) for name, x in inputs.items()}


def small_bert(device: str = "cpu") -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a BERT with the layers of BERT-base and a fourth of their width."""
    return bert(device, hidden_size=192, intermediate_size=768, num_attention_heads=4)


def captured(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """Return the annotated graph."""
    import chop.passes as passes
    from chop import MaseGraph

    graph = MaseGraph(model, hf_input_names=list(inputs))
    graph, _ = passes.init_metadata_analysis_pass(graph)
    return passes.add_common_metadata_analysis_pass(graph, {"dummy_in": dict(inputs)})[0]


def mlp() -> tuple[Any, Tensor]:
    """Return the graph of a classifier in fixed point, and an input."""
    import chop.passes as passes
    from chop import MaseGraph

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    x = torch.rand(4, 64)
    graph = MaseGraph(model, dummy_in={"input": x})
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {"input": x}})
    data = {name: value for name, value in INTEGER.items() if name.startswith("data_in")}
    relu = {"config": {"name": "integer", **data}}
    return passes.quantize_transform_pass(graph, {**LINEAR, "relu": relu})[0], x


# -- capture, quantise, train ----------------------------------------------------------------


@row("capture BERT-base")
def capture(device: str) -> Job:
    model, inputs = bert()
    with torch.no_grad():
        value = captured(model, inputs).model(**inputs).logits
    return Job(lambda: captured(model, inputs), value)


@row("quantise pass, 74 layers")
def quantise(device: str) -> Job:
    import chop.passes as passes

    graph = captured(*small_bert())

    def run() -> Any:
        return passes.quantize_transform_pass(copy.deepcopy(graph), LINEAR)[0]

    inputs = small_bert()[1]
    with torch.no_grad():
        return Job(run, run().model(**inputs).logits)


def fake_quantised(name: str, device: str, *, has_gradient: bool) -> Job:
    """Return the job of a format: one value in a hundred is outside its range."""
    from chop.nn.quantizers import FORMATS as REGISTRY

    torch.manual_seed(0)
    quantizer = REGISTRY[name](**SETTINGS.get(name, {}))
    x = torch.randn(SIZE, SIZE)
    x = torch.where(torch.rand_like(x) < 0.01, 1e30 * x.sign(), x).to(device)
    gradient = torch.randn(SIZE, SIZE).to(device)
    if not has_gradient:
        return Job(lambda: quantizer(x), quantizer(x))
    leaf = x.requires_grad_()
    outputs = quantizer(leaf)

    def backward() -> Any:
        return torch.autograd.grad(outputs, leaf, gradient, retain_graph=True)

    return Job(backward, backward())


for _name in FORMATS:
    row(f"fake-quant {_name}, forward", BOTH)(
        lambda device, name=_name: fake_quantised(name, device, has_gradient=False)
    )
    row(f"fake-quant {_name}, backward", BOTH)(
        lambda device, name=_name: fake_quantised(name, device, has_gradient=True)
    )


@row("QAT step", BOTH)
def qat_step(device: str) -> Job:
    import chop.passes as passes

    model, inputs = small_bert(device)
    model = passes.quantize_transform_pass(model.train(), LINEAR)[0]
    labels = torch.zeros(2, dtype=torch.long, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # every step computes the same

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()

    step()
    return Job(step, [p.grad for p in model.parameters() if p.grad is not None])


# -- kernels ---------------------------------------------------------------------------------


def packed_product(rows: int, device: str) -> Job:
    """Return the product of `rows` vectors with a weight in MXINT8."""
    from chop.kernels import pack, packed_linear

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    packed = pack((torch.randn(4096, 4096) / 64).to(device, dtype), "mxint8")
    x = torch.randn(rows, 4096).to(device, dtype)
    return Job(lambda: packed_linear(x, packed), packed_linear(x, packed))


for _rows in (1, 16, 256):
    row(f"packed linear, {_rows} rows", BOTH)(
        lambda device, rows=_rows: packed_product(rows, device)
    )


@row("decode 8 tokens", BOTH)
def decode(device: str) -> Job:
    import transformers

    import chop.passes as passes

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    model = passes.pack_weights_transform_pass(model, {"format": "mxint4"})[0]

    @torch.inference_mode()
    def run() -> Tensor:
        token, cache = torch.tensor([[1]], device=device), None
        for _ in range(TOKENS):
            result = model(input_ids=token, past_key_values=cache, use_cache=True)
            token, cache = result.logits[:, -1:].argmax(-1), result.past_key_values
        return result.logits

    return Job(run, run())


@row("attention", BOTH)
def attention(device: str) -> Job:
    from chop.kernels import scaled_dot_product_attention

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(4, 12, 256, 64).to(device, dtype) for _ in range(3))

    def run() -> Tensor:
        return scaled_dot_product_attention(q, k, v)

    return Job(run, run())


# -- files, post-training, search ------------------------------------------------------------


@row("save and load")
def save_and_load(device: str) -> Job:
    import chop.passes as passes
    from chop import MaseGraph

    model, inputs = small_bert()
    graph = passes.quantize_transform_pass(captured(model, inputs), LINEAR)[0]
    folder = scratch()

    def run() -> Any:
        graph.export(folder / "graph")
        return MaseGraph.from_checkpoint(folder / "graph")

    with torch.no_grad():
        return Job(run, run().model(**inputs).logits)


@row("GPTQ of a small model")
def gptq(device: str) -> Job:
    import chop.passes as passes
    from chop import MaseGraph

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).eval()
    batches = [torch.randn(64, 64) for _ in range(2)]
    four = {"name": "mxint", "weight_width": 4, "data_in_width": "NA", "bias_width": "NA"}
    rules = {"by": "type", "linear": {"config": four}}
    graph = MaseGraph(model, dummy_in={"input": batches[0]})
    graph = passes.quantize_transform_pass(graph, rules)[0]

    def run() -> Any:
        return passes.gptq_transform_pass(copy.deepcopy(graph), {"data": batches})[0]

    with torch.no_grad():
        return Job(run, run().model(batches[0]))


@row(f"search, {TRIALS} trials")
def search_overhead(device: str) -> Job:
    from chop.search import Choice, Integer, Space, search

    space = Space({f"x{i}": Choice((4, 8, 16)) if i % 2 else Integer(2, 16) for i in range(20)})

    def toy(point: Mapping[str, Any], trial: Any) -> dict[str, float]:
        return {"loss": float(sum(point.values()))}

    def run() -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            found = search(
                space, toy, {"loss": "minimize"}, trials=TRIALS, seed=0,
                storage=Path(folder) / "study.db",
            )  # fmt: skip
        return [trial["values"]["loss"] for trial in found.trials]

    return Job(run, run())


# -- hardware --------------------------------------------------------------------------------


def annotated() -> tuple[Any, Tensor]:
    """Return the graph of the classifier with hardware metadata, and its input."""
    import chop.passes as passes

    graph, x = mlp()
    return passes.add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 4})[0], x


def emitted(graph: Any, x: Tensor, folder: Path) -> str:
    """Emit the RTL with test vectors; return a digest of the emitted SystemVerilog."""
    import chop.passes as passes

    args = {"project_dir": folder}
    passes.emit_verilog_top_transform_pass(graph, args)
    passes.emit_internal_rtl_transform_pass(graph, args)
    passes.emit_bram_transform_pass(graph, args)
    passes.emit_cocotb_transform_pass(graph, {**args, "inputs": x})
    texts = [file.read_bytes() for file in sorted(folder.rglob("*.sv"))]
    return hashlib.sha256(b"".join(texts)).hexdigest() if texts else ""


@row("lower and cycle model")
def cycle_model(device: str) -> Job:
    from chop.hw.lower import Parallelism, lower
    from chop.hw.timing.cycles import NO_STALLS, simulate_control

    graph, _ = mlp()

    def run() -> Any:
        return simulate_control(lower(graph, Parallelism(4)).design, 64, NO_STALLS)

    return Job(run, [run().cycles])


@row("emit RTL")
def emit(device: str) -> Job:
    graph, x = annotated()
    folder = scratch()
    return Job(lambda: emitted(graph, x, folder), emitted(graph, x, folder))


@row("Verilator run", needs=("g++",))
def verilator(device: str) -> Job:
    from chop.actions import simulate

    graph, x = annotated()
    folder = scratch()
    emitted(graph, x, folder)
    simulate(folder, skip_test=True)

    def run() -> Any:
        return simulate(folder, skip_build=True)

    return Job(run, [run().cycles])


# -- processes -------------------------------------------------------------------------------


@row("mase --help")
def mase_help(device: str) -> Job:
    return command("-m", "mase", "--help")


@row("import chop")
def import_chop(device: str) -> Job:
    return command("-c", "import chop; print(chop.MaseGraph.__name__)")


def command(*words: str) -> Job:
    """Return a job that runs Python with `words`; its value is that it succeeds and prints."""

    def run() -> bool:
        done = subprocess.run([sys.executable, *words], capture_output=True, check=True)
        return bool(done.stdout)

    return Job(run, [float(run())])


MEMORY = """
import pathlib, sys
sys.path.append({folder!r})
import guard_rows
import chop.passes as passes
guard_rows.captured(*guard_rows.small_bert())
model, inputs = guard_rows.bert()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
graph = guard_rows.captured(model, inputs)
graph = passes.quantize_transform_pass(graph, guard_rows.MXINT)[0]
passes.pack_weights_transform_pass(graph)
print(int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024)
"""
MXINT = {"by": "type", "linear": {"config": {"name": "mxint"}}}


@row("peak memory: capture, quantise, pack", unit="MiB")
def peak_memory(device: str) -> Job:
    program = MEMORY.format(folder=str(Path(__file__).parent))

    def amount() -> float:
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, capture_output=True, check=True, text=True)
        return float(done.stdout.split()[-1])

    return Job(None, None, amount)


# -- the worker ------------------------------------------------------------------------------

_folders: list[Path] = []


def scratch() -> Path:
    """Return a folder that is removed when the worker ends."""
    _folders.append(Path(tempfile.mkdtemp(prefix="mase_guard_")))
    return _folders[-1]


def digest(value: Any) -> str:
    """Return a digest of a value; raise `WrongResultError` if it is zero or not finite."""
    if isinstance(value, str) and value:
        return value
    if not is_sound(value):
        raise WrongResultError("the result is zero or not finite")
    found = hashlib.sha256()
    for tensor in _tensors(value):
        found.update(str(tuple(tensor.shape)).encode() + tensor.cpu().double().numpy().tobytes())
    return found.hexdigest()[:16]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    else:
        yield value.detach() if isinstance(value, Tensor) else torch.tensor(value)


def work(name: str, device: str) -> None:
    """Prepare a row, then measure once for each line on the standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the code prints is no answer
    import chop

    job = ROWS[name].make(device)
    value = None if job.value is None else digest(job.value)
    measure = job.measure()
    print(json.dumps({"value": value, "source": chop.__file__}), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure()), file=answers, flush=True)


if __name__ == "__main__":
    try:
        work(*sys.argv[1:])
    finally:
        for folder in _folders:
            shutil.rmtree(folder, ignore_errors=True)
