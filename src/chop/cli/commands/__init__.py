"""The commands of `mase`.

To add a command `name`, add a row to `SUMMARIES` and a module `name.py` with three parts:
`NameConfig`, a frozen dataclass of its options, each with its help; `EXAMPLES` of command lines;
`run(config, session)`, which returns the record of the run. `mase name --help` imports the module,
so it imports torch inside `run`, unless its options are the arguments of a pass.
"""

from __future__ import annotations

import importlib
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from chop.registry import Registry

SUMMARIES = {
    "trace": "Capture a model as an annotated graph: summary, picture, checkpoint.",
    "report": "Write one HTML page: the graph, before and after, searches, hardware.",
    "compare": "Compare saved reports: accuracy, bytes, bits, latency, cycles, area, clock.",
    "quantize": "Quantise a model, after training or while training.",
    "prune": "Set the least important weights to zero, or remove channels and heads.",
    "lora": "Train low-rank adapters beside frozen layers, and fuse them.",
    "train": "Train a model on a dataset; resume after an interruption.",
    "eval": "Evaluate a model on the test rows of a dataset.",
    "generate": "Generate text from a prompt: tokens/s, memory, quantised KV cache.",
    "chat": "Talk to a language model in the terminal.",
    "serve": "Serve a language model: OpenAI's API, batched decoding, a chat page.",
    "explain": "Find the layers and operands that make a quantised model worse.",
    "sweep": "Compress a model at many values and draw the accuracy.",
    "search": "Search the formats and sparsities that cost least at the same accuracy.",
    "pass": "Run any pass on a model, also one of your own.",
    "compile": "Run a model through torch.compile: graph breaks, latency before and after.",
    "bench": "Compare models: accuracy or perplexity, bytes, bits, latency.",
    "export": "Write a model for onnxruntime, llama.cpp, transformers or QONNX.",
    "import": "Read a GGUF, ONNX or compressed-tensors model as a graph.",
    "emit": "Write the SystemVerilog of a quantised model, with its test bench.",
    "simulate": "Simulate emitted hardware and compare every bit with the model.",
    "synth": "Measure the area of emitted hardware on a device family.",
    "hw": "Build a quantised model for an FPGA: simulation, routed clock, bitstream.",
    "prove": "Prove the laws of hardware components for all inputs at all times.",
    "shard": "Plan how to split a model over devices, and check the plan.",
    "journey": "Run all steps on a model: capture, quantise, measure, pack, export; one table.",
    "demo": "Run the whole system on handwritten digits: two minutes, no network.",
    "list": "List registered names: formats, passes, datasets, models, sweeps, samplers …",
    "studies": "List searches below out/: trials, best values; a dashboard in the browser.",
    "clean": "Delete the results of commands, after listing them and asking.",
    "doctor": "Show what is installed, what works here, and what to install for the rest.",
    "completion": "Print a script that completes commands and options in bash, zsh or fish.",
}
"""Command -> its line in `mase --help`."""
TRAILING = ("compile", "eval", "import", "list", "pass")
"""Commands named by a word of Python: their modules end in an underscore."""


@dataclass(frozen=True)
class Command:
    """One command; its module is imported when one of its parts is read."""

    name: str
    summary: str

    @property
    def function_name(self) -> str:
        """Name of the command as a Python function: keywords end in an underscore."""
        return f"{self.name}_" if keyword.iskeyword(self.name) else self.name

    @property
    def module(self) -> ModuleType:
        """Module of the command."""
        stem = f"{self.name}_" if self.name in TRAILING else self.name
        return importlib.import_module(f"{__name__}.{stem}")

    @property
    def config(self) -> type:
        """Dataclass of its options."""
        options: type = getattr(self.module, f"{self.name.capitalize()}Config")
        return options

    @property
    def run(self) -> Callable[..., Mapping[str, Any]]:
        """Function that runs it: `run(config, session)`."""
        function: Callable[..., Mapping[str, Any]] = self.module.run
        return function

    @property
    def examples(self) -> tuple[str, ...]:
        """Command lines that use it."""
        lines: tuple[str, ...] = self.module.EXAMPLES
        return lines


COMMANDS: Registry[Command] = Registry("command")
for _name, _summary in SUMMARIES.items():
    COMMANDS.register(_name, Command(_name, _summary))
